"""What threads exchange that have shares of an image's rows: the rows at the borders between them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from regrow.engine.codegen import structs as native
from regrow.engine.frontend.graph import Conv, Pool
from regrow.engine.plan.layout import Halo, halo_sides
from regrow.engine.plan.operands import Operands
from regrow.engine.plan.schedule import window_halo
from regrow.engine.plan.steps import Buffer, ConvStep, HaloStep, PoolStep, Step


def boxes_of(steps: Iterable[Step], lanes: int) -> dict[Buffer, Buffer]:
    """Room for the rows of every image that neighbouring shares need."""
    sizes = {step.writes[0]: _lent_vectors(step.writes[0]) for step in steps if isinstance(step, HaloStep)}
    return {image: Buffer(vectors * lanes, (1, 1), None) for image, vectors in sizes.items() if vectors}


def _lent_vectors(image: Buffer) -> int:
    assert image.planes is not None
    halo, grid = image.planes.halo, image.planes.grid
    return image.channels * (halo.top + halo.bottom) * grid.cols


@dataclass
class BorderWriter:
    """Writes down what each step exchanges, for shares.c."""

    operands: Operands
    boxes: Mapping[Buffer, Buffer]

    def exchange(self, step: Step) -> int:
        """Where among the constants `struct exchange` of a step is; ABSENT if it has none."""
        reach, (out, tail) = _reach(step), _results(step)
        borrows = self._borders(step.reads[0] if reach.top or reach.bottom else None)
        lends, lends_tail = self._borders(out), self._borders(tail)
        if {borrows, lends, lends_tail} == {native.ABSENT}:
            return native.ABSENT
        lent = [image.planes.halo for image in (out, tail) if image and image in self.boxes and image.planes]
        lent_above = max((halo.bottom for halo in lent), default=0)  # by the share above, as its rows below
        lent_below = max((halo.top for halo in lent), default=0)
        return self._put(native.Exchange(borrows, lends, lends_tail, lent_above, lent_below))

    def box(self, image: Buffer | None) -> int:
        """Where in the arena the rows of an image lie that others need."""
        found = None if image is None else self.boxes.get(image)
        return native.ABSENT if found is None else self.operands.at(found)

    def _borders(self, image: Buffer | None) -> int:
        if image is None or image not in self.boxes or image.planes is None:
            return native.ABSENT
        halo, grid = image.planes.halo, image.planes.grid
        return self._put(
            native.Borders(
                image=self.operands.planes(image),
                box=self.box(image),
                sides=self.operands.constants.put(halo_sides(image.planes)[halo.top + halo.bottom :]),
                above=halo.top,
                below=halo.bottom,
                left=halo.left,
                right=halo.right,
                channels=image.channels,
                rows=grid.rows,
                cols=grid.cols,
            )
        )

    def _put(self, structure: ctypes.Structure) -> int:
        return self.operands.constants.put(np.frombuffer(bytes(structure), np.uint8))


def _reach(step: Step) -> Halo:
    """How far the windows of a step reach."""
    node = step.node
    return window_halo(node) if isinstance(step, ConvStep | PoolStep) and isinstance(node, Conv | Pool) else Halo()


def _results(step: Step) -> tuple[Buffer | None, Buffer | None]:
    """What a step writes, and a convolution's tail."""
    if isinstance(step, ConvStep):
        return step.out, step.tail
    return None if isinstance(step, HaloStep) else step.writes[0], None
