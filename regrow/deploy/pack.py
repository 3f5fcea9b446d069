"""The packed file: a sparse model within a few per cent of its entropy limit, safe to open from anywhere."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, Literal, get_args

from torch import Tensor, nn

from regrow.deploy.coding.planes import CODES, INDEX, Planes, join, split
from regrow.deploy.coding.tensor_code import CodedTensor, decode_tensor, encode_tensor
from regrow.deploy.container import FormatError, locate, opened, read_json, safetensors, write_atomically
from regrow.deploy.files import contents, load_model
from regrow.deploy.rebuild import assemble, from_json, to_json
from regrow.models import Architecture

Dtype = Literal["fp32", "fp16", "bf16", "int8"]

METADATA, VERSION = "regrow", 1

# Zeros cost nothing in the file, so its size bounds the tensors only loosely: at 99.9 % sparsity they are
# some 900 times as large. A file that promises more than this is refused unless `max_bytes` allows it.
_ALWAYS_ALLOWED = 64 << 20
_LARGEST_RATIO = 4096


@dataclass(frozen=True)
class TensorSize:
    """One tensor of a packed file: how it is stored, and the fewest bytes it could take."""

    name: str
    shape: tuple[int, ...]
    form: str
    nonzeros: int
    limit_bytes: float


@dataclass(frozen=True)
class Description:
    """The size of a packed file beside the entropy limit and the dense size of what it holds."""

    path: Path
    architecture: Architecture | None
    dtype: str
    file_bytes: int
    limit_bytes: float
    dense_bytes: int
    tensors: tuple[TensorSize, ...]

    @property
    def overhead(self) -> float:
        """The share by which the file is larger than the limit: 0.02 is 2 %."""
        return self.file_bytes / self.limit_bytes - 1


def save(source: nn.Module | Mapping[str, Tensor] | str | Path, path: str | Path, *, dtype: Dtype = "fp32") -> None:
    """Write a model, a state dict or the model of a run folder as a packed file, in one atomic step.

    Weights (tensors of two dimensions or more) are stored in `dtype`; biases, batch norm and integers always
    exactly. "fp32" loses nothing, except that -0.0 in a weight becomes the +0.0 of a pruned one. "fp16" and
    "bf16" round to nearest. "int8" has one scale per output channel: a weight moves by at most 1/252 of the
    largest in its channel.
    """
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}.")
    if not isinstance(source, nn.Module | Mapping | str | Path):
        raise TypeError(f"save takes a module, a state dict or the folder of a run, got {type(source).__name__}.")
    model = load(source) if isinstance(source, str | Path) else source
    state, architecture = contents(model)
    planes = join([encode_tensor(name, tensor, dtype) for name, tensor in state.items()])
    write_atomically(path, seal({"version": VERSION, "dtype": dtype, "architecture": to_json(architecture)}, planes))


def load(path: str | Path, *, max_bytes: int | None = None) -> nn.Module | dict[str, Tensor]:
    """Read a packed file, a plain safetensors file, or the model of a run folder.

    Returns a module in evaluation mode when the file names one of `regrow.models`, and its tensors otherwise;
    they have the types they were saved from. Nothing is executed, sizes are checked before memory is taken,
    and what is damaged or hostile raises `FormatError`. `max_bytes` bounds the memory of the tensors; by
    default the bound follows from the size of the file.
    """
    path = locate(path)
    header, planes = _read(path)
    if header is None:
        return load_model(path)
    architecture = from_json(header.get("architecture"), path)
    state = {tensor.row.name: _decode(path, tensor) for tensor in _tensors(path, planes, max_bytes)}
    return assemble(state, architecture, path)


def describe(path: str | Path) -> Description:
    """State the entropy limit of a packed file and the size it has.

    The limit of a tensor is the entropy of its mask + non-zeros x (sign + mantissa + entropy of the exponent)
    with the frequencies of that tensor; what is stored raw counts in full. Names, shapes and frequencies,
    which a file must also say, are not in the limit.
    """
    path = locate(path)
    header, planes = _read(path)
    if header is None:
        raise FormatError(f"{path} is a plain safetensors file, not a packed one. Pack it with regrow.save.")
    tensors = _tensors(path, planes, None)
    sizes = tuple(
        TensorSize(
            name=tensor.row.name,
            shape=tensor.row.shape,
            form=tensor.row.form,
            nonzeros=tensor.nonzeros,
            limit_bytes=tensor.limit_bits / 8,
        )
        for tensor in tensors
    )
    return Description(
        path=path,
        architecture=from_json(header.get("architecture"), path),
        dtype=str(header.get("dtype")),
        file_bytes=path.stat().st_size,
        limit_bytes=sum(size.limit_bytes for size in sizes),
        dense_bytes=sum(tensor.row.dense_bytes for tensor in tensors),
        tensors=sizes,
    )


def seal(header: Mapping[str, Any], planes: Planes) -> bytes:
    """The bytes of a packed file that says `header` and holds `planes`.

    All metadata is one entry, because safetensors writes several in a random order: the same model gives the
    same file.
    """
    sealed = dict(header) | {"checksum": _checksum(header, planes)}
    metadata = {METADATA: json.dumps(sealed, separators=(",", ":"))}
    contents: bytes = safetensors("numpy").save(planes, metadata)
    return contents


def _checksum(header: Mapping[str, Any], planes: Planes) -> str:
    """A digest of everything that a packed file says, so that no damage goes unnoticed."""
    digest = blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=8)
    for name in (INDEX, CODES):
        digest.update(len(planes[name]).to_bytes(8, "little"))
        digest.update(planes[name].data)
    return digest.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any] | None, Planes]:
    """What a packed file says and holds, checked to be what was written; no header if it is a plain file."""
    with opened(path, "numpy") as file:
        stored = (file.metadata() or {}).get(METADATA)
        if stored is None:
            return None, {}
        header = read_json(stored, path)
        version = header.get("version") if isinstance(header, dict) else None
        if version != VERSION:
            raise FormatError(
                f"{path} is of version {shortened(version)} of the packed format; regrow reads {VERSION}."
            )
        names = (INDEX, CODES)
        if set(file.keys()) != set(names) or any(file.get_slice(name).get_dtype() != "U8" for name in names):
            raise FormatError(f"{path} does not hold the byte tensors {' and '.join(names)} of a packed file.")
        planes = {name: file.get_tensor(name).reshape(-1) for name in names}
    if header.pop("checksum", None) != _checksum(header, planes):
        raise FormatError(f"{path} is damaged: its contents do not match its checksum.")
    return header, planes


def _decode(path: Path, tensor: CodedTensor) -> Tensor:
    try:
        return decode_tensor(tensor)
    except ValueError as error:
        raise FormatError(f"{path}: {tensor.row.name!r}: {error}.") from None


def _tensors(path: Path, planes: Planes, max_bytes: int | None) -> list[CodedTensor]:
    plausible = _ALWAYS_ALLOWED + _LARGEST_RATIO * path.stat().st_size
    try:
        return split(planes, plausible if max_bytes is None else max_bytes)
    except ValueError as error:
        raise FormatError(f"{path}: {error}.") from None
