"""Models in plain safetensors files, the architecture beside the tensors; what a run folder holds."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from regrow.deploy.container import MAGIC, PACKED, FormatError, locate, opened, read_json, safetensors
from regrow.deploy.prepared import unwrapped
from regrow.deploy.rebuild import assemble, difference, from_json, skeleton, to_json
from regrow.host.disk import write_atomically
from regrow.models import Architecture


def save_model(model: nn.Module | Mapping[str, Tensor], path: str | Path) -> None:
    """Write the tensors of `model`, and its architecture if it is one of `regrow.models`, in one atomic step.

    Any tool that reads safetensors can open the file; `regrow.deploy.pack` writes smaller ones.
    """
    state, architecture = contents(model)
    # safetensors refuses tied tensors, which share memory: each gets its own.
    own = {name: tensor.clone() for name, tensor in state.items()}
    metadata = {"architecture": json.dumps(to_json(architecture))} if architecture else None
    write_atomically(path, safetensors("torch").save(own, metadata))


def load_model(path: str | Path, *, max_bytes: int | None = None) -> nn.Module | dict[str, Tensor]:
    """Read a plain safetensors file, or the one in a run folder.

    Returns a module in evaluation mode when the file names its architecture, and its tensors otherwise. A
    damaged file, a packed one, or one whose tensors take more than `max_bytes` raises `FormatError`;
    `regrow.deploy.pack.load` reads both kinds.
    """
    path = locate(path)
    with opened(path, "torch") as file:
        if max_bytes is not None and (promised := _tensor_bytes(path)) > max_bytes:
            raise FormatError(
                f"{path}: its tensors would take {promised:,} bytes, more than the {max_bytes:,} allowed."
                f" If you trust it, pass max_bytes={promised}."
            )
        stored = (file.metadata() or {}).get("architecture", "null")
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no mapping
    if packed := [name for name, tensor in state.items() if name.startswith(PACKED) or _starts_packed(tensor)]:
        raise FormatError(f"{path} holds {packed[0]}: it is a packed file, or what is left of one.")
    return assemble(state, from_json(read_json(stored, path), path), path)


def _tensor_bytes(path: Path) -> int:
    """What the tensors of a safetensors file take: all that is behind its header, as the parser has made sure."""
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    return path.stat().st_size - 8 - header


def _starts_packed(tensor: Tensor) -> bool:
    return tensor.dtype is torch.uint8 and tensor.dim() == 1 and bytes(tensor[: len(MAGIC)].tolist()) == MAGIC


def contents(
    source: nn.Module | Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], Architecture | None]:
    """The tensors of a module or a state dict on the CPU, and the architecture where it is known."""
    model = unwrapped(source) if isinstance(source, nn.Module) else source
    named = model.state_dict() if isinstance(model, nn.Module) else model
    state = {name: _plain(name, value) for name, value in named.items()}
    architecture = getattr(model, "architecture", None)
    if not isinstance(architecture, Architecture):
        return state, None
    if differs := difference(skeleton(architecture, len(state)), state):
        raise ValueError(
            f"the model says that it is {architecture.name} with {dict(architecture.options)}, but {differs}."
            " Save model.state_dict() to keep the tensors without the architecture."
        )
    return state, architecture


def _plain(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_quantized:
        raise TypeError(f"{name!r} is not an ordinary tensor but {type(value).__name__}: it cannot be stored.")
    return value.detach().cpu().contiguous()
