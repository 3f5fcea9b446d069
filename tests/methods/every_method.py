"""One way to attach each method, for the tests that all of them must pass."""

from torch import nn
from torch.optim import Optimizer

import regrow

TOTAL = 12
METHODS = {
    "DPF": lambda m, o, s: regrow.DPF(m, o, sparsity=regrow.Cubic(s, end=8), every=2),
    "Incremental": lambda m, o, s: regrow.Incremental(m, o, sparsity=regrow.Cubic(s, end=8), every=2),
    "OneShot": lambda m, o, s: regrow.OneShot(m, o, sparsity=s, at=3),
    "SNIP": lambda m, o, s: regrow.SNIP(m, o, sparsity=s),
    "RigL": lambda m, o, s: regrow.RigL(m, o, sparsity=s, every=2, total=TOTAL),
    "SET": lambda m, o, s: regrow.SET(m, o, sparsity=s, every=2, total=TOTAL),
    "SparseMomentum": lambda m, o, s: regrow.SparseMomentum(m, o, sparsity=s, every=2, total=TOTAL),
    "DSR": lambda m, o, s: regrow.DSR(m, o, sparsity=s, every=1, total=TOTAL, threshold=0.02),
    "DeepR": lambda m, o, s: regrow.DeepR(m, o, sparsity=s, total=TOTAL),
    "SFP": lambda m, o, s: regrow.SFP(m, o, sparsity=s, every=2),
    "Dense": lambda m, o, s: regrow.Dense(m, o),
}


def attach(name: str, model: nn.Module, optimizer: Optimizer, sparsity: float = 0.8) -> regrow.Pruner:
    return METHODS[name](model, optimizer, sparsity)
