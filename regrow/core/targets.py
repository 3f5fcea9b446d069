"""Which parameters of a model are pruned: defaults, names, globs, predicates."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import Parameter, UninitializedParameter

from regrow.checks import warn
from regrow.core.bits import is_dense
from regrow.core.distributed import check_placement, first_row, is_sharded, local_part
from regrow.core.modules import clean_name, named_parameters
from regrow.text import did_you_mean

TargetSpec = str | Iterable[str] | Callable[[str, Parameter], bool] | None


@dataclass(frozen=True)
class Target:
    """A parameter that is pruned; `out_dim` is the dimension along which its filters lie."""

    name: str
    param: Parameter
    out_dim: int = 0

    @property
    def local(self) -> Tensor:
        """The values that this process stores: some rows of a sharded parameter, all of any other."""
        return local_part(self.param)

    @property
    def grad(self) -> Tensor | None:
        """The gradient of `local`."""
        return None if self.param.grad is None else local_part(self.param.grad)

    @property
    def offset(self) -> int:
        """The row-major index of the first element of `local` in the full parameter."""
        return first_row(self.param) * self.param.shape[1:].numel()

    def part(self, tensor: Tensor) -> Tensor:
        """Return the rows of `tensor` that belong to `local`; it is full, or sharded like the parameter."""
        if is_sharded(tensor) or tensor.shape != self.param.shape:
            return local_part(tensor)
        first = first_row(self.param)
        return tensor[first : first + len(self.local)] if tensor.ndim else tensor


def zero_outside(masks: Mapping[str, Tensor], model: nn.Module) -> None:
    """Set the model's weights to zero where their masks, those of this process's part, are False."""
    parameters = named_parameters(model)
    for name, mask in masks.items():
        if name not in parameters or local_part(parameters[name]).shape != mask.shape:
            found = tuple(local_part(parameters[name]).shape) if name in parameters else "none of that name"
            raise ValueError(f"the other model must have {name} of shape {tuple(mask.shape)}, it has {found}")
    with torch.no_grad():
        for name, mask in masks.items():
            local_part(parameters[name]).masked_fill_(~mask.to(parameters[name].device), 0)


def find_targets(model: nn.Module, spec: TargetSpec = None, *, include_last: bool = False) -> list[Target]:
    """Return the parameters to prune, in the model's order.

    By default these are the weights of every convolution and linear layer but the last linear one (Section 5.1), as far
    as they are trained: nothing could grow back in those that are frozen.
    `spec` can be a name, a glob, several of them, or a predicate `(name, parameter) -> bool`; a name may be that of a
    parameter or of the module that owns it.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    parameters = named_parameters(model)
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise TypeError(
            "FSDP1 keeps weights in flat parameters in which layers have lost their shapes: attach the pruner to a "
            "model under fully_shard (FSDP2) or DistributedDataParallel instead"
        )
    if spec is None:
        chosen = _default_names(model, parameters, include_last)
    elif callable(spec):
        chosen = {name for name, parameter in parameters.items() if spec(name, parameter)}
    else:
        chosen = _matching_names(parameters, [spec] if isinstance(spec, str) else list(spec))
    if not chosen:
        raise ValueError(
            "the model has nothing to prune: no convolution, and no linear layer besides the last one. "
            "Pass include_last=True, or name parameters with targets=..."
            if spec is None
            else f"targets={spec!r} selects no parameter. {_known(parameters)}"
        )
    # The weights of transposed convolutions are (in, out, ...).
    transposed = {id(module.weight) for module in model.modules() if isinstance(module, _ConvTransposeNd)}
    targets = [
        Target(name, parameter, int(id(parameter) in transposed))
        for name, parameter in parameters.items()
        if name in chosen
    ]
    for target in targets:
        _check(target)
    return targets


def _default_names(model: nn.Module, parameters: dict[str, Parameter], include_last: bool) -> set[str]:
    layers = {name: module for name, module in model.named_modules() if isinstance(module, _ConvNd | nn.Linear)}
    linears = [name for name, module in layers.items() if isinstance(module, nn.Linear)]
    if linears and not include_last:
        del layers[linears[-1]]
    computed = [clean_name(name) for name, module in layers.items() if module._parameters.get("weight") is None]
    if computed:
        warn(
            f"{computed[0]} ({len(computed)} in all) computes its weight from other parameters (a parametrization, "
            "weight_norm, torch.nn.utils.prune): it is not pruned. Remove that first, or choose others with targets=..."
        )
    weights = {id(module._parameters.get("weight")) for module in layers.values()}
    chosen = [name for name, parameter in parameters.items() if id(parameter) in weights]
    trained = [name for name in chosen if parameters[name].requires_grad]
    if not trained:  # a model for inference, of which all is meant
        return set(chosen)
    if frozen := [name for name in chosen if name not in trained]:
        warn(
            f"{frozen[0]} ({len(frozen)} in all) is frozen (requires_grad=False): it is not pruned, as nothing could "
            "grow back in it. To prune it all the same, name it with targets=..."
        )
    return set(trained)


def _matching_names(parameters: dict[str, Parameter], patterns: list[str]) -> set[str]:
    chosen: set[str] = set()
    weights = [name for name, parameter in parameters.items() if parameter.ndim > 1]
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"targets must be names, globs or a predicate, got {pattern!r}")
        # A name may have the prefix of a wrapper, or start like one.
        names = [each for name in (pattern, clean_name(pattern)) for each in (name, f"{name}.weight")]
        exact = [name for name in names if name in parameters]
        found = exact[:1] or next(filter(None, (fnmatch.filter(weights, name) for name in names)), [])
        if not found:
            raise ValueError(f"no weight matches target {pattern!r}. {_known(parameters, pattern)}")
        chosen.update(found)
    return chosen


def _known(parameters: dict[str, Parameter], pattern: str = "") -> str:
    weights = [name for name, parameter in parameters.items() if parameter.ndim > 1]
    listed = ", ".join(weights[:3]) + (", …" if len(weights) > 3 else "")
    owners = [name.rpartition(".")[0] for name in weights]
    parents = sorted({f"{owner.split('.')[0]}.*" for owner in owners if "." in owner})
    hint = did_you_mean(pattern, [*weights, *owners, *parents], cutoff=0.6) if pattern else ""
    return f"The model's prunable weights are {listed} ({len(weights)} in all).{hint}"


def _check(target: Target) -> None:
    parameter: Tensor = target.param
    if isinstance(parameter, UninitializedParameter):
        raise ValueError(f"{target.name} has no shape yet: run one batch through the lazy model before pruning it")
    if not parameter.is_floating_point():
        raise TypeError(f"{target.name} holds {parameter.dtype}: only floating point weights can be pruned")
    check_placement(target.name, parameter)
    if parameter.itemsize < 2:
        raise TypeError(f"{target.name} holds {parameter.dtype}: weights of 16, 32 or 64 bit can be pruned")
    if parameter.is_meta:
        raise ValueError(f"{target.name} is on the meta device and has no values yet: materialize the model first")
    check_storage(target)


def check_storage(target: Target) -> None:
    """Refuse a parameter whose elements overlap in memory or have gaps between them."""
    if not is_dense(target.local):
        raise ValueError(f"{target.name} has overlapping or padded storage: make it contiguous before pruning it")
