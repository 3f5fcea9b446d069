"""Files of torch.save, read without torch.load: no code runs, and memory is in proportion to the file.

`torch.load(weights_only=True)` runs no code either, but a file of 400 bytes can make it allocate any amount of memory.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regrow.files.model_file import FormatError
from regrow.pickles import CarefulUnpickler

_TYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
# Objects take up to 50 times the memory of their text. A state dict needs about 200 bytes per tensor.
_LARGEST_PICKLE = 8 << 20


def load_torch_file(path: Path) -> Any:
    """Return the tensors, numbers, texts and containers in a file of torch.save; anything else is a `FormatError`."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _Reader(archive, path.stat().st_size).load()
    except Exception as error:  # a crafted file may raise anything
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise FormatError(f"{path} cannot be read as a state dict without running code: {reason}") from error


class _Reader(CarefulUnpickler):
    """Unpickler that accepts only state dicts: ordered dicts, tensors and the storages that they share."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive, self._left = archive, size
        self._storages: dict[str, Tensor] = {}
        names = [name for name in archive.namelist() if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(names) != 1:
            raise ValueError("it is not a file of torch.save")
        self._folder = names[0].removesuffix("data.pkl")
        if f"{self._folder}byteorder" in archive.namelist() and self._content("byteorder") != b"little":
            raise ValueError("its byte order is not little-endian")
        super().__init__(self._content("data.pkl", most=_LARGEST_PICKLE))

    def find_class(self, module: str, name: str) -> Any:
        """Return our own functions for the names in state dicts; no other name is accepted."""
        known: dict[tuple[str, str], Any] = {
            ("collections", "OrderedDict"): _empty_dict,
            ("torch._utils", "_rebuild_tensor_v2"): _tensor,
            ("torch._utils", "_rebuild_parameter"): _parameter,
        }
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        return known.get((module, name)) or super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Tensor:
        """Return a storage as a flat tensor."""
        _, dtype, key, _, count = pid
        if not isinstance(key, str) or not isinstance(dtype, torch.dtype) or not isinstance(count, int):
            raise ValueError("a storage has no name, type or size")
        if key not in self._storages:
            content = bytearray(self._content(f"data/{key}"))
            if len(content) != count * dtype.itemsize:
                raise ValueError(f"storage {key} has {len(content):,} bytes, which does not match its type and size")
            self._storages[key] = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
        if self._storages[key].dtype != dtype:
            raise ValueError(f"storage {key} has two types")
        return self._storages[key]

    def _content(self, name: str, most: int | None = None) -> bytes:
        """Return one entry; all together may not be larger than the file, which compressed ones could be."""
        entry = self._archive.getinfo(self._folder + name)
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > (self._left if most is None else most):
            raise ValueError(f"{entry.filename[:100]} is compressed, or larger than the file")
        self._left -= entry.file_size
        return self._archive.read(entry)


def _empty_dict() -> dict[Any, Any]:
    return {}


def _tensor(storage: Tensor, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> Tensor:
    # With a stride of zero, a small storage could claim a tensor of any size.
    if torch.Size(size).numel() > storage.numel():
        raise ValueError(f"a tensor of shape {tuple(size)} is larger than its storage")
    return storage.as_strided(tuple(size), tuple(stride), offset)


def _parameter(data: Tensor, *_: Any) -> Tensor:
    return data
