"""What shrinking did to every layer, in numbers and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx, nn

from regrow.deploy.shrink.capture import LAYERS
from regrow.deploy.shrink.flow import Flow, Layer, Reason, grouped
from regrow.deploy.shrink.plan import Plan


@dataclass(frozen=True)
class LayerReport:
    """A convolution or linear layer: channels before and after, and why constant filters stayed.

    `spread` is the number of channels that an index makes of its outputs, where it is larger.
    """

    name: str
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    spread: int
    stayed: dict[str, int]
    unsupported: str = ""

    @property
    def removed(self) -> bool:
        """Whether the whole layer went."""
        return self.outputs[1] == 0


@dataclass(frozen=True)
class ShrinkReport:
    """What `shrink` did: every layer, the parameter counts, and `failed` if the model was left as it was."""

    layers: tuple[LayerReport, ...]
    parameters: tuple[int, int]
    failed: str = ""

    @property
    def unsupported(self) -> dict[str, str]:
        """Layers that hold pruned filters because of a structure that `shrink` cannot follow, and which."""
        return {layer.name: layer.unsupported for layer in self.layers if layer.unsupported}

    def __str__(self) -> str:
        before, after = self.parameters
        lines = [f"{before:,} -> {after:,} parameters ({after / max(before, 1):.1%})"]
        if self.failed:
            return f"{lines[0]}\nleft as it was: {self.failed}"
        width = max((len(layer.name) for layer in self.layers), default=0)
        for layer in self.layers:
            lines.append(f"{layer.name:<{width}}  {_channels(layer)}{_remarks(layer)}".rstrip())
        return "\n".join(lines)


def describe(traced: fx.GraphModule, flow: Flow, plan: Plan, whole: dict[str, str]) -> tuple[LayerReport, ...]:
    """The layers of `traced` in the order they run, as the plan will leave them."""
    followed = {layer.node: layer for layer in flow.layers}
    found: list[LayerReport] = []
    for node in traced.graph.nodes:
        if node in followed:
            found.append(_followed(followed[node], plan))
        elif node.op == "call_module":
            why = whole.get(str(node.target), flow.opaque.get(node, ""))
            found += _unfollowed(str(node.target), traced.get_submodule(str(node.target)), why)
    return tuple(found)


def _followed(layer: Layer, plan: Plan) -> LayerReport:
    kept = plan.computed[layer]
    constant = layer.result.slots[kept & ~layer.result.varies].tolist()
    reasons = [plan.reason(slot) for slot in constant]
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
        groups, outputs, inputs, _ = grouped(inner).shape
        zeros = int((grouped(inner) == 0).all(-1).all(-1).sum())
        text = why or f"inside a {type(module).__name__}"
        yield LayerReport(
            name=name,
            inputs=(groups * inputs, groups * inputs),
            outputs=(groups * outputs, groups * outputs),
            spread=groups * outputs,
            stayed={text: zeros} if zeros else {},
            unsupported=text if zeros else "",
        )


def _channels(layer: LayerReport) -> str:
    if layer.removed:
        return f"{layer.inputs[0]} x {layer.outputs[0]} removed"
    spread = f", spread to {layer.spread}" if layer.spread > layer.outputs[1] else ""
    return f"{layer.inputs[0]} x {layer.outputs[0]} -> {layer.inputs[1]} x {layer.outputs[1]}{spread}"


def _remarks(layer: LayerReport) -> str:
    if layer.removed or not layer.stayed:
        return ""
    return "  stayed: " + "; ".join(f"{count} ({text})" for text, count in layer.stayed.items())
