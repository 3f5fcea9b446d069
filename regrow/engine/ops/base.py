"""The registry of operations, and base classes for those that are one call of one kernel.

A file in this folder defines an operation completely: the graph node, how a torch operation is lowered to it, its
torch reference, the memory layout, the C struct and how it is filled. The kernel is `run_NAME` in the C file of the
same name. No other file lists operations: plan.h, the dispatch in run.c and error messages are made from the registry.
"""

from __future__ import annotations

import ctypes
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from regrow.engine import ops
from regrow.engine.codegen.structs import Fields, struct_of
from regrow.engine.frontend.graph import Node, Value
from regrow.engine.plan.steps import Buffer, Step

if TYPE_CHECKING:
    from regrow.engine.frontend.torch_export import Call
    from regrow.engine.plan.lower import Lowering
    from regrow.engine.plan.schedule import Scheduler

Lower = Callable[["Call"], None]
Class = TypeVar("Class", bound=type)


@dataclass(frozen=True)
class Kernel:
    """A C function `run_NAME(const struct NAME *, const struct frame *)` and the struct that it takes."""

    name: str
    structure: type[ctypes.Structure]
    source: Path


_KERNELS: dict[str, Kernel] = {}
_LOWERINGS: dict[str, Lower] = {}


def lowers(*names: str) -> Callable[[Lower], Lower]:
    """Register a function that turns calls of these ATen operations into nodes of the graph."""

    def register(function: Lower) -> Lower:
        for name in names:
            if name in _LOWERINGS:
                raise ValueError(f"the torch operation {name!r} is lowered twice")
            _LOWERINGS[name] = function
        return function

    return register


def operation(*names: str) -> Callable[[Class], Class]:
    """Register a class: its `lower` for the ATen operations `names`, and its `struct`, if it has one, as a kernel.

    The kernel's name is the class name in snake case without "Step"; its C file is beside the Python file.
    """

    def register(cls: Class) -> Class:
        if "struct" in vars(cls):
            name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__.removesuffix("Step")).lower()
            if name in _KERNELS:
                raise ValueError(f"there are two kernels {name!r}: {_KERNELS[name].source} and {inspect.getfile(cls)}")
            source = Path(inspect.getfile(cls)).with_suffix(".c")
            _KERNELS[name] = cls.own_kernel = Kernel(name, struct_of(name, cls.struct), source)  # type: ignore[attr-defined]
        if names:
            lowers(*names)(cls.lower)  # type: ignore[attr-defined]
        return cls

    return register


@cache
def _load_all() -> None:
    for module in sorted(info.name for info in pkgutil.iter_modules(ops.__path__)):
        import_module(f"{ops.__name__}.{module}")


def kernels() -> tuple[Kernel, ...]:
    """Return all kernels by name; the position of a kernel is its number in `struct op`."""
    _load_all()
    return tuple(kernel for _, kernel in sorted(_KERNELS.items()))


def structures() -> tuple[type[ctypes.Structure], ...]:
    """Return the structs of all kernels, in the same order."""
    return tuple(kernel.structure for kernel in kernels())


def kind_of(name: str) -> int:
    """Return the number of a kernel."""
    return [kernel.name for kernel in kernels()].index(name)


def lowerings() -> dict[str, Lower]:
    """Return the lowerings of all ATen operations that the engine can run, by name."""
    _load_all()
    return dict(sorted(_LOWERINGS.items()))


@dataclass(frozen=True, eq=False)
class Unary(Node):
    """A node with one input."""

    x: Value


class Same:
    """The output has the layout of the inputs: the usual planes, or plain floats if there is one pixel."""

    def schedule(self, node: KernelNode, plan: Scheduler) -> None:
        """Append the step of a node."""
        reads = tuple(plan.home_version(value, node) for value in node.inputs)
        plan.emit(NodeStep(node, reads, (plan.home(node.out),)))


class Flat:
    """Inputs and output are plain row-major floats. They may be the caller's memory: use `locate()` in C."""

    def schedule(self, node: KernelNode, plan: Scheduler) -> None:
        """Append the step of a node."""
        reads = tuple(plan.flat(value, node) for value in node.inputs)
        plan.emit(NodeStep(node, reads, (plan.new_flat(node.out),)))


class KernelNode(Node):
    """A node that is one call of its own kernel."""

    struct: ClassVar[Fields]
    own_kernel: ClassVar[Kernel]
    layout: ClassVar[Same | Flat]
    """The memory layout in which it reads its inputs and writes its output."""
    in_place: ClassVar[bool] = False
    """Whether the kernel may write its output over an input."""
    writes_to_caller: ClassVar[bool] = False
    """Whether the kernel can write to the caller's memory, through `locate()`."""

    def schedule(self, plan: Scheduler) -> None:
        """Append the step that computes it, in its `layout`."""
        self.layout.schedule(self, plan)

    def call(self, lowering: Lowering, *buffers: Buffer) -> dict[str, Any]:
        """Return the fields of its struct, given the buffers of its inputs, then those of its outputs."""
        raise NotImplementedError(f"{type(self).__name__} does not implement call()")


@dataclass(frozen=True, eq=False)
class NodeStep(Step):
    """A call of the node's own kernel."""

    node: KernelNode

    @property
    def kernel(self) -> Kernel:
        """The kernel of its node."""
        return self.node.own_kernel

    @property
    def overwritable(self) -> tuple[Buffer, ...]:
        """The operands, if the kernel works in place."""
        return self.reads if self.node.in_place else ()

    def call(self, lowering: Lowering) -> dict[str, Any]:
        """Let the node fill in the struct."""
        return self.node.call(lowering, *self.reads, *self.writes)
