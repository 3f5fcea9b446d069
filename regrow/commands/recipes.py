"""`regrow recipes`: what can be trained by name."""

from __future__ import annotations

from typing import Annotated

import tyro

from regrow.train.catalog import describe, load_recipe, recipe_names


def recipes(name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="RECIPE")] = None) -> int:
    """List the recipes that come with the package, or print one as TOML.

    Args:
        name: A recipe to print, every field of it: `regrow recipes digits > mine.toml` is a start for your own.
    """
    if name is not None:
        print(load_recipe(name).to_toml(), end="")
        return 0
    names = recipe_names()
    width = max(map(len, names))
    for known in names:
        print(f"{known:<{width}}  {describe(known)}")
    print(
        "\nregrow train NAME trains one; regrow recipes NAME prints it; regrow train NAME --help explains its fields."
    )
    return 0
