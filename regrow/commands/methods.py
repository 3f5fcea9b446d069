"""`regrow methods`: what `--method` takes, and which options each one adds."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated

import tyro

from regrow.train.config import RecipeError


def methods(name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="METHOD")] = None) -> int:
    """List the pruning methods, or explain one: paper, defaults, deliberate differences, options.

    Args:
        name: A method to explain. Its own options go to `regrow train` as `--options name=value`, where a value is a
            number, true, false, a word, or as in TOML a text in quotes or a list.
    """
    from regrow.methods.registry import find_method, method_names, method_options

    if name is None:
        known = method_names()
        width = max(map(len, known))
        for each in known:
            print(f"{each:<{width}}  {_module_doc(find_method(each)).partition(chr(10))[0]}")
        print("\nregrow methods NAME explains one; regrow train digits --method NAME uses it.")
        return 0
    try:
        method = find_method(name)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    print(_module_doc(method), inspect.getdoc(method), "Options:", sep="\n\n")
    for option, default in method_options(method).items():
        shown = "must be given" if default is ... else f"default {default!r}"
        print(f"  {option}  ({shown})")
    return 0


def _module_doc(method: type) -> str:
    """Return what the method's file says about it; the class's own words where there is no file."""
    return inspect.getdoc(sys.modules[method.__module__]) or inspect.getdoc(method) or ""
