"""What most methods pass on to `Pruner`, how `help()` shows it, and the error for what they cannot do without."""

from __future__ import annotations

import inspect
from typing import Any, Literal, TypedDict, get_args, get_type_hints

import torch.distributed as dist

from regrow.checks import check_steps
from regrow.choices.budget import Scope
from regrow.choices.decay import Decay
from regrow.choices.score import Criterion
from regrow.host.targets import TargetSpec


class Options(TypedDict, total=False):
    """The options of `Pruner` that a magnitude method leaves as they are."""

    scope: Scope
    """How many survive where: "global", "layer", "er", "erk" or "redistributed", see `regrow.choices.budget`."""
    unit: str
    """What is pruned as one: "weight", "filter", or N:M such as "2:4" along the input channels."""
    criterion: Criterion
    """How filters are ranked: by l2, l1 or rms of their weights, by distance to the others (fpgm), by the scale of the
    batch norm that follows (bn)."""
    channels: bool
    """With unit="filter", also mask the filter's bias and scale and shift of the batch norm that directly follows.

    Without it a pruned filter's channel still emits a constant, what the norm's shift makes of zero, and DPF's feedback
    reaches the filter. With it the channel is exactly zero and so is the filter's gradient, which passes through the
    scale: what is pruned can only come back if others become smaller.
    """
    targets: TargetSpec
    """Names, globs or a predicate; by default every convolution and linear layer."""
    include_last: bool
    """Whether the last linear layer is among the default targets."""
    floor: int
    """How many units of every layer are never pruned."""
    decay: Decay
    """Whether weight decay acts on the dense or on the pruned weights."""
    offload: bool
    """Whether the dense weights behind the model wait in the CPU's memory between steps: a GPU then holds nothing more
    than the masks, and two copies are made per step."""
    group: dist.ProcessGroup | None
    """The processes that train the same model; by default all."""


def needed(method: object, value: int | None, name: str, meaning: str) -> int:
    """Return a number of optimizer steps, or say what to pass if it is missing or none."""
    if value is None:
        raise ValueError(f"{type(method).__name__} needs {name}=, {meaning}")
    check_steps(name, value)
    return value


def needed_period(method: object, every: int | Literal["auto"] | None) -> int | Literal["auto"]:
    """Return `every` of a method whose authors update once per epoch, or say what to pass if it is missing."""
    if every == "auto":
        return "auto"
    meaning = "the optimizer steps between mask updates: every=len(loader) is once per epoch, as its authors ran it"
    return needed(method, every, "every", meaning)


EPOCH = 391
"""Steps of an epoch in the paper's comparison (CIFAR-10, batch 128): the period of methods that update every epoch."""


def check_constant(method: object, sparsity: float, why: str = "is sparse from the start") -> float:
    """Return `sparsity` if it is a number; a ramp would start such a method with nothing pruned."""
    if callable(sparsity):
        raise TypeError(f"{type(method).__name__} {why}: sparsity must be a number, got {sparsity!r}")
    return sparsity


class ExplicitSignature:
    """The signature of a class, with what it passes on by `**options` written out for `help()` and other tools."""

    def __get__(self, instance: object, owner: Any) -> inspect.Signature:
        """Return the signature of `owner`: what all methods share comes first, in the same order everywhere."""
        own = inspect.signature(owner.__init__)
        inherited: dict[str, inspect.Parameter] = {}
        for cls in reversed(owner.__mro__[1:-1]):
            inherited |= inspect.signature(cls.__init__).parameters
        taken = dict(own.parameters)
        for name, parameter in own.parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                packed = get_args(get_type_hints(owner.__init__)[name])  # Unpack[Options], or nothing more exact
                passed = get_type_hints(packed[0]) if packed else inherited
                taken = {each: inherited[each] for each in passed} | taken
        order = [name for name in {**inherited, **taken} if name in taken and name != "self"]
        kept = [taken[name] for name in order if taken[name].kind is not inspect.Parameter.VAR_KEYWORD]
        kept.sort(key=lambda parameter: parameter.kind)  # what may be given by position comes before what may not
        return own.replace(parameters=[_with_shared_default(owner, parameter) for parameter in kept])


def _with_shared_default(owner: type, parameter: inspect.Parameter) -> inspect.Parameter:
    """Take a class attribute of the option's name for the default that its methods share."""
    if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is None:
        return parameter.replace(default=getattr(owner, parameter.name, None))
    return parameter
