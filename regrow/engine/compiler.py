"""The pipeline from a PyTorch module to a `CompiledModel`: capture, fuse, schedule, tune, lower, build, verify."""

from __future__ import annotations

import torch
from torch import nn

from regrow.checks import warn
from regrow.core.modules import check_same, output_of, prepared
from regrow.engine.codegen.build import KernelLibrary, NoCompilerError, load_library, specialized_library
from regrow.engine.codegen.specialize import specialize
from regrow.engine.frontend.fuse import fuse, join_shortcuts
from regrow.engine.frontend.graph import Graph
from regrow.engine.frontend.torch_export import capture
from regrow.engine.plan.lower import lower
from regrow.engine.plan.schedule import schedule
from regrow.engine.plan.split import in_bands, slice_schedule
from regrow.engine.plan.steps import Schedule
from regrow.engine.plan.tune import Tuning, rows_pay, tuned
from regrow.engine.runtime.model import CompiledModel, Runner, TorchRunner, noise
from regrow.engine.runtime.session import NativeRunner, RowsRunner
from regrow.system import shown_if_slow
from regrow.text import install_hint

SLICED_FROM = 1_000_000
"""Multiply-accumulates per image from which slices of rows are usually faster; used if nothing is measured."""


def compile(model: nn.Module, example_input: torch.Tensor, *, threads: int = 1, tune: bool = True) -> CompiledModel:
    """Compile `model` for inference on this machine's CPU; weights that are zero cost nothing.

    `example_input` is a batch of any size. It gives the input shape, and the compiled model is compared with `model` on
    it. All `threads` work on each call. With `tune`, the engine measures the fastest way to run each layer and builds
    kernels for these layers (up to half a minute, or a minute with several threads, once per model and machine).
    Without, a rule chooses among general kernels, which are slower. Computation is in float32.

    The kernels are built with the system's C compiler (`$CC`, gcc or clang) or the extra `regrow[compiler]` the first
    time. Without a compiler, torch runs the model, no faster than a dense one, and a warning says so.

    >>> fast = regrow.compile(model, torch.randn(1, 3, 32, 32))    # doctest: +SKIP
    >>> logits = fast(images)                                      # doctest: +SKIP
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    model, example = prepared(model, example_input)
    if len(example) == 0:
        example, _ = noise(example.shape[1:], ())
    with shown_if_slow(f"compiling {type(model).__name__}"):
        graph = fuse(capture(model, example))
        compiled = CompiledModel(
            _runner(graph, threads=threads, tune=tune),
            input_shape=graph.input.shape,
            output_shape=graph.output.shape,
        )
    check_same(compiled(example), output_of(model, example), model, example)
    return compiled


def _runner(graph: Graph, *, threads: int, tune: bool) -> Runner:
    try:
        library = load_library()
    except NoCompilerError as error:
        warn(
            f"the sparse engine needs a C compiler: {error} torch runs the model instead, no faster than a dense one. "
            f"Install gcc or clang, set CC, or use {install_hint('compiler')}.",
            RuntimeWarning,
        )
        return TorchRunner(graph)
    return native_runner(graph, library, threads=threads, tune=tune)


def steps_of(graph: Graph, lanes: int) -> Schedule:
    """Return the schedule of a graph."""
    return in_bands(schedule(join_shortcuts(graph), lanes))


def native_runner(
    graph: Graph, library: KernelLibrary, *, threads: int = 1, tune: bool = False
) -> NativeRunner | RowsRunner:
    """Make a runner of a graph with the given kernels."""
    steps, shapes = steps_of(graph, library.lanes), (graph.input.shape, graph.output.shape)
    best = tuned(steps, library, shapes, threads=threads) if tune else None
    whole = _on_kernels(steps, library, best, threads=threads)
    may_pay = threads > 1 and (tune or whole.plan.macs >= SLICED_FROM)
    sliced = slice_schedule(graph, library.lanes, threads) if may_pay else None
    if sliced is None:
        return whole
    rows = _on_kernels(sliced, library, tuned(sliced, library, shapes) if tune else None, threads=threads)
    return RowsRunner(whole, rows) if not tune or rows_pay(rows, whole, shapes) else whole


def _on_kernels(steps: Schedule, library: KernelLibrary, best: Tuning | None, *, threads: int) -> NativeRunner:
    """Make a runner with specialized kernels if the steps are tuned, else with general ones."""
    whole = steps.slices == 1
    plan = lower(steps, None if best is None else best.tiles, threads=threads if whole else 1)
    if best is None:
        return NativeRunner(library, plan, threads=threads)
    mode = best.mode if whole else None
    own_plan, kernels = specialize(plan)
    try:
        return NativeRunner(specialized_library(library, kernels), own_plan, threads=threads, mode=mode)
    except NoCompilerError as error:
        warn(f"no specialized kernels for this network; general ones run it, more slowly: {error}", RuntimeWarning)
    return NativeRunner(library, plan, threads=threads, mode=mode)
