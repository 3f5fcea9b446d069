"""Where the operands of the kernels lie: offsets in the arena, and numbers among the constants."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from regrow.engine.codegen import structs as native
from regrow.engine.frontend.graph import Conv
from regrow.engine.plan.arena import Arena
from regrow.engine.plan.constants import Constants
from regrow.engine.plan.layout import Planes
from regrow.engine.plan.steps import Buffer
from regrow.engine.plan.weights import FARTHEST, Format, channel_scales


@dataclass
class Operands:
    """Finds buffers in an arena and puts numbers among the constants, for vectors of `lanes` floats."""

    lanes: int
    arena: Arena
    weights: Format
    constants: Constants = field(default_factory=Constants)

    @property
    def vector(self) -> int:
        """Bytes of a vector."""
        return 4 * self.lanes

    def at(self, buffer: Buffer) -> int:
        """Where a buffer's first channel starts."""
        if buffer.external is not None:
            return native.INPUT if buffer.external == "input" else native.OUTPUT
        size = 4 if buffer.planes is None else buffer.planes.pitch * self.vector
        return self.arena.offsets[buffer.whole] + buffer.first * size

    def planes(self, buffer: Buffer | None) -> native.Planes:
        """A buffer's regions, without the halo before them."""
        if buffer is None:
            return native.Planes(native.ABSENT, 0, 0)
        planes = buffer.planes
        if planes is None:
            return native.Planes(self.at(buffer), 4, 0)
        at = self.at(buffer) + planes.first * self.vector
        return native.Planes(at, planes.pitch * self.vector, planes.row_pitch * self.vector)

    def windows(self, buffer: Buffer, padding: tuple[int, int]) -> native.Planes:
        """A buffer's regions from where the first window starts."""
        operand = self.planes(buffer)
        operand.at -= padding[0] * operand.row + padding[1] * self.vector
        return operand

    def floats(self, values: torch.Tensor | None) -> int:
        """One number per channel, padded to whole vectors."""
        if values is None:
            return native.ABSENT
        array = values.detach().numpy().astype(np.float32)
        return self.constants.put(np.pad(array, (0, -len(array) % self.lanes)))

    def steps(self, weight: torch.Tensor) -> int:
        """What a weight of one is worth in each output channel, if weights are stored as small integers."""
        return self.floats(channel_scales(weight)) if self.weights == "int8" else native.ABSENT

    def fewest_blocks(self, node: Conv, x: Planes) -> int:
        """Blocks of input channels in which the farthest offset can be written."""
        if self.weights == "fp32":
            return 1
        reach = [d * (k - 1) for d, k in zip(node.dilation, node.kernel, strict=True)]
        channels = (FARTHEST[self.weights] - reach[0] * x.row_pitch - reach[1]) // x.pitch
        if channels < 1:
            raise ValueError(f"{node.name}: a channel of {x.height} x {x.width} pixels is too large for 16-bit offsets")
        return -(-node.x.channels // channels)

    def mask(self, buffer: Buffer) -> int:
        """Which lanes of a buffer are pixels of the image, if not all are."""
        planes = buffer.planes
        return native.ABSENT if planes is None or not planes.ragged else self.constants.put(planes.mask())
