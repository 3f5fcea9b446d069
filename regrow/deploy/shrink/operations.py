"""Walks a captured model and applies to each operation what its table says it does to channels.

An operation that is not in the table is opaque: the channels it reads stay as they are, and so do those it
returns.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from regrow.deploy.shrink import combine, layers, layout
from regrow.deploy.shrink.capture import LAYERS, NORMS, is_plain
from regrow.deploy.shrink.flow import Flow, Reason, Value
from regrow.deploy.shrink.nodes import OpaqueError, Rule, Sizes


def analyse(traced: fx.GraphModule) -> Flow:
    """Walks the graph once and returns everything known about its channels."""
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
        rule = _METHODS.get(str(node.target)) if node.op == "call_method" else _FUNCTIONS.get(node.target)
    if rule is None:
        raise OpaqueError("not known" if module is None else f"{type(module).__name__} is not known")
    counts = any(isinstance(flow.values[read], Sizes) for read in node.all_input_nodes)
    if counts and rule not in (layout.view, layout.getitem):
        raise OpaqueError("computes with the number of channels")
    return rule(flow, node, module)


def _module_rule(module: nn.Module) -> Rule | None:
    if is_plain(module, LAYERS):
        return layers.layer
    if is_plain(module, NORMS):
        return layers.norm
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    return _MODULES.get(type(module))


def _pin_inputs(flow: Flow, node: fx.Node, reason: Reason) -> None:
    for read in node.all_input_nodes:
        value = flow.values[read]
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Value | Sizes):
                flow.pin(part if isinstance(part, Value) else part.source, reason)


def _shared(traced: fx.GraphModule) -> set[fx.Node]:
    """The nodes whose parameters another node reads too: resizing them for one would break the other."""
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


_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.ELU),
    *(nn.SELU, nn.CELU, nn.Mish, nn.Softplus, nn.Sigmoid, nn.Tanh, nn.LogSigmoid, nn.Softsign),
)
_RESAMPLING = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
_PADDING = (
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
    *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
)
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_MODULES: dict[type[nn.Module], Rule] = {
    **dict.fromkeys(_ACTIVATIONS, layers.pointwise),
    **dict.fromkeys((nn.Identity, *_DROPOUT), layers.same),
    **dict.fromkeys(_RESAMPLING, layers.resample),
    **dict.fromkeys((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), layers.average_pool),
    **dict.fromkeys(_PADDING, layers.pad),
    nn.PReLU: layers.prelu,
    nn.Flatten: layout.flatten,
}
_POINTWISE = (
    *(
        torch.relu,
        F.relu,
        F.relu6,
        F.leaky_relu,
        F.gelu,
        F.silu,
        F.hardswish,
        F.hardsigmoid,
        F.hardtanh,
        F.elu,
    ),
    *(F.selu, F.celu, F.mish, F.softplus, torch.sigmoid, F.sigmoid, torch.tanh, F.tanh, F.logsigmoid),
    *(torch.clamp, torch.abs, torch.neg, operator.neg, torch.exp),
)
_POOLING = (
    *(F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
)
_FUNCTIONS: dict[Any, Rule] = {
    **dict.fromkeys(_POINTWISE, layers.pointwise),
    **dict.fromkeys((F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout), layers.dropout),
    **dict.fromkeys((*_POOLING, F.interpolate), layers.resample),
    **dict.fromkeys((F.avg_pool1d, F.avg_pool2d, F.avg_pool3d), layers.average_pool),
    **dict.fromkeys((torch.mean, torch.amax, torch.amin), layers.reduce),
    F.pad: layers.pad,
    **dict.fromkeys((key for key in combine.ARITHMETIC if not isinstance(key, str)), combine.arithmetic),
    **dict.fromkeys((torch.cat, torch.concat), combine.cat),
    **dict.fromkeys((torch.chunk, torch.split), combine.split),
    torch.flatten: layout.flatten,
    torch.reshape: layout.view,
    torch.permute: layout.permute,
    torch.transpose: layout.transpose,
    torch.squeeze: layout.squeeze,
    torch.unsqueeze: layout.unsqueeze,
    operator.getitem: layout.getitem,
    getattr: layout.size,
}
_METHODS: dict[str, Rule] = {
    **dict.fromkeys(("relu", "sigmoid", "tanh", "clamp", "abs", "neg", "exp"), layers.pointwise),
    **dict.fromkeys(("contiguous", "clone", "detach"), layers.same),
    **dict.fromkeys(("mean", "amax", "amin"), layers.reduce),
    **dict.fromkeys((key for key in combine.ARITHMETIC if isinstance(key, str)), combine.arithmetic),
    **dict.fromkeys(("chunk", "split"), combine.split),
    **dict.fromkeys(("view", "reshape"), layout.view),
    "flatten": layout.flatten,
    "permute": layout.permute,
    "transpose": layout.transpose,
    "squeeze": layout.squeeze,
    "unsqueeze": layout.unsqueeze,
    "size": layout.size,
    "dim": layout.nothing,
}
