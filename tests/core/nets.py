"""Small networks and batches for the tests of the core."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


def small_cnn(seed: int = 0, *, norm: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU()]
    layers = [layer for layer in layers if norm or not isinstance(layer, nn.BatchNorm2d)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * 9, 20), nn.ReLU(), nn.Linear(20, 10))


def batches(count: int, seed: int = 1, size: int = 16) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(size, 1, 8, 8, generator=generator)
        yield x, torch.randint(0, 10, (size,), generator=generator)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Iterator[tuple[Tensor, Tensor]], start: int = 0
) -> list[float]:
    losses = []
    for t, (x, y) in enumerate(data):
        if t < start:
            continue
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor], *, closure: bool, sign: int = 1
) -> None:
    """One step on `sign` times the loss, which the optimizer evaluates itself if it gets a closure."""

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = sign * nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        return loss

    if closure:
        optimizer.step(evaluate)
    else:
        evaluate()
        optimizer.step()


def sgd(model_or_params, **options) -> torch.optim.SGD:
    params = model_or_params.parameters() if isinstance(model_or_params, nn.Module) else model_or_params
    return torch.optim.SGD(params, **({"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3} | options))
