"""Records the masks of a training and writes the page that plays them: `python docs/demo/masks.py OUT`.

The network is the one of `regrow demo`, on the digits that come with the package: a minute on a laptop.
"""

from __future__ import annotations

import sys

import torch
from torch.nn import functional as F

import regrow
from regrow import data, models
from regrow.report.mask_player import MaskRecorder

EPOCHS, BATCH, SPARSITY = 30, 64, 0.95


def main(path: str) -> None:
    """Train, record, write."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, test = data.load("digits", "train"), data.load("digits", "test")
    batches = data.Batches(train, BATCH, seed=0)
    model = models.build("small", classes=10, channels=1, size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    drops = torch.optim.lr_scheduler.MultiStepLR(optimizer, [EPOCHS // 2, 3 * EPOCHS // 4])
    steps = EPOCHS * -(-len(train) // BATCH)
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(SPARSITY, end=3 * steps // 4))
    recorder = MaskRecorder(pruner)
    recorder.record("start")
    for epoch in range(EPOCHS):
        model.train()
        for images, labels in batches.epoch(epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        drops.step()
        recorder.record(f"epoch {epoch + 1}")
    right = _accuracy(model, test)
    note = (
        f"SmallCNN ({sum(mask.numel() for mask in pruner.masks.values()):,} pruned and kept weights) on handwritten "
        f"digits of 8 x 8 pixels, {EPOCHS} epochs of DPF up to {100 * SPARSITY:g} % sparsity; the sparse network is "
        f"right in {right:.1f} % of {len(test)} test images. One frame per epoch."
    )
    recorder.write(path, title="What DPF does: weights pruned, regrown, settled", note=note)


@torch.no_grad()
def _accuracy(model: torch.nn.Module, test: data.ImageSet) -> float:
    model.eval()
    counts = [(model(x).argmax(1) == y).sum().item() for x, y in data.Batches.evaluation(test, 500).epoch(0)]
    return 100 * sum(counts) / len(test)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
