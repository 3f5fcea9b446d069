"""Options that all methods share, a method's row in the table of methods, and full signatures for help()."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, get_args, get_type_hints

import torch.distributed as dist

from regrow.checks import check_steps
from regrow.core.budget import Scope
from regrow.core.hooks import WeightDecayAt
from regrow.core.schedule import Level
from regrow.core.targets import Names, TargetSpec
from regrow.core.units import Criterion
from regrow.text import did_you_mean

EPOCH = 391
"""Steps of an epoch in the paper's comparison (CIFAR-10, batch 128): the period of methods that update every epoch."""


class TargetOptions(TypedDict, total=False):
    """Which weights are pruned, and by which processes: options of nearly all methods."""

    targets: TargetSpec
    """Names, globs, modules or a predicate; by default every convolution, linear layer and attention."""
    exclude: Names
    """Names, globs or modules that are not pruned."""
    include_last: bool
    """Whether the last linear layer is among the default targets."""
    process_group: dist.ProcessGroup | None
    """The processes that train the same model; by default all."""


class PrunerOptions(TargetOptions, total=False):
    """The options of `Pruner` that a magnitude method passes on unchanged."""

    scope: Scope
    """How many weights each layer keeps: "global", "layer", "er", "erk" or "redistributed", see
    `regrow.core.budget.Budget`."""
    unit: str
    """The unit of pruning: "weight", "filter", or N:M such as "2:4" along the input channels."""
    criterion: Criterion
    """How filters are ranked: by l2, l1 or rms of their weights, by distance to the others (fpgm), by the scale of the
    batch norm that follows (bn)."""
    channels: bool
    """With unit="filter", also mask the filter's bias, and scale and shift of the batch norm that directly follows.

    Without it the channel of a pruned filter is a constant (the batch norm's output for zero), and DPF's feedback
    reaches the filter. With it the channel is exactly zero, and so is the filter's gradient, which passes through the
    scale: a pruned filter can come back only if others become smaller.
    """
    floor: int
    """Number of units of each layer that are never pruned."""
    weight_decay_at: WeightDecayAt
    """Whether weight decay acts on the dense or on the pruned weights."""
    offload: bool
    """Whether the dense weights are stored in CPU memory between steps: a GPU then stores only the masks in addition
    to the model, and every step makes two copies."""


@dataclass(frozen=True)
class MethodInfo:
    """A method's row in the table of methods, beyond its class attributes and options."""

    paper: str
    when: str
    score: str
    cost: str
    """Cost of a mask update besides writing the mask; n is the number of targeted weights."""
    budget: str = ""
    """How many weights each layer keeps, where the default of `scope` does not say it."""


def required_total(method: object, total_steps: int | None) -> int:
    """Return `total_steps` of a method that needs the length of the training."""
    if total_steps is None:
        kind = type(method).__name__
        raise ValueError(f"{kind} needs total_steps=, the optimizer steps of the whole training: epochs * len(loader)")
    check_steps("total_steps", total_steps)
    return total_steps


def check_constant(method: object, sparsity: Level, why: str = "is sparse from the start") -> Level:
    """Return `sparsity` if it is a number, or numbers by pattern; a ramp would start the method with nothing pruned."""
    if any(map(callable, sparsity.values() if isinstance(sparsity, Mapping) else [sparsity])):
        raise TypeError(f"{type(method).__name__} {why}: sparsity must be a number, got {sparsity!r}")
    return sparsity


def check_keywords(cls: Any, given: Iterable[str]) -> None:
    """Raise an error that names the method and the nearest option if it does not have one of the `given` options."""
    own = inspect.signature(cls.__init__).parameters.values()
    if any(each.kind is each.VAR_KEYWORD and each.annotation is each.empty for each in own):
        return  # it may use any name
    known = list(inspect.signature(cls).parameters)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known[2:], cutoff=0.5) or f" It takes {', '.join(known[2:])}."
            raise TypeError(f"{cls.__name__} has no option {name!r}.{hint}")


def full_signature(cls: Any) -> inspect.Signature:
    """Return the signature of a class, with the options that it passes on by `**options` written out.

    Options that all methods share come first, in the same order in every method.
    """
    own = inspect.signature(cls.__init__)
    inherited: dict[str, inspect.Parameter] = {}
    for base in reversed(cls.__mro__[1:]):
        if base is not object and "__init__" in vars(base):
            inherited |= inspect.signature(base.__init__).parameters
    taken = dict(own.parameters)
    for name, parameter in own.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            taken = {each: inherited[each] for each in _passed_on(cls, name, inherited) if each in inherited} | taken
    order = [name for name in {**inherited, **taken} if name in taken and name != "self"]
    kept = [taken[name] for name in order if taken[name].kind is not inspect.Parameter.VAR_KEYWORD]
    kept.sort(key=lambda parameter: parameter.kind)  # positional parameters come before keyword-only ones
    return own.replace(parameters=[_with_class_default(cls, parameter) for parameter in kept])


def _passed_on(cls: Any, name: str, inherited: dict[str, inspect.Parameter]) -> list[str]:
    """Return the names in `**options: Unpack[SomeTypedDict]`, or all inherited ones if there is no such annotation."""
    try:
        packed = get_args(get_type_hints(cls.__init__)[name])
    except (KeyError, NameError):  # no annotation, or one that is only defined for type checkers
        packed = ()
    return list(get_type_hints(packed[0]) if packed else inherited)


def _with_class_default(cls: type, parameter: inspect.Parameter) -> inspect.Parameter:
    """Use the class attribute with the option's name, if there is one, as the default in place of None."""
    if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is None:
        return parameter.replace(default=getattr(cls, parameter.name, None))
    return parameter
