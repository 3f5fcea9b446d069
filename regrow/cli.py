"""The command line: a thin skin over the library, quick to answer because torch is imported only where it is needed.

Exit codes: 0 done; 1 the run could not go on (diverged, disk full, folder in use, data missing); 2 the command was
wrong; 130 and 143 stopped by SIGINT or SIGTERM with everything saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

FAILED, MISUSED = 1, 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in `arguments` (by default those of the process) and exit with its code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        import tyro
    except ImportError:
        sys.exit('regrow: the command line needs a few packages more: pip install "regrow[cli]"')
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            _commands(arguments),
            prog="regrow",
            description="Train sparse neural networks in one pass. Start with: regrow train digits",
            args=arguments or ["--help"],
            config=(tyro.conf.OmitArgPrefixes,),
        )
    except Exception as error:
        code = _explain(error)
    sys.exit(code)


def _commands(arguments: Sequence[str]) -> dict[str, Callable[..., int]]:
    """Return every command by its name; a new one is a function and a line here."""
    from regrow.commands.env import env
    from regrow.commands.recipes import recipes
    from regrow.commands.train import default_recipe, train_command
    from regrow.train.config import Recipe

    training = arguments[:1] == ["train"]
    return {
        "train": train_command(default_recipe(arguments[1:]) if training else Recipe()),
        "recipes": recipes,
        "env": env,
    }


def _explain(error: Exception) -> int:
    """Print an error that has an explanation in one line; raise what is a bug of ours."""
    from regrow.train.config import RecipeError

    if isinstance(error, RecipeError):
        code = MISUSED
    elif _expected(error):
        code = FAILED
    else:
        raise error
    if os.environ.get("REGROW_DEBUG"):
        raise error
    print(f"regrow: {error}", file=sys.stderr)
    return code


def _expected(error: Exception) -> bool:
    from regrow.data import DataError
    from regrow.train.files import FolderError
    from regrow.train.loop import DivergedError

    return isinstance(error, DataError | FolderError | DivergedError)
