"""One short file per pruning method, all used like `DPF`."""

from regrow.methods.dpf import DPF
from regrow.methods.fixed import Fixed

__all__ = ["DPF", "Fixed"]
