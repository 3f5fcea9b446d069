"""Writes a schedule down as everything that kernels.c needs to run it: operations and constants."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regrow.engine.codegen import structs as native
from regrow.engine.plan.arena import arrange
from regrow.engine.plan.borders import BorderWriter
from regrow.engine.plan.operands import Operands
from regrow.engine.plan.problems import conv_steps, problem_of
from regrow.engine.plan.steps import ConvStep, Schedule
from regrow.engine.plan.tiles import Tile, choose
from regrow.engine.plan.weights import Format
from regrow.engine.plan.writer import Label, Once, Writer


@dataclass(frozen=True)
class Plan:
    """Everything that the kernels need to run a network on one image, or on one of several `shares` of its rows."""

    ops: ctypes.Array[native.Op]
    constants: NDArray[np.uint8]
    arena_bytes: int
    lanes: int
    labels: tuple[Label, ...]
    tiles: tuple[Tile, ...]
    shares: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates in an image."""
        return sum(label.macs for label in self.labels)


def write_plan(
    schedule: Schedule,
    tiles: Sequence[Tile] | None = None,
    *,
    threads: int = 1,
    weights: Format = "fp32",
    once: Once | None = None,
) -> Plan:
    """The plan with the given tile for each convolution, or with those that the rule chooses.

    `weights` says how they are stored: the kernels must be built for the same. Whoever writes several plans of the same
    layers gives all of them the same `once`.
    """
    if tiles is None:
        tiles = [choose(problem_of(step, schedule.lanes, threads)) for step in conv_steps(schedule)]
    operands = Operands(schedule.lanes, arrange(schedule), weights)
    borders = BorderWriter(operands, schedule.boxes)
    writer = Writer(operands, threads, once or Once(), schedule.shares, borders)
    remaining = iter(tiles)
    for step in schedule.steps:
        writer.write(step, next(remaining) if isinstance(step, ConvStep) else None)
    return Plan(
        ops=(native.Op * len(writer.ops))(*writer.ops),
        constants=operands.constants.joined(),
        arena_bytes=operands.arena.size + writer.scratch,
        lanes=schedule.lanes,
        labels=tuple(writer.labels),
        tiles=tuple(tiles),
        shares=schedule.shares,
    )
