"""What layers do to channels: convolutions and linear layers mix them, all others keep them apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from regrow.deploy.shrink.capture import TRANSPOSED
from regrow.deploy.shrink.flow import Flow, Layer, Value, grouped, layer_constant
from regrow.deploy.shrink.nodes import OpaqueError, argument, channels, first, known, shape


def layer(flow: Flow, node: fx.Node, module: Any) -> Value:
    """A convolution or linear layer: new channels, some of them constant."""
    linear = isinstance(module, nn.Linear)
    if not linear and len(shape(first(node))) != len(module.kernel_size) + 2:
        raise OpaqueError("its input has no batch dimension")
    if len(node.args) + len(node.kwargs) != 1:
        raise OpaqueError("called with more than its input")
    source = channels(flow, node, -1 if linear else 1)
    touches = (grouped(module) != 0).any(-1).cpu()
    uniform = linear or _is_uniform(module)
    result = flow.fresh(source.axis, layer_constant(module, touches, source, uniform=uniform))
    flow.layers.append(Layer(node, module, source, result, touches, uniform))
    return result


def _is_uniform(module: Any) -> bool:
    """Whether a constant input gives a constant output (padded zeros and overlapping strides do not)."""
    if isinstance(module, TRANSPOSED):
        return False
    if module.padding_mode != "zeros" or module.padding == "valid":
        return True
    if module.padding == "same":
        return all(size == 1 for size in module.kernel_size)
    return not any(module.padding)


def norm(flow: Flow, node: fx.Node, module: Any) -> Value:
    """Batch norm in eval mode: an affine function per channel."""
    source = channels(flow, node, 1)
    flow.channelwise.append((node, source))
    if module.running_mean is None:
        return source.varying()
    scale = (module.running_var.double() + module.eps).rsqrt().cpu()
    emitted = (source.constant - module.running_mean.double().cpu()) * scale
    if module.weight is not None:
        emitted = emitted * module.weight.detach().double().cpu() + module.bias.detach().double().cpu()
    return replace(source, constant=emitted)


def prelu(flow: Flow, node: fx.Node, module: Any) -> Value:
    """A slope per channel, or one for all."""
    source = channels(flow, node, 1)
    if module.num_parameters > 1:
        flow.channelwise.append((node, source))
    slope = module.weight.detach().double().cpu()
    return replace(source, constant=source.constant.clamp(min=0) + slope * source.constant.clamp(max=0))


def pointwise(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """A function of each element: of a constant it is found by calling it."""
    source = known(flow, node)
    if source is None:
        return None
    rest = {key: item for key, item in node.kwargs.items() if key != "input"}
    if any(isinstance(item, fx.Node) for item in (*node.args[1:], *rest.values())):
        raise OpaqueError("with a computed argument")
    function: Any = module or (getattr(Tensor, str(node.target)) if node.op == "call_method" else node.target)
    constant = source.constant.clone()
    constant[~source.varies] = function(constant[~source.varies], *node.args[1:], **rest)
    return replace(source, constant=constant)


def same(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """Nothing, in eval mode."""
    return known(flow, node)


def dropout(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """Nothing in eval mode, unless a function was told to drop all the same."""
    if module is None and argument(node, 2, "training", default=True) is not False:
        raise OpaqueError("drops at random")
    return known(flow, node)


def resample(flow: Flow, node: fx.Node, module: Any) -> Value:
    """Pooling and interpolation that give a constant for a constant (max pooling pads with -inf)."""
    if not shape(node):
        raise OpaqueError("returns several tensors")
    return channels(flow, node, 1)


def average_pool(flow: Flow, node: fx.Node, module: Any) -> Value:
    """Average pooling, which counts padded zeros unless told not to."""
    source = channels(flow, node, 1)
    if module is None:
        padding, divisor = argument(node, 3, "padding", default=0), argument(node, 6, "divisor_override")
        counts = argument(node, 5, "count_include_pad", default=True)
    else:
        padding, divisor = module.padding, getattr(module, "divisor_override", None)
        counts = module.count_include_pad
    padded = any(padding) if isinstance(padding, tuple | list) else bool(padding)
    if (padded and counts) or divisor is not None:
        return replace(source, constant=_only(source.constant, 0.0))
    return source


def pad(flow: Flow, node: fx.Node, module: Any) -> Value:
    """Padding in space keeps the constants it pads with; padding the channels adds constant ones."""
    source = channels(flow, node, 1)
    amounts, mode, value = _padding(node, module)
    if any(isinstance(amount, fx.Node) or amount < 0 for amount in amounts):
        raise OpaqueError("with computed or negative amounts")
    spatial = 2 * (len(shape(node)) - 2)
    before, after, *batch = (*amounts[spatial:], 0, 0)
    if any(batch):
        raise OpaqueError("along the batch")
    if mode == "constant" and any(amounts[:spatial]):
        source = replace(source, constant=_only(source.constant, value))
    if not (before or after):
        return source
    flow.queried.append(source)
    ends = [flow.fresh(1, torch.full((count,), value, dtype=torch.float64)) for count in (before, after)]
    return Value.joined([ends[0], source, ends[1]])


def _padding(node: fx.Node, module: Any) -> tuple[tuple[Any, ...], str, float]:
    if module is None:
        value = argument(node, 3, "value") or 0.0
        return tuple(argument(node, 1, "pad")), argument(node, 2, "mode", default="constant"), float(value)
    if hasattr(module, "value"):
        return tuple(module.padding), "constant", float(module.value)
    return tuple(module.padding), "copy", 0.0


def _only(constant: Tensor, value: float) -> Tensor:
    """The constants that being mixed with `value` at the border leaves constant."""
    return torch.where(constant == value, constant, torch.nan)


def reduce(flow: Flow, node: fx.Node, module: Any) -> Value | None:
    """A mean or an extreme over dimensions other than the channels."""
    source = known(flow, node)
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
