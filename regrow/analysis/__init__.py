"""Measures of sparse models: parameters, MACs, and how masks change during training."""

from regrow.analysis.costs import Account, LayerCosts, account
from regrow.analysis.dynamics import Change, Dynamics, Epoch

__all__ = ["Account", "Change", "Dynamics", "Epoch", "LayerCosts", "account"]
