"""Models in safetensors files, with the architecture as metadata; networks are rebuilt from their names."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regrow.core.modules import unwrap
from regrow.models import registry
from regrow.models.base import Architecture
from regrow.system import write_atomically
from regrow.text import optional_module

RUN_MODEL = "model.safetensors"
"""File name of the trained model in a run folder."""

PACKED = "regrow."
"""Start of the tensor name in a packed file; no tensor of a model starts like this."""

MAGIC = b"grow"
"""First bytes of that tensor, which identify it even if its name is damaged."""

ZIP = b"PK\x03\x04"
"""First bytes of a file of torch.save, which is a zip archive."""

# A file may name a deeper network than this only if it has a tensor for each layer.
_ALWAYS_ALLOWED_DEPTH = 256


class FormatError(ValueError):
    """A model file is damaged, malicious or inconsistent; the message names the file and what is wrong."""


def save_model(model: nn.Module | Mapping[str, Tensor], path: str | Path) -> None:
    """Write the tensors of `model`, and its architecture if it is one of `regrow.models`, in one atomic step.

    Any tool that reads safetensors can open the file; `regrow.save` writes smaller ones.
    """
    state, architecture = contents(model)
    # safetensors refuses tensors that share memory: store tied ones separately.
    own = {name: tensor.clone() for name, tensor in state.items()}
    metadata = None
    if architecture is not None:
        named = {"name": architecture.name, "options": dict(architecture.options)}
        metadata = {"architecture": json.dumps(named)}
    write_atomically(path, safetensors("torch").save(own, metadata))


def load_model(path: str | Path, *, max_bytes: int | None = None) -> nn.Module | dict[str, Tensor]:
    """Read a plain safetensors file, or the one in a run folder.

    Returns a module in evaluation mode when the file names its architecture, and its tensors otherwise. A
    damaged file, a packed one, or one whose tensors take more than `max_bytes` raises `FormatError`;
    `regrow.load` reads both kinds.
    """
    path = locate(path)
    with open_safetensors(path, "torch") as file:
        if max_bytes is not None and (needed := _tensor_bytes(path)) > max_bytes:
            raise FormatError(
                f"{path}: its tensors would take {needed:,} bytes, more than the {max_bytes:,} allowed."
                f" If you trust it, pass max_bytes={needed}."
            )
        stored = (file.metadata() or {}).get("architecture", "null")
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is not a mapping
    if packed := [name for name, tensor in state.items() if name.startswith(PACKED) or _starts_packed(tensor)]:
        raise FormatError(f"{path} holds {packed[0]}: it is a packed file, maybe a damaged one.")
    architecture = from_json(read_json(stored, path), path)
    if architecture is None:
        return state
    return fill(construct(architecture, len(state), path), state, architecture, path)


def _tensor_bytes(path: Path) -> int:
    """Return the size of all tensors of a safetensors file: everything after its header, as the parser has checked."""
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    return path.stat().st_size - 8 - header


def _starts_packed(tensor: Tensor) -> bool:
    return tensor.dtype is torch.uint8 and tensor.dim() == 1 and bytes(tensor[: len(MAGIC)].tolist()) == MAGIC


def contents(
    source: nn.Module | Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], Architecture | None]:
    """Return the tensors of a module or a state dict on the CPU, and the architecture if it is known."""
    model = unwrap(source) if isinstance(source, nn.Module) else source
    named = model.state_dict() if isinstance(model, nn.Module) else model
    state = {name: _plain(name, value) for name, value in named.items()}
    architecture = getattr(model, "architecture", None)
    if not isinstance(architecture, Architecture):
        return state, None
    if differs := difference(skeleton(architecture, len(state)), state):
        raise ValueError(
            f"the model's architecture is {architecture.name} with {dict(architecture.options)}, but {differs}."
            " Save model.state_dict() to keep the tensors without the architecture."
        )
    return state, architecture


def _plain(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_quantized:
        kind = value.layout if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name!r} cannot be stored: it must be a dense, unquantized tensor, got {kind}.")
    return value.detach().cpu().contiguous()


def locate(path: str | Path) -> Path:
    """Return `path` itself, or the model file inside it if it is a run folder."""
    path = Path(path)
    found = path / RUN_MODEL if path.is_dir() else path
    if path.is_dir() and found.is_symlink():
        raise FormatError(f"{found} is a symbolic link. A run folder may hold only regular files: copy the file.")
    if not found.is_file():
        what = f"{path} has no {RUN_MODEL}" if path.is_dir() else f"{path} does not exist"
        raise FileNotFoundError(f"{what}. Give a model file or the folder of a finished run.")
    return found


def safetensors(framework: str) -> Any:
    """Import safetensors, an optional dependency, for `framework` ("numpy" or "torch")."""
    return optional_module(f"safetensors.{framework}", "model files need safetensors", extra="cli")


def read_json(text: str, path: Path) -> Any:
    """Parse JSON from the metadata of a file."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: its metadata cannot be read: {error}.") from None


