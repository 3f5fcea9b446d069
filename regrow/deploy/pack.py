"""The packed file: a sparse model within a few per cent of its entropy limit, safe to open from anywhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from reprlib import repr as shortened
from typing import Literal, get_args

from torch import Tensor, nn

from regrow.deploy.coding.index import Spec, known_of
from regrow.deploy.coding.planes import Index, join, read_index, split
from regrow.deploy.coding.tensor_code import StoredTensor, restored
from regrow.deploy.container import FormatError, locate
from regrow.deploy.files import contents, load_model
from regrow.deploy.rebuild import construct, fill, from_json, skeleton
from regrow.deploy.sealed import seal, unseal
from regrow.host.disk import write_atomically
from regrow.models import Architecture

Dtype = Literal["fp32", "fp16", "bf16", "int8"]

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
        """The share by which the file is larger than the limit: 0.02 is 2 %; infinite where all weights are zero."""
        return self.file_bytes / self.limit_bytes - 1 if self.limit_bytes else inf


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
    known = known_of(skeleton(architecture, len(state))) if architecture else None
    named = [architecture.name, dict(architecture.options)] if architecture else []
    write_atomically(path, seal([dtype, *named], join(state, dtype, known)))


def load(path: str | Path, *, max_bytes: int | None = None) -> nn.Module | dict[str, Tensor]:
    """Read a packed file, a plain safetensors file, or the model of a run folder.

    Returns a module in evaluation mode when the file names one of `regrow.models`, and its tensors otherwise;
    they have the types they were saved from. Nothing is executed, sizes are checked before memory is taken,
    and what is damaged or hostile raises `FormatError`. `max_bytes` bounds the memory of the tensors; by
    default the bound follows from the size of the file.
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
    """State the entropy limit of a packed file and the size it has.

    The limit of a tensor is the entropy of its mask + non-zeros x (sign + mantissa + entropy of the exponent)
    with the frequencies of that tensor; what is stored raw counts in full. Names, shapes and frequencies,
    which a file must also say, are not in the limit.
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
    """A packed file after its checksum: what it says it holds, none of it decoded yet."""

    size: int
    dtype: str
    architecture: Architecture | None
    model: nn.Module | None
    specs: list[Spec]
    index: Index

    def tensors(self, max_bytes: int | None) -> Iterator[StoredTensor]:
        """All tensors, in any order; a ValueError if one is damaged or all together are too large."""
        plausible = _ALWAYS_ALLOWED + _LARGEST_RATIO * self.size
        return split(self.index, self.specs, self.dtype, plausible if max_bytes is None else max_bytes)


def _read(path: Path) -> _PackedFile | None:
    """What a packed file says, checked to be what was written; None if it is a plain safetensors file."""
    if (unsealed := unseal(path)) is None:
        return None
    words, data = unsealed
    if len(words) not in (1, 3) or words[0] not in get_args(Dtype):
        known = ", ".join(get_args(Dtype))
        raise FormatError(f"{path} says {shortened(words)} instead of a dtype ({known}) and a network, if it has one.")
    dtype, *named = words
    architecture = from_json(dict(zip(("name", "options"), named, strict=False)) or None, path)
    with _naming(path):
        index = read_index(data)
        # Every layer of our networks has numbers of its own: a short file cannot name a deep one.
        layers = min(index.length, len(data) // 4)
        model = construct(architecture, layers, path) if architecture else None
        specs = index.specs(known_of(model) if model else None)
    return _PackedFile(path.stat().st_size, dtype, architecture, model, specs, index)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn what is wrong inside a file into the exception that names it."""
    try:
        yield
    except FormatError:
        raise
    except ValueError as error:
        raise FormatError(f"{path}: {error}.") from None
