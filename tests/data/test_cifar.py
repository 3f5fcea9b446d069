"""CIFAR's original batches: written here opcode by opcode as Python 2 pickled them, since Python 3 no longer does."""

from __future__ import annotations

import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regrow.data import DataError, load
from regrow.data.cifar import read_batch


def string(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value


def integer(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def python2_array(array: np.ndarray) -> bytes:
    rows, columns = array.shape
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + integer(0) + integer(1) + b"\x87R"
    dtype += b"(" + integer(3) + string(b"|") + b"NNN" + integer(-1) + integer(-1) + integer(0) + b"tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + integer(0) + b"\x85" + string(b"b") + b"\x87R"
    shape = integer(rows) + integer(columns) + b"\x86"
    return start + b"(" + integer(1) + shape + dtype + b"\x89" + string(array.tobytes()) + b"tb"


def batch(pixels: np.ndarray, labels: list[int], key: bytes = b"labels") -> bytes:
    numbers = b"](" + b"".join(map(integer, labels)) + b"e"
    names = b"](" + b"".join(string(b"image_%d.png" % i) for i in range(len(labels))) + b"e"
    return (
        b"\x80\x02}("
        + (string(b"batch_label") + string(b"testing batch 1 of 1"))
        + (string(key) + numbers)
        + (string(b"data") + python2_array(pixels.reshape(len(pixels), -1)))
        + (string(b"filenames") + names)
        + b"u."
    )


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)


def write_cifar10(folder: Path) -> np.ndarray:
    """Write five training batches of two images and a test batch of three, and return the training images."""
    folder.mkdir(parents=True)
    pixels = images(13)
    for i in range(5):
        (folder / f"data_batch_{i + 1}").write_bytes(batch(pixels[2 * i : 2 * i + 2], [i, 9 - i]))
    (folder / "test_batch").write_bytes(batch(pixels[10:], [7, 8, 9]))
    return pixels[:10]


def pack(folder: Path, archive: Path) -> None:
    with tarfile.open(archive, "w:gz") as tar:
        # The batches are unordered in the original archive, too.
        for path in sorted(folder.iterdir(), reverse=True):
            tar.add(path, f"{folder.name}/{path.name}")


def test_original_batches_are_read_in_order_from_every_common_folder(tmp_path):
    for place in ("a/cifar10/cifar-10-batches-py", "b/cifar10", "c/cifar-10-batches-py"):
        expected = write_cifar10(tmp_path / place)
        loaded = load("cifar10", "train", root=tmp_path / place[0])
        assert torch.equal(loaded.images, torch.from_numpy(expected))
        assert loaded.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
        assert load("cifar10", "test", root=tmp_path / place[0]).labels.tolist() == [7, 8, 9]


def test_the_original_archive_is_read_without_unpacking_it(tmp_path):
    expected = write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "data/cifar10").mkdir(parents=True)
    pack(tmp_path / "cifar-10-batches-py", tmp_path / "data/cifar10/cifar-10-python.tar.gz")
    loaded = load("cifar10", "train", root=tmp_path / "data")
    assert torch.equal(loaded.images, torch.from_numpy(expected))
    assert loaded.classes[9] == "truck"


def test_cifar100_has_its_fine_labels_and_a_hundred_names(tmp_path):
    folder = tmp_path / "cifar100/cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "test").write_bytes(batch(images(2), [99, 0], key=b"fine_labels"))
    loaded = load("cifar100", "test", root=tmp_path)
    assert [loaded.classes[label] for label in loaded.labels] == ["worm", "apple"]
    assert len(set(loaded.classes)) == 100
    assert list(loaded.classes) == sorted(loaded.classes)


def test_a_missing_batch_is_named(tmp_path):
    write_cifar10(tmp_path / "cifar10")
    (tmp_path / "cifar10/data_batch_3").unlink()
    with pytest.raises(DataError, match=r"data_batch_3: No such file or directory\. Download https"):
        load("cifar10", "train", root=tmp_path)


def test_an_archive_without_a_batch_or_cut_short_is_named(tmp_path):
    folder, archive = tmp_path / "files/cifar-10-batches-py", tmp_path / "cifar10/cifar-10-python.tar.gz"
    write_cifar10(folder)
    (folder / "data_batch_5").unlink()
    archive.parent.mkdir()
    pack(folder, archive)
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz: does not contain data_batch_5\. Delete it"):
        load("cifar10", "train", root=tmp_path)
    archive.write_bytes(archive.read_bytes()[:-5000])
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz: cannot be unpacked"):
        load("cifar10", "train", root=tmp_path)


class Malice:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(Malice(), protocol=2),
        pickle.dumps({b"data": Malice(), b"labels": [0]}, protocol=2),
        b'cbuiltins\neval\n(S\'open("executed", "w")\'\ntR.',
        b"cnumpy.core.multiarray\n_reconstruct\n(cos\nsystem\nS'touch executed'\ntR.",
    ],
)
def test_a_batch_that_contains_code_is_refused_and_the_code_does_not_run(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10/test_batch").write_bytes(content)
    with pytest.raises(
        DataError, match=r"test_batch: is not a CIFAR batch \(it requests \w+\.\w+, which is not in a CIFAR"
    ):
        load("cifar10", "test", root=tmp_path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a CIFAR batch"),
        # A memo entry with a number that would take an array of 32 GB.
        (b"\x80\x02}r\xff\xff\xff\x7f.", "no array of bytes with"),
        (pickle.dumps([1, 2]), r"is not a CIFAR batch \(it holds a list"),
        (batch(images(2), [0, 1], key=b"fine_labels"), "no list of integers under 'labels'"),
        (batch(images(2), [0, 1, 2]), "holds 2 images but 3 labels"),
        (batch(images(2)[:, :1], [0, 1]), "no array of bytes with 3072 columns"),
        (batch(images(1), [10]), r"labels of cifar10 must be in \[0, 10\)"),
    ],
)
def test_a_pickle_of_something_else_is_refused_with_the_reason(tmp_path, content, message):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10/test_batch").write_bytes(content)
    with pytest.raises(DataError, match=f"test_batch: .*{message}"):
        load("cifar10", "test", root=tmp_path)


@settings(max_examples=300)
@given(data=st.data())
def test_a_damaged_batch_is_read_or_raises_data_error(data):
    content = bytearray(batch(images(1), [3]))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(1, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(0, 4))):
        # Everything but the pixels, where any byte is valid, is in the first and the last 250 bytes.
        position = data.draw(st.integers(0, 250) | st.integers(len(content) - 60, len(content) - 1))
        content[position % len(content)] = data.draw(st.integers(0, 255))
    try:
        pixels, labels = read_batch(bytes(content), "labels")
    except DataError:
        return
    assert pixels.shape == (len(labels), 3, 32, 32)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_archive_is_read_or_raises_data_error(tmp_path, data):
    folder, archive = tmp_path / "cifar-10-batches-py", tmp_path / "data/cifar10/cifar-10-python.tar.gz"
    if not folder.exists():
        write_cifar10(folder)
        archive.parent.mkdir(parents=True)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        tar.add(folder / "test_batch", "cifar-10-batches-py/test_batch")
    content = bytearray(stream.getvalue())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    archive.write_bytes(content)
    try:
        loaded = load("cifar10", "test", root=tmp_path / "data")
    except DataError:
        return
    assert loaded.images.shape[1:] == (3, 32, 32)
