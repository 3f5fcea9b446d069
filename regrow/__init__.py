"""Train sparse neural networks in one pass, and take them to small files and fast inference."""

from regrow.core import Constant, Cubic, Masks, Memory, Pruner, Stats
from regrow.methods import DPF, Fixed
from regrow.version import __version__

__all__ = ["DPF", "Constant", "Cubic", "Fixed", "Masks", "Memory", "Pruner", "Stats", "__version__"]
