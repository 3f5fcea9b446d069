"""`regrow train`: train a recipe in a run folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from regrow.runs.recipe import Recipe, UsageError, load_recipe

if TYPE_CHECKING:
    from regrow.train.events import Event, Listener


class Fields(Recipe):
    """A recipe that is not checked while tyro parses the command line: our own check has better error messages."""

    def __post_init__(self) -> None:
        pass


def train(
    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="RECIPE")] = None,
    *,
    out: Path | None = None,
    resume: Path | None = None,
    dry_run: bool = False,
    save_every: float = 120.0,
    nproc: int = 1,
    restarts: int = 3,
    recipe: Fields = Fields(),  # noqa: B008 - it is immutable
) -> int:
    """Train a network: `regrow train digits --sparsity 0.95`.

    RECIPE is a name that `regrow recipes` lists, or a TOML file; it comes first. Every field of the recipe is an
    option, and `regrow train RECIPE --help` shows its values. The same command resumes an interrupted run.

    Args:
        name: The recipe; without one, a small network is trained on digits.
        out: Run folder. None: runs/ and a name made from the recipe.
        resume: Folder of a run to resume with the recipe in it.
        dry_run: Train some batches, make masks, estimate the time, and write nothing.
        save_every: Seconds between checkpoints; one is also written after every epoch.
        nproc: Processes on this machine that split each batch. For more machines see docs/scaling.md.
        restarts: With --nproc, how often all processes are restarted after one of them crashes.
        recipe: Fields of the recipe, with its values as defaults.
    """
    if name is not None:
        raise UsageError(f"unexpected {name!r}: one RECIPE comes first, before all options")
    _check_numbers(save_every, nproc, restarts)
    _check_resumed(resume)
    checked = Recipe.of(dataclasses.asdict(recipe))
    # From options and a recipe file given by the user; `with_recipe` has refused names that only a run folder contains.
    imports = frozenset(checked.imports)
    if dry_run:
        return _dry_run(checked, imports)
    if nproc == 1:
        return _train(checked, resume or out, save_every, imports)
    from regrow.train.distributed import launch

    return launch(_train_one_rank, (checked, resume or out, save_every, imports), nproc=nproc, restarts=restarts)


def with_recipe(arguments: Sequence[str]) -> tuple[Callable[..., int], Sequence[str]]:
    """Return `train` with the values of the recipe in `arguments` as defaults, and the other arguments.

    The recipe must be the first argument: before parsing, it is unknown which options take a value.
    """
    if arguments and not arguments[0].startswith("-"):
        recipe, arguments = load_recipe(arguments[0]), arguments[1:]
    elif (folder := _given("--resume", arguments)) is not None:
        from regrow.runs.folder import read_recipe

        recipe = read_recipe(folder)
        _check_named(recipe, arguments, folder)
    else:
        recipe = Recipe()
    method = _given("--method", arguments) or recipe.method
    if _given("--sparsity", arguments) is not None and not Recipe(method=method).takes_sparsity:
        raise UsageError(f"--sparsity is not for method {method}: see regrow methods {method}")
    return partial(train, recipe=Fields(**dataclasses.asdict(recipe))), arguments


def _given(option: str, arguments: Sequence[str]) -> str | None:
    """Return the value of `option` in the forms `--option VALUE` and `--option=VALUE`."""
    for argument, following in zip(arguments, [*arguments[1:], None], strict=False):
        name, equals, value = argument.partition("=")
        if name == option:
            return value if equals else following
    return None


def _check_named(recipe: Recipe, arguments: Sequence[str], folder: str) -> None:
    """Refuse to import code because a run folder says so: the user must name it again."""
    own = {field: value for field in ("model", "data") if ":" in (value := getattr(recipe, field))}
    if any(_given(f"--{field}", arguments) != value for field, value in own.items()):
        again = " ".join(f"--{field} {value}" for field, value in own.items())
        raise UsageError(
            f"{folder} needs code that is imported only if you name it: regrow train --resume {folder} {again}"
        )


def _check_numbers(save_every: float, nproc: int, restarts: int) -> None:
    for option, value, least in (("--save-every", save_every, 0), ("--nproc", nproc, 1), ("--restarts", restarts, 0)):
        if not value >= least:  # also refuses nan
            raise UsageError(f"{option} must be at least {least}, got {value:g}")


def _check_resumed(folder: Path | None) -> None:
    """Raise if `folder` is not a run: a mistyped folder would become a new run."""
    from regrow.runs.folder import read_recipe
    from regrow.train.distributed import launched_rank

    if folder is not None and not launched_rank():  # other ranks may be on machines without the folder
        read_recipe(folder)


def _train_one_rank(recipe: Recipe, folder: Path | None, save_every: float, imports: frozenset[str]) -> int:
    """Train as one of several processes; an expected error is shown and does not cause a restart."""
    from regrow.cli.errors import explain

    try:
        return _train(recipe, folder, save_every, imports)
    except Exception as error:
        return explain(error)


def _train(recipe: Recipe, folder: Path | None, save_every: float, imports: frozenset[str]) -> int:
    from regrow.cli.errors import flush_output
    from regrow.runs.stop import StoppedError
    from regrow.train.display import Display
    from regrow.train.distributed import launched_rank
    from regrow.train.events import TensorBoard, has_tensorboard
    from regrow.train.run import run

    display, board = Display(), TensorBoard()
    hook, threading.excepthook = threading.excepthook, _hide_writer
    try:
        shown: list[Listener] = [display, board, _draw] if has_tensorboard() else [display, _draw]
        listeners = [_Optional(listener) for listener in shown]
        with warnings.catch_warnings():
            if launched_rank():
                warnings.simplefilter("ignore")  # rank 0 shows the same warnings
            warnings.showwarning = lambda message, *where, **how: _quietly(lambda: display.warn(str(message)))
            run(recipe, folder, listeners=listeners, save_every=save_every, imports=imports)
    except StoppedError as stopped:
        _quietly(display.close)
        if not launched_rank():
            text = f"regrow: {stopped}, all saved. Resume: regrow train --resume {stopped.folder}"
            _quietly(lambda: print(text, file=sys.stderr))
        return 128 + stopped.signal
    finally:
        _quietly(display.close)
        _quietly(board.close)
        _quietly(flush_output)
        threading.excepthook = hook
    return 0


def _hide_writer(error: threading.ExceptHookArgs) -> None:
    """Hide errors of TensorBoard's thread, because the writer raises them again at its next call."""
    if type(error.thread).__module__ != "tensorboard.summary.writer.event_file_writer":
        threading.__excepthook__(error)


