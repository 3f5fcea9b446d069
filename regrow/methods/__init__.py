"""One short file per pruning method, all used like `DPF`."""

from regrow.methods.dense import Dense
from regrow.methods.dpf import DPF
from regrow.methods.fixed import Fixed
from regrow.methods.incremental import Incremental
from regrow.methods.oneshot import OneShot

__all__ = ["DPF", "Dense", "Fixed", "Incremental", "OneShot"]
