"""Apply the rule of each operation to a traced model, in order.

An operation without a rule is opaque: the channels that it reads and returns all stay.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, fx, nn

from regrow.shrinking.channels import RULES, Channels, Flow, OpaqueError, Reason, Rule, ShapeQuery
from regrow.shrinking.rules import shape
from regrow.shrinking.trace import LAYERS, NORMS, is_plain


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
