"""Methods by name, for recipes, the command line and callbacks. Importing this module does not import torch.

A built-in method needs a line in `METHODS`. Methods of other packages are found by their entry point, and every
imported subclass of `Pruner` by its class name.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from regrow.text import did_you_mean, plain

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from regrow.core.pruner import Pruner

METHODS = {
    "dense": "regrow.methods.dense:Dense",
    "dpf": "regrow.methods.dpf:DPF",
    "incremental": "regrow.methods.incremental:Incremental",
    "oneshot": "regrow.methods.oneshot:OneShot",
    "snip": "regrow.methods.snip:SNIP",
    "dsr": "regrow.methods.dsr:DSR",
    "sparse-momentum": "regrow.methods.sparse_momentum:SparseMomentum",
    "set": "regrow.methods.set:SET",
    "deepr": "regrow.methods.deepr:DeepR",
    "rigl": "regrow.methods.rigl:RigL",
    "sfp": "regrow.methods.sfp:SFP",
    "static": "regrow.methods.static:Static",
    "acdc": "regrow.methods.acdc:ACDC",
    "granet": "regrow.methods.granet:GraNet",
    "dsd": "regrow.methods.dsd:DSD",
    "srste": "regrow.methods.srste:SRSTE",
    "dns": "regrow.methods.dns:DNS",
    "fixed": "regrow.methods.fixed:Fixed",
    "feedback": "regrow.methods.feedback:Feedback",
}
"""The built-in methods as recipes write them, with module and class."""

# As in recipes: the sparsity is final after three quarters of training.
_RAMP = 0.75


def built_in_name(name: str) -> str | None:
    """Return how recipes write a built-in method; case, hyphens and underscores are ignored. None if it is not one.

    >>> built_in_name("SparseMomentum")
    'sparse-momentum'
    """
    return next((known for known in METHODS if plain(known) == plain(name)), None)


def find_method(name: str) -> type[Pruner]:
    """Return the method with this name; case, hyphens and underscores are ignored.

    >>> find_method("sparse-momentum").__name__
    'SparseMomentum'
    """
    if (built_in := built_in_name(name)) is not None:
        method: type[Pruner] = resolve_name(METHODS[built_in])
        return method
    for cls in imported_methods():
        if plain(cls.__name__) == plain(name):
            return cls
    for point in entry_points(group="regrow.methods"):
        if plain(point.name) == plain(name):
            return _checked(name, point.value, point.load())
    known = method_names()
    hint = did_you_mean(plain(name), [plain(each) for each in known], cutoff=0.5)
    raise ValueError(f"unknown method {name!r}.{hint} Known methods: {', '.join(known)}.")


def method_names() -> list[str]:
    """Return the class names of all known methods, including those of installed packages, without importing them."""
    known = {path.partition(":")[2] for path in METHODS.values()} | {cls.__name__ for cls in imported_methods()}
    return sorted(known | {point.name for point in entry_points(group="regrow.methods")}, key=str.lower)


def method_options(method: type[Pruner]) -> dict[str, Any]:
    """Return the options of `method` besides model and optimizer, with their defaults (`...` if required)."""
    options = [p for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return {option.name: ... if option.default is option.empty else option.default for option in options}


def attach(
    method: str | type[Pruner],
    model: nn.Module,
    optimizer: Optimizer,
    total_steps: int,
    options: dict[str, Any],
    *,
    likely: bool = False,
) -> Pruner:
    """Attach `method` to a training of `total_steps` optimizer steps, as the callbacks for other frameworks do.

    A number as sparsity becomes a cubic ramp over the first 75 % of the steps, if the method can ramp. The masks are
    updated as often as suits the length (`every="auto"`), unless `options` says otherwise. A schedule that cannot reach
    its final sparsity in that time is an error, or a warning if the length is only `likely`.
    """
    from regrow.checks import warn
    from regrow.core.schedule import Cubic, ramped

    cls = find_method(method) if isinstance(method, str) else method
    known = method_options(cls)
    sparsity, end = options.get("sparsity"), round(_RAMP * total_steps)
    given = dict(options)
    if isinstance(sparsity, float | int | Mapping) and cls.takes_schedule and end:
        given["sparsity"] = ramped(sparsity, lambda final: Cubic(final, end=end))
    if "total_steps" in known and not (likely and "settle" in known and not given.get("settle")):
        given.setdefault("total_steps", total_steps)
    if "every" in known:
        given.setdefault("every", "auto")
    pruner = cls(model, optimizer, **given)
    if "total_steps" not in given:  # methods that know the length of training check it themselves
        if problem := pruner.shortfall(total_steps):
            if not likely:
                pruner.detach(dense=True)
                raise ValueError(problem)
            warn(problem)
        else:
            pruner.warn_if_idle(total_steps)
    return pruner


def imported_methods(cls: type[Pruner] | None = None) -> Iterator[type[Pruner]]:
    """Yield the imported subclasses of `cls`, by default of `Pruner`, that are not abstract."""
    if cls is None:
        module = sys.modules.get("regrow.core.pruner")
        if module is None:
            return
        cls = module.Pruner
    for subclass in cls.__subclasses__():
        if not inspect.isabstract(subclass):
            yield subclass
        yield from imported_methods(subclass)


def _checked(name: str, origin: str, found: object) -> type[Pruner]:
    from regrow.core.pruner import Pruner

    if not (isinstance(found, type) and issubclass(found, Pruner)):
        raise TypeError(f"method {name!r} is {origin}, which is not a subclass of regrow.Pruner")
    return found
