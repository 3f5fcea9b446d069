"""Lowers a schedule to a plan: the structs that the kernels take, and one block of constants."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regrow.engine.codegen import structs
from regrow.engine.codegen.structs import ABSENT, INPUT, OUTPUT
from regrow.engine.frontend.torch_export import UnsupportedOperationError
from regrow.engine.ops.base import kind_of, structures
from regrow.engine.ops.conv import ConvStep, conv_steps
from regrow.engine.plan.memory import Arena, Constants, place_buffers
from regrow.engine.plan.split import exchange
from regrow.engine.plan.steps import Buffer, Schedule, Step
from regrow.engine.plan.tiles import Tile, candidates, problem_of
from regrow.engine.plan.weights import Format, channel_scales

MOST_BYTES = 2**31
"""Size from which an image is too large: the kernels count its bytes in 32 bits."""

Memo = Callable[..., Any]


def new_memo() -> Memo:
    """Return a function that calls functions and caches their results, which plans share if only their tiles differ."""
    return cache(lambda function, *args, **options: function(*args, **options))


@dataclass(frozen=True)
class Label:
    """Name and work of an operation of a plan, for profiles; `kind` is the name of its kernel."""

    name: str
    kind: str
    macs: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything that the kernels need to run a network on one image, or on one of several `slices` of its rows."""

    ops: ctypes.Array[Any]
    constants: NDArray[np.uint8]
    arena_bytes: int
    lanes: int
    labels: tuple[Label, ...]
    tiles: tuple[Tile, ...]
    slices: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates for an image."""
        return sum(label.macs for label in self.labels)


@dataclass
class Lowering:
    """The state of lowering, and the methods with which operations fill in their structs."""

    lanes: int
    slices: int
    threads: int
    weights: Format
    arena: Arena
    tiles: Mapping[ConvStep, Tile]
    halo_buffers: Mapping[Buffer, Buffer]
    memo: Memo
    constants: Constants = field(default_factory=Constants)
    scratch: int = 0  # bytes after the arena, shared by all operations

    @property
    def vector(self) -> int:
        """Bytes of a vector."""
        return 4 * self.lanes

    def at(self, buffer: Buffer) -> int:
        """Return the offset of a buffer's first channel in the arena."""
        if buffer.external is not None:
            return INPUT if buffer.external == "input" else OUTPUT
        size = 4 if buffer.planes is None else buffer.planes.pitch * self.vector
        return self.arena.offsets[buffer.whole] + buffer.first * size

    def planes(self, buffer: Buffer | None) -> Any:
        """Return `struct planes` of a buffer's regions, without the halo."""
        if buffer is None:
            return structs.Planes(ABSENT, 0, 0)
        planes = buffer.planes
        if planes is None:
            return structs.Planes(self.at(buffer), 4, 0)
        at = self.at(buffer) + planes.first * self.vector
        return structs.Planes(at, planes.pitch * self.vector, planes.row_pitch * self.vector)

    def windows(self, buffer: Buffer, padding: tuple[int, int]) -> Any:
        """Return `struct planes` of a buffer, starting at the first pixel of the first window."""
        operand = self.planes(buffer)
        operand.at -= padding[0] * operand.row + padding[1] * self.vector
        return operand

    def channel_floats(self, buffer: Buffer) -> int:
        """Return the distance from channel to channel in floats."""
        return buffer.pixels if buffer.planes is None else buffer.planes.pitch * self.lanes

    def floats(self, values: torch.Tensor | None) -> int:
        """Add one number per channel to the constants, padded to whole vectors."""
        if values is None:
            return ABSENT
        array = values.detach().numpy().astype(np.float32)
        return self.constants.put(np.pad(array, (0, -len(array) % self.lanes)))

    def weight_scales(self, weight: torch.Tensor) -> int:
        """Add the scale of each output channel to the constants, if weights are stored as 8-bit integers."""
        return self.floats(channel_scales(weight)) if self.weights == "int8" else ABSENT

    def mask(self, buffer: Buffer) -> int:
        """Add the mask of lanes that hold pixels to the constants, if some do not."""
        planes = buffer.planes
        return ABSENT if planes is None or not planes.ragged else self.constants.put(planes.mask())

    def halo_buffer(self, image: Buffer | None) -> int:
        """Return the offset of the rows of an image that other slices need."""
        found = None if image is None else self.halo_buffers.get(image)
        return ABSENT if found is None else self.at(found)


def lower(
    schedule: Schedule,
    tiles: Sequence[Tile] | None = None,
    *,
    threads: int = 1,
    weights: Format = "fp32",
    memo: Memo | None = None,
) -> Plan:
    """Lower a schedule with the given tile for each convolution, or with the tiles that the cost rule chooses.

    The kernels must be built for the same `weights`. Pass one `memo` to lower several plans of the same layers.
    """
    convolutions = conv_steps(schedule)
    if tiles is None:
        tiles = [candidates(problem_of(step, schedule.lanes, threads))[0] for step in convolutions]
    lowering = Lowering(
        schedule.lanes,
        schedule.slices,
        threads,
        weights,
        place_buffers(schedule),
        dict(zip(convolutions, tiles, strict=True)),
        schedule.halo_buffers,
        memo or new_memo(),
    )
    calls = [(step, _op(step, lowering)) for step in schedule.steps]
    kept = [(step, op) for step, op in calls if op is not None]
    return Plan(
        ops=(structs.op_struct(structures()) * len(kept))(*(op for _, op in kept)),
        constants=lowering.constants.joined(),
        arena_bytes=lowering.arena.size + lowering.scratch,
        lanes=schedule.lanes,
        labels=tuple(_label(step, lowering) for step, _ in kept),
        tiles=tuple(tiles),
        slices=schedule.slices,
    )


def _op(step: Step, lowering: Lowering) -> ctypes.Structure | None:
    """Return `struct op` of a step, or None if there is nothing to do."""
    _check_size(step, lowering)
    kernel, fields = step.kernel, step.call(lowering)
    if fields is None:
        return None
    op = structs.op_struct(structures())(kind_of(kernel.name), exchange(step, lowering))
    setattr(op.as_, kernel.name, kernel.structure(**fields))
    return op


def _label(step: Step, lowering: Lowering) -> Label:
    slices = lowering.slices if step.node.out.pixels > 1 else 1
    return Label(step.node.name, step.kernel.name, slices * step.macs)


def _check_size(step: Step, lowering: Lowering) -> None:
    for buffer in step.writes:
        size = 0 if buffer.external else buffer.whole.nbytes(lowering.lanes)
        if size >= MOST_BYTES:
            shape = " x ".join(map(str, (buffer.channels, *buffer.size)))
            raise UnsupportedOperationError(
                f"{step.node.name}: an image of {shape} takes {size / 2**30:.1f} GB in the engine, which runs layers "
                "of less than 2 GB. Split the input into smaller images."
            )
