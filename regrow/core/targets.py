"""Which parameters of a model are pruned: defaults, names, globs, predicates."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import Parameter, UninitializedParameter

from regrow.checks import warn
from regrow.core.bits import is_dense
from regrow.core.distributed import check_placement, first_row, is_sharded, local_part
from regrow.core.modules import clean_name, named_parameters, unwrap
from regrow.text import did_you_mean

Names = str | nn.Module | Iterable[str | nn.Module]
TargetSpec = Names | Callable[[str, Parameter], bool] | None


@dataclass(frozen=True)
class Target:
    """A parameter that is pruned; `out_dim` is the dimension along which its filters lie.

    The weight of a transposed convolution is (inputs, outputs / groups, ...): each of its `groups` has its own
    filters, which lie in the group's part of the inputs.
    """

    name: str
    param: Parameter
    out_dim: int = 0
    groups: int = 1

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

    @property
    def filters(self) -> int:
        """Number of output filters."""
        return self.param.shape[self.out_dim] * self.groups

    @property
    def inputs(self) -> int:
        """Number of input channels that a filter sees."""
        return self.param.shape[1 - self.out_dim] // self.groups

    def by_filter(self, tensor: Tensor) -> Tensor:
        """Return a tensor like `local` as a matrix with one row per filter."""
        if self.groups == 1:
            return tensor.movedim(self.out_dim, 0).flatten(1)
        grouped: Tensor = tensor.unflatten(0, (self.groups, -1))
        return grouped.movedim(2, 1).flatten(0, 1).flatten(1)

    def spread(self, values: Tensor) -> Tensor:
        """Return one value per filter in the shape of `local`."""
        shape = self.local.shape
        if self.out_dim == 0:
            return values.view(-1, *[1] * (len(shape) - 1)).expand(shape)
        grouped = values.view(self.groups, 1, -1, *[1] * (len(shape) - 2))
        full: Tensor = grouped.expand(self.groups, shape[0] // self.groups, *shape[1:]).flatten(0, 1)
        return full

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
            found = tuple(local_part(parameters[name]).shape) if name in parameters else "no parameter with this name"
            raise ValueError(f"the other model must have {name} of shape {tuple(mask.shape)}, it has {found}")
    with torch.no_grad():
        for name, mask in masks.items():
            local_part(parameters[name]).masked_fill_(~mask.to(parameters[name].device), 0)


def find_targets(
    model: nn.Module, spec: TargetSpec = None, *, include_last: bool = False, exclude: Names = ()
) -> list[Target]:
    """Return the parameters to prune, in the model's order.

    By default these are the weights of every convolution, linear layer and attention but the last linear layer
    (Section 5.1), unless they are frozen: nothing could grow back there. Embeddings are not included, even if a
    linear layer shares their weights.
    `spec` can be a name, a glob, a module, several of them, or a predicate `(name, parameter) -> bool`, which is called
    for weights only (two dimensions or more); a name may be that of a parameter or of the module that owns it.
    `exclude` leaves out names, globs and modules.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    parameters = named_parameters(model)
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise TypeError(
            "FSDP1 keeps weights in flat parameters in which layers have lost their shapes: attach the pruner to a "
            "model under fully_shard (FSDP2) or DistributedDataParallel instead"
        )
    excluded = _matching_names(parameters, exclude, "exclude")
    if spec is None:
        chosen = _default_names(model, parameters, include_last, excluded)
    elif callable(spec) and not isinstance(spec, nn.Module):
        chosen = {name for name, parameter in parameters.items() if parameter.ndim > 1 and spec(name, parameter)}
    else:
        chosen = _matching_names(parameters, spec, "targets")
    chosen -= excluded
    if not chosen:
        raise ValueError(
            "the model has nothing to prune: no convolution and no linear layer with its own weight besides the "
            "last linear one. Pass include_last=True, or name parameters with targets=..."
            if spec is None
            else f"targets={spec!r} selects no parameter. {_known(parameters)}"
        )
    # The weights of transposed convolutions are (in, out, ...), those of transformers' Conv1D (in, out).
    transposed = {
        id(module.weight): getattr(module, "groups", 1)
        for module in model.modules()
        if isinstance(module, _ConvTransposeNd) or _is_conv1d(module)
    }
    targets = [
        Target(name, parameter, int(id(parameter) in transposed), transposed.get(id(parameter), 1))
        for name, parameter in parameters.items()
        if name in chosen
    ]
    for target in targets:
        _check(target)
    _check_memory(parameters, targets)
    return targets


def check_not_replaced(model: nn.Module, targets: Iterable[Target], method: str) -> None:
    """Raise if the model holds other parameters than those that are pruned."""
    held = named_parameters(model)
    if replaced := [target.name for target in targets if held.get(target.name) is not target.param]:
        raise RuntimeError(
            f"{replaced[0]} of the model is not the parameter that this {method} prunes: a layer was "
            "replaced, or load_state_dict(assign=True) was called. Attach a new pruner to a new optimizer."
        )


