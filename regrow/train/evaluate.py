"""Accuracy and loss of the pruned model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regrow.data import Batches
from regrow.train.distributed import Ranks

# Number of classes from which top-5 accuracy is reported.
_MANY_CLASSES = 50


@dataclass(frozen=True)
class Score:
    """Mean loss, and accuracies in percent (top-5 only for many classes)."""

    loss: float
    top1: float
    top5: float | None = None

    def record(self) -> dict[str, float | None]:
        """Return the entries of a record; a loss that is not finite is None, because JSON has no NaN."""
        entries = {"test_loss": self.loss if math.isfinite(self.loss) else None, "top1": self.top1}
        return entries if self.top5 is None else {**entries, "top5": self.top5}


@torch.no_grad()
def evaluate(
    network: nn.Module,
    batches: Batches,
    *,
    bf16: bool = False,
    after_batch: Callable[[], None] = lambda: None,
    ranks: Ranks = Ranks(),  # noqa: B008 - it is immutable
) -> Score:
    """Evaluate `network` on `batches`, of which each rank has a part; `after_batch` may raise to stop."""
    training = network.training
    network.eval()
    loss, right, among_five, images = 0.0, 0, 0, 0
    many = batches.source.info.classes >= _MANY_CLASSES
    try:
        for inputs, labels in batches:
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bf16):
                logits = network(inputs)
            loss += float(F.cross_entropy(logits.float(), labels, reduction="sum"))
            right += _hits(logits, labels, 1)
            among_five += _hits(logits, labels, 5) if many else 0
            images += len(labels)
            after_batch()
    finally:
        network.train(training)
    loss, first, five, count = ranks.sum([loss, right, among_five, images])
    return Score(loss / count, 100 * first / count, 100 * five / count if many else None)


def _hits(logits: Tensor, labels: Tensor, among: int) -> int:
    return int(torch.count_nonzero(logits.topk(among, 1).indices == labels[:, None]))
