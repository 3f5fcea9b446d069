"""`regrow report`: write a page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from regrow.cli.errors import check_file


def report(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")],
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html"),
    figures: Path | None = None,
    title: str = "Sparse training",
    note: str = "",
) -> int:
    """Write one self-contained HTML page about runs: results, curves, mask dynamics, recipes.

    Args:
        runs: Run folders, folders that contain some at any depth, or files of results (JSON Lines).
        out: The page.
        figures: Folder for every figure as SVG, PNG and PDF, for papers. None: do not write them.
        title: Heading of the page.
        note: A sentence under the heading, for example about the data.
    """
    from regrow.report import write_report
    from regrow.report.published import in_the_paper

    check_file(out, "report.html")
    path = write_report(runs, out, title=title, note=note, published=in_the_paper, figures=figures)
    print(f"report in {path}" + (f", figures in {figures}" if figures else ""))
    return 0
