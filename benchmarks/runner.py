"""Measures contenders side by side, and records the result with the machine.

A benchmark is a module that is run from the repository's root, `python -m benchmarks.NAME`. It times its
contenders with `interleave` and hands rows to `report`, which prints a table and writes
`results/benchmarks/NAME.json`.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

import torch

Row = Mapping[str, str | int | float]

RESULTS = Path(__file__).resolve().parent.parent / "results" / "benchmarks"


def interleave(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 5,
    warmup: int = 1,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """Return the minimum time of each contender in seconds.

    Contenders take turns, in an order that is reversed from round to round, so that other processes or a
    lower clock rate affect all of them equally; the minimum is the time of an undisturbed run.
    With `clock=time.thread_time`, for work on the calling thread alone, waiting for a busy processor doesn't count.
    """
    clock = clock or time.perf_counter
    best = dict.fromkeys(contenders, float("inf"))
    for turn in range(-warmup, rounds):
        for name in list(contenders)[:: 1 if turn % 2 else -1]:
            start = clock()
            contenders[name]()
            seconds = clock() - start
            if turn >= 0:
                best[name] = min(best[name], seconds)
    return best


def machine() -> dict[str, str | int]:
    """Return the facts about the machine that a reader needs to judge the numbers."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def report(title: str, rows: Sequence[Row], *, name: str, command: str | None = None) -> Path:
    """Print `rows` as a table and write them, with machine and command, to `results/benchmarks/NAME.json`.

    The `command` is that of the module of that name, unless it is given.
    """
    facts = machine()
    print(f"\n{title}\n{facts['cpu']}, {facts['threads']} of {facts['cores']} threads, torch {facts['torch']}\n")
    print(table(rows))
    result = {
        "title": title,
        "command": command or f"python -m benchmarks.{name}",
        "date": date.today().isoformat(),
        "machine": facts,
        "rows": [dict(row) for row in rows],
    }
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nwritten to {path.relative_to(RESULTS.parent.parent)}")
    return path


def table(rows: Sequence[Row]) -> str:
    """Return `rows` as aligned text: names to the left, numbers to the right."""
    heads = list(dict.fromkeys(key for row in rows for key in row))
    lines = [heads] + [[cell(row.get(head, "")) for head in heads] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    left = [any(isinstance(row.get(head), str) for row in rows) for head in heads]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(line, widths, left, strict=True)
        ).rstrip()
        for line in lines
    )


def cell(value: str | int | float) -> str:
    """Return a value as text: three significant digits, with thousands separators."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def _cpu() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
