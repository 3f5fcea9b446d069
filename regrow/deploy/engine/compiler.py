"""From a PyTorch module to a `CompiledModel`: capture, fuse, schedule, plan, and a check against the module itself."""

from __future__ import annotations

import torch
from torch import nn

from regrow.checks import warn
from regrow.core.modules import check_same, output_of, prepared
from regrow.deploy.engine.build import Library, fit_library, load_library
from regrow.deploy.engine.capture import capture
from regrow.deploy.engine.fitted import fitted
from regrow.deploy.engine.fuse import fuse
from regrow.deploy.engine.graph import Graph
from regrow.deploy.engine.model import CompiledModel, Runner, noise
from regrow.deploy.engine.plan import write_plan
from regrow.deploy.engine.runners import FallbackRunner, NativeRunner, RowsRunner
from regrow.deploy.engine.schedule import schedule
from regrow.deploy.engine.shares import share_schedule
from regrow.deploy.engine.shortcuts import join_shortcuts
from regrow.deploy.engine.steps import Schedule
from regrow.deploy.engine.toolchain import NoCompilerError
from regrow.deploy.engine.tune import Tuning, rows_pay, tuned

WORTH_ROWS = 1_000_000
"""Multiply-accumulates in an image from which it pays, by experience, to give threads shares of its rows."""


def compile(model: nn.Module, example_input: torch.Tensor, *, threads: int = 1, tune: bool = True) -> CompiledModel:
    """Compile `model` for inference on this machine's processor; weights that are zero cost nothing.

    `example_input` is a batch of any size: its shape says what the model takes, and the compiled model is compared
    with `model` on it. `threads` work on one call together. With `tune`, the way each layer runs is measured, and
    kernels are built for exactly these layers (up to half a minute, or a minute with several threads, once for a model
    and machine); without, a rule chooses among kernels for any layer, which are slower. It computes in float32.

    The kernels are built with the system's C compiler (`$CC`, gcc or clang) the first time. Without one, torch runs
    the same plan, exactly but no faster than a dense model, and a warning says so.

    >>> fast = regrow.compile(model, torch.randn(1, 3, 32, 32))    # doctest: +SKIP
    >>> logits = fast(images)                                      # doctest: +SKIP
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    model, example = prepared(model, example_input)
    if len(example) == 0:
        example, _ = noise(example.shape[1:], ())
    graph = fuse(capture(model, example))
    compiled = CompiledModel(
        _runner(graph, threads=threads, tune=tune),
        input_shape=graph.input.shape,
        output_shape=graph.output.shape,
    )
    check_same(compiled(example), output_of(model, example))
    return compiled


def _runner(graph: Graph, *, threads: int, tune: bool) -> Runner:
    try:
        library = load_library()
    except NoCompilerError as error:
        warn(
            f"the sparse engine needs a C compiler: {error} torch runs the model instead, as slowly as a dense one. "
            "Install gcc or clang, or set CC.",
            RuntimeWarning,
        )
        return FallbackRunner(graph)
    return native_runner(graph, library, threads=threads, tune=tune)


def steps_of(graph: Graph, lanes: int) -> Schedule:
    """What the engine does for a graph."""
    return schedule(join_shortcuts(graph), lanes)


def native_runner(graph: Graph, library: Library, *, threads: int = 1, tune: bool = False) -> NativeRunner | RowsRunner:
    """The graph on given kernels."""
    steps, shapes = steps_of(graph, library.lanes), (graph.input.shape, graph.output.shape)
    best = tuned(steps, library, shapes, threads=threads) if tune else None
    whole = _on_kernels(steps, library, best, threads=threads)
    may_pay = threads > 1 and (tune or whole.plan.macs >= WORTH_ROWS)
    share = share_schedule(graph, library.lanes, threads) if may_pay else None
    if share is None:
        return whole
    rows = _on_kernels(share, library, tuned(share, library, shapes) if tune else None, threads=threads)
    return RowsRunner(whole, rows) if not tune or rows_pay(rows, whole, shapes) else whole


def _on_kernels(steps: Schedule, library: Library, best: Tuning | None, *, threads: int) -> NativeRunner:
    """The steps on kernels of their own if they are tuned, or on those for any network."""
    whole = steps.shares == 1
    plan = write_plan(steps, None if best is None else best.tiles, threads=threads if whole else 1)
    if best is None:
        return NativeRunner(library, plan, threads=threads)
    divide = best.divide if whole else None
    own_plan, kernels = fitted(plan)
    try:
        return NativeRunner(fit_library(library, kernels), own_plan, threads=threads, divide=divide)
    except NoCompilerError as error:
        warn(f"kernels for any network run this one, more slowly than its own: {error}", RuntimeWarning)
    return NativeRunner(library, plan, threads=threads, divide=divide)
