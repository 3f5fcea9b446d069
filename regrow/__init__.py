"""Train sparse neural networks in one pass, and take them to small files and fast inference."""

from regrow.core import Constant, Cubic, Masks, Memory, Pruner, Stats
from regrow.deploy.container import FormatError
from regrow.deploy.pack import load, save
from regrow.deploy.shrink import ShrinkReport, shrink, shrink_report
from regrow.methods import (
    DPF,
    DSR,
    SET,
    SNIP,
    DeepR,
    Dense,
    Fixed,
    Incremental,
    OneShot,
    Rewire,
    RigL,
    SparseMomentum,
)
from regrow.version import __version__

__all__ = [
    "DPF",
    "DSR",
    "SET",
    "SNIP",
    "Constant",
    "Cubic",
    "DeepR",
    "Dense",
    "Fixed",
    "FormatError",
    "Incremental",
    "Masks",
    "Memory",
    "OneShot",
    "Pruner",
    "Rewire",
    "RigL",
    "ShrinkReport",
    "SparseMomentum",
    "Stats",
    "__version__",
    "load",
    "save",
    "shrink",
    "shrink_report",
]
