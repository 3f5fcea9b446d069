"""Terminal display of a run: a summary, a progress bar with a line per epoch, and a table at the end."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from regrow.runs.recipe import Recipe
from regrow.text import duration, quantity
from regrow.train.events import EpochEnded, Event, Finished, Started, Stepped


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text unchanged: a folder may be called `a[red]b` or `:cat:`."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


class Display:
    """Listener that shows a run; without a terminal it prints plain lines and no progress bar.

    A line is printed every `lines_every` epochs. Without `tables`, the summaries at start and end are left out.
    """

    def __init__(self, console: Console | None = None, *, lines_every: int = 1, tables: bool = True) -> None:
        self.console = console or make_console()
        self._lines_every, self._tables = lines_every, tables
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("loss {task.fields[loss]:.3f}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )

    def __call__(self, event: Event) -> None:
        """Show `event`."""
        match event:
            case Started():
                self._start(event)
            case Stepped():
                self._progress.update(self._task, completed=event.step, loss=event.loss)
            case EpochEnded():
                if event.record["epoch"] % self._lines_every == 0:
                    self.console.print(self._epoch_line(event.record), soft_wrap=True)
                upcoming = min(event.record["epoch"] + 1, self._epochs)
                self._progress.update(self._task, description=f"epoch {upcoming}/{self._epochs}")
            case Finished():
                self.close()
                if self._tables:
                    self.console.print(result_table(event.result))
                    self.console.print(f"files in {event.folder}", soft_wrap=True)

    def warn(self, message: str) -> None:
        """Show a warning above the bar."""
        self.console.print(f"warning: {message}", style="yellow", soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()

    def _start(self, event: Started) -> None:
        recipe = event.recipe
        self._epochs, self._total = recipe.epochs + recipe.finetune_epochs, event.total
        self._first, self._clock = event.step, time.monotonic()
        if self._tables:
            self.console.print(start_table(event))
        if event.resumed:
            done = event.step / event.steps_per_epoch
            self.console.print(f"resumed after {done:.4g} of {self._epochs} epochs (step {event.step:,})")
        epoch = min(event.step // event.steps_per_epoch + 1, self._epochs)
        self._task = self._progress.add_task(f"epoch {epoch}/{self._epochs}", total=event.total, loss=0.0)
        self._progress.start()

    def _epoch_line(self, record: dict[str, Any]) -> str:
        width = len(str(self._epochs))
        top5 = f"top-5 {record['top5']:.2f} %  " if "top5" in record else ""
        return (
            f"epoch {record['epoch']:>{width}}/{self._epochs}  top-1 {record['top1']:5.2f} %  {top5}"
            f"sparsity {100 * record['sparsity']:4.1f} %  loss {record['loss']:.3f}  "
            f"{record['images_per_second']:,.0f} img/s{self._eta(record['step'])}"
        )

    def _eta(self, step: int) -> str:
        """Return the remaining time; a run resumed during an evaluation has not measured a step yet."""
        if step == self._first:
            return ""
        seconds = time.monotonic() - self._clock
        return f"  ETA {duration(seconds / (step - self._first) * (self._total - step))}"


def start_table(event: Started) -> Table:
    """Return the summary shown before the first step."""
    recipe, costs = event.recipe, event.account
    targeted = sum(layer.targeted for layer in costs.layers)
    table = _facts(title(recipe))
    table.add_row("layers", f"{len(costs.layers)}, {targeted} of them targeted")
    table.add_row("parameters", f"{costs.parameters:,}, {costs.targeted:,} of them targeted")
    table.add_row("MACs", f"{quantity(costs.macs)} per image")
    if recipe.takes_sparsity:
        table.add_row("sparsity", _sparsity(recipe))
    if recipe.init is not None:
        table.add_row("weights", f"from {recipe.init}")
    if event.every is not None:
        table.add_row("masks", f"updated every {event.every} steps" if event.every > 1 else "updated after every step")
    if recipe.masks is not None:
        table.add_row("masks", f"from {recipe.masks}")
    table.add_row("training", _training(recipe, event.steps_per_epoch))
    if recipe.finetune_epochs:
        table.add_row(
            "fine-tuning", f"{recipe.finetune_epochs} epochs, {recipe.finetune_optimizer} at {recipe.finetune_lr:g}"
        )
    table.add_row("folder", str(event.folder))
    return table


def result_table(result: dict[str, Any]) -> Table:
    """Return the summary of a result."""
    on = "" if result["evaluated_on"] == "test" else " (held-out training images)"
    table = _facts(f"{title(Recipe.of(result['recipe']))}: done in {duration(result['seconds'])}")
    table.add_row("top-1", f"{result['top1']:.2f} %{on}")
    if "top5" in result:
        table.add_row("top-5", f"{result['top5']:.2f} %{on}")
    table.add_row("sparsity", f"{100 * result['sparsity']:.2f} % of the targeted weights{_shortfall(result)}")
    table.add_row("parameters", f"{result['nonzeros']:,} left of {result['parameters']:,}")
    table.add_row("MACs", f"{quantity(result['macs_kept'])} left of {quantity(result['macs'])}")
    return table


def _shortfall(result: dict[str, Any]) -> str:
    """Return a note if training was too short to reach the target sparsity.

    Only where single weights are pruned: filters and N:M groups are counted differently.
    """
    from regrow.methods.registry import built_in_name, find_method

    recipe = Recipe.of(result["recipe"])
    exact = recipe.takes_sparsity and not recipe.prunes_filters and recipe.unit in (None, "weight")
    if not exact or isinstance(recipe.sparsity, str) or result["sparsity"] > recipe.sparsity - 0.001:
        return ""
    if (method := built_in_name(recipe.method)) is None or find_method(method).ends_dense:
        return ""
    return f"; the target is {recipe.sparsity_title}: train longer, or lower --every"


def title(recipe: Recipe) -> str:
    """Return the run's heading, such as `resnet20 · CIFAR-10 · dpf 90 %`."""
    from regrow import data  # imports torch, which the display of a sweep does not need

    pruned = f"{recipe.method} {recipe.sparsity_title}" if recipe.takes_sparsity else recipe.method
    return f"{recipe.model} · {data.title(recipe.data)} · {pruned}"


def _facts(heading: str) -> Table:
    table = Table(title=heading, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table


def _sparsity(recipe: Recipe) -> str:
    from regrow.methods.registry import find_method, method_options

    pruned = f"{recipe.sparsity_title} of the {'filters' if recipe.prunes_filters else 'weights'}"
    if not recipe.epochs:
        return f"{pruned}, before fine-tuning"
    method = find_method(recipe.method)
    if "at" in method_options(method):
        return f"{pruned}, in one step after {recipe.epochs} epochs"
    if method.has_own_schedule:
        return f"{pruned}, on the method's own schedule"
    end = recipe.ramp_fraction * recipe.epochs if method.takes_schedule else 0
    return f"{pruned}, " + (f"reached after {end:.4g} epochs" if end else "from the first step")


def _training(recipe: Recipe, steps: int) -> str:
    drops = ", ".join(f"{fraction * recipe.epochs:.4g}" for fraction in recipe.lr_drops)
    drop = f", x{recipe.lr_drop_factor:g} after {drops} epochs" if drops else ""
    return f"{recipe.epochs} epochs of {steps:,} steps, {recipe.optimizer} at {recipe.lr:g}{drop}"
