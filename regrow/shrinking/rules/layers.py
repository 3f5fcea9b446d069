"""Rules of layers: convolutions and linear layers mix channels, all others keep them separate."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from regrow.shrinking.channels import (
    Channels,
    Flow,
    Layer,
    OpaqueError,
    Reason,
    argument,
    channels_along,
    first,
    grouped,
    input_channels,
    layer_constant,
    rule,
    shape,
)
from regrow.shrinking.trace import LAYERS, NORMS, TRANSPOSED

_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.ELU),
    *(nn.SELU, nn.CELU, nn.Mish, nn.Softplus, nn.Sigmoid, nn.Tanh, nn.LogSigmoid, nn.Softsign),
)
_FUNCTIONS = (
    *(torch.relu, F.relu, F.relu6, F.leaky_relu, F.gelu, F.silu, F.hardswish, F.hardsigmoid, F.hardtanh, F.elu),
    *(F.selu, F.celu, F.mish, F.softplus, torch.sigmoid, F.sigmoid, torch.tanh, F.tanh, F.logsigmoid),
    *(torch.clamp, torch.abs, torch.neg, operator.neg, torch.exp),
)
_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_RESAMPLING = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(F.max_pool1d, F.max_pool2d, F.max_pool3d, torch.max_pool1d, torch.max_pool2d, torch.max_pool3d),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d, F.interpolate),
)
_PADDING = (
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
    *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
)


@rule(*LAYERS)
def layer(flow: Flow, node: fx.Node, module: Any) -> Channels:
    """A convolution or linear layer has new output channels, some of them constant."""
    linear = isinstance(module, nn.Linear)
    if not linear and len(shape(first(node))) != len(module.kernel_size) + 2:
        raise OpaqueError("its input has no batch dimension")
    if len(node.args) + len(node.kwargs) != 1:
        raise OpaqueError("called with more than its input")
    source = channels_along(flow, node, -1 if linear else 1)
    touches = (grouped(module) != 0).any(-1).cpu()
    uniform = linear or _is_uniform(module)
    result = flow.fresh(source.axis, layer_constant(module, touches, source, uniform=uniform))
    flow.layers.append(Layer(node, module, source, result, touches, uniform))
    return result


def _is_uniform(module: Any) -> bool:
    """Return whether constant inputs give constant outputs (not with zero padding or overlapping strides)."""
    if isinstance(module, TRANSPOSED):
        return False
    if module.padding_mode != "zeros" or module.padding == "valid":
        return True
    if module.padding == "same":
        return all(size == 1 for size in module.kernel_size)
    return not any(module.padding)


@rule(*NORMS)
def norm(flow: Flow, node: fx.Node, module: Any) -> Channels:
    """Batch norm in eval mode is an affine function of each channel."""
    source = channels_along(flow, node, 1)
    flow.channelwise.append((node, source))
    if module.running_mean is None:
        return source.varying()
    scale = (module.running_var.double() + module.eps).rsqrt().cpu()
    emitted = (source.constant - module.running_mean.double().cpu()) * scale
    if module.weight is not None:
        emitted = emitted * module.weight.detach().double().cpu() + module.bias.detach().double().cpu()
    return replace(source, constant=emitted)


@rule(nn.PReLU)
def prelu(flow: Flow, node: fx.Node, module: Any) -> Channels:
    """PReLU has a slope per channel, or one for all."""
    source = channels_along(flow, node, 1)
    if module.num_parameters > 1:
        flow.channelwise.append((node, source))
    slope = module.weight.detach().double().cpu()
    return replace(source, constant=source.constant.clamp(min=0) + slope * source.constant.clamp(max=0))


@rule(*_ACTIVATIONS, *_FUNCTIONS, *("relu", "sigmoid", "tanh", "clamp", "abs", "neg", "exp"))
def pointwise(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """A function of each element maps a constant to the value of the function."""
    source = input_channels(flow, node)
    if source is None:
        return None
    rest = {key: item for key, item in node.kwargs.items() if key != "input"}
    if any(isinstance(item, fx.Node) for item in (*node.args[1:], *rest.values())):
        raise OpaqueError("with a computed argument")
    function: Any = module or (getattr(Tensor, str(node.target)) if node.op == "call_method" else node.target)
    constant = source.constant.clone()
    constant[~source.varies] = function(constant[~source.varies], *node.args[1:], **rest)
    return replace(source, constant=constant)


@rule(nn.Identity, *_DROPOUT, "contiguous", "clone", "detach")
def same(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """These change nothing in eval mode."""
    return input_channels(flow, node)


@rule(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout)
def dropout(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """Functional dropout changes nothing with `training=False`."""
    if module is None and argument(node, 2, "training", default=True) is not False:
        raise OpaqueError("drops at random")
    return input_channels(flow, node)


@rule(*_RESAMPLING)
def resample(flow: Flow, node: fx.Node, module: Any) -> Channels:
    """Pooling and interpolation that map a constant to itself (max pooling pads with -inf)."""
    if not shape(node):
        raise OpaqueError("returns several tensors")
    return channels_along(flow, node, 1)


@rule(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
def average_pool(flow: Flow, node: fx.Node, module: Any) -> Channels:
    """Average pooling includes padded zeros, unless `count_include_pad=False`."""
    source = channels_along(flow, node, 1)
    if module is None:
        padding, divisor = argument(node, 3, "padding", default=0), argument(node, 6, "divisor_override")
        counts = argument(node, 5, "count_include_pad", default=True)
    else:
        padding, divisor = module.padding, getattr(module, "divisor_override", None)
        counts = module.count_include_pad
    padded = any(padding) if isinstance(padding, tuple | list) else bool(padding)
    if (padded and counts) or divisor is not None:
        return _with_border(flow, node, source, 0.0)
    return source


@rule(*_PADDING, F.pad)
def pad(flow: Flow, node: fx.Node, module: Any) -> Channels:
    """Spatial padding keeps only constants that equal its value; channel padding adds constant channels."""
    source = channels_along(flow, node, 1)
    amounts, mode, value = _padding(node, module)
    if any(isinstance(amount, fx.Node) or amount < 0 for amount in amounts):
        raise OpaqueError("with computed or negative amounts")
    spatial = 2 * (len(shape(node)) - 2)
    before, after, *batch = (*amounts[spatial:], 0, 0)
    if any(batch):
        raise OpaqueError("along the batch")
    if mode == "constant" and any(amounts[:spatial]):
        source = _with_border(flow, node, source, value)
    if not (before or after):
        return source
    flow.queried.append(source)
    ends = [flow.fresh(1, torch.full((count,), value, dtype=torch.float64)) for count in (before, after)]
    return Channels.joined([ends[0], source, ends[1]])


def _padding(node: fx.Node, module: Any) -> tuple[tuple[Any, ...], str, float]:
    if module is None:
        value = argument(node, 3, "value") or 0.0
        return tuple(argument(node, 1, "pad")), argument(node, 2, "mode", default="constant"), float(value)
    if hasattr(module, "value"):
        return tuple(module.padding), "constant", float(module.value)
    return tuple(module.padding), "copy", 0.0


def _with_border(flow: Flow, node: fx.Node, source: Channels, value: float) -> Channels:
    """Return the channels after padding with `value`: other constants depend on the position from here on."""
    still = source.constant == value
    reason = Reason(f"'{node.target if isinstance(node.target, str) else node.name}' pads it with {value:g}", True)
    for slot in source.slots[~still & ~source.varies].tolist():
        flow.blurred.setdefault(slot, reason)
    return replace(source, constant=torch.where(still, source.constant, torch.nan))


@rule(torch.mean, torch.amax, torch.amin, "mean", "amax", "amin")
def reduce(flow: Flow, node: fx.Node, module: Any) -> Channels | None:
    """A mean or an extreme over dimensions other than the channels keeps the channels."""
    source = input_channels(flow, node)
    if source is None:
        return None
    dims: Any = argument(node, 1, "dim")
    if dims is None or not shape(node):
        raise OpaqueError("over all dimensions")
    ndim = len(shape(first(node)))
    over = {dim % ndim for dim in ([dims] if isinstance(dims, int) else dims)}
    if source.axis in over:
        raise OpaqueError("over the channels")
    if argument(node, 2, "keepdim", default=False):
        return source
    return replace(source, axis=source.axis - sum(dim < source.axis for dim in over))
