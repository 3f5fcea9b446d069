"""The command line: a thin skin over the library, quick to answer because torch is imported only where it is needed.

Exit codes: 0 done; 1 the run could not go on (diverged, disk full, folder in use, data missing); 2 the command was
wrong; 130 and 143 stopped by SIGINT or SIGTERM with everything saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from regrow.version import __version__


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
        sys.stdout.flush()
    except BrokenPipeError:  # `regrow … | head`: whoever reads has seen enough, and there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except Exception as error:
        from regrow.commands.errors import explain

        code = explain(error)
    sys.exit(code)
