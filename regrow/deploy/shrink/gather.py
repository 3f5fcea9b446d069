"""Lets a layer compute only the filters that vary where more channels are read, as in a residual stream.

A pruned filter of a residual branch cannot go if the stream's channel is alive. It need not be computed either: the
layer computes its varying filters and one that stands for all constant ones, and an index lays them out.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from regrow.deploy.shrink.flow import Layer

# Multiplications saved per channel laid out, below which the copy costs more than it saves (measured in torch and
# ONNX Runtime on one AVX-512 core: even at 16-36 and 72 for the smallest layers, 10 to 50 % faster layers above).
_WORTHWHILE = 64


def worth_computing(layer: Layer, kept: Tensor, *, inputs: int, round_to: int) -> Tensor:
    """Which of the filters that stay a layer should compute: all, or fewer if an index afterwards is cheaper."""
    idle = kept & ~layer.result.varies
    spare = int(idle.sum()) - 1 - -(int((kept & ~idle).sum()) + 1) % round_to
    if layer.groups > 1 or spare < 1 or len(layer.result.constant[idle].unique()) > 1:
        return kept
    weight: Tensor = layer.module.weight  # type: ignore[assignment]
    if spare * inputs * weight[0, 0].numel() < _WORTHWHILE * int(kept.sum()):
        return kept
    computed = kept.clone()
    computed[idle.nonzero().flatten()[-spare:]] = False
    return computed


def lay_out(traced: fx.GraphModule, layer: Layer, kept: Tensor, computed: Tensor) -> None:
    """Inserts the index that gives every channel that stays its filter, the constant ones sharing theirs."""
    place = computed.cumsum(0) - 1
    shared = place[computed & ~layer.result.varies][:1]
    index = torch.where(computed, place, shared)[kept]
    node, name = layer.node, f"{layer.node.name}_channels"
    device = next(layer.module.parameters()).device
    traced.register_buffer(name, index.to(device))
    with traced.graph.inserting_after(node):
        buffer = traced.graph.get_attr(name)
    with traced.graph.inserting_after(buffer):
        spread = traced.graph.call_function(torch.index_select, (node, layer.result.axis, buffer))
    node.replace_all_uses_with(spread, delete_user_cb=lambda user: user is not spread)
