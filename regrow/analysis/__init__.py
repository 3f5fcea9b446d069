"""What the paper measures: parameters, MACs and the dynamics of masks."""

from regrow.analysis.accounting import Account, Layer, account

__all__ = ["Account", "Layer", "account"]