def spared_layer(model: nn.Module) -> str | None:
    """Return the name of the last linear layer, which is not among the default targets; None if there is none."""
    linears = [name for name, module in unwrap(model).named_modules() if isinstance(module, nn.Linear)]
    return clean_name(linears[-1]) if linears else None


def _is_conv1d(module: nn.Module) -> bool:
    """Return whether this is the linear layer of GPT-2 in transformers, whose weight is (in, out)."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def _default_names(
    model: nn.Module, parameters: dict[str, Parameter], include_last: bool, excluded: set[str]
) -> set[str]:
    modules = {clean_name(name): module for name, module in unwrap(model).named_modules()}
    layers = {name: each for name, each in modules.items() if isinstance(each, _ConvNd | nn.Linear) or _is_conv1d(each)}
    spared = None if include_last else spared_layer(model)
    if spared is not None:
        if f"{spared}.weight" not in excluded:
            _warn_of_other_heads(spared, [name for name in layers if f"{name}.weight" not in excluded])
        last = layers.pop(spared)
    computed = {name: module for name, module in layers.items() if module._parameters.get("weight") is None}
    if computed:
        warn(
            f"{next(iter(computed))} ({len(computed)} in all) computes its weight from other parameters (a "
            "parametrization, weight_norm, torch.nn.utils.prune): it is not pruned. Remove that first, or choose "
            "others with targets=..."
        )
    weights = {id(module._parameters.get("weight")) for module in layers.values()}
    for module in modules.values():
        if isinstance(module, nn.MultiheadAttention):
            weights |= {id(p) for name, p in module._parameters.items() if p is not None and name.endswith("_weight")}
    embeddings = {id(m.weight) for m in modules.values() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    chosen = [
        name
        for name, p in parameters.items()
        if id(p) in weights - embeddings and name not in excluded and not _is_empty(p)
    ]
    trained = [name for name in chosen if parameters[name].requires_grad]
    if not trained:  # everything is frozen: a model for inference
        return set(chosen)
    if frozen := [name for name in chosen if name not in trained]:
        warn(
            f"{frozen[0]} ({len(frozen)} in all) is frozen (requires_grad=False): it is not pruned, as nothing could "
            "grow back in it. To prune it all the same, name it with targets=..."
        )
    _warn_of_own_forward({name: module for name, module in layers.items() if f"{name}.weight" in trained})
    aside = embeddings | {id(p) for module in computed.values() for p in module.parameters()}
    aside |= {id(p) for p in last.parameters()} if spared is not None else set()
    _warn_of_what_is_left(parameters, trained, aside, excluded)
    return set(trained)


def _warn_of_other_heads(spared: str, layers: list[str]) -> None:
    """Warn if the layer that stays dense is probably not the one that makes the output."""
    heads = [name for name in layers if name.startswith(("head", "classifier", "lm_head")) and "." not in name]
    others = [name for name in (*heads, layers[-1] if layers else spared) if name != spared]
    if others:
        warn(
            f"{spared} stays dense, as the last linear layer that the model defines; {others[0]} is pruned, and may be "
            f"the one that makes the output. To choose it instead: exclude={others[0]!r}, include_last=True."
        )


def _warn_of_own_forward(layers: Mapping[str, nn.Module]) -> None:
    """Warn about convolutions and linear layers that override `forward`, such as weight standardization."""
    own = [name for name, module in layers.items() if not _has_torch_forward(module)]
    if own:
        kind = type(layers[own[0]]).__name__
        warn(
            f"{own[0]} ({kind}, {len(own)} in all) overrides forward. If it computes the weight that it uses, "
            "as weight standardization does, that weight is not sparse: leave these layers out with exclude=..."
        )


def _has_torch_forward(module: nn.Module) -> bool:
    owner = next(cls for cls in type(module).__mro__ if "forward" in vars(cls))
    return owner.__module__.startswith("torch.") or _is_conv1d(module)


def _warn_of_what_is_left(
    parameters: Mapping[str, Parameter], chosen: Iterable[str], aside: set[int], excluded: set[str]
) -> None:
    """Warn if the default targets are less than half of the trained weights, without those `aside` and `excluded`."""
    targeted = set(chosen)
    sizes = {
        name: parameter.numel()
        for name, parameter in parameters.items()
        if parameter.ndim > 1 and parameter.requires_grad and id(parameter) not in aside and name not in excluded
    }
    pruned = sum(size for name, size in sizes.items() if name in targeted)
    left = sorted((name for name in sizes if name not in targeted), key=lambda name: -sizes[name])
    if 2 * pruned < sum(sizes.values()):
        warn(
            f"only {100 * pruned / sum(sizes.values()):.0f} % of the model's weights are pruned: those of "
            f"convolutions, linear layers and attention. The largest weights that stay dense are {', '.join(left[:3])} "
            f"({len(left)} in all). Name what to prune with targets=..."
        )


def _matching_names(parameters: dict[str, Parameter], spec: Names, option: str) -> set[str]:
    chosen: set[str] = set()
    weights = [name for name, parameter in parameters.items() if parameter.ndim > 1]
    patterns = [spec] if isinstance(spec, str | nn.Module) else list(spec)
    for pattern in patterns:
        if isinstance(pattern, nn.Module):
            chosen |= _names_in(pattern, parameters, option)
            continue
        if not isinstance(pattern, str):
            raise TypeError(f"{option} must be names, globs, modules or a predicate, got {pattern!r}")
        found = _matches(pattern, parameters, weights)
        if not found:
            what = "target" if option == "targets" else f"{option}="
            raise ValueError(f"no weight matches {what} {pattern!r}. {_known(parameters, pattern)}")
        chosen.update(found)
    return chosen


def _matches(pattern: str, names: Collection[str], weights: Collection[str]) -> list[str]:
    """Return the one of `names` that `pattern` is, or else the `weights` that it matches as a glob."""
    # A name may have the prefix of a wrapper, or start like one.
    forms = [each for name in (pattern, clean_name(pattern)) for each in (name, f"{name}.weight")]
    exact = [form for form in forms if form in names]
    return exact[:1] or next(filter(None, (fnmatch.filter(weights, form) for form in forms)), [])


def group_targets(names: Collection[str], patterns: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of the targets by the first of the `patterns` of `sparsity` that matches; each must have some.

    >>> group_targets(["conv.weight", "fc.weight"], ["fc", "*"])
    {'fc': ['fc.weight'], '*': ['conv.weight']}
    """
    groups: dict[str, list[str]] = {}
    left = list(names)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"sparsity must have names or globs as its keys, got {pattern!r}")
        matching = _matches(pattern, names, names)
        if not matching:
            hint = did_you_mean(pattern, [*names, *(name.rpartition(".")[0] for name in names)], cutoff=0.6)
            listed = ", ".join(list(names)[:3]) + (", …" if len(names) > 3 else "")
            raise ValueError(
                f"no target matches {pattern!r} in sparsity. The targets are {listed} ({len(names)} in all).{hint}"
            )
        groups[pattern] = [name for name in left if name in matching]
        if not groups[pattern]:
            others = ", ".join(map(repr, list(groups)[:-1]))
            raise ValueError(
                f"{pattern!r} in sparsity comes after {others}, which match all of its targets: put it first"
            )
        left = [name for name in left if name not in matching]
    if left:
        raise ValueError(
            f"no pattern in sparsity ({', '.join(map(repr, groups))}) matches {left[0]} ({len(left)} in all). Add '*' "
            "as the last one for all others, or leave them dense with exclude=..."
        )
    return groups


