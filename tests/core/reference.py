"""Algorithm 1 of the paper, written down literally: its own dense copy, its own sort, a functional forward pass."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call


def stable_masks(weights: list[Tensor], count: int) -> list[Tensor]:
    """Prune the `count` smallest magnitudes by one stable sort over all weights."""
    order = torch.cat([w.abs().reshape(-1) for w in weights]).sort(stable=True).indices
    keep = torch.ones(len(order), dtype=torch.bool)
    keep[order[:count]] = False
    return [part.view(w.shape) for part, w in zip(keep.split([w.numel() for w in weights]), weights, strict=True)]


def algorithm_1(
    model: nn.Module,
    targets: list[str],
    make_optimizer: Callable[[list[Tensor]], torch.optim.Optimizer],
    sparsity: Callable[[int], float] | dict[tuple[str, ...], Callable[[int], float]],
    batches: Iterator[tuple[Tensor, Tensor]],
    period: int = 16,
    per_layer: bool = False,
    soft: bool = False,
    decay_at_pruned: float = 0.0,
) -> Iterator[tuple[float, dict[str, Tensor], dict[str, Tensor]]]:
    """Yield (loss at ŵ_t, dense w_{t+1}, m_t) for each batch; `model` only lends its structure and its buffers.

    `sparsity` may also be a schedule for each of several groups of targets. With `soft`, ŵ = m⊙sign(w)·max(|w| − τ, 0),
    where τ is the largest magnitude that was pruned with the mask.
    """
    w = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    optimizer = make_optimizer(list(w.values()))
    m: dict[str, Tensor] = {}
    tau: dict[str, Tensor] = {}

    def prune(name: str, p: Tensor) -> Tensor:
        kept = p.sign() * (p.abs() - tau[name]).clamp(min=0) if soft else p
        return torch.where(m[name], kept, 0.0)

    for t, (x, y) in enumerate(batches):
        if t % period == 0:
            groups = sparsity if isinstance(sparsity, dict) else {tuple(targets): sparsity}
            parts = {
                part: s for names, s in groups.items() for part in ([(n,) for n in names] if per_layer else [names])
            }
            for names, schedule in parts.items():
                count = round(sum(w[name].numel() for name in names) * schedule(t))
                m |= dict(zip(names, stable_masks([w[name].detach() for name in names], count), strict=True))
                gone = torch.cat([w[name].detach()[~m[name]] for name in names])
                tau |= dict.fromkeys(names, torch.cat([gone.abs(), torch.zeros(1)]).max())
        pruned = {name: (prune(name, p) if name in m else p).detach() for name, p in w.items()}
        pruned = {name: p.clone().requires_grad_() for name, p in pruned.items()}
        loss = nn.functional.cross_entropy(functional_call(model, pruned, (x,)), y)
        gradients = torch.autograd.grad(loss, list(pruned.values()))
        for p, shown, g in zip(w.values(), pruned.values(), gradients, strict=True):
            p.grad = g.add(shown.detach(), alpha=decay_at_pruned) if decay_at_pruned else g
        optimizer.step()
        yield loss.item(), {name: p.detach().clone() for name, p in w.items()}, dict(m)
