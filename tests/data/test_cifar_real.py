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
def published_test_set(monkeypatch):
    monkeypatch.setenv("REGROW_DATA", REAL)
    return load("cifar10", "test")


def test_the_real_test_images_are_balanced_and_have_the_known_mean(published_test_set):
    assert published_test_set.images.shape == (10_000, 3, 32, 32)
    assert torch.bincount(published_test_set.labels).tolist() == [1000] * 10
    assert published_test_set.classes[3] == "cat"
    x = torch.cat([x for x, _ in Batches.evaluation(published_test_set, 1000)])
    assert x.mean((0, 2, 3)).abs().max() < 0.05
    assert (x.std((0, 2, 3)) - 1).abs().max() < 0.05


@pytest.mark.slow
def test_the_real_training_images_are_balanced_and_differ_from_the_test_images(monkeypatch, published_test_set):
    train = load("cifar10", "train")
    assert torch.bincount(train.labels).tolist() == [5000] * 10
    seen = {image.numpy().tobytes() for image in train.images}
    shared = sum(image.numpy().tobytes() in seen for image in published_test_set.images)
    # The published data contains a few near-duplicates.
    assert shared < 50
