"""Makes the table of methods from their classes: `python -m docs.methods_table > docs/methods-table.md`."""

from __future__ import annotations

import sys
from typing import Any, get_type_hints

from regrow.core.options import PrunerOptions
from regrow.core.weights import Memory
from regrow.methods.dense import Dense
from regrow.methods.drop_and_grow import DropAndGrowOptions
from regrow.methods.lottery import LotteryTicket
from regrow.methods.registry import METHODS, find_method, method_options

_COMMON = {*get_type_hints(PrunerOptions), *get_type_hints(DropAndGrowOptions), "sparsity"}
_MEMORY = {Memory.KEEP: "keep (feedback)", Memory.FORGET: "forget (zero)", Memory.SOFT: "soft (free to grow)"}
_BUDGET = {"global": "one count over all layers", "layer": "uniform", "er": "Erdős–Rényi", "erk": "Erdős–Rényi kernel"}
_NOTE = "<!-- Made by `python -m docs.methods_table`; edit the classes, not this file. -->"
_INTRO = (
    "With this table you can compare all methods: when each updates its masks, how it scores weights and splits the "
    "budget,\nand what an update costs (n: number of targeted weights). [Methods](methods.md) explains them."
)
_HEAD = ("method", "paper", "when", "score", "budget", "memory", "options", "cost of an update")


def table() -> str:
    """Return the table of all built-in methods in Markdown."""
    known: list[Any] = sorted(map(find_method, METHODS), key=lambda method: method.__name__.lower())
    rows = [_HEAD, tuple("---" for _ in _HEAD), *(_row(method) for method in [*known, LotteryTicket])]
    return "\n".join(
        [_NOTE, "", "# All methods in one table", "", _INTRO, "", *("| " + " | ".join(row) + " |" for row in rows), ""]
    )


def class_list() -> str:
    """Return the directives that document every built-in method on the API page."""
    classes = [f".. autoclass:: regrow.{path.partition(':')[2]}" for path in METHODS.values()]
    return "\n".join(["```{eval-rst}", *classes, "```", ""])


def _row(method: Any) -> tuple[str, ...]:
    info, options = method.info, method_options(method)
    own = [f"`{name}={_shown(value)}`" for name, value in options.items() if name not in _COMMON]
    budget = info.budget or _BUDGET.get(options.get("scope", ""), "–")
    memory = "" if method is Dense else _MEMORY[method.memory]
    cells = (info.paper, info.when, info.score, budget, memory, ", ".join(own), info.cost)
    return (f"`{method.__name__}`", *(cell or "–" for cell in cells))


def _shown(value: object) -> str:
    return "…" if value is None or value is ... else repr(value)


if __name__ == "__main__":
    sys.stdout.write(table())
