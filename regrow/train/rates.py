"""The learning rate as a function of the step, so that a resumed run has no scheduler to restore."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.train.config import Recipe


@dataclass(frozen=True)
class Rate:
    """`peak` after a linear warm-up of `warmup` steps, times `factor` from each of the steps in `drops` on."""

    peak: float
    drops: tuple[int, ...]
    factor: float
    warmup: int = 0
    warmup_from: float = 0.0

    def __call__(self, t: int) -> float:
        """Return the learning rate of the step that makes iterate t+1."""
        if t < self.warmup:
            return self.peak * (self.warmup_from + (1 - self.warmup_from) * (t + 1) / self.warmup)
        return self.peak * self.factor ** sum(t >= drop for drop in self.drops)


def training_rate(recipe: Recipe, total: int) -> Rate:
    """Return the rate of a training of `total` steps."""
    return Rate(
        peak=recipe.lr,
        drops=tuple(round(share * total) for share in recipe.drops),
        factor=recipe.drop_factor,
        warmup=round(recipe.warmup * total),
        warmup_from=recipe.warmup_from,
    )


def finetuning_rate(recipe: Recipe, total: int) -> Rate:
    """Return the rate of a fine-tuning of `total` steps."""
    drops = tuple(round(share * total) for share in recipe.finetune_drops)
    return Rate(peak=recipe.finetune_lr, drops=drops, factor=recipe.drop_factor)
