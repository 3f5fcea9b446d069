"""Train sparse neural networks in one pass, and take them to small files and fast inference."""

from regrow.core import Constant, Cubic, Masks, Memory, Pruner, Stats
from regrow.deploy.container import FormatError
from regrow.deploy.pack import load, save
from regrow.deploy.shrink import ShrinkReport, shrink, shrink_report
from regrow.methods import DPF, Dense, Fixed, Incremental, OneShot
from regrow.version import __version__

__all__ = [
    "DPF",
    "Constant",
    "Cubic",
    "Dense",
    "Fixed",
    "FormatError",
    "Incremental",
    "Masks",
    "Memory",
    "OneShot",
    "Pruner",
    "ShrinkReport",
    "Stats",
    "__version__",
    "load",
    "save",
    "shrink",
    "shrink_report",
]
