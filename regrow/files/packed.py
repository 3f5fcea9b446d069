"""The packed format: save, load and describe sparse models; header and checksum of a file.

A packed file is a safetensors file with one byte tensor and one metadata entry. Its size is within a few percent of the
entropy limit. Loading executes no code and checks every size before it allocates memory.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from math import inf
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor, nn

from regrow.core.pruner import warn_if_unfinished
from regrow.files.model_file import (
    MAGIC,
    PACKED,
    FormatError,
    construct,
    contents,
    fill,
    from_json,
    load_model,
    locate,
    open_safetensors,
    read_json,
    safetensors,
    skeleton,
)
from regrow.files.streams import Index, decode_tensors, encode_tensors, known_of, read_index
from regrow.files.tensors import StoredTensor, TensorSpec, restored
from regrow.models.base import Architecture
from regrow.system import write_atomically

VERSION = 2

_METADATA, _TENSOR = "regrow", f"{PACKED}packed"
_CHECKSUM_BYTES = 8
_START = len(MAGIC) + _CHECKSUM_BYTES

Dtype = Literal["fp32", "fp16", "bf16", "int8"]

# Zeros take almost no space, so tensors can be much larger than the file: about 900 times at 99.9 % sparsity.
# A file whose tensors would be larger than this is refused unless `max_bytes` allows it.
_ALWAYS_ALLOWED = 64 << 20
_LARGEST_RATIO = 4096


@dataclass(frozen=True)
class TensorSize:
    """One tensor of a packed file: its format and its entropy limit."""

    name: str
    shape: tuple[int, ...]
    form: str
    nonzeros: int
    limit_bytes: float


@dataclass(frozen=True)
class Description:
    """The size of a packed file, its entropy limit, and the size of its tensors in memory."""

    path: Path
    architecture: Architecture | None
    dtype: str
    file_bytes: int
    limit_bytes: float
    dense_bytes: int
    tensors: tuple[TensorSize, ...]

    @property
    def overhead(self) -> float:
        """How much larger the file is than the limit: 0.02 is 2 %; infinite if all weights are zero."""
        return self.file_bytes / self.limit_bytes - 1 if self.limit_bytes else inf


def save(source: nn.Module | Mapping[str, Tensor] | str | Path, path: str | Path, *, dtype: Dtype = "fp32") -> None:
    """Write a model, a state dict or the model of a run folder as a packed file, in one atomic step.

    Weights (tensors of two dimensions or more) are stored in `dtype`; biases, batch norm and integers are always
    stored exactly. "fp32" is lossless, except that -0.0 in a weight becomes +0.0. "fp16" and "bf16" round to
    nearest. "int8" has one scale per output channel: a weight changes by at most 1/252 of the largest one in its
    channel.
    """
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}.")
    if not isinstance(source, nn.Module | Mapping | str | Path):
        raise TypeError(f"save takes a module, a state dict or the folder of a run, got {type(source).__name__}.")
    model = load(source) if isinstance(source, str | Path) else source
    if isinstance(source, nn.Module):
        warn_if_unfinished(source)
    state, architecture = contents(model)
    known = known_of(skeleton(architecture, len(state))) if architecture else None
    named = [architecture.name, dict(architecture.options)] if architecture else []
    write_atomically(path, seal([dtype, *named], encode_tensors(state, dtype, known)))


def load(path: str | Path, *, max_bytes: int | None = None) -> nn.Module | dict[str, Tensor]:
    """Read a packed file, a plain safetensors file, or the model of a run folder.

    Returns a module in evaluation mode if the file names one of `regrow.models`, and otherwise its tensors, in the
    types they were saved from. Loading executes no code and checks sizes before it allocates memory; a damaged or
    malicious file raises `FormatError`. `max_bytes` limits the memory of the tensors; the default follows from the
    size of the file.
    """
    path = locate(path)
    if (packed := _read(path)) is None:
        return load_model(path, max_bytes=max_bytes)
    with _naming(path):
        tensors = {stored.spec.name: restored(stored) for stored in packed.tensors(max_bytes)}
    state = {spec.name: tensors[spec.name] for spec in packed.specs}
    if packed.model is None or packed.architecture is None:
        return state
    return fill(packed.model, state, packed.architecture, path)


def describe(path: str | Path) -> Description:
    """Return the size and the entropy limit of a packed file.

    The limit of a tensor is the entropy of its mask + non-zeros x (sign + mantissa + entropy of the exponent) with
    the frequencies of that tensor; raw tensors count in full. Names, shapes and frequencies, which a file must also
    store, are not in the limit.
    """
    path = locate(path)
    if (packed := _read(path)) is None:
        raise FormatError(f"{path} is a plain safetensors file, not a packed one. Pack it with regrow.save.")
    with _naming(path):
        sizes = {
            stored.spec.name: TensorSize(
                name=stored.spec.name,
                shape=stored.spec.shape,
                form=stored.form,
                nonzeros=stored.nonzeros,
                limit_bytes=stored.limit_bits / 8,
            )
            for stored in packed.tensors(None)
        }
    return Description(
        path=path,
        architecture=packed.architecture,
        dtype=packed.dtype,
        file_bytes=packed.size,
        limit_bytes=sum(size.limit_bytes for size in sizes.values()),
        dense_bytes=sum(spec.dense_bytes for spec in packed.specs),
        tensors=tuple(sizes[spec.name] for spec in packed.specs),
    )


@dataclass(frozen=True)
class _PackedFile:
    """A packed file whose checksum and index were read, but no tensor yet."""

    size: int
    dtype: str
    architecture: Architecture | None
    model: nn.Module | None
    specs: list[TensorSpec]
    index: Index

    def tensors(self, max_bytes: int | None) -> Iterator[StoredTensor]:
        """Yield all tensors, in any order; raise a ValueError if one is damaged or all together are too large."""
        plausible = _ALWAYS_ALLOWED + _LARGEST_RATIO * self.size
        return decode_tensors(self.index, self.specs, self.dtype, plausible if max_bytes is None else max_bytes)


def _read(path: Path) -> _PackedFile | None:
    """Read header and index of a packed file; return None for a plain safetensors file."""
    if (parts := unseal(path)) is None:
        return None
    words, data = parts
    if len(words) not in (1, 3) or words[0] not in get_args(Dtype):
        known = ", ".join(get_args(Dtype))
        raise FormatError(f"{path}: its header is {shortened(words)} instead of a dtype ({known}) and maybe a network.")
    dtype, *named = words
    architecture = from_json(dict(zip(("name", "options"), named, strict=False)) or None, path)
    with _naming(path):
        index = read_index(data)
        # Every layer of our networks has parameters: a short file cannot name a deep network.
        layers = min(index.length, len(data) // 4)
        model = construct(architecture, layers, path) if architecture else None
        specs = index.specs(known_of(model) if model else None)
    return _PackedFile(path.stat().st_size, dtype, architecture, model, specs, index)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn a ValueError about the content of a file into a `FormatError` that names the file."""
    try:
        yield
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"{path}: {error}.") from None


