"""Images in the Hugging Face hub's parquet layout: a struct of encoded bytes, and a label."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from regrow.data.files import Bytes, DataError, broken, cached, require
from regrow.data.images import ImageSet, image_set
from regrow.data.random import Indices
from regrow.data.registry import DatasetInfo
from regrow.system import cores

# Row number and encoded image.
Image = tuple[int, bytes | None]

_ROWS = 1000
_ROWS_AT_ONCE = 100

# In bytes, encoded; an image of CIFAR has about 2,000.
_LARGEST_IMAGE = 1 << 16


def shards(folder: Path, split: str) -> list[Path]:
    """Return the files of `split` in `folder`, in order.

    The hub numbers them `train-00000-of-00002.parquet`; a missing number raises a `DataError`.
    """
    found = sorted(folder.glob(f"{split}*.parquet"))
    numbers = [re.search(r"-(\d+)-of-(\d+)\.parquet$", path.name) for path in found]
    for match in filter(None, numbers[-1:]):
        for number in range(int(match[2])):
            name = f"{split}-{number:0{len(match[1])}}-of-{match[2]}.parquet"
            if not (folder / name).is_file():
                raise DataError(f"{folder / name} is missing: only {len(found)} of {int(match[2])} files were found")
    return found


def load(info: DatasetInfo, files: Sequence[Path], *, label: str, classes: tuple[str, ...]) -> ImageSet:
    """Load the images and labels of all `files`; decoded images are cached."""
    labels, names = read_labels(info, files, label)
    counts = [len(values) for values in labels]
    shape = (sum(counts), info.channels, info.size, info.size)
    images = cached(files, shape, lambda: _decode_all(info, files, counts))
    return image_set(info, files[0], images, np.concatenate(labels), names or classes)


@contextmanager
def opened(path: Path, info: DatasetInfo) -> Iterator[Any]:
    """Open a parquet file; errors of pyarrow become a `DataError` that names the file."""
    arrow = require("pyarrow")
    try:
        yield require("pyarrow.parquet").ParquetFile(path)
    except DataError:
        raise
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise broken(path, f"is not a readable parquet file ({error})", f"{info.source}.") from error


def read_labels(info: DatasetInfo, files: Sequence[Path], label: str) -> tuple[list[Indices], tuple[str, ...] | None]:
    """Return the labels of each file, and the class names if a file has them."""
    labels, names = [], None
    for path in files:
        with opened(path, info) as file:
            labels.append(_labels(file, label, path, info))
            names = names or _class_names(file.schema_arrow, label)
    return labels, names


def _labels(file: Any, label: str, path: Path, info: DatasetInfo) -> Indices:
    _column(file.schema_arrow, (label,), path, info)
    kind = file.schema_arrow.field(label).type
    if not require("pyarrow").types.is_integer(kind):
        raise broken(path, f"column {label!r} is {kind}, not integers", f"{info.source}.")
    _check_rows(file, path, info)
    values = file.read(columns=[label])[label]
    if values.null_count:
        raise broken(path, f"{values.null_count} labels are empty", f"{info.source}.")
    return np.asarray(values.to_numpy(), dtype=np.int64)


def _check_rows(file: Any, path: Path, info: DatasetInfo) -> None:
    """Raise unless the file has at most as many rows as the data set: a small file can claim billions."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    rows, most = sum(group.num_rows for group in groups), max(info.train, info.test)
    if not 0 <= rows <= most or min((group.num_rows for group in groups), default=0) < 0:
        raise broken(path, f"has {rows:,} rows, but {info.title} has at most {most:,}", f"{info.source}.")


def image_column(schema: Any, path: Path, info: DatasetInfo) -> str:
    """Return the name of the column of encoded images."""
    name = _column(schema, ("img", "image"), path, info)
    kind = schema.field(name).type
    if not require("pyarrow").types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        raise broken(path, f"column {name!r} is {kind}, not a struct with the encoded 'bytes'", f"{info.source}.")
    return name


def _class_names(schema: Any, label: str) -> tuple[str, ...] | None:
    """Return the class names in the hub's schema, or None."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[label]["names"]))
    except (KeyError, TypeError, ValueError):
        return None


def decode(encoded: bytes | None, channels: int, size: tuple[int, int] | None = None) -> Any:
    """Decode an image to a PIL image, gray or RGB; raise a `DataError` that says what is wrong.

    An image of another `size` is refused before memory for its pixels is allocated.
    """
    image = require("PIL.Image")
    try:
        with image.open(io.BytesIO(encoded or b"")) as picture:
            if size is not None and picture.size != size:
                raise DataError(f"has {picture.size} pixels, not {size}")
            return picture.convert("RGB" if channels == 3 else "L")
    except DataError:
        raise
    # Decoders raise OSError, ValueError, SyntaxError, struct.error and more.
    except Exception as error:
        raise DataError(f"cannot be decoded ({error})") from error


def _decode_all(info: DatasetInfo, files: Sequence[Path], counts: Sequence[int]) -> Bytes:
    """Decode on all CPUs; Pillow releases the interpreter lock."""
    images = np.empty((sum(counts), info.channels, info.size, info.size), dtype=np.uint8)
    with ThreadPoolExecutor(cores()) as pool:
        first = 0
        for path, count in zip(files, counts, strict=True):
            chunks = _encoded(info, path, count)
            targets = np.split(images[first : first + count], np.cumsum([len(chunk) for chunk in chunks])[:-1])
            for _ in pool.map(partial(_decode_into, info, path), chunks, targets):
                pass
            first += count
    return images


def _encoded(info: DatasetInfo, path: Path, count: int) -> list[list[Image]]:
    """Return the `count` encoded images of a file in chunks."""
    with opened(path, info) as file:
        column = image_column(file.schema_arrow, path, info)
        rows: list[bytes | None] = []
        size = 0
        # In parts, because a small file can repeat a large image any number of times.
        for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=[column]):
            rows += batch.column(0).field("bytes").to_pylist()
            size += sum(len(image or b"") for image in rows[-len(batch) :])
            if size > count * _LARGEST_IMAGE:
                raise broken(path, f"has images of more than {_LARGEST_IMAGE:,} bytes on average", f"{info.source}.")
    if len(rows) != count:
        raise broken(path, f"has {len(rows)} images but {count} labels", f"{info.source}.")
    return [list(enumerate(rows[i : i + _ROWS], start=i)) for i in range(0, count, _ROWS)]


def _decode_into(info: DatasetInfo, path: Path, chunk: list[Image], target: Bytes) -> None:
    for place, (row, encoded) in enumerate(chunk):
        try:
            picture = decode(encoded, info.channels, (info.size, info.size))
        except DataError as error:
            raise broken(path, f"image {row} {error}", f"{info.source}.") from error
        pixels = np.asarray(picture).reshape(info.size, info.size, info.channels)
        target[place] = pixels.transpose(2, 0, 1)


def _column(schema: Any, wanted: tuple[str, ...], path: Path, info: DatasetInfo) -> str:
    for name in wanted:
        if name in schema.names:
            return name
    have = ", ".join(schema.names)
    raise broken(path, f"has no column {' or '.join(map(repr, wanted))} (it has {have})", f"{info.source}.")
