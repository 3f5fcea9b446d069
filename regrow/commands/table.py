"""Every command by its name: a new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import tyro

from regrow.commands.bench import bench
from regrow.commands.demo import demo
from regrow.commands.env import env
from regrow.commands.export import export
from regrow.commands.inspect import inspect
from regrow.commands.methods import methods
from regrow.commands.recipes import recipes
from regrow.commands.report import report
from regrow.commands.reproduce import reproduce
from regrow.commands.sweep import sweep
from regrow.commands.train import train_command
from regrow.text import did_you_mean
from regrow.train.config import RecipeError


def call(arguments: Sequence[str]) -> int:
    """Run the command in `arguments` and return its exit code."""
    commands = _commands(arguments)
    for name in arguments[:1]:
        if not name.startswith("-") and name not in commands:
            hint = did_you_mean(name, commands, cutoff=0.5)
            raise RecipeError(f"{name!r} is no command.{hint} The commands are {', '.join(commands)}.")
    code: int = tyro.extras.subcommand_cli_from_dict(
        commands,
        prog="regrow",
        description="Train sparse neural networks in one pass. Start with: regrow train digits",
        args=list(arguments) or ["--help"],
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return code


def _commands(arguments: Sequence[str]) -> dict[str, Callable[..., int]]:
    return {
        "train": train_command(arguments[1:] if arguments[:1] == ["train"] else ()),
        "sweep": sweep,
        "demo": demo,
        "recipes": recipes,
        "methods": methods,
        "inspect": inspect,
        "report": report,
        "reproduce": reproduce,
        "export": export,
        "bench": bench,
        "env": env,
        "completion": completion,
    }


def completion(
    shell: Annotated[tyro.conf.Positional[Literal["bash", "zsh", "tcsh"]], tyro.conf.arg(metavar="SHELL")],
) -> int:
    """Print a completion script: `regrow completion bash > ~/.local/share/bash-completion/completions/regrow`.

    Args:
        shell: bash, zsh or tcsh. For zsh, write it to a file `_regrow` in a folder of $fpath.
    """
    return call(["--tyro-print-completion", shell])
