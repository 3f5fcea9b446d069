"""One network on many processes: each computes the gradient of its share of a batch, all step with the mean."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from regrow.models import Network
from regrow.train.world import World


def spread(model: Network, world: World) -> nn.Module:
    """Return `model` as it is called in training; alone, that is the model itself.

    Batch norm sees the share of its own process, as is usual; the running statistics are those of process 0.
    """
    if world.size == 1:
        return model
    device = next(model.parameters()).device
    network = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    _settle_buckets(network, model)
    return network


def _settle_buckets(network: nn.Module, model: Network) -> None:
    """Let DDP lay out its buckets before the first step.

    It does so after the first backward pass, and sums of more than two numbers are rounded as the layout says: a run
    that goes on from a checkpoint must not have another one than the run that was never interrupted.
    """
    parameter, buffers = next(model.parameters()), [buffer.clone() for buffer in model.buffers()]
    images = torch.zeros(2, *model.architecture.input_shape, device=parameter.device, dtype=parameter.dtype)
    for _ in range(2):  # the new layout comes into use with the second forward pass
        network(images).sum().backward()
    network.zero_grad()
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)
