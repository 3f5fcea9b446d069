"""Figures as files for papers and slides, made without a browser."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from regrow.report.figures.figure import Figure, altair
from regrow.report.theme import LIGHT
from regrow.train.files import write_whole

Format = Literal["svg", "png", "pdf"]
FORMATS: tuple[Format, ...] = get_args(Format)

_WIDTH = 460
_PIXELS_PER_INCH = 220


def write_figures(figures: Iterable[Figure], folder: Path | str, formats: Iterable[Format] = FORMATS) -> list[Path]:
    """Write every figure in every format as `folder/name.format`, and return the paths."""
    formats, paths = tuple(formats), []
    for figure in figures:
        svg = to_svg(figure)
        for form in formats:
            path = Path(folder) / f"{figure.name}.{form}"
            write_whole(path, _convert(svg, form))
            paths.append(path)
    return paths


def to_svg(figure: Figure) -> str:
    """Return the figure as a picture on white, with its title and its legend."""
    spec = {**figure.spec, "width": _WIDTH, "title": figure.title, "config": LIGHT.config()}
    svg: str = vl_convert().vegalite_to_svg(spec, vl_version=vega_lite_version())
    return svg


def can_draw() -> bool:
    """Return whether the packages that figures need are installed; they are not imported."""
    return all(find_spec(package) for package in ("altair", "vl_convert"))


def vl_convert() -> Any:
    """Return the vl_convert module, which is an optional dependency."""
    try:
        import vl_convert
    except ImportError:
        raise ImportError('figures need altair and vl-convert-python: pip install "regrow[report]"') from None
    return vl_convert


def vega_lite_version() -> str:
    """Return the version of Vega-Lite for which altair writes, as vl-convert names it."""
    major, minor, *_ = str(altair().SCHEMA_VERSION).removeprefix("v").split(".")
    return f"{major}.{minor}"


def _convert(svg: str, form: Format) -> bytes:
    match form:
        case "svg":
            return svg.encode()
        case "png":
            png: bytes = vl_convert().svg_to_png(svg, ppi=_PIXELS_PER_INCH)
            return png
        case "pdf":
            pdf: bytes = vl_convert().svg_to_pdf(svg)
            return pdf
