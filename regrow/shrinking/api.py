"""`shrink()` removes pruned filters from a model, and `ShrinkReport` lists what happened to each layer.

A pruned filter still has an effect: its batch norm outputs a constant, which the next layers read. `shrink` follows
every channel through the model and removes channels that are constant or do not affect the output. It folds the
constants into the layers that read them, so that the outputs stay the same.

The `torch-pruning` package (1.6) does not replace this code. Given channels, it reliably resizes all layers coupled to
them. But it does not find the channels that can be removed, and drops their constants: outputs of size one changed by
0.6 on a residual network with trained batch norms. It also removes live channels of a residual stream along with a
branch's pruned filters. `benchmarks/shrink.py` compares both.
"""

from __future__ import annotations

import copy
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from regrow.checks import warn
from regrow.core.modules import brief, check_present, disagreement, exact_outputs, unwrap
from regrow.shrinking.channels import Flow, Layer, Reason, grouped
from regrow.shrinking.plan import NEEDED, ChannelPlan, analyze, make_plan
from regrow.shrinking.rewrite import rewrite
from regrow.shrinking.trace import LAYERS, UntraceableError, trace

# Relative to the largest output: far above most rounding errors, far below the effect of a misplaced channel.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}

_PRODUCTS = {
    *(F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.linear),
    *(torch.conv1d, torch.conv2d, torch.conv3d),
}


@dataclass(frozen=True)
class LayerReport:
    """A convolution or linear layer: channels before and after, and why constant filters stayed.

    `spread` is the number of output channels after the index, if the layer has one.
    """

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    spread: int
    stayed: dict[str, int]
    unsupported: str = ""

    @property
    def removed(self) -> bool:
        """Whether the layer was removed."""
        return self.outputs[1] == 0


@dataclass(frozen=True)
class ShrinkReport:
    """What `shrink` did: layers, parameter counts, and the reason in `failed` if it did not change the model."""

    layers: tuple[LayerReport, ...]
    parameters: tuple[int, int]
    failed: str = ""

    @property
    def unsupported(self) -> dict[str, str]:
        """Layers that keep pruned filters because of a structure that `shrink` cannot follow, with that structure."""
        return {layer.name: layer.unsupported for layer in self.layers if layer.unsupported}

    def __str__(self) -> str:
        before, after = self.parameters
        lines = [f"{before:,} -> {after:,} parameters ({after / max(before, 1):.1%})"]
        if self.failed:
            return f"{lines[0]}\nnot changed: {self.failed}"
        width = max((len(layer.name) for layer in self.layers), default=0)
        for layer in self.layers:
            lines.append(f"{layer.name:<{width}}  {_channels(layer)}{_remarks(layer)}".rstrip())
        return "\n".join(lines)


