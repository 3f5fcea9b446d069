"""What the paper measures: parameters, MACs and the dynamics of masks."""

from regrow.analysis.accounting import Account, Layer, account
from regrow.analysis.dynamics import Change, Dynamics, Epoch

__all__ = ["Account", "Change", "Dynamics", "Epoch", "Layer", "account"]
