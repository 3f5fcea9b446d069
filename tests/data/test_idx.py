"""Fashion-MNIST and MNIST in idx files, whole and damaged."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regrow.data import DataError, info, load
from regrow.data.mnist import read_idx

DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_fashion(folder: Path, count: int = 5, *, compress: bool = True) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
    labels = np.arange(count, dtype=np.uint8) % 10
    for part in ("train", "t10k"):
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx(array)
            path = folder / f"{part}-{name}-ubyte{'.gz' if compress else ''}"
            path.write_bytes(gzip.compress(content) if compress else content)
    return images


@pytest.mark.parametrize("compress", [True, False])
def test_fashion_mnist_is_read_as_it_was_written(tmp_path, compress):
    images = write_fashion(tmp_path / "fashion-mnist", compress=compress)
    for split in ("train", "test"):
        loaded = load("fashion-mnist", split, root=tmp_path)
        assert torch.equal(loaded.images, torch.from_numpy(images[:, None]))
        assert loaded.labels.tolist() == [0, 1, 2, 3, 4]
        assert loaded.classes[1] == "Trouser"


def test_mnist_is_read_from_idx_files_which_may_have_only_a_part_of_the_images(tmp_path):
    images = write_fashion(tmp_path / "mnist", 12)
    loaded = load("mnist", "test", root=tmp_path)
    assert torch.equal(loaded.images, torch.from_numpy(images[:, None]))
    assert [loaded.classes[label] for label in loaded.labels[-3:]] == ["9", "0", "1"]
    with pytest.raises(DataError, match=r"MNIST was not found .* Put the four idx files of MNIST"):
        load("mnist", root=tmp_path / "mnist")


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_the_real_fashion_mnist_is_balanced_and_has_the_stated_mean_and_deviation():
    train = load("fashion-mnist", "train", download=False)
    assert torch.bincount(train.labels).tolist() == [6000] * 10
    pixels = train.images.float() / 255
    assert pixels.mean().item() == pytest.approx(info("fashion-mnist").mean[0], abs=5e-4)
    assert pixels.std().item() == pytest.approx(info("fashion-mnist").std[0], abs=5e-4)


def test_a_missing_file_is_named_with_its_source(tmp_path):
    write_fashion(tmp_path / "fashion-mnist")
    (tmp_path / "fashion-mnist/train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.gz: is missing\. Install Debian's package"):
        load("fashion-mnist", root=tmp_path)
    (tmp_path / "data").mkdir()
    with pytest.raises(DataError, match=r"Fashion-MNIST was not found \(looked in .*data/fashion-mnist\)\. Install"):
        load("fashion-mnist", root=tmp_path / "data")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an idx file of bytes in 1 dimensions"),
        (b"\0\0\x0d\1" + bytes(8), "is not an idx file of bytes in 1 dimensions"),
        (b"\0\0\x08\1\0\0", "ends within its header, after 6 bytes"),
        (idx(np.zeros(5, np.uint8))[:-1], r"has 4 bytes, but its shape \(5,\) needs 5"),
        (idx(np.zeros(5, np.uint8)) + b"x", r"has at least 6 bytes, but its shape \(5,\) needs 5"),
        (b"\0\0\x08\1\xff\xff\xff\xff", r"claims the impossible shape \(4294967295,\)"),
        (idx(np.full(5, 10, np.uint8)), r"labels of fashion-mnist must be in \[0, 10\), got values from 10 to 10"),
        (idx(np.zeros(4, np.uint8)), r"labels of fashion-mnist must be int64 of shape \(5,\)"),
    ],
)
def test_errors_name_the_file_and_the_problem(tmp_path, content, message):
    write_fashion(tmp_path / "fashion-mnist", compress=False)
    (tmp_path / "fashion-mnist/t10k-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=rf"t10k-(labels-idx1-ubyte|\*): {message}.*\. Install Debian"):
        load("fashion-mnist", "test", root=tmp_path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), compress=st.booleans())
def test_a_damaged_file_is_read_or_raises_data_error(tmp_path, data, compress):
    content = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
    content = bytearray(gzip.compress(content, mtime=0) if compress else content)
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    path = tmp_path / ("x.gz" if compress else "x")
    path.write_bytes(content)
    try:
        array = read_idx(path, 3, most=10**6)
    except DataError:
        return
    assert array.dtype == np.uint8
    assert array.ndim == 3
