"""Makes a filter-pruned model physically smaller: the same outputs from fewer channels in ordinary layers.

A pruned filter is not nothing: its batch norm still emits a constant, which the next layers read. `shrink` follows
every channel through the model, removes those that the output does not depend on or that are constant, and folds the
constants into the layers that read them, so that the outputs stay equal.

The removal is our own rather than the `torch-pruning` package's (1.6 was tried). Given channels, that resizes all
layers coupled to them, and reliably; but it does not find out which channels may go, drops the constants they sent
(outputs of size one changed by 0.6 on a residual network with batch norms as training leaves them), and takes live
channels of a residual stream along with a branch's pruned filters. `benchmarks/shrink.py` has both side by side.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from regrow.deploy.prepared import unwrapped
from regrow.deploy.shrink.capture import UntraceableError, capture
from regrow.deploy.shrink.operations import analyse
from regrow.deploy.shrink.plan import make_plan
from regrow.deploy.shrink.report import LayerReport, ShrinkReport, describe
from regrow.deploy.shrink.rewrite import rewrite

__all__ = ["LayerReport", "ShrinkReport", "shrink", "shrink_report"]

# Far above rounding, far below what a misplaced channel would do.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}


def shrink(model: nn.Module, example_input: Any, *, round_to: int = 1, gather: bool = True) -> nn.Module:
    """A smaller copy of a pruned `model` with the same outputs (in eval mode, up to rounding).

    Removes all-zero filters of convolutions and rows of linear layers, everything that only they fed or that only fed
    them, and whole branches that vanish; also the dead inputs and outputs of unstructured-sparse layers. Layers keep
    their names. The result is a `torch.fx.GraphModule` of ordinary layers: it can be trained, saved, copied, compiled
    and exported. `model` is not changed; what `torch.compile` or data parallelism wrapped is unwrapped first.

    `example_input` is a batch of inputs (a tuple for several arguments); the result works for other batch sizes and
    resolutions as far as the model does. `round_to=8` or `16` keeps channel counts that dense runtimes like.

    A pruned filter of a residual branch stays in the stream if any other branch writes to its channel. It is not
    computed: the layer computes its other filters and an index (`torch.index_select`) lays them out, where that saves
    more than it costs. `gather=False` does without indices, for runtimes in which they are slow.

    What `shrink` cannot follow stays as it is, with a warning that names the layers; `shrink_report` tells what
    happened to each.

        small = regrow.shrink(model, torch.randn(1, 3, 32, 32))
        print(regrow.shrink_report(small))
    """
    if not isinstance(round_to, int) or round_to < 1:
        raise ValueError(f"round_to must be a whole number of channels, at least 1, got {round_to!r}. Did you mean 8?")
    if isinstance(example_input, tuple | list) and all(isinstance(each, int) for each in example_input):
        raise TypeError(f"example_input must be a tensor such as torch.randn(1, 3, 32, 32), got {example_input!r}")
    inputs = tuple(example_input) if isinstance(example_input, tuple | list) else (example_input,)
    original = copy.deepcopy(unwrapped(model)).eval()
    with torch.no_grad():  # an input that does not fit is the model's own error, before anything else
        expected = original(*_copied(inputs))
    try:
        small: nn.Module
        small, layers = _shrunk(copy.deepcopy(original), _copied(inputs), round_to=round_to, gather=gather)
        with torch.no_grad():
            difference = _difference(expected, small(*_copied(inputs)))
        if difference is not None:
            raise UntraceableError(f"the shrunk model's outputs differ by {difference:.3g}")
        failed = ""
    except UntraceableError as why:
        small, layers, failed = original, (), str(why)
    report = ShrinkReport(layers, (_parameters(original), _parameters(small)), failed)
    small.shrink_report = report  # type: ignore[assignment]
    _warn(report)
    return small


def shrink_report(model: nn.Module) -> ShrinkReport:
    """What `shrink` did when it made `model`: every layer before and after, and why something stayed."""
    report = getattr(model, "shrink_report", None)
    if not isinstance(report, ShrinkReport):
        raise ValueError(f"this {type(model).__name__} was not made by regrow.shrink, so there is no report of it")
    return report


def _shrunk(
    model: nn.Module, inputs: tuple[Any, ...], *, round_to: int, gather: bool
) -> tuple[fx.GraphModule, tuple[LayerReport, ...]]:
    traced, whole = capture(model, inputs)
    flow = analyse(traced)
    plan = make_plan(flow, round_to=round_to, gather=gather)
    layers = describe(traced, flow, plan, whole)
    rewrite(traced, flow, plan)
    return traced, layers


def _copied(inputs: tuple[Any, ...]) -> Any:
    """Inputs of their own for a run of the model, which may change them in place; the user's stay as they are."""
    return pytree.tree_map_only(Tensor, lambda value: value.detach().clone(), inputs)


def _difference(expected: Any, found: Any) -> float | None:
    """The largest difference between two models' outputs, or None if it is rounding.

    Not a proof that shrinking was right (the tests are there for that), but a guard against what symbolic tracing
    cannot see, such as a forward that asks for the type of its input.
    """
    for x, y in zip(pytree.tree_leaves(expected), pytree.tree_leaves(found), strict=True):
        if isinstance(x, Tensor) and x.is_floating_point():
            limit = _TOLERANCE.get(x.dtype, 0.05) * max(1.0, float(x.abs().max()))
            difference = float((x - y).abs().max()) if x.shape == y.shape else torch.inf
            if not difference <= limit:
                return difference
    return None


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _warn(report: ShrinkReport) -> None:
    if report.failed:
        warnings.warn(f"shrink left the model as it was: {report.failed}", stacklevel=3)
    elif report.unsupported:
        listed = "; ".join(f"{name}: {why}" for name, why in report.unsupported.items())
        warnings.warn(f"shrink left pruned filters in {len(report.unsupported)} layers: {listed}", stacklevel=3)
