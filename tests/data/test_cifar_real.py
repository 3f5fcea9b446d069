"""The real CIFAR-10, if it is available, has the published statistics."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from regrow.data import Batches, load

REAL = os.environ.get("REGROW_DATA", "")

pytestmark = pytest.mark.skipif(
    not (Path(REAL) / "cifar10").is_dir(), reason="REGROW_DATA does not name a directory with cifar10/"
)


@pytest.fixture
def test_images(monkeypatch):
    monkeypatch.setenv("REGROW_DATA", REAL)
    return load("cifar10", "test")


def test_the_real_test_images_are_balanced_and_have_the_known_mean(test_images):
    assert test_images.images.shape == (10_000, 3, 32, 32)
    assert torch.bincount(test_images.labels).tolist() == [1000] * 10
    assert test_images.classes[3] == "cat"
    x = torch.cat([x for x, _ in Batches.evaluation(test_images, 1000)])
    assert x.mean((0, 2, 3)).abs().max() < 0.05
    assert (x.std((0, 2, 3)) - 1).abs().max() < 0.05


@pytest.mark.slow
def test_the_real_training_images_are_balanced_and_differ_from_the_test_images(monkeypatch, test_images):
    train = load("cifar10", "train")
    assert torch.bincount(train.labels).tolist() == [5000] * 10
    seen = {image.numpy().tobytes() for image in train.images}
    shared = sum(image.numpy().tobytes() in seen for image in test_images.images)
    # The published data contains a few near-duplicates.
    assert shared < 50
