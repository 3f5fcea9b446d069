"""What each operation of a program becomes in a `Graph`: one handler for every kind of ATen call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from regrow.engine.frontend.graph import (
    Act,
    Activation,
    Affine,
    Binary,
    Concat,
    Conv,
    Linear,
    Mean,
    Pool,
    Reshape,
    Value,
)
from regrow.engine.frontend.tracer import Tracer

Arguments = dict[str, Any]


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return (value, value)
    return (int(value[0]), int(value[-1]))


def _conv2d(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    weight = tracer.weight(node, args["weight"])
    bias = weight.new_zeros(weight.shape[0]) if args["bias"] is None else tracer.weight(node, args["bias"])
    dilation = _pair(args["dilation"])
    if args["padding"] == "same":
        # What torch pads on the far side follows from the output's size.
        padding = tuple(d * (k - 1) // 2 for d, k in zip(dilation, weight.shape[2:], strict=True))
    else:
        padding = (0, 0) if args["padding"] == "valid" else _pair(args["padding"])
    tracer.add(
        node,
        Conv,
        tracer.value(node, args["input"]),
        weight,
        bias,
        stride=_pair(args["stride"]),
        padding=padding,
        dilation=dilation,
        groups=args["groups"],
    )


def _linear(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    weight = tracer.weight(node, args["weight"])
    bias = weight.new_zeros(weight.shape[0]) if args["bias"] is None else tracer.weight(node, args["bias"])
    x = tracer.value(node, args["input"])
    if len(x.shape) != 1:
        raise tracer.unsupported(node, "It is applied to images; the engine applies it to (batch, features) only.")
    tracer.add(node, Linear, x, weight, bias)


def _batch_norm(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    if args["training"]:
        raise tracer.unsupported(node, "It uses the batch's own statistics (track_running_stats=False).")
    mean = tracer.weight(node, args["running_mean"])
    scale = torch.rsqrt(tracer.weight(node, args["running_var"]) + args["eps"])
    if args["weight"] is not None:
        scale = scale * tracer.weight(node, args["weight"])
    shift = -mean * scale
    if args["bias"] is not None:
        shift = shift + tracer.weight(node, args["bias"])
    tracer.add(node, Affine, tracer.value(node, args["input"]), scale, shift)


def _activation(kind: Act) -> Callable[[Tracer, fx.Node, Arguments], None]:
    def handler(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
        tracer.add(node, Affine, tracer.value(node, args["self"]), activation=Activation(kind))

    return handler


def _clamp(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    low, high = args.get("min", args.get("min_val")), args.get("max", args.get("max_val"))
    if isinstance(low, fx.Node) or isinstance(high, fx.Node):
        raise tracer.unsupported(node, "Its bounds are tensors; the engine clamps between numbers.")
    low = -math.inf if low is None else float(low)
    high = math.inf if high is None else float(high)
    relu = low == 0.0 and high == math.inf
    activation = Activation(Act.RELU) if relu else Activation(Act.CLAMP, low, high)
    tracer.add(node, Affine, tracer.value(node, args["self"]), activation=activation)


def _relu6(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    _clamp(tracer, node, {"self": args["self"], "min": 0.0, "max": 6.0})


def _arithmetic(op: str) -> Callable[[Tracer, fx.Node, Arguments], None]:
    """Between two images, or between an image and a constant for each channel."""

    def handler(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
        a, b = args["self"], args["other"]
        if args.get("alpha", 1) != 1:
            raise tracer.unsupported(node, f"alpha must be 1, got {args['alpha']}.")
        if args.get("rounding_mode") is not None:
            raise tracer.unsupported(node, f"rounding_mode must be None, got {args['rounding_mode']!r}.")
        if a not in tracer.values and op in ("add", "mul"):
            a, b = b, a
        x, constant = tracer.value(node, a), tracer.constant(b)
        if constant is not None:
            constant = _per_channel(tracer, node, x, constant)
            constant = {"sub": -constant, "div": 1 / constant}.get(op, constant)
            scale, shift = (None, constant) if op in ("add", "sub") else (constant, None)
            tracer.add(node, Affine, x, scale, shift)
        elif op in ("sub", "div"):
            raise tracer.unsupported(
                node, "The engine adds and multiplies images, but does not subtract or divide them."
            )
        else:
            tracer.add(node, Binary, op, *_broadcast(tracer, node, x, tracer.value(node, b)))

    return handler


def _per_channel(tracer: Tracer, node: fx.Node, x: Value, constant: torch.Tensor) -> torch.Tensor:
    allowed = [(), (1,), (1, *x.shape[:1], *(1 for _ in x.shape[1:])), (*x.shape[:1], *(1 for _ in x.shape[1:]))]
    if constant.numel() != 1 and tuple(constant.shape) not in allowed:
        raise tracer.unsupported(node, f"A constant of shape {tuple(constant.shape)} is not one number per channel.")
    return constant.reshape(-1).expand(x.channels)


def _broadcast(tracer: Tracer, node: fx.Node, a: Value, b: Value) -> tuple[Value, Value]:
    if a.shape == b.shape:
        return a, b
    wide, narrow = (a, b) if a.numel > b.numel else (b, a)
    if len(a.shape) == len(b.shape) == 3 and wide.channels == narrow.channels and narrow.pixels == 1:
        return wide, narrow
    raise tracer.unsupported(node, f"Shapes {a.shape} and {b.shape} are neither equal nor one value per channel.")


def _max_pool2d(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    if _pair(args["dilation"]) != (1, 1):
        raise tracer.unsupported(node, f"Its dilation must be 1, got {args['dilation']}.")
    kernel = _pair(args["kernel_size"])
    stride = _pair(args["stride"]) if args["stride"] else kernel
    tracer.add(node, Pool, tracer.value(node, args["self"]), "max", kernel, stride, _pair(args["padding"]))


def _avg_pool2d(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    if args["divisor_override"] is not None:
        raise tracer.unsupported(node, "divisor_override must be None.")
    kernel = _pair(args["kernel_size"])
    stride = _pair(args["stride"]) if args["stride"] else kernel
    x = tracer.value(node, args["self"])
    tracer.add(node, Pool, x, "avg", kernel, stride, _pair(args["padding"]), args["count_include_pad"])


def _adaptive_avg_pool2d(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    x = tracer.value(node, args["self"])
    wanted = _pair(args["output_size"])
    if wanted == (1, 1):
        tracer.add(node, Mean, x)
    elif all(size % want == 0 for size, want in zip(x.size, wanted, strict=True)):
        window = (x.size[0] // wanted[0], x.size[1] // wanted[1])
        tracer.add(node, Pool, x, "avg", window, window)
    else:
        raise tracer.unsupported(node, f"{x.size} does not divide into {wanted} equal windows.")


def _mean(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    x = tracer.value(node, args["self"])
    dims = args.get("dim") or ()
    if len(x.shape) != 3 or {int(d) % 4 for d in dims} != {2, 3}:
        got = f"dim={tuple(dims)}" if dims else "all dimensions"
        raise tracer.unsupported(node, f"The engine averages over height and width (dim=(2, 3)), got {got}.")
    tracer.add(node, Mean, x)


def _reshape(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    tracer.add(node, Reshape, tracer.value(node, args["self"]))
    tracer.share(node, args["self"])


def _cat(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    parts = tuple(tracer.value(node, part) for part in args["tensors"])
    if args["dim"] % (len(parts[0].shape) + 1) != 1:
        raise tracer.unsupported(node, f"The engine joins channels (dim=1), got dim={args['dim']}.")
    tracer.add(node, Concat, parts)


def _index_select(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    """Lay out the channels that a layer has computed, as `regrow.shrink` does: the same as laying out its weights."""
    index = tracer.constant(args["index"])
    x = tracer.value(node, args["self"])
    layer = next((made for made in tracer.nodes if made.out is x), None)
    alone = len(args["self"].users) == 1
    if index is None or args["dim"] % (len(x.shape) + 1) != 1 or not alone or not isinstance(layer, Conv | Linear):
        raise tracer.unsupported(
            node, "The engine selects channels (dim=1) by a constant index, of what only this reads of a convolution."
        )
    if isinstance(layer, Conv) and layer.groups > 1:
        raise tracer.unsupported(node, "The convolution that it reads has groups.")
    rows = index.long()
    tracer.nodes.remove(layer)
    tracer.nodes.append(replace(layer, out=tracer.new_value(node), weight=layer.weight[rows], bias=layer.bias[rows]))


def _same(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    tracer.same(node, args["self"])
    tracer.share(node, args["self"])


def _copy(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    tracer.same(node, args["self"])


def _dropout(tracer: Tracer, node: fx.Node, args: Arguments) -> None:
    if args["train"]:
        raise tracer.unsupported(node, "It drops at random in evaluation mode too: pass training=self.training.")
    _same(tracer, node, {"self": args["input"]})


HANDLERS: dict[str, Callable[[Tracer, fx.Node, Arguments], None]] = {
    "conv2d": _conv2d,
    "linear": _linear,
    "batch_norm": _batch_norm,
    "relu": _activation(Act.RELU),
    "relu6": _relu6,
    "hardtanh": _clamp,
    "clamp": _clamp,
    "sigmoid": _activation(Act.SIGMOID),
    "silu": _activation(Act.SILU),
    "hardsigmoid": _activation(Act.HARDSIGMOID),
    "hardswish": _activation(Act.HARDSWISH),
    "add": _arithmetic("add"),
    "mul": _arithmetic("mul"),
    "sub": _arithmetic("sub"),
    "div": _arithmetic("div"),
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "adaptive_avg_pool2d": _adaptive_avg_pool2d,
    "mean": _mean,
    "flatten": _reshape,
    "view": _reshape,
    "reshape": _reshape,
    "squeeze": _reshape,
    "unsqueeze": _reshape,
    "cat": _cat,
    "index_select": _index_select,
    "dropout": _dropout,
    "feature_dropout": _dropout,
    "contiguous": _same,
    "clone": _copy,
    "detach": _same,
    "alias": _same,
}
