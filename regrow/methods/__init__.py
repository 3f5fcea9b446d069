"""One short file per pruning method, all used like `DPF`."""

from regrow.methods.deepr import DeepR
from regrow.methods.dense import Dense
from regrow.methods.dpf import DPF
from regrow.methods.dsr import DSR
from regrow.methods.fixed import Fixed
from regrow.methods.incremental import Incremental
from regrow.methods.oneshot import OneShot
from regrow.methods.rewire import Rewire
from regrow.methods.rigl import RigL
from regrow.methods.set import SET
from regrow.methods.snip import SNIP
from regrow.methods.sparse_momentum import SparseMomentum

__all__ = [
    "DPF",
    "DSR",
    "SET",
    "SNIP",
    "DeepR",
    "Dense",
    "Fixed",
    "Incremental",
    "OneShot",
    "Rewire",
    "RigL",
    "SparseMomentum",
]
