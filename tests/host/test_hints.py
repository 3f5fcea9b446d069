"""Names that were meant."""

from __future__ import annotations

import pytest

from regrow.host.hints import did_you_mean, nearest

NETWORKS = ("densenet40", "resnet20", "resnet32", "vgg16")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("resnet2O", "resnet20"), ("RESNET32", "resnet32"), ("vgg61", "vgg16"), ("dense-net40", "densenet40")],
)
def test_the_nearest_name_is_found(typed: str, meant: str) -> None:
    assert nearest(typed, NETWORKS) == meant
    assert did_you_mean(typed, NETWORKS) == f" Did you mean '{meant}'?"


@pytest.mark.parametrize(("typed", "known"), [("zzz", NETWORKS), ("resnet20", ())])
def test_where_nothing_is_near_nothing_is_said(typed: str, known: tuple[str, ...]) -> None:
    assert nearest(typed, known) is None
    assert did_you_mean(typed, known) == ""


def test_the_cutoff_is_kept() -> None:
    assert nearest("vgg", NETWORKS, cutoff=0.7) == "vgg16"
    assert nearest("vgg", NETWORKS, cutoff=0.8) is None