def shrink(model: nn.Module, example_input: Any, *, round_to: int = 1, gather: bool = True) -> nn.Module:
    """Return a smaller copy of a pruned `model` with the same outputs (in eval mode, up to rounding).

    Removes all-zero filters of convolutions and rows of linear layers, and everything that is connected only to them:
    inputs, outputs and whole branches, also in layers with unstructured sparsity. Layers keep their names. The result
    is a `torch.fx.GraphModule` of ordinary layers, which can be trained, saved, copied, compiled and exported. `model`
    is not changed; wrappers of `torch.compile` and data parallelism are removed first.

    `example_input` is a batch of inputs (a tuple for several arguments); the result works for other batch sizes and
    resolutions if the model does. `round_to=8` or `16` rounds channel counts up for dense runtimes.

    A pruned filter of a residual branch stays in the stream if another branch writes to its channel. Its layer then
    computes only the other filters, and an index (`torch.index_select`) expands them, if that saves more than it costs.
    `gather=False` uses no indices, for runtimes in which they are slow.

    Structures that `shrink` cannot follow stay unchanged, with a warning that names the layers; `shrink_report` returns
    what happened to each layer.

        small = regrow.shrink(model, torch.randn(1, 3, 32, 32))
        print(regrow.shrink_report(small))
    """
    if not isinstance(round_to, int) or round_to < 1:
        raise ValueError(f"round_to must be a whole number of channels, at least 1, got {round_to!r}. Did you mean 8?")
    if isinstance(example_input, tuple | list) and all(isinstance(each, int) for each in example_input):
        raise TypeError(f"example_input must be a tensor such as torch.randn(1, 3, 32, 32), got {brief(example_input)}")
    inputs = tuple(example_input) if isinstance(example_input, tuple | list) else (example_input,)
    check_present(unwrap(model))
    original = copy.deepcopy(unwrap(model)).eval()
    with torch.no_grad():  # first of all, so that an unsuitable input raises the model's own error
        expected = original(*_copied(inputs))
    try:
        small: nn.Module
        small, layers = _shrunk(copy.deepcopy(original), _copied(inputs), round_to=round_to, gather=gather)
        with torch.no_grad():
            found = small(*_copied(inputs))
        if (difference := _difference(expected, found, original, inputs)) is not None:
            raise UntraceableError(f"the shrunk model's outputs differ by {difference:.3g}")
        failed = ""
    except UntraceableError as why:
        small, layers, failed = original, (), str(why)
    report = ShrinkReport(layers, (_parameters(original), _parameters(small)), failed)
    small._shrink_report = report  # type: ignore[assignment]
    _warn(report)
    return small


def shrink_report(model: nn.Module) -> ShrinkReport:
    """Return what `shrink` did to make `model`: each layer before and after, and why filters stayed."""
    report = getattr(model, "_shrink_report", None)
    if not isinstance(report, ShrinkReport):
        raise ValueError(f"this {type(model).__name__} was not made by regrow.shrink, so there is no report of it")
    return report


def _shrunk(
    model: nn.Module, inputs: tuple[Any, ...], *, round_to: int, gather: bool
) -> tuple[fx.GraphModule, tuple[LayerReport, ...]]:
    traced, untraced = trace(model, inputs)
    flow = analyze(traced)
    plan = make_plan(flow, round_to=round_to, gather=gather)
    layers = _layer_reports(model, traced, flow, plan, untraced)
    rewrite(traced, flow, plan)
    return traced, layers


def _copied(inputs: tuple[Any, ...]) -> Any:
    """Copy the user's inputs, because a model may change them in place."""
    return pytree.tree_map_only(Tensor, lambda value: value.detach().clone(), inputs)


def _difference(expected: Any, found: Any, model: nn.Module, inputs: tuple[Any, ...]) -> float | None:
    """Return the first difference between two models' outputs that is more than rounding; None if there is none.

    This guards against code that symbolic tracing cannot see, such as a forward that checks the type of its input.
    """
    exact = cache(lambda: exact_outputs(model, inputs))
    pairs = zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True)
    for number, (x, y) in enumerate(pairs):
        if isinstance(x, Tensor) and x.is_floating_point():
            wrong = disagreement(y, x, lambda at=number: exact().get(at), _TOLERANCE.get(x.dtype, 0.05))  # type: ignore[misc]
            if wrong is not None:
                return wrong[0]
    return None


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _warn(report: ShrinkReport) -> None:
    if report.failed:
        warn(f"shrink did not change the model: {report.failed}")
    elif report.unsupported:
        warn(f"shrink left pruned filters in {_count(report.unsupported)}: {_by_reason(report.unsupported)}")


def _by_reason(unsupported: Mapping[str, str]) -> str:
    """Return each reason with the layers that it applies to; at most three are named."""
    layers: dict[str, list[str]] = {}
    for name, why in unsupported.items():
        layers.setdefault(why, []).append(name)
    return "; ".join(
        f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}: {why}"
        for why, names in layers.items()
    )


def _count(layers: Sized) -> str:
    return "1 layer" if len(layers) == 1 else f"{len(layers)} layers"


