"""`regrow recipes`, `methods`, `env`, `reproduce` and `completion`: commands that print what is available."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Literal

import tyro

from regrow.runs.recipe import UsageError, describe_recipe, load_recipe, recipe_names


def recipes(name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="RECIPE")] = None) -> int:
    """List the built-in recipes, or print one as TOML.

    Args:
        name: A recipe to print with all its fields: `regrow recipes digits > mine.toml` starts your own.
    """
    if name is not None:
        print(load_recipe(name).to_toml(), end="")
        return 0
    names = recipe_names()
    width = max(map(len, names))
    for known in names:
        print(f"{known:<{width}}  {describe_recipe(known)}")
    print(
        "\nregrow train NAME trains one; regrow recipes NAME prints it; regrow train NAME --help explains its fields."
    )
    return 0


def methods(name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="METHOD")] = None) -> int:
    """List the pruning methods, or explain one: paper, defaults, deliberate differences, options.

    Args:
        name: A method to explain. Pass its own options to `regrow train` as `--options name=value`, where a value is a
            number, true, false, a word, or as in TOML a quoted string or a list.
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
        raise UsageError(str(error)) from None
    print(_module_doc(method), inspect.getdoc(method), "Options:", sep="\n\n")
    for option, default in method_options(method).items():
        shown = "required" if default is ... else f"default {default!r}"
        print(f"  {option}  ({shown})")
    return 0


def _module_doc(method: type) -> str:
    """Return the docstring of the method's module, or of its class if the module has none."""
    return inspect.getdoc(sys.modules[method.__module__]) or inspect.getdoc(method) or ""


def env() -> int:
    """Print versions and machine, for bug reports."""
    from regrow.system import cache_folder, environment

    facts = environment()
    engine = {"compiler": _compiler(), "cache": cache_folder()}
    for name, value in {**facts.pop("versions"), **facts, **engine}.items():
        if name != "command":
            print(f"{name:<12} {'-' if value is None else value}")
    return 0


def _compiler() -> str | None:
    """Return the compiler of the engine's kernels."""
    from regrow.engine.codegen.build import NoCompilerError, find_compiler, version_of

    try:
        return version_of(find_compiler()).partition("\n")[0]
    except (NoCompilerError, OSError):
        return None


def reproduce() -> int:
    """Print where the paper's experiments are."""
    print("The paper's experiments are in the repository, not in the package: python -m reproduce, in a clone of it.")
    return 0


def completion(
    shell: Annotated[tyro.conf.Positional[Literal["bash", "zsh", "tcsh"]], tyro.conf.arg(metavar="SHELL")],
) -> int:
    """Print a completion script: `regrow completion bash > ~/.local/share/bash-completion/completions/regrow`.

    Args:
        shell: bash, zsh or tcsh. For zsh, write it to a file `_regrow` in a folder of $fpath.
    """
    from regrow.cli import call

    return call(["--tyro-print-completion", shell])
