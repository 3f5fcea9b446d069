"""One network on many processes: each computes the gradient of its share of a batch, all step with the mean."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from regrow.core.distributed import is_sharded
from regrow.models import Network
from regrow.train.world import World


def spread(model: Network, world: World, parallel: str) -> nn.Module:
    """Return `model` as it is called in training: by DDP, or with its weights sharded by FSDP2, or as it is.

    Batch norm sees the share of its own process, as is usual; the running statistics are those of process 0.
    """
    if parallel == "fsdp":
        from torch.distributed.fsdp import fully_shard

        mesh = make_mesh(next(model.parameters()).device.type, world)
        for child in model.children():
            if any(True for _ in child.parameters()) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
                fully_shard(child, mesh=mesh)  # gathered one after the other
        fully_shard(model, mesh=mesh)
        return model
    if world.size == 1:
        return model
    device = next(model.parameters()).device
    network = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    _settle_buckets(network, model)
    return network


def make_mesh(device: str, world: World) -> DeviceMesh:
    """Return all processes in a row."""
    return init_device_mesh(device, (world.size,))


def share_buffers(model: nn.Module, world: World) -> None:
    """Give all processes the running statistics of process 0, as DDP does by itself."""
    if world.size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def whole(tensor: Any) -> Tensor:
    """Return a sharded tensor put together, any other as it is."""
    together: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return together


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
