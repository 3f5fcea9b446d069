"""The terminal, for texts that are not ours: names of folders and files, of methods, and what a warning says."""

from __future__ import annotations

from rich.console import Console


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints every text as it is: a folder may be called `a[red]b` or `:cat:`.

    What is to be bold is a `rich.text.Text`.
    """
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)
