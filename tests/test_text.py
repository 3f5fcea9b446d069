"""Suggestions for misspelled names, and numbers for people."""

from __future__ import annotations

import pytest

from regrow.text import did_you_mean, duration, nearest, quantity

NETWORKS = ("densenet40", "resnet20", "resnet32", "vgg16")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("resnet2O", "resnet20"), ("RESNET32", "resnet32"), ("vgg61", "vgg16"), ("dense-net40", "densenet40")],
)
def test_the_nearest_name_is_found(typed: str, meant: str) -> None:
    assert nearest(typed, NETWORKS) == meant
    assert did_you_mean(typed, NETWORKS) == f" Did you mean '{meant}'?"


@pytest.mark.parametrize(("typed", "known"), [("zzz", NETWORKS), ("resnet20", ())])
def test_without_a_similar_name_there_is_no_suggestion(typed: str, known: tuple[str, ...]) -> None:
    assert nearest(typed, known) is None
    assert did_you_mean(typed, known) == ""


def test_names_below_the_cutoff_are_not_suggested() -> None:
    assert nearest("vgg", NETWORKS, cutoff=0.7) == "vgg16"
    assert nearest("vgg", NETWORKS, cutoff=0.8) is None


def test_letters_in_the_wrong_order_are_recognized() -> None:
    assert nearest("reprot", ("train", "report", "recipes")) == "report"
    assert nearest("dfp", ("dpf", "sfp", "set")) == "dpf"


@pytest.mark.parametrize(("seconds", "text"), [(59.4, "59 s"), (65, "1 m 05 s"), (11_100, "3 h 05 m")])
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(999, "999"), (40_812_544, "40.8 M"), (999_900, "1000 k"), (2e9, "2 G")])
def test_large_numbers_have_three_digits_and_a_unit(number: float, text: str) -> None:
    assert quantity(number) == text
