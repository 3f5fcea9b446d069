"""The command line. torch is imported only by the commands that need it, so that `--help` answers at once.

Exit codes: 0 done; 1 the run cannot continue (diverged, disk full, folder in use, data missing); 2 wrong usage;
129, 130 and 143 stopped by SIGHUP, SIGINT or SIGTERM, with everything saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import TextIOWrapper

from regrow import __version__
from regrow.text import did_you_mean, install_hint


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in `arguments` (by default those of the process) and exit with its code."""
    _open_standard_streams()
    try:
        code = _code(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        print("regrow: stopped by SIGINT", file=sys.stderr)
        code = 130
    sys.exit(code)


def _code(arguments: Sequence[str]) -> int:
    """Run the command in `arguments` and return its exit code, also after an expected error."""
    try:
        code = call(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _stdout_is_closed():
            return 1
        from regrow.cli.errors import explain, flush_output

        code = explain(error)
        flush_output()
    return code


def call(arguments: Sequence[str]) -> int:
    """Run the command in `arguments` and return its exit code."""
    if list(arguments) == ["--version"]:
        print(f"regrow {__version__}")
        return 0
    try:
        import rich  # noqa: F401
        import tyro
    except ImportError:
        sys.exit(f"regrow: the command line needs more packages: {install_hint('cli')}")
    if not arguments:
        with suppress(SystemExit):
            call(["--help"])
        return 2
    commands, arguments = _commands(arguments)
    _check_name(arguments[:1], commands)
    code: int = tyro.extras.subcommand_cli_from_dict(
        commands,
        prog="regrow",
        description="Train sparse neural networks in one pass. Start with: regrow train digits",
        args=list(arguments),
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return code


def _commands(arguments: Sequence[str]) -> tuple[dict[str, Callable[..., int]], Sequence[str]]:
    """Return all commands by name, and `arguments` without the recipe, which sets the defaults of `train`."""
    from regrow.cli.bench import bench
    from regrow.cli.demo import demo
    from regrow.cli.export import export
    from regrow.cli.info import completion, env, methods, recipes, reproduce
    from regrow.cli.inspect import inspect, report
    from regrow.cli.selftest import selftest
    from regrow.cli.sweep import sweep
    from regrow.cli.train import train, with_recipe

    train_recipe: Callable[..., int] = train
    if arguments[:1] == ["train"]:
        train_recipe, rest = with_recipe(arguments[1:])
        arguments = ["train", *rest]
    commands: dict[str, Callable[..., int]] = {
        "train": train_recipe,
        "sweep": sweep,
        "demo": demo,
        "recipes": recipes,
        "methods": methods,
        "inspect": inspect,
        "report": report,
        "reproduce": reproduce,
        "export": export,
        "bench": bench,
        "selftest": selftest,
        "env": env,
        "completion": completion,
    }
    return commands, arguments


def _check_name(name: Sequence[str], commands: dict[str, Callable[..., int]]) -> None:
    from regrow.runs.recipe import UsageError

    if name and not name[0].startswith("-") and name[0] not in commands:
        hint = did_you_mean(name[0], commands, cutoff=0.6)
        raise UsageError(f"unknown command {name[0]!r}.{hint} The commands are {', '.join(commands)}.")


def _open_standard_streams() -> None:
    """Open /dev/null for closed standard streams.

    Otherwise a file of the run gets their descriptor, and library output is written to it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the code page of Windows does not have all characters


def _stdout_is_closed() -> bool:
    """Return whether standard output broke, as in `regrow … | head`: then the error need not be shown."""
    try:
        print(flush=True)  # discards the unwritten rest
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