@contextmanager
def open_safetensors(path: Path, framework: str) -> Iterator[Any]:
    """Open a safetensors file for "numpy" or "torch"; parser errors become a `FormatError`."""
    module = safetensors(framework)
    from safetensors import SafetensorError

    try:
        with module.safe_open(path, framework=framework) as file:
            yield file
    except SafetensorError as error:
        raise FormatError(f"{path} is not a safetensors file, or a damaged one: {error}.{_hint(path)}") from None


def _hint(path: Path) -> str:
    """Return advice for files of torch.export and torch.save."""
    if path.suffix == ".pt2":
        return " It looks like a file of torch.export: read it with torch.export.load(path)."
    with path.open("rb") as file:
        if file.read(len(ZIP)) != ZIP:
            return ""
    return (
        " It looks like a file of torch.save, which can contain code: read it with torch.load(path, weights_only=True),"
        " and save the result with regrow.save."
    )


def from_json(stored: object, path: Path) -> Architecture | None:
    """Return the architecture that a file names, or None."""
    if stored is None:
        return None
    if isinstance(stored, dict):
        name, options = stored.get("name"), stored.get("options")
        if isinstance(name, str) and isinstance(options, dict):
            return Architecture(name, options)
    raise FormatError(f'{path}: its architecture is not of the form {{"name": …, "options": {{…}}}}.')


def construct(architecture: Architecture, tensors: int, path: Path) -> nn.Module:
    """Build the network that a file with `tensors` tensors names, without memory for its weights."""
    try:
        return skeleton(architecture, tensors)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise FormatError(f"{path}: its architecture cannot be built: {error}") from None


def fill(model: nn.Module, state: dict[str, Tensor], architecture: Architecture, path: Path) -> nn.Module:
    """Load the tensors of a file into a constructed network."""
    if differs := difference(model, state):
        raise FormatError(f"{path} names the architecture {architecture.name}, but {differs}.")
    model.load_state_dict(state, assign=True)
    return model.eval()


def skeleton(architecture: Architecture, tensors: int) -> nn.Module:
    """Build the network of `architecture`, which should have `tensors` tensors, without memory for its weights."""
    depth = max(map(int, re.findall(r"\d+", architecture.name[:100])), default=0)
    if depth > max(_ALWAYS_ALLOWED_DEPTH, tensors):
        raise ValueError(f"{architecture.name[:100]} has more layers than the {tensors} tensors that were given")
    return registry.skeleton(architecture.name, dict(architecture.options))


def difference(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Describe the first mismatch between `state` and `model`; return an empty string if there is none."""
    expected = model.state_dict()
    if missing := sorted(expected.keys() - state.keys()):
        return f"{missing[0]} is missing"
    if unknown := sorted(state.keys() - expected.keys()):
        return f"it has no tensor {unknown[0]}"
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            return f"{name} is {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
        if tensor.is_floating_point() != state[name].is_floating_point():
            return f"{name} is {state[name].dtype} instead of {tensor.dtype}"
    return ""
