"""One way to attach each method, for the tests that all of them must pass."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import regrow

TOTAL = 12


def some_masks(model: nn.Module, sparsity: float) -> dict[str, Tensor]:
    """Return masks that every process draws alike, whatever its weights are."""
    draws = torch.Generator().manual_seed(0)
    weights = {name.removeprefix("module."): weight for name, weight in model.named_parameters() if weight.dim() > 1}
    *pruned, _ = weights.items()
    return {name: torch.rand(weight.shape, generator=draws) >= sparsity for name, weight in pruned}


METHODS = {
    "DPF": lambda m, o, s: regrow.DPF(m, o, sparsity=regrow.Cubic(s, end=8), every=2),
    "Incremental": lambda m, o, s: regrow.Incremental(m, o, sparsity=regrow.Cubic(s, end=8), every=2),
    "OneShot": lambda m, o, s: regrow.OneShot(m, o, sparsity=s, at=3),
    "SNIP": lambda m, o, s: regrow.SNIP(m, o, sparsity=s),
    "RigL": lambda m, o, s: regrow.RigL(m, o, sparsity=s, every=2, total_steps=TOTAL),
    "SET": lambda m, o, s: regrow.SET(m, o, sparsity=s, every=2, total_steps=TOTAL),
    "SparseMomentum": lambda m, o, s: regrow.SparseMomentum(m, o, sparsity=s, every=2, total_steps=TOTAL),
    "DSR": lambda m, o, s: regrow.DSR(m, o, sparsity=s, every=1, total_steps=TOTAL, threshold=0.02),
    "DeepR": lambda m, o, s: regrow.DeepR(m, o, sparsity=s, total_steps=TOTAL),
    "SFP": lambda m, o, s: regrow.SFP(m, o, sparsity=s, every=2),
    "Fixed": lambda m, o, s: regrow.Fixed(m, o, some_masks(m, s)),
    "Feedback": lambda m, o, s: regrow.Feedback(m, o, compressor="4 bits"),
    "Static": lambda m, o, s: regrow.Static(m, o, sparsity=s),
    "ACDC": lambda m, o, s: regrow.ACDC(m, o, sparsity=s, total_steps=TOTAL),
    "GraNet": lambda m, o, s: regrow.GraNet(m, o, sparsity=s, every=2, total_steps=TOTAL),
    "DSD": lambda m, o, s: regrow.DSD(m, o, sparsity=s, total_steps=TOTAL),
    "SRSTE": lambda m, o, s: regrow.SRSTE(m, o, unit="1:2"),
    "DNS": lambda m, o, s: regrow.DNS(m, o, sparsity=regrow.Cubic(s, end=8), gamma=0.2),
    "Dense": lambda m, o, s: regrow.Dense(m, o),
}


def attach(name: str, model: nn.Module, optimizer: Optimizer, sparsity: float = 0.8) -> regrow.Pruner:
    return METHODS[name](model, optimizer, sparsity)
