"""Keeps a model sparse while an optimizer trains it."""

from regrow.core.masks import Masks
from regrow.core.pruner import Pruner, Stats
from regrow.core.schedule import Constant, Cubic
from regrow.core.weights import Memory

__all__ = ["Constant", "Cubic", "Masks", "Memory", "Pruner", "Stats"]
