"""Decide which channels stay: analyze the graph, then drop the channels that no kept channel needs."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from regrow.shrinking.channels import RULES, Channels, Flow, Layer, OpaqueError, Reason, Rule, ShapeQuery
from regrow.shrinking.rules import shape
from regrow.shrinking.trace import LAYERS, NORMS, is_plain

NEEDED = Reason("tied to a channel that is alive, as in a residual stream")
GROUPS = Reason("all groups of a convolution must have equally many channels")
FEEDS = Reason("a layer must read at least one channel")
CARRIER = Reason("carries the constants of removed channels through a padded convolution")
# A carrier (a kept constant channel) much smaller than the removed constants that it replaces would lose precision.
_CARRIER_MINIMUM = 1e-2
# Multiplications that must be saved per channel of the index, or its copy costs more than it saves. Measured in torch
# and ONNX Runtime on one AVX-512 core: equal at 16 to 36 (72 for the smallest layers), 10 to 50 % faster above.
_WORTHWHILE = 64


def analyze(traced: fx.GraphModule) -> Flow:
    """Return everything that is known about the channels of a graph."""
    flow = Flow()
    shared = _shared(traced)
    for node in traced.graph.nodes:
        if node.op == "output":
            _pin_inputs(flow, node, Reason("the model returns it"))
        elif node.op in ("placeholder", "get_attr"):
            flow.values[node] = None
        else:
            try:
                flow.values[node] = _apply(traced, flow, node, shared)
            except OpaqueError as why:
                flow.values[node] = None
                flow.opaque[node] = str(why)
                _pin_inputs(flow, node, Reason(f"read by '{_name(node)}' ({why})", unsupported=True))
    return flow


def _apply(traced: fx.GraphModule, flow: Flow, node: fx.Node, shared: set[fx.Node]) -> Any:
    module: nn.Module | None = None
    if node.op == "call_module":
        module = traced.get_submodule(str(node.target))
        rule = _module_rule(module)
        if node in shared:
            raise OpaqueError("its parameters are used more than once")
    else:
        rule = RULES.get(node.target)
    if rule is None:
        raise OpaqueError("not known" if module is None else f"{type(module).__name__} is not known")
    counts = any(isinstance(flow.values[read], ShapeQuery) for read in node.all_input_nodes)
    if counts and rule not in (shape.view, shape.getitem):
        raise OpaqueError("computes with the number of channels")
    return rule(flow, node, module)


def _module_rule(module: nn.Module) -> Rule | None:
    """Return the rule of a module; plain subclasses of layers and norms have the rule of their base class."""
    for kind in (*LAYERS, *NORMS):
        if isinstance(module, kind):
            return RULES[kind] if is_plain(module, (kind,)) else None
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    return RULES.get(type(module))


def _pin_inputs(flow: Flow, node: fx.Node, reason: Reason) -> None:
    for read in node.all_input_nodes:
        value = flow.values[read]
        for channels in value if isinstance(value, tuple) else (value,):
            if isinstance(channels, Channels | ShapeQuery):
                flow.pin(channels if isinstance(channels, Channels) else channels.source, reason)


def _shared(traced: fx.GraphModule) -> set[fx.Node]:
    """Return the nodes whose parameters another node reads, too: resizing them for one would break the other."""
    readers: dict[int, set[fx.Node]] = {}
    for node in traced.graph.nodes:
        tensors: list[Any] = []
        if node.op == "call_module":
            module = traced.get_submodule(str(node.target))
            tensors = [*module.parameters(), *module.buffers()]
        elif node.op == "get_attr":
            tensors = [operator.attrgetter(str(node.target))(traced)]
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                readers.setdefault(id(tensor), set()).add(node)
    return {node for nodes in readers.values() if len(nodes) > 1 for node in nodes}


def _name(node: fx.Node) -> str:
    return str(node.target) if isinstance(node.target, str) else getattr(node.target, "__name__", node.name)


@dataclass
class ChannelPlan:
    """Which classes of channels stay, the first reason for each, and the filters that layers compute."""

    classes: Tensor
    stays: Tensor
    reasons: dict[int, Reason] = field(default_factory=dict)
    computed: dict[Layer, Tensor] = field(default_factory=dict)

    def kept(self, value: Channels) -> Tensor:
        """Return which channels of `value` stay."""
        return self.stays[self.classes[value.slots]]

    def keep(self, slots: Tensor, reason: Reason) -> bool:
        """Keep these channels; return whether any of them was not kept before."""
        classes = self.classes[slots].unique()
        new = classes[~self.stays[classes]]
        self.stays[new] = True
        self.reasons.update((int(number), reason) for number in new)
        return len(new) > 0

    def reason(self, slot: int) -> Reason:
        """Return why this channel stays."""
        return self.reasons[int(self.classes[slot])]


def make_plan(flow: Flow, *, round_to: int, gather: bool) -> ChannelPlan:
    """Return the smallest set of channels that keeps the model's output and gives valid layers."""
    classes = flow.classes()
    plan = ChannelPlan(classes, torch.zeros(len(classes), dtype=torch.bool))
    for slot, reason in flow.pins.items():
        plan.keep(torch.tensor([slot]), reason)
    changed = True
    while changed:
        _spread_needs(flow, plan)
        # A list, not a generator: every repair runs before needs are spread again.
        changed = any([*(_repair(plan, layer, round_to) for layer in flow.layers), *_answer_queries(flow, plan)])
    for layer in flow.layers:
        kept, inputs = plan.kept(layer.result), int(plan.kept(layer.source).sum())
        if gather:
            kept = _worth_computing(layer, kept, inputs=inputs, round_to=round_to)
        plan.computed[layer] = kept
    return plan


