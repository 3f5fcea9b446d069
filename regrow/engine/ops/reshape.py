"""Operations that compute nothing: inputs, reshapes, concatenations, and those without effect on inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from regrow.engine.frontend.graph import Node, Value
from regrow.engine.ops.base import NodeStep, Unary, lowers, operation
from regrow.engine.ops.move import GatherStep
from regrow.engine.ops.pointwise import Affine
from regrow.engine.plan.steps import Buffer

if TYPE_CHECKING:
    from regrow.engine.frontend.torch_export import Call
    from regrow.engine.plan.schedule import Scheduler


@dataclass(frozen=True, eq=False)
class Input(Node):
    """The image or feature vector that the caller passes."""

    placeable: ClassVar[bool] = False

    def splits_by_rows(self) -> bool:
        """Every slice is copied from the caller's image."""
        return True

    def schedule(self, plan: Scheduler) -> None:
        """Refer to the caller's memory."""
        height, width = self.out.size
        plan.keep(self.out, Buffer(self.out.channels, (plan.slices * height, width), None, external="input"))


@operation("flatten", "view", "reshape", "squeeze", "unsqueeze")
@dataclass(frozen=True, eq=False)
class Reshape(Unary):
    """The same elements in row-major order, in another shape."""

    placeable: ClassVar[bool] = False
    on_features: ClassVar[bool] = True

    @classmethod
    def lower(cls, call: Call) -> None:
        """Lower views and reshapes."""
        call.add(cls, call.value("self"))
        call.shares_memory("self")

    def reference(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Reshape with torch."""
        return x.reshape(-1, *self.out.shape)

    def schedule(self, plan: Scheduler) -> None:
        """Refer to the same memory; images are copied to row-major order before."""
        flat = plan.flat(self.x, self)
        plan.keep(self.out, Buffer(self.out.channels, self.out.size, None, flat.external, flat.whole, flat.first))


@operation("cat")
@dataclass(frozen=True, eq=False)
class Concat(Node):
    """Channels (or features) one after another."""

    parts: tuple[Value, ...]

    placeable: ClassVar[bool] = False

    @classmethod
    def lower(cls, call: Call) -> None:
        """Lower `cat`."""
        parts = tuple(call.value_of(part) for part in call.args["tensors"])
        if call.args["dim"] % (len(parts[0].shape) + 1) != 1:
            raise call.unsupported(f"The engine joins channels (dim=1), got dim={call.args['dim']}.")
        call.add(cls, parts)

    def reference(self, *parts: Tensor) -> Tensor:
        """Concatenate with torch."""
        return torch.cat(parts, 1)

    def schedule(self, plan: Scheduler) -> None:
        """Copy the parts that were not written in place."""
        out = plan.home(self.out)
        first, copied = 0, []
        for part in self.parts:
            home = plan.homes.get(part)
            window = Buffer(part.channels, part.size, out.planes, root=out.whole, first=out.first + first)
            if home is None or home.root is not out or home.first != first:
                if out.planes is None:
                    plan.steps.append(GatherStep(self, (plan.flat(part, self),), (window,), None))
                else:
                    copy = Affine(self.name, Value(self.out.name, part.shape), part)
                    plan.steps.append(NodeStep(copy, (plan.home_version(part, self),), (window,)))
                copied.append(window)
            first += part.channels
        plan.keep(self.out, out)
        plan.fill_halos(self, *copied)


@lowers("contiguous", "detach", "alias")
def _alias(call: Call) -> None:
    call.same("self")
    call.shares_memory("self")


@lowers("clone")
def _clone(call: Call) -> None:
    call.same("self")


@lowers("dropout", "feature_dropout")
def _dropout(call: Call) -> None:
    if call.args["train"]:
        raise call.unsupported("It drops at random in evaluation mode too: pass training=self.training.")
    call.same("input")
    call.shares_memory("input")
