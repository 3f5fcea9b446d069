"""Deep rewiring (Bellec et al. 2018): weights move with noise, and those that cross zero are replaced at random.

This is the variant that DSR was compared with: an L1 gradient of 1e-5 and noise N(0, √(2ηT)) on the gradients of active
weights, with η = 0.01 and a temperature T that falls from 1e-5 to 1e-15 over training. After every step a weight that
has changed its sign is dropped, and a random free connection of the layer grows. There is no weight decay besides the
L1 term. Different from the original:

* The noise is part of the gradient, so that the learning rate scales it. Bellec et al. add it to the weight, with η the
  learning rate.
* The optimizer's own step replaces plain gradient descent. Its momentum starts from zero for new connections.
* A new connection takes the sign that its gradient gives it, instead of one that is fixed beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.checks import check_amount, warn
from regrow.core.hooks import gradient_scale
from regrow.core.options import MethodInfo
from regrow.core.schedule import Level
from regrow.methods.drop_and_grow import DropAndGrow, DropAndGrowOptions


class DeepR(DropAndGrow):
    """Samples the connections of `model` together with their weights; `total_steps` is the length of training."""

    info = MethodInfo(
        paper="Bellec et al. 2018",
        when="every step",
        score="drop: change of sign; grow: random",
        cost="two draws and two selections per layer, every step",
    )
    resets_momentum = True
    resume_options = (*DropAndGrow.resume_options, "l1", "temperature", "eta")

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Level,
        total_steps: int | None = None,
        l1: float = 1e-5,
        temperature: tuple[float, float] = (1e-5, 1e-15),
        eta: float = 0.01,
        **options: Unpack[DropAndGrowOptions],
    ) -> None:
        self.l1, self.eta = check_amount("l1", l1, zero=True), check_amount("eta", eta, zero=True)
        if not isinstance(temperature, tuple | list) or len(temperature) != 2:
            raise TypeError(f"temperature must be a pair, of the first step and of the last, got {temperature!r}")
        hot, cold = (check_amount("each temperature", each) for each in temperature)
        self.temperature = hot, cold
        self._before: dict[str, Tensor] = {}
        super().__init__(model, optimizer, sparsity=sparsity, every=1, total_steps=total_steps, **options)
        if decays := [group["weight_decay"] for group in self.optimizer.param_groups if group.get("weight_decay")]:
            warn(
                f"DeepR has its L1 term in place of weight decay, but this optimizer also decays by {decays[0]:g}: "
                "set weight_decay=0"
            )

    @torch.no_grad()
    def before_update(self) -> None:
        """Add the L1 gradient and the noise, and remember the signs."""
        super().before_update()
        if self._frozen:
            return
        scale = gradient_scale(self.optimizer)
        for name, target in self.targets.items():
            self._before[name] = target.local.sign()
            if target.grad is not None:
                target.grad.add_(self._before[name], alpha=self.l1 * scale)
                target.grad.add_(self._noise(name, self.step + 1).to(target.grad.dtype), alpha=scale)

    def _noise(self, name: str, t: int) -> Tensor:
        """Return the noise on the gradients of step `t`, on active weights only."""
        hot, cold = self.temperature
        size = (2 * self.eta * hot * (cold / hot) ** (t / self.total_steps)) ** 0.5
        noise: Tensor = torch.special.ndtri(self.draw(name, t, "noise")).mul_(size)
        return noise * self.masks[name]

    def drop_and_grow(self, t: int) -> Iterator[tuple[str, Tensor]]:
        """Drop the weights that crossed zero, grow as many at random where there was none."""
        for name, mask in self.masks.items():
            weight = self.weights[name]
            crossed = mask & (weight.sign() * self._before[name] < 0)
            moved = min(self.shards.counts([crossed, ~mask]))
            dropped = self.keep_largest(name, weight, crossed, moved)
            yield name, (mask & ~dropped) | self.keep_largest(name, self.draw(name, t), ~mask, moved)
