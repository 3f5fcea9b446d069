"""Keeps a model sparse while an optimizer trains it."""

from regrow.core.masks import Masks
from regrow.core.pruner import BasePruner
from regrow.core.schedule import Constant, Cubic
from regrow.core.stats import Stats
from regrow.core.weights import Memory

__all__ = ["BasePruner", "Constant", "Cubic", "Masks", "Memory", "Stats"]
