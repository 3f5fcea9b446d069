"""One short file per pruning method, all used like `DPF`."""

from regrow.methods.acdc import ACDC
from regrow.methods.compressors import NM, LowRank, Sign, Uniform
from regrow.methods.deepr import DeepR
from regrow.methods.dense import Dense
from regrow.methods.dns import DNS
from regrow.methods.dpf import DPF
from regrow.methods.dsd import DSD
from regrow.methods.dsr import DSR
from regrow.methods.feedback import Feedback
from regrow.methods.fixed import Fixed
from regrow.methods.granet import GraNet
from regrow.methods.incremental import Incremental
from regrow.methods.lottery import LotteryTicket
from regrow.methods.oneshot import OneShot
from regrow.methods.pruner import Pruner
from regrow.methods.rewire import Rewire
from regrow.methods.rigl import RigL
from regrow.methods.scratch import from_scratch, steps_of_equal_flops
from regrow.methods.set import SET
from regrow.methods.sfp import SFP
from regrow.methods.snip import SNIP
from regrow.methods.sparse_momentum import SparseMomentum
from regrow.methods.srste import SRSTE
from regrow.methods.static import Static

__all__ = [
    "ACDC",
    "DNS",
    "DPF",
    "DSD",
    "DSR",
    "NM",
    "SET",
    "SFP",
    "SNIP",
    "SRSTE",
    "DeepR",
    "Dense",
    "Feedback",
    "Fixed",
    "GraNet",
    "Incremental",
    "LotteryTicket",
    "LowRank",
    "OneShot",
    "Pruner",
    "Rewire",
    "RigL",
    "Sign",
    "SparseMomentum",
    "Static",
    "Uniform",
    "from_scratch",
    "steps_of_equal_flops",
]
