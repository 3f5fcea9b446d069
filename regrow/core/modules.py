"""Helpers for `nn.Module`: unwrap, clean parameter names, evaluation mode, copies for inference, compare outputs."""

from __future__ import annotations

import copy
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod
from torch.optim.swa_utils import AveragedModel
from torch.utils import _pytree as pytree

from regrow.core.bits import largest_magnitude

Inputs = tuple[Tensor, ...]

TOLERANCE = 1e-4
"""Largest accepted difference between a compiled or exported model and its module, relative to the largest output."""

ROUNDING = 10.0
"""A difference of up to this multiple of torch's own rounding error is accepted, too."""

LARGEST_ROUNDING = 0.1
"""Largest difference that is ever taken for rounding, relative to the largest output."""

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, AveragedModel)
# Names that torch.compile and activation checkpointing insert, also in the middle of a parameter's name.
_INSERTED = r"_orig_mod\.|_checkpoint_wrapped_module\."
_INSERTED_NAMES = re.compile(_INSERTED)
_WRAPPER_NAMES = re.compile(rf"^(?:module\.|_orig_mod\.)+|{_INSERTED}")


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, DataParallel, `AveragedModel` and torch.compile.

    Wrappers are recognized by their type: an attribute `module` of a user's own class belongs to the model.
    """
    while True:
        if isinstance(model, _WRAPPERS):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def clean_name(name: str) -> str:
    """Remove what `DistributedDataParallel`, `AveragedModel`, `torch.compile` and checkpointing add to a name.

    >>> clean_name("module._orig_mod.conv1.weight")
    'conv1.weight'
    """
    return _WRAPPER_NAMES.sub("", name)


def named_parameters(model: nn.Module) -> dict[str, Parameter]:
    """Return every parameter of the unwrapped model once, under its clean name."""
    named = list(unwrap(model).named_parameters())
    clean = {_INSERTED_NAMES.sub("", name): parameter for name, parameter in named}
    return clean if len(clean) == len(named) else dict(named)


def brief(value: object) -> str:
    """Describe a value in an error message: tensors by their shapes, anything else by the start of its `repr`."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list) and any(isinstance(part, Tensor) for part in value):
        parts = [brief(part) for part in value[:3]] + ["…"] * (len(value) > 3)
        return f"a {type(value).__name__} of {', '.join(parts)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with {reprlib.repr(list(value))}"
    return reprlib.repr(value)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put `model` into evaluation mode, and each of its modules back into its own mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Run `model` as it is deployed: in evaluation mode, without gradients and without autocast."""
    with evaluating(model), torch.no_grad(), torch.autocast("cpu", enabled=False):
        yield


def prepared(model: nn.Module, example_input: Tensor) -> tuple[nn.Module, Tensor]:
    """Return the model and its example on the CPU in float32, copied only if needed.

    Raises a TypeError or ValueError for a model that cannot be compiled.
    """
    if not isinstance(example_input, Tensor):
        raise TypeError(f"example_input must be a tensor such as torch.randn(1, 3, 32, 32), got {brief(example_input)}")
    model = unwrap(model)
    check_present(model)
    if not (example_input.is_floating_point() or example_input.dtype is torch.uint8):
        raise TypeError(
            f"example_input must be floating point, got {example_input.dtype}: the engine computes in float32 and "
            f"cannot run models of complex numbers or of indices, such as tokens{_lookups(model)}. ONNX Runtime can "
            "run the file of regrow.export.onnx; it computes with all weights, zeros too"
        )
    if example_input.is_cpu and example_input.layout is torch.strided and not has_values(example_input):
        raise ValueError("example_input has no values in memory: it is a fake tensor, or its storage was freed")
    _check_permanent(model)
    return _in_single_precision(model), example_input.detach().to("cpu", torch.float32)


def _lookups(model: nn.Module) -> str:
    """Return the modules that take indices, for an error."""
    kinds = nn.Embedding | nn.EmbeddingBag
    found = [
        f"{name or 'model'} ({type(each).__name__})" for name, each in model.named_modules() if isinstance(each, kinds)
    ]
    return f", which {', '.join(found[:3])}{', …' if found[3:] else ''} looks up" if found else ""


def exportable(model: nn.Module, example_input: Tensor | Inputs) -> tuple[nn.Module, Inputs]:
    """Return an unwrapped copy of `model` in evaluation mode, and copies of its inputs with a batch of at least two.

    Exporters treat a batch size of one as a constant. The inputs are copied because a model may change them in place.
    """
    given = example_input if isinstance(example_input, tuple) else (example_input,)
    if not given or not all(isinstance(value, Tensor) for value in given):
        raise TypeError(
            f"example_input must be a tensor such as torch.randn(1, 3, 32, 32), or several, got {brief(example_input)}"
        )
    model = unwrap(model)
    check_present(model)
    inputs = tuple(value.detach() for value in given)
    inputs = tuple(torch.cat([value, value]) if len(value) == 1 else value.clone() for value in inputs)
    return copy.deepcopy(model).eval(), inputs


def any_batch(inputs: Inputs) -> tuple[dict[int, Any], ...]:
    """Return the `dynamic_shapes` of inputs whose first dimension is a batch of any size, the same for all."""
    batch = torch.export.Dim("batch", min=1)
    return tuple({0: batch} for _ in inputs)


def output_of(model: nn.Module, example: Tensor) -> Tensor:
    """Return the output of `model` for the example; raise a ValueError if it is not finite."""
    with inference(model):
        output: Tensor = model(example.clone())  # a first layer that works in place would change the example
    if not bool(output.isfinite().all()):
        raise ValueError("the model's own output on example_input is not finite: has its training diverged?")
    return output


def distance(result: Tensor, expected: Tensor) -> float:
    """Return the largest difference between two outputs, relative to the largest expected magnitude."""
    return largest_magnitude(result - expected) / max(largest_magnitude(expected), torch.finfo(torch.float32).tiny)


def check_same(result: Tensor, expected: Tensor, model: nn.Module, example: Tensor) -> None:
    """Raise a RuntimeError if a compiled model's output differs from the module's by more than rounding."""
    found = disagreement(result, expected, lambda: exact_outputs(model, (example,)).get(0), TOLERANCE)
    if found is not None:
        raise RuntimeError(
            f"the compiled model differs from the module by {distance(result, expected):.1e} on example_input "
            f"(relative to the largest output). At most {TOLERANCE:.0e} is accepted, or {ROUNDING:.0f} times "
            "torch's own rounding error. Please report this model."
        )


def disagreement(
    result: Tensor, expected: Tensor, exact: Callable[[], Tensor | None], tolerance: float
) -> tuple[float, float] | None:
    """Return the difference from the expected output and the accepted difference; None if the output is accepted.

    Accepted are `tolerance` times the largest expected magnitude, however small that is, and `ROUNDING` times torch's
    own error: the distance of `expected` from `exact()`, the output in float64, which is computed only if needed.
    """
    if result.shape != expected.shape:
        return torch.inf, 0.0
    difference, scale = largest_magnitude(result.double() - expected.double()), largest_magnitude(expected)
    accepted = tolerance * scale
    if not difference <= accepted and (precise := exact()) is not None and precise.shape == expected.shape:
        own = largest_magnitude(expected.double() - precise.double())
        accepted = max(accepted, min(ROUNDING * own, LARGEST_ROUNDING * scale))
    return None if difference <= accepted else (difference, accepted)


def exact_outputs(model: nn.Module, inputs: tuple[Any, ...]) -> dict[int, Any]:
    """Return the parts of the output of `model` by number, computed in float64; none if it cannot run in that."""
    try:
        with inference(precise := copy.deepcopy(model).double()):
            outputs = precise(*pytree.tree_map_only(Tensor, _in_double, inputs))
    except (RuntimeError, TypeError, ValueError):  # a forward may cast to another precision
        return {}
    return dict(enumerate(pytree.tree_leaves(outputs)))


def _in_double(value: Tensor) -> Tensor:
    return value.detach().double() if value.is_floating_point() else value.detach().clone()


def has_values(tensor: Tensor) -> bool:
    """Whether a dense CPU tensor has memory for all its elements.

    Fake tensors, wrappers of `torch.func` and tensors whose storage was freed or cut do not: reading from their address
    would crash the process.
    """
    try:
        storage = tensor.untyped_storage()
        if storage.device.type != "cpu":  # asking a fake tensor for its address gives a warning
            return False
        numel = tensor.numel()
        span = (
            numel
            if tensor.is_contiguous()
            else 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        )
        end = (tensor.storage_offset() + span) * tensor.element_size()
        return numel == 0 or (tensor.data_ptr() != 0 and storage.nbytes() >= end)
    except (RuntimeError, NotImplementedError):  # a tensor without storage
        return False


def check_present(model: nn.Module) -> None:
    """Refuse a model whose weights or Python code are not available."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; load a state dict into one first"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("model is a TorchScript module, which cannot be captured: pass the module it was made from")
    tensors = [*model.named_parameters(), *model.named_buffers()]
    if absent := [name for name, tensor in tensors if tensor.is_meta]:
        raise ValueError(f"{absent[0]} is on the meta device, where weights have no values: load them first")
    dense = [(name, tensor) for name, tensor in tensors if tensor.is_cpu and tensor.layout is torch.strided]
    if absent := [name for name, tensor in dense if not has_values(tensor)]:
        raise ValueError(
            f"{absent[0]} has no values in memory: it is a fake or sharded tensor, or its storage was freed. Load the "
            "weights first"
        )


def _check_permanent(model: nn.Module) -> None:
    """Refuse a model that computes weights in every forward pass."""
    for name, module in model.named_modules():
        hooks = module._forward_pre_hooks.values()
        if pruned := [hook for hook in hooks if isinstance(hook, BasePruningMethod)]:
            weight = pruned[0]._tensor_name
            raise ValueError(
                f"{name or 'the model'} is masked in every forward pass by torch.nn.utils.prune: make its zeros "
                f"permanent with prune.remove(module, {weight!r})"
            )
        if parametrize.is_parametrized(module):
            weight = next(iter(module.parametrizations))
            raise ValueError(
                f"{name or 'the model'} computes its {weight} in every forward pass (torch.nn.utils.parametrize): make "
                f"it permanent with remove_parametrizations(module, {weight!r})"
            )


def _in_single_precision(model: nn.Module) -> nn.Module:
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.is_cpu and (tensor.dtype is torch.float32 or not tensor.is_floating_point()) for tensor in tensors):
        return model
    return copy.deepcopy(model).to("cpu", torch.float32)
