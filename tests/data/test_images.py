"""Data sets in memory: digits, held-out parts and invalid arguments."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regrow.data import Batches, DataError, info, load, names


def test_digits_need_no_file_and_keep_the_documented_split():
    train, test = load("digits", "train"), load("digits", "test")
    assert (len(train), len(test)) == (1297, 500)
    assert train.images.shape == (1297, 1, 8, 8)
    counts = torch.bincount(torch.cat([train.labels, test.labels]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    # The first digit of UCI's file is a zero: dark in the middle, its pixels multiples of 15.
    assert train.labels[0] == 0
    assert train.images[0, 0, 0].tolist() == [0, 0, 75, 195, 135, 15, 0, 0]


def test_the_mean_and_deviation_of_digits_are_those_of_its_training_images():
    pixels = load("digits").images.double() / 255
    assert pixels.mean().item() == pytest.approx(info("digits").mean[0], abs=5e-5)
    assert pixels.std(correction=0).item() == pytest.approx(info("digits").std[0], abs=5e-5)


@given(holdout=st.integers(1, 1296), seed=st.integers(0, 2**64 - 1))
def test_a_held_out_part_and_the_rest_are_the_whole_set(holdout, seed):
    train = load("digits")
    numbers = replace(
        train,
        images=torch.zeros(1297, 1, 8, 8, dtype=torch.uint8),
        labels=torch.arange(1297),
        info=replace(train.info, classes=1297),
        classes=tuple(map(str, range(1297))),
    )
    rest, held = numbers.split(holdout, seed=seed)
    assert len(held) == holdout
    assert sorted(rest.labels.tolist() + held.labels.tolist()) == list(range(1297))


def test_another_seed_holds_out_other_images():
    train = load("digits")
    first, second = train.split(100, seed=0)[1], train.split(100, seed=1)[1]
    assert torch.equal(first.images, train.split(100, seed=0)[1].images)
    assert not torch.equal(first.images, second.images)


@given(count=st.integers(1, 500))
def test_a_limited_set_is_spread_over_the_whole_set(count):
    test = load("digits", "test")
    chosen = test.limit(count)
    assert len(chosen) == count
    assert torch.equal(chosen.images[0], test.images[0])
    assert torch.equal(load("digits", "test", limit=count).images, chosen.images)


def test_impossible_limits_and_holdouts_are_refused():
    train = load("digits")
    with pytest.raises(ValueError, match="limit must be between 1 and the 1,297 images of the set, got 0"):
        load("digits", limit=0)
    with pytest.raises(ValueError, match=r"holdout must be at least 1 .* got 1297"):
        train.split(1297)


def test_a_set_cannot_be_changed_by_assignment():
    with pytest.raises(FrozenInstanceError):
        load("digits").labels = torch.zeros(1)


def test_tensors_that_do_not_fit_the_data_set_are_refused_with_their_shape():
    train = load("digits")
    with pytest.raises(ValueError, match=r"uint8 of shape \(N, 1, 8, 8\), got torch.float32"):
        replace(train, images=train.images.float())
    with pytest.raises(ValueError, match=r"labels of digits must be int64 of shape \(1297,\)"):
        replace(train, labels=train.labels[:-1])
    with pytest.raises(ValueError, match=r"labels of digits must be in \[0, 10\), got values from 1 to 10"):
        replace(train, labels=train.labels + 1)
    with pytest.raises(ValueError, match="10 classes, got 2 class names"):
        replace(train, classes=("cat", "dog"))


def test_taking_images_keeps_their_order():
    train = load("digits")
    chosen = train.take(np.array([5, 0, 5]))
    assert torch.equal(chosen.labels, train.labels[[5, 0, 5]])
    assert torch.equal(chosen.images, train.images[[5, 0, 5]])


def test_every_name_has_facts_that_agree_with_each_other():
    assert "digits" in names()
    for name in names():
        facts = info(name)
        assert facts.name == name
        assert len(facts.mean) == len(facts.std) == facts.channels


def test_the_error_of_an_unknown_name_has_the_nearest_and_all_names():
    with pytest.raises(ValueError, match=r"unknown .* 'CIFAR-10'\. Did you mean 'cifar10'\? Known names: digits, "):
        load("CIFAR-10")
    with pytest.raises(ValueError, match="split must be one of train, test, got 'valid'"):
        load("digits", "valid")


def test_a_data_directory_that_does_not_exist_is_named(monkeypatch, tmp_path):
    with pytest.raises(DataError, match=r"root is '.*nowhere', which is not a directory"):
        load("cifar10", root=tmp_path / "nowhere")
    monkeypatch.setenv("REGROW_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataError, match=r"REGROW_DATA is '.*elsewhere', which is not a directory"):
        load("cifar10")


@pytest.mark.parametrize("name", names())
def test_every_data_set_in_the_table_has_its_own_name(name):
    assert info(name).name == name


def test_listing_data_sets_imports_none_of_them():
    code = "import sys, regrow.data; regrow.data.names(); sys.exit('regrow.data.cifar' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_printed_data_set_is_one_short_line():
    digits = load("digits", "train")
    assert str(digits) == "<ImageSet digits: 1,297 images of 1x8x8, 10 classes>"
    assert len(str(Batches(digits, 64, seed=0))) < 250
