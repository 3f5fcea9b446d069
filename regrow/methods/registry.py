"""Methods by name, for recipes and the command line; a subclass of `Pruner` is all that it takes to be one of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from regrow.methods.pruner import Pruner
from regrow.text import did_you_mean, plain


def find_method(name: str) -> type[Pruner]:
    """Return the method of that name; case, hyphens and underscores make no difference.

    Every subclass of `Pruner` that has been imported is known by its class's name. What is not known is looked for
    among the entry points of group `regrow.methods` of the installed packages.

    >>> find_method("sparse-momentum").__name__
    'SparseMomentum'
    """
    for cls in imported_methods():
        if plain(cls.__name__) == plain(name):
            return cls
    for point in entry_points(group="regrow.methods"):
        if plain(point.name) == plain(name):
            found = point.load()
            if not (isinstance(found, type) and issubclass(found, Pruner)):
                raise TypeError(f"method {name!r} is {point.value}, which is no subclass of regrow.Pruner")
            return found
    known = method_names()
    written = [plain(each) for each in known]
    hint = did_you_mean(plain(name), written, cutoff=0.5)
    raise ValueError(f"unknown method {name!r}.{hint} Known methods: {', '.join(known)}.")


def method_names() -> list[str]:
    """Return the names of all methods, those of installed packages too, without importing these."""
    loaded = {cls.__name__ for cls in imported_methods()}
    return sorted(loaded | {point.name for point in entry_points(group="regrow.methods")}, key=str.lower)


def method_options(method: type[Pruner]) -> dict[str, Any]:
    """Return what `method` takes besides model and optimizer, with the defaults (`...` where there is none)."""
    options = [p for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return {option.name: ... if option.default is option.empty else option.default for option in options}


def imported_methods(cls: type[Pruner] = Pruner) -> Iterator[type[Pruner]]:
    """Yield every method that has been imported: the subclasses of `cls` that say how they prune."""
    for subclass in cls.__subclasses__():
        if not inspect.isabstract(subclass):
            yield subclass
        yield from imported_methods(subclass)
