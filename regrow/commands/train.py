"""`regrow train`: a recipe in, a run folder out."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from regrow.train.catalog import load_recipe
from regrow.train.config import Recipe, RecipeError

if TYPE_CHECKING:
    from regrow.train.events import Event, Listener


class Fields(Recipe):
    """A recipe whose values are checked by us, not while the command line is parsed: the error reads better."""

    def __post_init__(self) -> None:
        pass


def unchecked(recipe: Recipe) -> Fields:
    """Return the fields of `recipe`."""
    return Fields(**dataclasses.asdict(recipe))


def train_command(arguments: Sequence[str]) -> Callable[..., int]:
    """Return the command for `arguments`, with the values of the recipe that they name as the defaults of its options.

    Which options there are is not known yet, nor which of them take a value: the recipe's name must come first.
    """
    first = arguments[0] if arguments and not arguments[0].startswith("-") else None
    defaults = unchecked(_default_recipe(first, arguments))

    def train(
        name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="RECIPE")] = None,
        *,
        out: Path | None = None,
        resume: Path | None = None,
        dry_run: bool = False,
        save_every: float = 120.0,
        nproc: int = 1,
        restarts: int = 3,
        recipe: Fields = defaults,
    ) -> int:
        """Train a network as a recipe says: `regrow train digits --sparsity 0.95`.

        RECIPE is a name that `regrow recipes` lists, or a TOML file; it comes first. Every field of it is an option,
        and `regrow train RECIPE --help` shows its values. The same command continues an interrupted run.

        Args:
            name: The recipe; without one, a small network on digits is trained.
            out: Folder of the run. None: runs/ and a name made of the recipe.
            resume: Folder of a run to continue with the recipe that it holds.
            dry_run: Train some batches, make masks, estimate the time, and write nothing.
            save_every: Seconds between checkpoints; one is written after every epoch as well.
            nproc: Processes on this machine that share each batch. For more machines see docs/scaling.md.
            restarts: With --nproc, how often all are started again after one has died.
            recipe: Fields of the recipe, with its own values as defaults.
        """
        if name != first:
            raise RecipeError(f"RECIPE comes first, before all options: regrow train {name} …")
        _check_numbers(save_every, nproc, restarts)
        _check_resumed(resume)
        checked = Recipe.of(dataclasses.asdict(recipe))
        if dry_run:
            return _rehearse(checked)
        if nproc == 1:
            return _train(checked, resume or out, save_every)
        return _train_together(checked, resume or out, save_every, nproc=nproc, restarts=restarts)

    return train


def _default_recipe(name: str | None, arguments: Sequence[str]) -> Recipe:
    if name is not None:
        return load_recipe(name)
    folder = _resumed(arguments)
    if folder is None:
        return Recipe()
    from regrow.train.folder import read_recipe

    return read_recipe(folder)


def _resumed(arguments: Sequence[str]) -> str | None:
    """Return the folder in `--resume FOLDER` or `--resume=FOLDER`."""
    for argument, following in zip(arguments, [*arguments[1:], None], strict=False):
        option, equals, value = argument.partition("=")
        if option == "--resume":
            return value if equals else following
    return None


def _check_numbers(save_every: float, nproc: int, restarts: int) -> None:
    for option, value, least in (("--save-every", save_every, 0), ("--nproc", nproc, 1), ("--restarts", restarts, 0)):
        if not value >= least:  # nan is no number of seconds either
            raise RecipeError(f"{option} must be at least {least}, got {value:g}")


def _check_resumed(folder: Path | None) -> None:
    """Refuse to go on with what is no run, with a recipe, too: a mistyped folder would become a new run."""
    from regrow.train.folder import read_recipe
    from regrow.train.world import rank

    if folder is not None and not rank():  # the others may be on machines that do not have the folder
        read_recipe(folder)


def _train_together(recipe: Recipe, folder: Path | None, save_every: float, *, nproc: int, restarts: int) -> int:
    from regrow.train.launch import launch

    return launch(_explained, (recipe, folder, save_every), nproc=nproc, restarts=restarts)


def _explained(recipe: Recipe, folder: Path | None, save_every: float) -> int:
    """Train as one of several processes; an error that has an explanation is no reason to start again."""
    from regrow.commands.errors import explain

    try:
        return _train(recipe, folder, save_every)
    except Exception as error:
        return explain(error)


def _train(recipe: Recipe, folder: Path | None, save_every: float) -> int:
    from regrow.train.display import Display
    from regrow.train.run import run
    from regrow.train.signals import StoppedError
    from regrow.train.tensorboard import TensorBoard, installed
    from regrow.train.world import rank

    display, board = Display(), TensorBoard()
    try:
        watching: list[Listener] = [display, board, _draw] if installed() else [display, _draw]
        with warnings.catch_warnings():
            if rank():
                warnings.simplefilter("ignore")  # process 0 has the same to say
            warnings.showwarning = lambda message, *where, **how: display.warn(str(message))
            run(recipe, folder, listeners=watching, save_every=save_every)
    except StoppedError as stopped:
        display.close()
        if not rank():
            print(f"regrow: {stopped}, all saved. Go on with: regrow train --resume {stopped.folder}", file=sys.stderr)
        return 128 + stopped.signal
    finally:
        display.close()
        board.close()
    return 0


def _draw(event: Event) -> None:
    """Add the plots to a run that has just been finished, if the packages for it are installed."""
    from regrow.report import can_draw, plot_run
    from regrow.train.events import Finished

    if isinstance(event, Finished) and not (event.folder / "plots").exists() and can_draw():
        plot_run(event.folder)


def _rehearse(recipe: Recipe) -> int:
    from regrow.text import duration
    from regrow.train.display import title
    from regrow.train.rehearsal import rehearse

    found = rehearse(recipe)
    print(f"{title(recipe)}\n\n{found.account.table()}\n")
    print(
        f"{found.total:,} steps, {found.steps_per_epoch:,} per epoch: about {duration(found.seconds)} on this machine."
    )
    masked = " and masks were made at the final sparsity" if found.masked else ""
    print(f"Some batches were trained{masked}. Nothing was written.")
    return 0
