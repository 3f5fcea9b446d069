"""The command line: a thin skin over the library, quick to answer because torch is imported only where it is needed.

Exit codes: 0 done; 1 the run could not go on (diverged, disk full, folder in use, data missing); 2 the command was
wrong; 130 and 143 stopped by SIGINT or SIGTERM with everything saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from regrow import __version__


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command in `arguments` (by default those of the process) and exit with its code."""
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments))
        if sys.stdout is not None:
            sys.stdout.flush()
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            sys.exit(1)
        from regrow.commands.errors import explain

        code = explain(error)
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"regrow {__version__}")
        return 0
    try:
        from regrow.commands.table import call
    except ImportError as error:
        if error.name not in ("tyro", "rich"):
            raise
        sys.exit('regrow: the command line needs a few packages more: pip install "regrow[cli]"')
    return call(arguments)


def _nobody_reads() -> bool:
    """Whether it is standard output that broke, as in `regrow … | head`: then there is nobody to tell."""
    try:
        print(flush=True)  # what was not written before is forgotten
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
