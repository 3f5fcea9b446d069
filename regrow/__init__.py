"""Train sparse neural networks in one pass, and take them to small files and fast inference."""

from regrow.core import Constant, Cubic, Masks, Memory, Pruner, Stats
from regrow.methods import DPF, Dense, Fixed, Incremental, OneShot
from regrow.version import __version__

__all__ = [
    "DPF",
    "Constant",
    "Cubic",
    "Dense",
    "Fixed",
    "Incremental",
    "Masks",
    "Memory",
    "OneShot",
    "Pruner",
    "Stats",
    "__version__",
]
