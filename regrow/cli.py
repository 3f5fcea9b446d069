"""The command line: a thin skin over the library, quick to answer because torch is imported only where it is needed.

Exit codes: 0 done; 1 the run could not go on (diverged, disk full, folder in use, data missing); 2 the command was
wrong; 130 and 143 stopped by SIGINT or SIGTERM with everything saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from regrow.version import __version__

FAILED, MISUSED = 1, 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in `arguments` (by default those of the process) and exit with its code."""
    if list(sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        print(f"regrow {__version__}")
        sys.exit(0)
    try:
        from regrow.commands.table import call
    except ImportError as error:
        if error.name not in ("tyro", "rich"):
            raise
        sys.exit('regrow: the command line needs a few packages more: pip install "regrow[cli]"')
    try:
        code = call(list(sys.argv[1:] if arguments is None else arguments))
    except Exception as error:
        code = _explain(error)
    sys.exit(code)


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
    from regrow.deploy.container import FormatError
    from regrow.sweep import SweepError
    from regrow.train.files import FolderError
    from regrow.train.loop import DivergedError

    if isinstance(error, ImportError):
        return "regrow[" in str(error)  # an extra is not installed, and the message says which
    return isinstance(error, DataError | FormatError | FolderError | DivergedError | SweepError)