def _names_in(module: nn.Module, parameters: dict[str, Parameter], option: str) -> set[str]:
    """Return the names of all weights of a module."""
    inside = {id(parameter) for parameter in module.parameters() if parameter.ndim > 1}
    found = {name for name, parameter in parameters.items() if id(parameter) in inside}
    if not found:
        raise ValueError(f"{option} holds a {type(module).__name__} that has no weight of this model")
    return found


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
    if _is_empty(parameter):
        raise ValueError(f"{target.name} has no elements, its shape is {tuple(parameter.shape)}: leave it out")
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


def _is_empty(parameter: Tensor) -> bool:
    return not isinstance(parameter, UninitializedParameter) and parameter.numel() == 0


def _check_memory(parameters: Mapping[str, Parameter], targets: Iterable[Target]) -> None:
    """Refuse targets that share memory with another parameter: a step of one would bypass the mask of the other."""
    pruned = {target.name for target in targets}
    blocks = {name: _memory(parameter) for name, parameter in parameters.items()}
    furthest: tuple[str, str, int] = ("", "", 0)
    for (device, start, end), name in sorted((block, name) for name, block in blocks.items() if block):
        where, other, reach = furthest
        if device == where and start < reach and not pruned.isdisjoint((name, other)):
            raise ValueError(
                f"{other} and {name} are different parameters in the same memory, so a mask of one would not hold: "
                "let both layers have one Parameter, or give each its own (.clone())"
            )
        if device != where or end > reach:
            furthest = device, name, end


def _memory(parameter: Parameter) -> tuple[str, int, int] | None:
    """Return device, first address and last one + 1 of the elements; None if the parameter has no memory."""
    if isinstance(parameter, UninitializedParameter) or parameter.is_meta or parameter.layout is not torch.strided:
        return None
    tensor = local_part(parameter)
    start = tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (str(tensor.device), start, start + (last + 1) * tensor.itemsize) if tensor.numel() and start else None
