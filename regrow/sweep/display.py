"""Terminal display of a sweep: a live table of the active runs, and a line for each run that has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from regrow.sweep.driver import Began, Event, Update
from regrow.text import duration
from regrow.train.display import make_console


class SweepDisplay:
    """Listener that shows a sweep; without a terminal it prints the lines and no table."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or make_console()
        self._running: dict[str, tuple[float, str]] = {}
        self._total = self._before = self._done = self._failed = 0
        self._begun = time.monotonic()
        self._live = Live(console=self.console, get_renderable=self._table, transient=True, refresh_per_second=2)

    def __call__(self, event: Event) -> None:
        """Show `event`."""
        if isinstance(event, Began):
            self._begin(event)
        else:
            self._update(event)

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()

    def _begin(self, event: Began) -> None:
        self._total, self._before, self._begun = len(event.jobs), event.finished, time.monotonic()
        before = f", {event.finished:,} of them finished" if event.finished else ""
        at_once = f", {event.workers:,} at a time" if event.workers else ""
        self.console.print(f"{self._total:,} runs{before}{at_once}", soft_wrap=True)
        if self.console.is_terminal and event.workers:
            self._live.start()

    def _update(self, event: Update) -> None:
        name = event.job.name
        started, _ = self._running.get(name, (time.monotonic(), ""))
        match event.state:
            case "started":
                self._running[name] = time.monotonic(), "starting"
            case "epoch":
                self._running[name] = started, self._epoch(event)
            case "finished":
                self._running.pop(name, None)
                self._done += 1
                self._print(name, f"{scores(event.record)}  {duration(event.record['seconds'])}")
            case "failed":
                self._running.pop(name, None)
                self._failed += 1
                self._print(name, f"failed: {event.text}", "red")
            case "retrying" | "busy":
                self._running.pop(name, None)
                self._print(name, f"{'retrying' if event.state == 'retrying' else 'waiting'}: {event.text}", "yellow")

    def _print(self, name: str, text: str, style: str = "") -> None:
        ended = self._before + self._done + self._failed
        count = f"{ended:>{len(f'{self._total:,}')},}/{self._total:,}"
        self.console.print(f"{count}  {name}  {text}", style=style, soft_wrap=True)

    def _epoch(self, event: Update) -> str:
        recipe, record = event.job.recipe, event.record
        return f"epoch {record['epoch']}/{recipe.epochs + recipe.finetune_epochs}  {scores(record)}"

    def _table(self) -> Group:
        rows = Table(box=None, pad_edge=False, show_header=False)
        room = max(3, self.console.height - 4)
        for name, (started, text) in list(self._running.items())[:room]:
            rows.add_row(name, text, duration(time.monotonic() - started), style="dim" if text == "starting" else "")
        return Group(rows, Text(self._summary(), style="bold"))

    def _summary(self) -> str:
        failed = f" · {self._failed:,} failed" if self._failed else ""
        finished = self._before + self._done
        left = self._total - finished - self._failed
        spent = time.monotonic() - self._begun
        rest = f" · about {duration(spent / self._done * left)} left" if self._done else ""
        return f"{finished:,} of {self._total:,} finished · {len(self._running):,} running{failed}{rest}"


def scores(record: Mapping[str, Any]) -> str:
    """Return the accuracy and sparsity in an epoch's record or a result, as text."""
    return f"top-1 {record['top1']:5.2f}  sparsity {100 * record['sparsity']:4.1f} %"
