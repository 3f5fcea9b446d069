"""Random small networks and trainings, for what must hold for every method."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import nn


@dataclass(frozen=True)
class Training:
    """A network and how it is trained; everything follows from these numbers."""

    convs: tuple[int, ...]
    hidden: tuple[int, ...]
    momentum: float
    decay: float
    seed: int

    def model(self) -> nn.Sequential:
        torch.manual_seed(self.seed)
        layers: list[nn.Module] = []
        channels = 2
        for width in self.convs:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers += [nn.Flatten()]
        features = channels * 16
        for width in self.hidden:
            layers += [nn.Linear(features, width), nn.ReLU()]
            features = width
        return nn.Sequential(*layers, nn.Linear(features, 3))

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=self.momentum, weight_decay=self.decay)


def trainings(*momentum: float) -> st.SearchStrategy[Training]:
    widths = st.lists(st.integers(2, 7), max_size=2).map(tuple)
    return st.builds(
        Training,
        convs=st.lists(st.integers(2, 6), min_size=1, max_size=2).map(tuple),
        hidden=widths,
        momentum=st.sampled_from(momentum or (0.0, 0.9)),
        decay=st.sampled_from([0.0, 0.01]),
        seed=st.integers(0, 2**31),
    )


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, *, start: int = 0) -> Iterator[int]:
    """Train and yield the number of steps done; batch t depends on t alone."""
    for t in range(start, count):
        generator = torch.Generator().manual_seed(t)
        x, y = torch.randn(8, 2, 4, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield t + 1
