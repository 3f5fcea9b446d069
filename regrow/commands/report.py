"""`regrow report`: runs in, one page out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from regrow.commands.errors import check_file
from regrow.train.config import Recipe

if TYPE_CHECKING:
    from regrow.report import Published

# The networks of the paper are those whose shape nothing changes.
_SHAPE = ("width", "stem_stride", "growth", "limit")


def report(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")],
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html"),
    figures: Path | None = None,
    title: str = "Sparse training",
    note: str = "",
) -> int:
    """Write one HTML page about runs: results, curves, mask dynamics, recipes; it needs no network.

    Args:
        runs: Folders of runs, folders that contain some at any depth, or files of results (JSON lines).
        out: The page.
        figures: Folder for every figure as SVG, PNG and PDF, for papers. None: no such files.
        title: Heading of the page.
        note: A sentence under the heading, such as what is special about the data.
    """
    from regrow.report import write_report

    check_file(out, "report.html")
    path = write_report(runs, out, title=title, note=note, published=in_the_paper, figures=figures)
    print(f"report in {path}" + (f", figures in {figures}" if figures else ""))
    return 0


def in_the_paper(recipe: Recipe, finetuned: bool) -> Published | None:
    """Return the accuracy that the paper printed for a recipe's setting, with the scale of its training."""
    from regrow.paper import published
    from regrow.report import Published
    from regrow.report.outcomes import is_dense
    from regrow.report.tasks import method_title
    from regrow.train.catalog import load_recipe, recipe_names

    name = f"{recipe.data.removesuffix('10')}-{recipe.model}"
    if recipe.holdout or name not in recipe_names() or any(getattr(recipe, field) is not None for field in _SHAPE):
        return None
    scale = f"{load_recipe(name).epochs}{' + 60' if finetuned else ''} epochs"
    rows = [row for table in published.TABLES for row in published.table(table) if row.network == recipe.model]
    if is_dense(recipe):
        means = [row for row in rows if row.dense_mean is not None and row.source == "paper"]
        return Published(means[0].dense_mean, means[0].dense_std, scale) if means else None
    wanted = (method_title(recipe.method), recipe.sparsity, finetuned, recipe.unit or "weight")
    for row in rows:
        reported = row.mean is not None or row.outcome == "diverged"
        if reported and (row.method, row.sparsity, row.fine_tuned, row.unit) == wanted:
            return Published(row.mean, row.std, scale)
    return None
