"""A user's model made ready for inference, and compared with what was made of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.prune import BasePruningMethod

from regrow.host.modes import evaluating

TOLERANCE = 1e-4
"""How far a compiled model may be from the module on the example, relative to the largest output."""


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def prepared(model: nn.Module, example_input: Tensor) -> tuple[nn.Module, Tensor]:
    """The model and its example on the CPU in float32, a copy if need be; what cannot be compiled is refused."""
    if not isinstance(example_input, Tensor):
        raise TypeError(f"example_input must be a tensor such as torch.randn(1, 3, 32, 32), got {example_input!r}")
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, got {type(model).__name__}; load a state dict into one first"
        )
    model = unwrapped(model)
    check_present(model)
    _check_permanent(model)
    return _in_single_precision(model), example_input.detach().to("cpu", torch.float32)


def check_present(model: nn.Module) -> None:
    """Refuse a model whose weights or whose code are not there."""
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("model is a TorchScript module, which cannot be captured: give the module that it was made of")
    tensors = [*model.named_parameters(), *model.named_buffers()]
    if absent := [name for name, tensor in tensors if tensor.is_meta]:
        raise ValueError(f"{absent[0]} is on the meta device, where weights have no values: load them first")


def _check_permanent(model: nn.Module) -> None:
    """Refuse a model whose weights are computed anew in every run."""
    for name, module in model.named_modules():
        hooks = module._forward_pre_hooks.values()
        if pruned := [hook for hook in hooks if isinstance(hook, BasePruningMethod)]:
            weight = pruned[0]._tensor_name
            raise ValueError(
                f"{name or 'the model'} is masked anew in every run by torch.nn.utils.prune: make its zeros permanent "
                f"with prune.remove(module, {weight!r})"
            )
        if parametrize.is_parametrized(module):
            weight = next(iter(module.parametrizations))
            raise ValueError(
                f"{name or 'the model'} computes its {weight} anew in every run (torch.nn.utils.parametrize): make it "
                f"permanent with remove_parametrizations(module, {weight!r})"
            )


def _in_single_precision(model: nn.Module) -> nn.Module:
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.is_cpu and (tensor.dtype is torch.float32 or not tensor.is_floating_point()) for tensor in tensors):
        return model
    return copy.deepcopy(model).to("cpu", torch.float32)


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Let `model` do what it does when it is deployed, whatever the caller is about."""
    with evaluating(model), torch.no_grad(), torch.autocast("cpu", enabled=False):
        yield


def output_of(model: nn.Module, example: Tensor) -> Tensor:
    """What the module itself makes of the example; an error if it is no use to compare with."""
    with inference(model):
        output: Tensor = model(example.clone())  # which a first layer that works in place would change
    if not bool(output.isfinite().all()):
        raise ValueError("the model's own output on example_input is not finite: has its training diverged?")
    return output


def distance(result: Tensor, expected: Tensor) -> float:
    """How far a result is from what is expected, relative to the largest of it."""
    scale = max(expected.abs().max().item(), 1e-6)
    return (result - expected).abs().max().item() / scale


def check_same(result: Tensor, expected: Tensor) -> None:
    """Refuse what was made of a model if it computes something else."""
    error = distance(result, expected)
    if not error <= TOLERANCE:
        raise RuntimeError(
            f"the compiled model differs from the module by {error:.1e} on example_input (relative to the "
            f"largest output; at most {TOLERANCE:.0e} is accepted). Please report this model."
        )
