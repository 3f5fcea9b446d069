"""ImageNet as folders and as shards: order, evaluation, workers, damaged files."""

from __future__ import annotations

import io
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regrow.data import Batches, DataError, ImageStream, load
from regrow.data.imagenet import ParquetReader
from regrow.data.random import Stream, words
from regrow.data.stream import WINDOW, central_box, random_box


def jpeg(width: int, height: int, seed: int) -> bytes:
    """A smooth picture, so that scaling and compression keep it recognizable."""
    corners = np.random.default_rng(seed).integers(0, 256, (3, 3, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(corners).resize((width, height), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def write_folders(folder: Path) -> None:
    """One small image in each of a thousand classes, and two more in the second."""
    for i in range(1000):
        path = folder / f"n{i:08}"
        path.mkdir(parents=True)
        (path / "a.JPEG").write_bytes(jpeg(8 + i % 5, 8 + i % 7, i))
    (folder / "n00000001/b.jpg").write_bytes(jpeg(20, 10, 1001))
    (folder / "n00000001/c.png").write_bytes(jpeg(10, 20, 1002))
    (folder / "n00000001/notes.txt").write_text("not an image")


def write_shards(folder: Path, *, rows: int = 60, group: int = 3, part: str = "train") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for shard in range(2):
        cells = [{"bytes": jpeg(9, 11, shard * rows + i), "path": None} for i in range(rows)]
        labels = [shard * rows + i for i in range(rows)]
        table = pa.table({"image": pa.array(cells, struct), "label": labels})
        pq.write_table(table, folder / f"{part}-{shard:05}-of-00002.parquet", row_group_size=group)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("folders")
    write_folders(root / "imagenet/train")
    return root


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("shards")
    write_shards(root / "imagenet/data")
    return root


@pytest.fixture(scope="module")
def stream(shards: Path) -> ImageStream:
    return load("imagenet", "train", root=shards, workers=0)


def epoch(stream: ImageStream, size: int, **options: int) -> dict[int, torch.Tensor]:
    return {int(y): x for xs, ys in Batches(stream, size, **options).epoch(2) for x, y in zip(xs, ys, strict=True)}


def test_folders_are_classes_in_the_order_of_their_names(folders):
    train = load("imagenet", "train", root=folders, workers=0)
    assert len(train) == 1002
    assert train.labels.tolist() == [0, 1, 1, 1, *range(2, 1000)]
    assert train.classes[999] == "n00000999"


def test_evaluation_shows_the_middle_of_each_image_scaled_to_size(folders):
    train = load("imagenet", "train", root=folders, workers=0)
    ((x, y),) = train.fetch([np.array([2])], augmentation=None)
    assert y.tolist() == [1]
    with Image.open(folders / "imagenet/train/n00000001/b.jpg") as picture:
        # 20 x 10 pixels: the shorter side scaled to 256, the central 224 of both.
        reference = picture.resize((512, 256), Image.Resampling.BILINEAR).crop((144, 16, 368, 240))
    difference = x[0].permute(1, 2, 0).float() - torch.from_numpy(np.array(reference)).float()
    assert x.shape == (1, 3, 224, 224)
    assert difference.abs().mean() < 1


def test_rows_of_all_shards_are_the_data_set(shards):
    train = load("imagenet", "train", root=shards, workers=0)
    assert train.labels.tolist() == list(range(120))
    pixels, labels = next(iter(Batches.evaluation(train, 2)))
    assert labels.tolist() == [0, 1]
    assert pixels.shape == (2, 3, 224, 224)


def test_the_test_split_has_the_validation_images_and_not_the_unlabeled_ones_of_the_hub(tmp_path):
    write_shards(tmp_path / "imagenet", rows=3, part="test")
    with pytest.raises(DataError, match="ImageNet was not found"):
        load("imagenet", "test", root=tmp_path)
    write_shards(tmp_path / "imagenet", rows=4, part="validation")
    assert len(load("imagenet", "test", root=tmp_path)) == 8


@pytest.mark.parametrize("kind", ["folders", "shards"])
def test_augmentation_depends_neither_on_workers_nor_batches_nor_processes(kind, request):
    train = load("imagenet", "train", root=request.getfixturevalue(kind), limit=24, workers=0)
    reference = epoch(train, 24)
    others = [
        epoch(load("imagenet", "train", root=request.getfixturevalue(kind), limit=24, workers=2), 5),
        epoch(train, 8, rank=0, world=2) | epoch(train, 8, rank=1, world=2),
    ]
    for other in others:
        assert other.keys() == reference.keys()
        assert all(torch.equal(other[label], reference[label]) for label in reference)


def test_an_epoch_started_in_its_middle_continues_with_the_same_images(shards):
    batches = Batches(load("imagenet", "train", root=shards, workers=0), 50, seed=5)
    whole, rest = list(batches.epoch(1)), list(batches.epoch(1, start=2))
    assert len(rest) == 1
    assert torch.equal(rest[0][0], whole[2][0])
    assert torch.equal(rest[0][1], whole[2][1])


def test_another_epoch_shows_other_parts_of_the_images_in_another_order(folders):
    batches = Batches(load("imagenet", root=folders, limit=20, workers=0), 20)
    (x, y), (again, labels) = next(batches.epoch(0)), next(batches.epoch(1))
    assert y.tolist() != labels.tolist()
    assert not torch.equal(x[y.argsort()], again[labels.argsort()])


def test_the_global_random_state_does_not_change(folders):
    before = torch.get_rng_state()
    for workers in (0, 1):
        list(Batches(load("imagenet", root=folders, limit=4, workers=workers), 2).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


@given(seed=st.integers(0, 2**64 - 1), number=st.integers(0, 100))
def test_an_epoch_over_shards_is_a_permutation_that_mixes_a_window_of_row_groups_at_a_time(stream, seed, number):
    order = stream.order(seed, number)
    assert sorted(order) == list(range(120))
    for start in range(0, 120, 3 * WINDOW):
        groups = set(stream.reader.blocks[order[start : start + 3 * WINDOW]].tolist())
        assert len(groups) <= WINDOW


def test_each_row_group_is_read_once_in_an_epoch(shards, monkeypatch):
    loads: list[int] = []

    class Counting(ParquetReader):
        def _load(self, block: int) -> list[bytes | None]:
            loads.append(block)
            return super()._load(block)

    monkeypatch.setattr("regrow.data.imagenet.ParquetReader", Counting)
    train = load("imagenet", "train", root=shards, workers=0)
    # Batches that do not straddle windows of 16 groups of 3 images.
    list(Batches(train, 3 * WINDOW, augment=False).epoch(0))
    assert sorted(loads) == list(range(40))


def test_a_held_out_part_is_not_in_the_rest(shards):
    rest, held = load("imagenet", root=shards, workers=0).split(20, seed=3)
    assert (len(rest), len(held)) == (100, 20)
    assert not set(rest.labels.tolist()) & set(held.labels.tolist())
    assert epoch(held, 20).keys() == set(held.labels.tolist())


@given(width=st.integers(1, 3000), height=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1))
def test_a_random_part_lies_within_the_image(width, height, seed):
    left, top, right, bottom = random_box(width, height, words(seed, 0, Stream.AUGMENT, 40))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_random_parts_of_ordinary_images_have_the_areas_and_shapes_of_the_literature():
    boxes = np.array([random_box(500, 375, words(i, 0, Stream.AUGMENT, 40)) for i in range(4000)])
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = w * h / (500 * 375), w / h
    assert area.min() == pytest.approx(0.08, abs=0.005)
    # Large parts often do not fit and are drawn again, so the mean is 43 %, not (8 + 100) / 2 = 54 %.
    assert area.mean() == pytest.approx(0.43, abs=0.02)
    assert ratio.min() == pytest.approx(3 / 4, abs=0.03)
    assert ratio.max() == pytest.approx(4 / 3, abs=0.03)
    assert boxes[:, 0].min() == 0
    assert boxes[:, 2].max() == 500


def test_the_central_part_is_seven_eighths_of_the_shorter_side():
    assert central_box(512, 256) == (144, 16, 368, 240)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_cannot_be_decoded_is_named_even_by_a_worker(tmp_path, workers):
    write_folders(tmp_path / "imagenet/train")
    broken = tmp_path / "imagenet/train/n00000005/a.JPEG"
    broken.write_bytes(broken.read_bytes()[:100])
    train = load("imagenet", "train", root=tmp_path, workers=workers)
    with pytest.raises(DataError, match=r"n00000005/a.JPEG: cannot be decoded \(.*\)\. Ask for access") as caught:
        list(train.fetch([np.arange(10)], augmentation=None))
    # The traceback refers to the loader: if only the garbage collector stopped the workers, they would still run.
    assert caught.value
    assert not active_children()


def test_an_abandoned_epoch_leaves_no_worker(folders):
    batches = Batches(load("imagenet", root=folders, limit=24, workers=2), 4).epoch(0)
    assert not active_children()
    next(batches)
    assert len(active_children()) == 2
    batches.close()
    assert not active_children()


def test_no_worker_without_a_batch_is_started(folders):
    pairs = load("imagenet", root=folders, limit=4, workers=2).fetch([np.arange(4)], augmentation=None)
    next(pairs)
    assert len(active_children()) == 1
    pairs.close()


def test_a_row_that_cannot_be_decoded_is_named_by_its_place(tmp_path):
    (tmp_path / "imagenet").mkdir()
    table = pa.table({"image": [{"bytes": jpeg(9, 9, 0)}, {"bytes": b"no image"}], "label": [0, 1]})
    pq.write_table(table, tmp_path / "imagenet/train.parquet", row_group_size=1)
    train = load("imagenet", "train", root=tmp_path, workers=0)
    with pytest.raises(DataError, match=r"train.parquet: row group 1, row 0: cannot be decoded"):
        list(train.fetch([np.arange(2)], augmentation=None))


def test_missing_classes_images_and_files_are_named(tmp_path):
    write_folders(tmp_path / "imagenet/train")
    train = load("imagenet", "train", root=tmp_path, workers=0)
    image = tmp_path / "imagenet/train/n00000007/a.JPEG"
    image.unlink()
    with pytest.raises(DataError, match=r"n00000007/a.JPEG: cannot be read \(No such file or directory\)"):
        list(train.fetch([np.array([9])], augmentation=None))
    with pytest.raises(DataError, match="n00000007: holds no image"):
        load("imagenet", "train", root=tmp_path)
    image.parent.rmdir()
    with pytest.raises(DataError, match="train: has 999 class folders where ImageNet has 1000"):
        load("imagenet", "train", root=tmp_path)


def test_labels_out_of_range_and_truncated_shards_are_named(tmp_path):
    (tmp_path / "imagenet").mkdir()
    path = tmp_path / "imagenet/validation.parquet"
    pq.write_table(pa.table({"image": [{"bytes": b""}], "label": [-1]}), path)
    with pytest.raises(DataError, match=r"validation.parquet: labels must be in \[0, 1000\), got -1 to -1"):
        load("imagenet", "test", root=tmp_path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"validation.parquet: is not a readable parquet file"):
        load("imagenet", "test", root=tmp_path)


def test_a_negative_number_of_workers_is_refused(folders):
    with pytest.raises(ValueError, match="workers must be 0"):
        load("imagenet", root=folders, workers=-1)
