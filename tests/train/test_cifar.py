"""DPF learns real images."""

import os

import pytest

from regrow.runs.recipe import load_recipe
from regrow.train.run import run

pytestmark = pytest.mark.skipif(
    "REGROW_DATA" not in os.environ, reason="REGROW_DATA does not name a folder with CIFAR-10"
)


def test_dpf_learns_cifar10_from_a_few_thousand_images(tmp_path):
    recipe = load_recipe("cifar-small").changed(epochs=3, limit=4_000, holdout=1_000)
    result = run(recipe, tmp_path / "run")
    assert result["top1"] > 25  # chance is 10
    assert result["sparsity"] == pytest.approx(0.9, abs=1e-3)
    assert result["macs_kept"] < 0.5 * result["macs"]
