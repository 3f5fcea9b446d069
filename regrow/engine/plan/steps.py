"""The elements of a schedule: buffers in memory, and steps that read and write them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from regrow.engine.frontend.graph import Node
from regrow.engine.plan.layout import Grid, PlaneLayout

if TYPE_CHECKING:
    from regrow.engine.codegen.structs import Fields
    from regrow.engine.ops.base import Kernel
    from regrow.engine.plan.lower import Lowering


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory for `channels` images: planes, or plain row-major floats if `planes` is None.

    An `external` buffer is the caller's. A buffer with a `root` is a part of it, from channel (or float) `first` on.
    """

    channels: int
    size: tuple[int, int]
    planes: PlaneLayout | None
    external: Literal["input", "output"] | None = None
    root: Buffer | None = None
    first: int = 0

    @property
    def pixels(self) -> int:
        """Pixels of each channel."""
        return self.size[0] * self.size[1]

    @property
    def whole(self) -> Buffer:
        """The buffer that is allocated in the arena: this one, or the one that it is a part of."""
        return self.root or self

    def nbytes(self, lanes: int) -> int:
        """Return its size; plain floats are padded to whole vectors of `lanes` floats."""
        if self.planes is not None:
            return self.channels * self.planes.pitch * lanes * 4
        return -(-self.channels * self.pixels // lanes) * lanes * 4

    @property
    def cells(self) -> PlaneLayout:
        """Where its pixels are: plain floats are in the order of planes with one lane."""
        return self.planes or PlaneLayout(*self.size, Grid(1, 1, *self.size))


@dataclass(frozen=True, eq=False)
class Step:
    """One call of a kernel on buffers, for `node`. The subclasses are with their operations in `regrow.engine.ops`."""

    node: Node
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]

    struct: ClassVar[Fields]
    own_kernel: ClassVar[Kernel]
    computes: ClassVar[bool] = True
    """Whether it computes its node; otherwise, it moves data that the node reads or writes."""

    @property
    def kernel(self) -> Kernel:
        """The kernel that it calls."""
        return self.own_kernel

    @property
    def overwritable(self) -> tuple[Buffer, ...]:
        """Operands that are read exactly where the output is written, so that it can take their place."""
        return ()

    @property
    def macs(self) -> int:
        """Multiply-accumulates with non-zero weights."""
        return self.node.macs if self.computes else 0

    def call(self, lowering: Lowering) -> dict[str, Any] | None:
        """Return the fields of the kernel's struct, or None if there is nothing to do."""
        raise NotImplementedError(f"{type(self).__name__} does not implement call()")


@dataclass(frozen=True)
class Schedule:
    """Steps in running order; the first reads the caller's input, the last writes the caller's output.

    With several `slices`, they compute one slice of the image's rows; `halo_buffers` hold the rows of an image that
    the neighboring slices need.
    """

    steps: tuple[Step, ...]
    lanes: int
    slices: int = 1
    halo_buffers: Mapping[Buffer, Buffer] = field(default_factory=dict)
