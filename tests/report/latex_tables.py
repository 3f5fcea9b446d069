"""Reads the paper's tables out of its LaTeX, by a way that has nothing in common with the data files."""

import re
from collections.abc import Iterator
from pathlib import Path

# The LaTeX is not part of the repository; where the shared folder lies beside it, every cell is compared.
SOURCE = Path(__file__).resolve().parents[3] / "shared" / "paper" / "dynamic-model-pruning-with-feedback.tex"

_CITATION = re.compile(r"~?\\cite\w*(\[[^]]*\])?\{[^}]*\}")
_WRAPPED = re.compile(r"\\(?:mathbf|textbf|multirow\{\d+\}\{\*\})\{([^{}]*)\}")
_RULE = re.compile(r"\\(?:midrule|toprule|bottomrule|cmidrule(?:\(lr\))?\{[^}]*\})")


def lines(label: str) -> Iterator[list[str]]:
    """The lines of numbers in the table with this label; names that span lines are repeated on each."""
    text = SOURCE.read_text(encoding="utf-8")
    table = text[text.index(rf"\label{{{label}}}") :]
    table = table[table.index(r"\toprule") : table.index(r"\end{tabular}")]
    above = ["", ""]
    for line in table.split(r"\\"):
        plain = _RULE.sub("", _CITATION.sub("", line))
        while plain != (plain := _WRAPPED.sub(r"\1", plain)):
            pass
        cells = [re.sub(r"\s+", " ", cell).strip(" $~") for cell in plain.split("&")]
        if len(cells) < 5 or re.search(r"parbox|multicolumn", plain) or not re.search(r"\d", plain):
            continue
        cells[:2] = above = [cell or repeated for cell, repeated in zip(cells[:2], above, strict=True)]
        yield cells


def accuracy(cell: str) -> tuple[float | None, float | None]:
    """Mean and standard deviation of a cell, None for both where it has a star or a dash."""
    numbers = [float(number) for number in re.findall(r"\d+\.\d+", cell)]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (None, None)


def fraction(cell: str) -> float:
    """A percentage such as 97.5\\% as a fraction."""
    return round(float(cell.removesuffix(r"\%")) / 100, 6)


def millions(cell: str) -> int:
    """A number such as 6.79 M or 22.80M."""
    return round(float(cell.rstrip("M ")) * 1e6)