def _spread_needs(flow: Flow, plan: ChannelPlan) -> None:
    """Keep every varying channel that the filter of a kept varying channel reads."""
    changed = True
    while changed:
        changed = False
        for layer in reversed(flow.layers):
            needed = plan.kept(layer.result) & layer.result.varies
            rows = needed.reshape(layer.groups, -1, 1)
            read = (layer.touches & rows).any(1).reshape(-1) & layer.source.varies
            changed |= plan.keep(layer.source.slots[read], NEEDED)


def _repair(plan: ChannelPlan, layer: Layer, round_to: int) -> bool:
    if not plan.kept(layer.result).any():
        return False  # nothing reads it: the whole layer is removed
    changed = _even_groups(plan, layer)
    changed |= _carry_constants(plan, layer)
    return changed | _round_up(plan, layer, round_to)


def _even_groups(plan: ChannelPlan, layer: Layer) -> bool:
    """Every group that is left has as many inputs as the others, and as many outputs."""
    inputs = plan.kept(layer.source).reshape(layer.groups, -1)
    outputs = plan.kept(layer.result).reshape(layer.groups, -1)
    alive = inputs.any(1) | outputs.any(1)
    changed = False
    for value, kept in ((layer.source, inputs), (layer.result, outputs)):
        wanted = max(1, int(kept.sum(1).max()))
        slots = value.slots.reshape(layer.groups, -1)
        constants = value.constant.reshape(layer.groups, -1)
        for g in alive.nonzero().flatten().tolist():
            missing = wanted - int(kept[g].sum())
            if missing > 0:
                reason = GROUPS if layer.groups > 1 else FEEDS
                changed |= plan.keep(_cheapest(slots[g][~kept[g]], constants[g][~kept[g]], missing), reason)
    return changed


def _cheapest(slots: Tensor, constants: Tensor, count: int) -> Tensor:
    """Return `count` slots, constant channels first: they need no other channels."""
    return slots[torch.argsort(constants.isnan().int(), stable=True)][:count]


def _carry_constants(plan: ChannelPlan, layer: Layer) -> bool:
    """Keep a constant channel for a padded convolution: a folded bias would be wrong at the border."""
    if layer.uniform:
        return False
    changed = False
    groups, outputs, inputs = layer.touches.shape
    rows = plan.kept(layer.result).reshape(groups, outputs, 1)
    read = (layer.touches & rows).any(1)
    kept = plan.kept(layer.source).reshape(groups, inputs)
    size = layer.source.constant.abs().nan_to_num(0.0).reshape(groups, inputs)
    slots = layer.source.slots.reshape(groups, inputs)
    for g in (read & ~kept & (size > 0)).any(1).nonzero().flatten().tolist():
        carried = torch.where(read[g] & ~kept[g], size[g], 0.0)
        if torch.where(kept[g], size[g], 0.0).max() < _CARRIER_MINIMUM * carried.max():
            changed |= plan.keep(slots[g][carried.argmax()][None], CARRIER)
    return changed


def _round_up(plan: ChannelPlan, layer: Layer, round_to: int) -> bool:
    kept = plan.kept(layer.result)
    missing = -int(kept.sum()) % round_to
    if missing == 0:
        return False
    reason = Reason(f"rounded up to a multiple of {round_to}")
    return plan.keep(_cheapest(layer.result.slots[~kept], layer.result.constant[~kept], missing), reason)


def _answer_queries(flow: Flow, plan: ChannelPlan) -> list[bool]:
    """Keep a channel of each tensor whose batch size or resolution is read."""
    reason = Reason("its shape is read")
    empty = [value for value in flow.queried if not plan.kept(value).any()]
    return [plan.keep(_cheapest(value.slots, value.constant, 1), reason) for value in empty]


def _worth_computing(layer: Layer, kept: Tensor, *, inputs: int, round_to: int) -> Tensor:
    """Return the kept filters that a layer should compute: all, or fewer if an index after it is cheaper."""
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
