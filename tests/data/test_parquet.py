"""Images in the hub's parquet layout, whole and damaged."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from regrow.data import DataError, load


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def images(count: int, seed: int = 0, size: int = 32) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, size, size, 3), dtype=np.uint8)


def write(path: Path, encoded: list[bytes | None], labels: list[int | None], *, metadata=None, label="label"):
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": image, "path": None} for image in encoded]
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"img": pa.array(cells, struct), label: pa.array(labels, pa.int64())})
    pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=3)


def test_lossless_images_and_labels_of_all_shards_are_read_unchanged(tmp_path):
    pixels = images(10)
    encoded = [encode(image) for image in pixels]
    write(tmp_path / "cifar10/train-00000-of-00002.parquet", encoded[:4], [3, 1, 4, 1])
    write(tmp_path / "cifar10/train-00001-of-00002.parquet", encoded[4:], [5, 9, 2, 6, 5, 3])
    loaded = load("cifar10", "train", root=tmp_path)
    assert torch.equal(loaded.images, torch.from_numpy(pixels.transpose(0, 3, 1, 2)))
    assert loaded.labels.tolist() == [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    assert loaded.classes[:2] == ("airplane", "automobile")


def test_gray_and_palette_images_become_rgb(tmp_path):
    gray = images(1)[0, :, :, 0]
    palette = io.BytesIO()
    Image.fromarray(gray).convert("P").save(palette, "GIF")
    write(tmp_path / "cifar10/test.parquet", [encode(gray), palette.getvalue()], [0, 1])
    loaded = load("cifar10", "test", root=tmp_path)
    for image in loaded.images:
        assert torch.equal(image, torch.from_numpy(gray).expand(3, 32, 32))


def test_the_names_of_the_classes_are_those_of_the_file(tmp_path):
    names = [f"class {i}" for i in range(10)]
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": {"names": names}}}})}
    write(tmp_path / "cifar10/test.parquet", [encode(images(1)[0])], [0], metadata=metadata)
    assert load("cifar10", "test", root=tmp_path).classes == tuple(names)


def test_the_second_load_reads_the_same_images_from_the_cache(tmp_path, an_empty_machine):
    path = tmp_path / "cifar10/test.parquet"
    write(path, [encode(image) for image in images(4)], [0, 1, 2, 3])
    first = load("cifar10", "test", root=tmp_path)
    (cached,) = (an_empty_machine / "decoded").iterdir()
    stamp = cached.stat().st_mtime_ns
    assert torch.equal(load("cifar10", "test", root=tmp_path).images, first.images)
    assert cached.stat().st_mtime_ns == stamp


def test_changed_files_are_decoded_again(tmp_path):
    path = tmp_path / "cifar10/test.parquet"
    for seed in (1, 2):
        pixels = images(4, seed)
        write(path, [encode(image) for image in pixels], [0, 1, 2, 3])
        os.utime(path, ns=(1, 1))
        loaded = load("cifar10", "test", root=tmp_path)
        assert torch.equal(loaded.images, torch.from_numpy(pixels.transpose(0, 3, 1, 2)))


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY", b"not an array"])
def test_a_damaged_cache_is_written_again(tmp_path, an_empty_machine, damage):
    pixels = images(4)
    write(tmp_path / "cifar10/test.parquet", [encode(image) for image in pixels], [0, 1, 2, 3])
    load("cifar10", "test", root=tmp_path)
    (cached,) = (an_empty_machine / "decoded").iterdir()
    cached.write_bytes(damage)
    loaded = load("cifar10", "test", root=tmp_path)
    assert torch.equal(loaded.images, torch.from_numpy(pixels.transpose(0, 3, 1, 2)))
    assert cached.stat().st_size > 4 * 3 * 32 * 32


def test_images_load_even_if_the_cache_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("a file where the cache's folder should be")
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path / "file"))
    write(tmp_path / "cifar10/test.parquet", [encode(images(1)[0])], [7])
    assert load("cifar10", "test", root=tmp_path).labels.tolist() == [7]


def test_the_error_of_missing_data_names_the_folders_and_the_source(tmp_path):
    (tmp_path / "cifar10").mkdir()
    with pytest.raises(DataError, match=r"CIFAR-10 was not found \(looked in .*cifar10\).*cs.toronto.edu"):
        load("cifar10", root=tmp_path)


def test_a_missing_shard_is_named(tmp_path):
    write(tmp_path / "cifar10/train-00001-of-00003.parquet", [encode(images(1)[0])], [0])
    with pytest.raises(DataError, match=r"train-00000-of-00003.parquet is missing: only 1 of 3 files"):
        load("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    ("encoded", "labels", "message"),
    [
        ([encode(images(1)[0]), b"no image"], [0, 1], "image 1 cannot be decoded"),
        ([encode(images(1)[0])[:-40]], [0], "image 0 cannot be decoded"),
        ([None], [0], "image 0 cannot be decoded"),
        ([encode(images(1, size=16)[0])], [0], r"image 0 has \(16, 16\) pixels, not \(32, 32\)"),
        ([encode(images(1)[0])], [None], "1 labels are empty"),
        ([encode(images(1)[0])], [10], r"labels of cifar10 must be in \[0, 10\), got values from 10 to 10"),
    ],
)
def test_errors_name_the_file_and_the_problem(tmp_path, encoded, labels, message):
    write(tmp_path / "cifar10/test.parquet", encoded, labels)
    with pytest.raises(DataError, match=f"test.parquet: .*{message}"):
        load("cifar10", "test", root=tmp_path)


def test_the_error_of_a_missing_column_names_the_existing_ones(tmp_path):
    write(tmp_path / "cifar10/test.parquet", [encode(images(1)[0])], [0], label="target")
    with pytest.raises(DataError, match=r"test.parquet: has no column 'label' \(it has img, target\)"):
        load("cifar10", "test", root=tmp_path)


def test_columns_of_a_wrong_type_are_named_with_the_type(tmp_path):
    path = tmp_path / "cifar10/test.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"img": [{"bytes": b""}], "label": ["cat"]}), path)
    with pytest.raises(DataError, match=r"test.parquet: column 'label' is string, not integers"):
        load("cifar10", "test", root=tmp_path)
    pq.write_table(pa.table({"img": [b""], "label": [3]}), path)
    with pytest.raises(DataError, match=r"test.parquet: column 'img' is binary, not a struct"):
        load("cifar10", "test", root=tmp_path)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_or_raises_data_error(tmp_path, data):
    path = tmp_path / "cifar10/test.parquet"
    write(path, [encode(image) for image in images(5)], [0, 1, 2, 3, 4])
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            # The schema and the page headers are at the end, where a byte matters most.
            position = data.draw(st.integers(0, len(content) - 1) | st.integers(len(content) - 900, len(content) - 1))
            content[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    # Undetectable damage, such as a changed pixel, is read; all other damage must raise a DataError.
    with contextlib.suppress(DataError):
        assert load("cifar10", "test", root=tmp_path).images.shape[1:] == (3, 32, 32)


def test_the_error_without_pyarrow_or_pillow_says_what_to_install(tmp_path):
    write(tmp_path / "cifar10/test.parquet", [encode(images(1)[0])], [0])
    program = f"""
import sys
from regrow.data import load

for missing in ("PIL", "pyarrow"):
    sys.modules[missing] = None
    try:
        load("cifar10", "test", root={str(tmp_path)!r})
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        'reading this needs pillow: pip install "regrow[data]" (in a clone: pip install -e ".[data]")',
        'reading this needs pyarrow: pip install "regrow[data]" (in a clone: pip install -e ".[data]")',
    ]
