"""Copies between memory layouts, and the halos around regions. Inserted by the scheduler; not nodes of the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from regrow.engine.codegen.structs import ABSENT, F32, I32, OFFSET, PLANES, Fields
from regrow.engine.ops.base import operation
from regrow.engine.plan.layout import halo_sides, runs_of
from regrow.engine.plan.steps import Step

if TYPE_CHECKING:
    from regrow.engine.plan.lower import Lowering


@operation()
@dataclass(frozen=True, eq=False)
class GatherStep(Step):
    """Copies each channel through a table of positions in floats (-1: `fill`); without a table, as it is.

    There is one table, or one for each slice of the rows.
    """

    table: NDArray[np.int64] | None
    fill: float = 0.0

    computes: ClassVar[bool] = False
    struct: ClassVar[Fields] = {
        "from": OFFSET,
        "to": OFFSET,
        "table": OFFSET,  # int32, -1 for `fill`; ABSENT: a plain copy
        "runs": OFFSET,  # int32: vectors from which LANES of them hold successive floats in every lane
        "channels": I32,
        "count": I32,  # floats of each channel
        "from_pitch": I32,  # floats from channel to channel
        "to_pitch": I32,
        "run_count": I32,
        "tables": I32,  # if more than one: one for each slice of the rows, without runs
        "fill": F32,
    }

    def call(self, lowering: Lowering) -> dict[str, Any]:
        """Return the fields of `struct gather`."""
        (source,), (target,), table = self.reads, self.writes, self.table
        runs = np.zeros(0, np.int64)
        if table is not None and len(table) == 1:
            runs = runs_of(table[0], lowering.lanes)
        put = lowering.constants.put
        return {
            "from": lowering.at(source),
            "to": lowering.at(target),
            "table": ABSENT if table is None else put(table.astype(np.int32)),
            "runs": ABSENT if table is None else put(runs.astype(np.int32)),
            "channels": 1 if table is None else target.channels,
            "count": target.channels * target.pixels if table is None else table.shape[1],
            "from_pitch": lowering.channel_floats(source),
            "to_pitch": lowering.channel_floats(target),
            "run_count": len(runs),
            "tables": 1 if table is None else len(table),
            "fill": self.fill,
        }


@operation()
@dataclass(frozen=True, eq=False)
class HaloStep(Step):
    """Fills the halo of each region with the pixels of the neighboring regions."""

    computes: ClassVar[bool] = False
    struct: ClassVar[Fields] = {
        "image": PLANES,
        "sides": OFFSET,  # struct side: the rows above and below, then the columns left and right
        "above": I32,  # how many of each
        "below": I32,
        "left": I32,
        "right": I32,
        "recv_above": I32,  # rows that come from other slices of the image, or are padding, instead
        "recv_below": I32,
        "channels": I32,
        "variant": I32,  # number of the kernel that is specialized for these sides, or 0
    }

    def call(self, lowering: Lowering) -> dict[str, Any] | None:
        """Return the fields of `struct halo`."""
        (buffer,) = self.writes
        assert buffer.planes is not None
        halo = buffer.planes.halo
        rows, none = (halo.top, halo.bottom), (0, 0)
        own, received = (rows, none) if lowering.slices == 1 else (none, rows)
        if not (any(own) or halo.left or halo.right):
            return None
        return {
            "image": lowering.planes(buffer),
            "sides": lowering.constants.put(halo_sides(buffer.planes)[sum(received) :]),
            "above": own[0],
            "below": own[1],
            "left": halo.left,
            "right": halo.right,
            "recv_above": received[0],
            "recv_below": received[1],
            "channels": buffer.channels,
        }
