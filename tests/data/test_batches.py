"""Batches are the same from any start, on any number of processes, and in every rerun."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.data import Batches, DatasetInfo, ImageSet, load
from regrow.data.random import Stream, below, coins, words

seeds = st.integers(0, 2**64 - 1)


def numbered(count: int, *, pad: int = 2, flip: bool = True) -> ImageSet:
    """A set of random images whose labels are their indices, so that batches show which images they contain."""
    info = DatasetInfo(
        name="numbered",
        title="Numbered",
        channels=3,
        size=6,
        classes=count,
        train=count,
        test=count,
        mean=(0.5, 0.4, 0.3),
        std=(0.25, 0.3, 0.2),
        pad=pad,
        flip=flip,
        source="Made by a test",
    )
    images = torch.randint(1, 256, (count, 3, 6, 6), generator=torch.Generator().manual_seed(count)).byte()
    return ImageSet(info=info, images=images, labels=torch.arange(count), classes=tuple(map(str, range(count))))


def plain(images: ImageSet) -> torch.Tensor:
    mean = torch.tensor(images.info.mean).view(-1, 1, 1)
    std = torch.tensor(images.info.std).view(-1, 1, 1)
    return (images.images / 255 - mean) / std


@given(count=st.integers(1, 60), size=st.integers(1, 70), seed=seeds, epoch=st.integers(0, 2**40))
def test_an_epoch_shows_every_image_exactly_once(count, size, seed, epoch):
    batches = list(Batches(numbered(count), size, seed=seed).epoch(epoch))
    assert sorted(int(label) for _, y in batches for label in y) == list(range(count))
    assert [len(y) for _, y in batches[:-1]] == [size] * (len(batches) - 1)


@given(count=st.integers(2, 60), size=st.integers(1, 20), seed=seeds, epoch=st.integers(0, 1000), data=st.data())
def test_an_epoch_started_in_its_middle_continues_bit_for_bit(count, size, seed, epoch, data):
    batches = Batches(numbered(count), size, seed=seed)
    start = data.draw(st.integers(0, len(batches)))
    whole = list(batches.epoch(epoch))
    rest = list(batches.epoch(epoch, start))
    assert len(whole) == len(batches)
    assert len(rest) == len(batches) - start
    for (x, y), (again, labels) in zip(whole[start:], rest, strict=True):
        assert torch.equal(x, again)
        assert torch.equal(y, labels)


@given(world=st.integers(1, 5), per_rank=st.integers(1, 6), count=st.integers(30, 60), seed=seeds)
def test_the_parts_of_all_processes_are_the_batch_of_a_single_process(world, per_rank, count, seed):
    images = numbered(count)
    size = world * per_rank
    whole = Batches(images, size, seed=seed, drop_last=True)
    ranks = [Batches(images, size, seed=seed, drop_last=True, rank=r, world=world) for r in range(world)]
    for (x, y), *parts in zip(whole.epoch(3), *(rank.epoch(3) for rank in ranks), strict=True):
        labels = torch.cat([part for _, part in parts])
        order = labels.argsort()
        assert torch.equal(labels[order], y.sort().values)
        assert torch.equal(torch.cat([part for part, _ in parts])[order], x[y.argsort()])


@given(count=st.integers(8, 40), seed=seeds, sizes=st.tuples(st.integers(1, 40), st.integers(1, 40)))
def test_augmentation_of_an_image_does_not_depend_on_its_batch(count, seed, sizes):
    def by_label(size: int) -> torch.Tensor:
        pairs = list(Batches(numbered(count), size, seed=seed).epoch(1))
        labels = torch.cat([y for _, y in pairs])
        return torch.cat([x for x, _ in pairs])[labels.argsort()]

    assert torch.equal(by_label(sizes[0]), by_label(sizes[1]))


def test_the_global_random_state_neither_changes_the_batches_nor_is_changed_by_them():
    batches = Batches(numbered(50), 16, seed=1)
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state()
    first = [x for x, _ in batches.epoch(0)]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    np.random.seed(1)
    assert all(torch.equal(a, b) for a, (b, _) in zip(first, batches.epoch(0), strict=True))


def test_epochs_and_seeds_differ_in_order_and_in_augmentation():
    images = numbered(200)

    def visit(seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        (pair,) = Batches(images, 200, seed=seed).epoch(epoch)
        return pair

    x, y = visit(0, 0)
    for other, labels in (visit(0, 1), visit(1, 0)):
        assert not torch.equal(y, labels)
        assert not torch.equal(x[y.argsort()], other[labels.argsort()])


@given(pad=st.integers(0, 4), flip=st.booleans(), seed=seeds)
@settings(max_examples=30)
def test_an_augmented_image_is_a_crop_of_the_padded_image_or_its_mirror(pad, flip, seed):
    images = numbered(12, pad=pad, flip=flip)
    (pair,) = images.fetch([np.arange(12)], augmentation=None)
    assert torch.equal(pair[0], images.images)
    ((x, y),) = Batches(images, 12, seed=seed).epoch(0)
    padded = torch.nn.functional.pad(images.images, (pad,) * 4)
    for image, label in zip(x, y, strict=True):
        crops = padded[label].unfold(1, 6, 1).unfold(2, 6, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
        candidates = torch.cat([crops, crops.flip(3)]) if flip else crops
        mean = torch.tensor(images.info.mean).view(-1, 1, 1)
        std = torch.tensor(images.info.std).view(-1, 1, 1)
        distances = ((candidates / 255 - mean) / std - image).abs().amax(dim=(1, 2, 3))
        assert distances.min() < 1e-5


def test_every_crop_offset_and_both_mirror_images_are_equally_likely():
    images = numbered(20_000, pad=1)
    # One white pixel, in the middle row and the last but one column, shows how the image was moved.
    images.images.zero_()
    images.images[:, :, 3, 4] = 255
    ((x, _),) = Batches(images, 20_000).epoch(0)
    position = (x[:, 0] > 0).flatten(1).int().argmax(1)
    counts = torch.bincount(position, minlength=36)
    expected = [row * 6 + column for row in (2, 3, 4) for column in (0, 1, 2, 3, 4, 5)]
    assert counts[expected].sum() == 20_000
    # 18 cells: 3 rows x 3 columns x mirrored or not, of 1,111 images each with a standard deviation of 32.
    assert (counts[expected] - 20_000 / 18).abs().max() < 5 * 32


def test_evaluation_neither_changes_nor_reorders_the_images():
    images = numbered(23)
    pairs = list(Batches.evaluation(images, 10))
    assert torch.equal(torch.cat([y for _, y in pairs]), torch.arange(23))
    torch.testing.assert_close(torch.cat([x for x, _ in pairs]), plain(images), rtol=0, atol=1e-5)


def test_images_have_the_requested_type_and_memory_format():
    images = numbered(8)
    (reference,) = Batches(images, 8)
    (pair,) = Batches(images, 8, dtype=torch.bfloat16, channels_last=True)
    assert pair[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(pair[0], reference[0].bfloat16())
    assert reference[0].dtype == torch.float32
    assert reference[0].is_contiguous()


def test_the_batches_of_a_seed_stay_the_same_from_release_to_release():
    _, y = next(Batches(load("digits"), 8, seed=3).epoch(2))
    assert y.tolist() == [6, 4, 5, 4, 4, 5, 4, 8]
    draws = words(3, 2, Stream.AUGMENT, 4)
    assert below(draws, 9).tolist() == [4, 5, 0, 5]
    assert below(draws, 9, shift=24).tolist() == [3, 3, 1, 3]
    assert coins(draws).tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 8, "rank": 2, "world": 2}, "rank must be in"),
        ({"batch_size": 11, "drop_last": True}, "not enough for a batch of 11"),
        ({"batch_size": 9, "world": 2}, "a batch of 1 images cannot be split among 2 processes"),
        ({"batch_size": 8, "seed": -1}, "seed must be in"),
    ],
)
def test_impossible_batches_are_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        Batches(numbered(10), **options)


def test_a_start_after_the_end_is_refused_at_once():
    with pytest.raises(ValueError, match=r"start must be in \[0, 2\].*got 3"):
        Batches(numbered(10), 5).epoch(0, 3)


def test_images_in_another_memory_format_give_the_same_batches():
    images = numbered(20)
    other = ImageSet(
        info=images.info,
        images=images.images.contiguous(memory_format=torch.channels_last),
        labels=images.labels,
        classes=images.classes,
    )
    for (x, _), (again, _) in zip(Batches(images, 8).epoch(0), Batches(other, 8).epoch(0), strict=True):
        assert torch.equal(x, again)