class _Optional:
    """An optional listener: after its first error, it prints a message and is not called again."""

    def __init__(self, listener: Listener) -> None:
        self._listener: Listener | None = listener

    def __call__(self, event: Event) -> None:
        """Pass `event` on."""
        if self._listener is None:
            return
        try:
            self._listener(event)
        except (Exception, SystemExit) as error:  # rich exits if the pipe is closed, as by head
            name, self._listener = getattr(self._listener, "__name__", type(self._listener).__name__), None
            if isinstance(error, BrokenPipeError | SystemExit):
                return
            text = f"{name.strip('_')}: {type(error).__name__}: {error}".partition("\n")[0]
            _quietly(lambda: print(f"regrow: {text}. The run continues without it.", file=sys.stderr))


def _quietly(action: Callable[[], object]) -> None:
    """Do something whose failure must not change how a run ends."""
    with contextlib.suppress(Exception, SystemExit):
        action()


def _draw(event: Event) -> None:
    """Add plots to a run that has just finished, if the packages for them are installed.

    In another process, because the renderer ends its process if it does not get enough memory.
    """
    from regrow.report import can_draw
    from regrow.train.events import Finished

    if isinstance(event, Finished) and not os.path.lexists(event.folder / "plots") and can_draw():
        code = "import sys; from regrow.report import plot_run; plot_run(sys.argv[1])"
        drawn = subprocess.run([sys.executable, "-c", code, str(event.folder)], capture_output=True, check=False)
        if drawn.returncode:
            raise RuntimeError(f"the plots could not be drawn (exit code {drawn.returncode})")


def _dry_run(recipe: Recipe, imports: frozenset[str]) -> int:
    from regrow.text import duration
    from regrow.train.display import title
    from regrow.train.dry_run import dry_run

    found = dry_run(recipe, imports)
    print(f"{title(recipe)}\n\n{found.account.table()}\n")
    print(
        f"{found.total:,} steps, {found.steps_per_epoch:,} per epoch: about {duration(found.seconds)} on this machine."
    )
    masked = " and masks were made at the final sparsity" if found.masked else ""
    print(f"Some batches were trained{masked}. Nothing was written.")
    return 0
