"""Gives every buffer its place in one block of memory, sharing places between buffers that never live together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regrow.engine.plan.steps import Buffer, ConvStep, PointwiseStep, Schedule, Step

ALIGNMENT = 64


@dataclass(frozen=True)
class Arena:
    """Where each buffer starts, in bytes, and how much memory there is in all."""

    offsets: dict[Buffer, int]
    size: int


def buffer_bytes(buffer: Buffer, lanes: int) -> int:
    """What a buffer takes; plain floats are rounded up to whole vectors, so that vectors can be used on them."""
    if buffer.planes is not None:
        return buffer.channels * buffer.planes.pitch * lanes * 4
    return -(-buffer.channels * buffer.pixels // lanes) * lanes * 4


def arrange(schedule: Schedule) -> Arena:
    """First fit, in running order: a buffer is free again after the last step that touches it, or after its chain.

    So is the box of an image: threads wait for each other (`run_shared` of shares.c) before the next step writes.
    """
    last = _last_touches(schedule.steps)
    last |= {box: last[image] for image, box in schedule.boxes.items()}
    offsets: dict[Buffer, int] = {}
    alive: dict[Buffer, tuple[int, int]] = {}
    top = chain_end = 0
    windows: Buffer | None = None
    for position, step in enumerate(schedule.steps):
        if isinstance(step, ConvStep) and step.followers:
            # Later bands still read it, beyond their own rows.
            chain_end, windows = position + step.followers, step.x.whole
        written = [buffer.whole for buffer in step.writes]
        for buffer in (*written, *(schedule.boxes[image] for image in written if image in schedule.boxes)):
            if buffer.external is not None or buffer in offsets:
                continue
            heir = _inherited(step, buffer, {b for b in alive if last[b] == position and b is not windows})
            if heir is not None:
                alive[buffer] = alive.pop(heir)
            else:
                alive[buffer] = _first_gap(sorted(alive.values()), buffer_bytes(buffer, schedule.lanes))
            offsets[buffer] = alive[buffer][0]
            top = max(top, alive[buffer][1])
        if position >= chain_end:
            alive, windows = {b: span for b, span in alive.items() if last[b] > position}, None
    return Arena(offsets, top)


def _last_touches(steps: Sequence[Step]) -> dict[Buffer, int]:
    return {buffer.whole: position for position, step in enumerate(steps) for buffer in (*step.reads, *step.writes)}


def _inherited(step: Step, out: Buffer, dying: set[Buffer]) -> Buffer | None:
    """An operand that is read where `out` is written, cell by cell, and never again: `out` takes its place."""
    operands: tuple[Buffer, ...]
    if isinstance(step, ConvStep):
        operands = () if step.residual is None or step.residual.whole is step.x.whole else (step.residual,)
    else:
        operands = step.reads if isinstance(step, PointwiseStep) else ()
    for operand in operands:
        same = operand.planes == out.planes and (operand.channels, operand.pixels) == (out.channels, out.pixels)
        if operand in dying and out.root is None and same:
            return operand
    return None


def _first_gap(taken: list[tuple[int, int]], size: int) -> tuple[int, int]:
    size = -(-size // ALIGNMENT) * ALIGNMENT
    start = 0
    for first, last in taken:
        if first - start >= size:
            break
        start = max(start, last)
    return (start, start + size)
