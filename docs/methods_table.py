"""Makes the parts of the documentation that list methods from their classes; `docs/conf.py` writes them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, get_type_hints

from regrow.core.options import EPOCH, PrunerOptions
from regrow.core.pruner import Pruner
from regrow.core.weights import Memory
from regrow.methods.dense import Dense
from regrow.methods.drop_and_grow import DropAndGrowOptions
from regrow.methods.lottery import LotteryTicket
from regrow.methods.registry import METHODS, find_method, method_options

_COMMON = {*get_type_hints(PrunerOptions), *get_type_hints(DropAndGrowOptions), "sparsity", "every"}
_MEMORY = {Memory.KEEP: "keep (feedback)", Memory.FORGET: "forget (zero)", Memory.SOFT: "soft (free to grow)"}
_BUDGET = {"global": "one count over all layers", "layer": "uniform", "er": "Erdős–Rényi", "erk": "Erdős–Rényi kernel"}
_HEAD = ("method", "paper", "when", "own period", "score", "budget", "memory", "options", "cost of an update")


def table() -> str:
    """Return the table of all built-in methods in Markdown."""
    known: list[Any] = sorted(map(find_method, METHODS), key=lambda method: method.__name__.lower())
    return _markdown([_HEAD, *(_row(method) for method in [*known, LotteryTicket])])


def options_table() -> str:
    """Return the table of the options of `Pruner` that each built-in method takes, in Markdown."""
    shared, rows = list(method_options(Pruner)), defaultdict(list)
    for method in map(find_method, METHODS):
        rows[_taken(method, shared)].append(f"`{method.__name__}`")
    return _markdown([("method", "takes of these"), *((", ".join(names), taken) for taken, names in rows.items())])


def class_list() -> str:
    """Return the directives that document every built-in method on the API page."""
    classes = [f".. autoclass:: regrow.{path.partition(':')[2]}" for path in METHODS.values()]
    return "\n".join(["```{eval-rst}", *classes, "```", ""])


def _taken(method: Any, shared: list[str]) -> str:
    taken = [name for name in shared if name in method_options(method)]
    left = [f"`{name}`" for name in shared if name not in taken]
    if len(left) <= 1:
        return " but ".join(["all", *left]) + ("" if method.takes_schedule else "; `sparsity` is a number")
    number = "" if method.takes_schedule else " (a number)"
    return ", ".join(f"`{name}`{number}" if name == "sparsity" else f"`{name}`" for name in taken)


def _markdown(rows: list[tuple[str, ...]]) -> str:
    lines = [rows[0], tuple("---" for _ in rows[0]), *rows[1:]]
    return "".join("| " + " | ".join(row) + " |\n" for row in lines)


def _row(method: Any) -> tuple[str, ...]:
    info, options = method.info, method_options(method)
    own = [f"`{name}={_shown(value)}`" for name, value in options.items() if name not in _COMMON]
    budget = info.budget or _BUDGET.get(options.get("scope", ""), "–")
    memory = "" if method is Dense else _MEMORY[method.memory]
    cells = (info.paper, info.when, _period(method), info.score, budget, memory, ", ".join(own), info.cost)
    return (f"`{method.__name__}`", *(cell or "–" for cell in cells))


def _period(method: Any) -> str:
    """Return the period of the method's paper in steps."""
    if "every" not in method_options(method):
        return ""
    return "an epoch" if method.period == EPOCH else f"{method.period:,}"


def _shown(value: object) -> str:
    return "…" if value is None or value is ... else repr(value)