def _layer_reports(
    model: nn.Module, traced: fx.GraphModule, flow: Flow, plan: ChannelPlan, untraced: dict[str, str]
) -> tuple[LayerReport, ...]:
    """Return the layers of `traced` in execution order, as the plan will leave them."""
    followed = {layer.node: layer for layer in flow.layers}
    found: list[LayerReport] = []
    for node in traced.graph.nodes:
        if node in followed:
            found.append(_followed(followed[node], flow, plan))
        elif node.op == "get_attr":
            names = {layer.name for layer in found}
            found += [layer for layer in _functional(model, node) if layer.name not in names]
        elif node.op == "call_module":
            why = untraced.get(str(node.target), flow.opaque.get(node, ""))
            found += _unfollowed(str(node.target), traced.get_submodule(str(node.target)), why)
    return tuple(found)


def _followed(layer: Layer, flow: Flow, plan: ChannelPlan) -> LayerReport:
    kept = plan.computed[layer]
    constant = layer.result.slots[kept & ~layer.result.varies].tolist()
    # Report where the channel stops being constant: a better `shrink` could remove it.
    reasons = [
        flow.blurred[slot] if reason is NEEDED and slot in flow.blurred else reason
        for slot, reason in ((slot, plan.reason(slot)) for slot in constant)
    ]
    inputs = int(plan.kept(layer.source).sum()) if kept.any() else 0
    return LayerReport(
        name=str(layer.node.target),
        inputs=(len(layer.source.slots), inputs),
        outputs=(len(kept), int(kept.sum())),
        spread=int(plan.kept(layer.result).sum()),
        stayed=dict(Counter(reason.text for reason in reasons)),
        unsupported=_first_unsupported(reasons),
    )


def _first_unsupported(reasons: Iterable[Reason]) -> str:
    return next((reason.text for reason in reasons if reason.unsupported), "")


def _unfollowed(path: str, module: nn.Module, why: str) -> Iterable[LayerReport]:
    for name, inner in module.named_modules(prefix=path):
        if not isinstance(inner, LAYERS):
            continue
        yield _unchanged(name, grouped(inner), why or f"inside a {type(module).__name__}")


def _unchanged(name: str, weight: Tensor, why: str) -> LayerReport:
    """Report a layer that keeps its weight, of shape (groups, outputs, inputs, kernel elements)."""
    groups, outputs, inputs, _ = weight.shape
    zeros = int((weight == 0).all(-1).all(-1).sum())
    return LayerReport(
        name=name,
        inputs=(groups * inputs, groups * inputs),
        outputs=(groups * outputs, groups * outputs),
        spread=groups * outputs,
        stayed={why: zeros} if zeros else {},
        unsupported=why if zeros else "",
    )


def _functional(model: nn.Module, node: fx.Node) -> Iterable[LayerReport]:
    """Report a layer whose own forward was traced, or a weight that functions such as `F.conv2d` read."""
    path = str(node.target)
    while path:
        path = path.rpartition(".")[0]  # the parameter may belong to a parametrization of the layer
        if isinstance(module := model.get_submodule(path), LAYERS):
            yield from _unfollowed(path, module, f"{type(module).__name__} overrides forward")
            return
    weight = operator.attrgetter(str(node.target))(model)
    used = _PRODUCTS & {user.target for user in node.users}
    if not used or not isinstance(weight, nn.Parameter) or weight.dim() < 2:  # a bias
        return
    filters = weight.detach()[None, ..., None].flatten(3)
    yield _unchanged(str(node.target), filters, "its weight is not in a layer, but is passed to a function")


def _channels(layer: LayerReport) -> str:
    if layer.removed:
        return f"{layer.inputs[0]} x {layer.outputs[0]} removed"
    spread = f", spread to {layer.spread}" if layer.spread > layer.outputs[1] else ""
    return f"{layer.inputs[0]} x {layer.outputs[0]} -> {layer.inputs[1]} x {layer.outputs[1]}{spread}"


def _remarks(layer: LayerReport) -> str:
    if layer.removed or not layer.stayed:
        return ""
    return "  stayed: " + "; ".join(f"{count} ({text})" for text, count in layer.stayed.items())