def seal(words: Sequence[Any], data: bytes) -> bytes:
    """Return the bytes of a file with the header `words` (a list for JSON) and the content `data`.

    All metadata is one entry, because safetensors writes several in a random order: the same model gives the same
    file.
    """
    header = json.dumps([VERSION, *words], separators=(",", ":"))
    content = np.frombuffer(MAGIC + _checksum(header, data) + data, np.uint8)
    sealed: bytes = safetensors("numpy").save({_TENSOR: content}, {_METADATA: header})
    return sealed


def unseal(path: Path) -> tuple[list[Any], bytes] | None:
    """Return header and content of a file after checking its checksum; None for a plain safetensors file."""
    with open_safetensors(path, "numpy") as file:
        header = (file.metadata() or {}).get(_METADATA)
        if header is None:
            return None
        words = _words(header, path)
        if list(file.keys()) != [_TENSOR] or file.get_slice(_TENSOR).get_dtype() != "U8":
            raise FormatError(f"{path} must hold the byte tensor {_TENSOR} of a packed file, and nothing else.")
        data = file.get_tensor(_TENSOR).tobytes()
    start, data = data[:_START], data[_START:]
    if start != MAGIC + _checksum(header, data):
        raise FormatError(f"{path} is damaged: its contents do not match its checksum.")
    return words, data


def _words(header: str, path: Path) -> list[Any]:
    words = read_json(header, path)
    if isinstance(words, dict):
        words = [words.get("version")]  # version 1 had a dict
    if not isinstance(words, list) or not words:
        raise FormatError(f"{path} does not name the version of the packed format.")
    version, *rest = words
    if version != VERSION:
        raise FormatError(
            f"{path} has version {shortened(version)} of the packed format; this regrow reads version {VERSION}."
            " Load it with the regrow that wrote it, or save the model again."
        )
    return rest


def _checksum(header: str, data: bytes) -> bytes:
    """Return a digest of header and content."""
    words = header.encode()
    digest = blake2b(len(words).to_bytes(8, "little") + words, digest_size=_CHECKSUM_BYTES)
    digest.update(data)
    return digest.digest()
