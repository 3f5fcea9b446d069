"""What a convolution step looks like to whoever chooses its tile."""

from __future__ import annotations

import torch

from regrow.engine.plan.layout import Planes
from regrow.engine.plan.steps import ConvStep, Schedule
from regrow.engine.plan.tiles import Problem


def conv_steps(schedule: Schedule) -> list[ConvStep]:
    """The steps that take a tile."""
    return [step for step in schedule.steps if isinstance(step, ConvStep)]


def problem_of(step: ConvStep, lanes: int, threads: int = 1) -> Problem:
    """What there is to know for choosing a convolution's tile."""
    node = step.node
    rows, cols = region_of(step)
    nonzeros = int(torch.count_nonzero(node.weight))
    per_output = nonzeros / node.out.channels
    if step.band:
        rows = step.band
    return Problem(
        rows,
        cols,
        node.x.channels,
        node.kernel,
        step.stride,
        lanes,
        per_output,
        threads,
        node.out.channels,
        step.residual is not None,
    )


def _out_planes(step: ConvStep) -> Planes:
    planes = step.writes[0].planes
    assert planes is not None
    return planes


def region_of(step: ConvStep) -> tuple[int, int]:
    """Rows and columns of the output's region; one long row if nothing tells the rows apart and they run at once."""
    node, grid = step.node, _out_planes(step).grid
    pointwise = not step.band and node.kernel == (1, 1) and step.stride == (1, 1) and node.padding == (0, 0)
    plain = all(b.planes is not None and not b.planes.halo for b in (*step.reads, *step.writes))
    return (1, grid.rows * grid.cols) if pointwise and plain else (grid.rows, grid.cols)
