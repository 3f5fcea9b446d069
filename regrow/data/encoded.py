"""Encoded images one at a time, out of folders of files or rows of parquet shards too large for memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from regrow.data import parquet
from regrow.data.catalog import Info
from regrow.data.draws import Indices
from regrow.data.errors import broken, require

# Row groups whose images are mixed with each other, and so the number that a process keeps in memory.
WINDOW = 16


class Reader(Protocol):
    """Encoded images by number."""

    @property
    def blocks(self) -> Indices | None:
        """The block of each image, if images of one block are best read together."""

    def read(self, row: int) -> bytes | None:
        """Return the encoded image."""

    def where(self, row: int) -> str:
        """Say where the image is, for people."""


class Files:
    """Images that are files of their own; any order is as good as any other."""

    blocks = None

    def __init__(self, info: Info, paths: Sequence[Path]) -> None:
        self._info = info
        self._paths = [str(path) for path in paths]

    def read(self, row: int) -> bytes:
        """Return the content of the file."""
        path = Path(self._paths[row])
        try:
            return path.read_bytes()
        except OSError as error:
            raise broken(path, f"cannot be read ({error.strerror})", f"{self._info.source}.") from error

    def where(self, row: int) -> str:
        """Return the file's path."""
        return self._paths[row]


class Shards:
    """Images in the row groups of parquet files; the last few groups that were read stay in memory."""

    def __init__(self, info: Info, files: Sequence[Path]) -> None:
        self._info = info
        self._groups: list[tuple[Path, str, int, int]] = []
        for path in files:
            with parquet.reading(path, info):
                file = require("pyarrow.parquet").ParquetFile(path)
                column = parquet.image_column(file.schema_arrow, path, info)
                counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            self._groups += [(path, column, number, count) for number, count in enumerate(counts)]
        sizes = [count for *_, count in self._groups]
        self._firsts = np.cumsum([0, *sizes])
        self._blocks = np.repeat(np.arange(len(sizes)), sizes)
        self._kept: OrderedDict[int, list[bytes | None]] = OrderedDict()

    @property
    def blocks(self) -> Indices:
        """The row group of each image."""
        return self._blocks

    def read(self, row: int) -> bytes | None:
        """Return the encoded image, reading its row group unless that was one of the last."""
        block = int(self._blocks[row])
        if block not in self._kept:
            self._kept[block] = self._load(block)
            while len(self._kept) > WINDOW:
                self._kept.popitem(last=False)
        self._kept.move_to_end(block)
        return self._kept[block][row - int(self._firsts[block])]

    def where(self, row: int) -> str:
        """Return the file's path, the row group and the row in it."""
        block = int(self._blocks[row])
        path, _, number, _ = self._groups[block]
        return f"{path}: row group {number}, row {row - int(self._firsts[block])}"

    def _load(self, block: int) -> list[bytes | None]:
        path, column, number, count = self._groups[block]
        with parquet.reading(path, self._info):
            file = require("pyarrow.parquet").ParquetFile(path)
            table = file.read_row_group(number, columns=[column], use_threads=False)
            encoded: list[bytes | None] = table[column].combine_chunks().field("bytes").to_pylist()
        if len(encoded) != count:
            why = f"row group {number} has {len(encoded)} images where {count} are announced"
            raise broken(path, why, f"{self._info.source}.")
        return encoded
