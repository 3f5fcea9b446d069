"""One short file per pruning method, all used like `DPF`."""

from regrow.methods.deepr import DeepR
from regrow.methods.dense import Dense
from regrow.methods.dpf import DPF
from regrow.methods.dsr import DSR
from regrow.methods.fixed import Fixed
from regrow.methods.incremental import Incremental
from regrow.methods.lottery import LotteryTicket
from regrow.methods.oneshot import OneShot
from regrow.methods.rewire import Rewire
from regrow.methods.rigl import RigL
from regrow.methods.scratch import from_scratch, steps_of_equal_flops
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
    "LotteryTicket",
    "OneShot",
    "Rewire",
    "RigL",
    "SparseMomentum",
    "from_scratch",
    "steps_of_equal_flops",
]
