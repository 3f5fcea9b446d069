"""A network from the name and options that a file carries, without running anything the file says."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regrow import models
from regrow.deploy.container import FormatError
from regrow.models import Architecture

# A network of this depth is built at once; a deeper one must come with a tensor for each layer.
_UNQUESTIONED_DEPTH = 256


def to_json(architecture: Architecture | None) -> dict[str, Any] | None:
    """The architecture as JSON holds it, `null` where there is none."""
    if architecture is None:
        return None
    return {"name": architecture.name, "options": dict(architecture.options)}


def from_json(stored: object, path: Path) -> Architecture | None:
    """The architecture that a file names, if it does."""
    if stored is None:
        return None
    if isinstance(stored, dict):
        name, options = stored.get("name"), stored.get("options")
        if isinstance(name, str) and isinstance(options, dict):
            return Architecture(name, options)
    raise FormatError(f'{path}: its architecture is not of the form {{"name": …, "options": {{…}}}}.')


def assemble(state: dict[str, Tensor], architecture: Architecture | None, path: Path) -> nn.Module | dict[str, Tensor]:
    """The module of `architecture` that owns the tensors of `state`; `state` itself where none is known."""
    if architecture is None:
        return state
    return fill(construct(architecture, len(state), path), state, architecture, path)


def construct(architecture: Architecture, tensors: int, path: Path) -> nn.Module:
    """The network that a file with `tensors` tensors names, without memory for its weights."""
    try:
        return skeleton(architecture, tensors)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise FormatError(f"{path}: its architecture cannot be built: {error}") from None


def fill(model: nn.Module, state: dict[str, Tensor], architecture: Architecture, path: Path) -> nn.Module:
    """Give a constructed network the tensors of a file."""
    if differs := difference(model, state):
        raise FormatError(f"{path} says that it is {architecture.name}, but {differs}.")
    model.load_state_dict(state, assign=True)
    return model.eval()


def skeleton(architecture: Architecture, tensors: int) -> nn.Module:
    """The network of `architecture` without memory for its weights, which should be `tensors` in number."""
    depth = max(map(int, re.findall(r"\d{1,9}", architecture.name)), default=0)
    if depth > max(_UNQUESTIONED_DEPTH, tensors):
        raise ValueError(f"{architecture.name} has more layers than the {tensors} tensors that were given")
    options: dict[str, Any] = dict(architecture.options)
    with torch.device("meta"), _WithoutFilling():
        return models.build(architecture.name, **options)


class _WithoutFilling(TorchFunctionMode):
    """Skips random initialisation, which on the meta device costs a second of imports and fills nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.normal_, Tensor.uniform_):
            return args[0]
        return func(*args, **(kwargs or {}))


def difference(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """The first way in which `state` does not fit `model`, in words; empty where it fits."""
    expected = model.state_dict()
    if missing := sorted(expected.keys() - state.keys()):
        return f"{missing[0]} is missing"
    if unknown := sorted(state.keys() - expected.keys()):
        return f"it has no tensor {unknown[0]}"
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            return f"{name} is {tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
        if tensor.is_floating_point() != state[name].is_floating_point():
            return f"{name} is of {state[name].dtype} instead of {tensor.dtype}"
    return ""
