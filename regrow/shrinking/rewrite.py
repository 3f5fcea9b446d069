"""Cut the removed channels out of a traced model's layers, fold constants into them, and insert indices."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from regrow.shrinking.channels import Channels, Flow, Layer, argument, grouped, shape, sizes_of, ungrouped
from regrow.shrinking.plan import ChannelPlan
from regrow.shrinking.rules.arithmetic import ARITHMETIC


def rewrite(traced: fx.GraphModule, flow: Flow, plan: ChannelPlan) -> None:
    """Turn `traced` into the smaller model, in place."""
    for layer in flow.layers:
        if plan.kept(layer.result).any():
            _cut_layer(layer, plan)
            if not torch.equal(plan.kept(layer.result), plan.computed[layer]):
                _insert_index(traced, layer, plan.kept(layer.result), plan.computed[layer])
    for node, value in flow.channelwise:
        _cut_channelwise(traced.get_submodule(str(node.target)), plan.kept(value))
    for node in list(traced.graph.nodes):
        _rewrite_node(traced, flow, plan, node)
    traced.graph.eliminate_dead_code()
    traced.graph.lint()
    traced.delete_all_unused_submodules()
    traced.recompile()


def _cut_layer(layer: Layer, plan: ChannelPlan) -> None:
    module: Any = layer.module
    groups = layer.groups
    inputs = plan.kept(layer.source).reshape(groups, -1)
    outputs = plan.computed[layer].reshape(groups, -1)
    weight = grouped(module).double().cpu() * outputs[:, :, None, None]
    bias = torch.zeros(outputs.shape, dtype=torch.float64)
    if module.bias is not None:
        bias += module.bias.detach().double().cpu().reshape(outputs.shape)
    constant = layer.source.constant.reshape(groups, -1).nan_to_num(0.0)
    removed = torch.where(inputs, 0.0, constant)
    if layer.uniform:
        bias += torch.einsum("goik,gi->go", weight, removed)
    else:
        _load_carriers(weight, removed, torch.where(inputs, constant, 0.0))
    alive = inputs.any(1)
    weight = torch.stack([weight[g][outputs[g]][:, inputs[g]] for g in alive.nonzero().flatten().tolist()])
    _set(module, "weight", ungrouped(module, weight))
    if module.bias is not None or bool((bias[outputs] != 0).any()):
        _set(module, "bias", bias[outputs])
    _set_counts(module, int(inputs.sum()), int(outputs.sum()), int(alive.sum()))


def _load_carriers(weight: Tensor, removed: Tensor, carriers: Tensor) -> None:
    """Add the contribution of removed constants c_i to a kept constant channel of value c: Σ c_i W[:, i] / c."""
    for g in removed.any(1).nonzero().flatten().tolist():
        sent = torch.einsum("oik,i->ok", weight[g], removed[g])
        if not sent.any():
            continue
        host = int(carriers[g].abs().argmax())
        weight[g, :, host] += sent / carriers[g, host]


def _set_counts(module: Any, inputs: int, outputs: int, groups: int) -> None:
    if isinstance(module, nn.Linear):
        module.in_features, module.out_features = inputs, outputs
    else:
        module.in_channels, module.out_channels, module.groups = inputs, outputs, groups


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    """Replace a parameter by one of another size, with the same type, device and `requires_grad`."""
    old: Any = getattr(module, name)
    like = old if old is not None else module.weight
    new = value.to(device=like.device, dtype=like.dtype).contiguous()  # type: ignore[arg-type]
    setattr(module, name, nn.Parameter(new, requires_grad=like.requires_grad))  # type: ignore[arg-type]


def _cut_channelwise(module: Any, kept: Tensor) -> None:
    """Select the kept channels of every tensor with one number per channel."""
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(parameter.detach()[kept.to(parameter.device)], parameter.requires_grad))
    for name, buffer in list(module.named_buffers(recurse=False)):
        if buffer.ndim:
            setattr(module, name, buffer[kept.to(buffer.device)])
    for count in ("num_features", "num_parameters"):
        if hasattr(module, count):
            setattr(module, count, int(kept.sum()))


def _rewrite_node(traced: fx.GraphModule, flow: Flow, plan: ChannelPlan, node: fx.Node) -> None:
    value = flow.values.get(node)
    if node in flow.constants:
        _insert_constant(traced, flow, plan, node)
    elif node.op == "output" or node in flow.opaque or value is None:
        return
    elif node.target in (torch.cat, torch.concat):
        _drop_empty(flow, plan, node)
    elif isinstance(value, tuple):
        _resize_split(plan, node, value)
    elif node.target in ("view", "reshape", torch.reshape):
        _resize_view(plan, node, value)
    elif node.target is F.pad:
        _resize_pad(plan, node, value)


def _insert_constant(traced: fx.GraphModule, flow: Flow, plan: ChannelPlan, node: fx.Node) -> None:
    """Replace a constant operand by a buffer, or remove it if it changes nothing."""
    position, value, follows = flow.constants[node]
    constant = value.constant
    if follows is not None and len(constant) == len(follows.slots):
        constant = constant[plan.kept(follows)]
    operation = ARITHMETIC[node.target]
    if (position == 1 or operation.commutes) and bool((constant == operation.neutral).all()):
        node.replace_all_uses_with(node.args[1 - position])  # type: ignore[arg-type]
        return
    sizes = [1] * len(shape(node.args[position]))
    sizes[value.axis] = len(constant)
    name = f"{node.name}_constant"
    like = next(traced.parameters())
    traced.register_buffer(name, constant.reshape(sizes).to(like.device, node.meta["tensor_meta"].dtype))
    with traced.graph.inserting_before(node):
        buffer = traced.graph.get_attr(name)
    node.update_arg(position, buffer)


def _drop_empty(flow: Flow, plan: ChannelPlan, node: fx.Node) -> None:
    """Remove tensors without channels from a concatenation."""
    parts: Any = argument(node, 0, "tensors")
    left = [part for part in parts if flow.values[part] is None or plan.kept(flow.values[part]).any()]
    if left and len(left) < len(parts):
        rest = {key: value for key, value in node.kwargs.items() if key != "tensors"}
        node.args, node.kwargs = (left, *node.args[1:]), rest


def _resize_split(plan: ChannelPlan, node: fx.Node, pieces: tuple[Channels, ...]) -> None:
    node.op, node.target, node.kwargs = "call_function", torch.split, {}
    sizes = [int(plan.kept(piece).sum()) for piece in pieces]
    node.args = (node.args[0], sizes, pieces[0].axis)


def _resize_view(plan: ChannelPlan, node: fx.Node, value: Channels) -> None:
    sizes = list(sizes_of(node))
    if sizes[value.axis] != -1:
        sizes[value.axis] = -1 if -1 not in sizes else int(plan.kept(value).sum())
    node.kwargs = {}
    node.args = (node.args[0], sizes) if node.target is torch.reshape else (node.args[0], *sizes)


def _resize_pad(plan: ChannelPlan, node: fx.Node, value: Channels) -> None:
    amounts = list(argument(node, 1, "pad"))
    place = 2 * (len(shape(node)) - 2)
    if len(amounts) <= place:
        return
    front, back = amounts[place : place + 2]
    kept = plan.kept(value)
    amounts[place : place + 2] = [int(kept[:front].sum()), int(kept[len(kept) - back :].sum())]
    rest = {key: item for key, item in node.kwargs.items() if key not in ("pad", "input")}
    node.args, node.kwargs = (argument(node, 0, "input"), amounts, *node.args[2:]), rest


def _insert_index(traced: fx.GraphModule, layer: Layer, kept: Tensor, computed: Tensor) -> None:
    """Insert the index that expands the computed filters to all kept channels; constant channels share one filter."""
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
