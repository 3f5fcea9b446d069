"""Builds a `Graph` while an exported program is walked, and looks operands up on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from regrow.engine.frontend.graph import Input, Node, Value


class UnsupportedOperationError(ValueError):
    """The model does something that the engine cannot run; the message names it and where it comes from."""


class Tracer:
    """The graph so far, and what the nodes of the program stand for in it."""

    def __init__(self, program: torch.export.ExportedProgram, *, batch: int) -> None:
        self.batch = batch
        self.nodes: list[Node] = []
        self.values: dict[fx.Node, Value] = {}
        self.owners: dict[fx.Node, fx.Node] = {}  # of the memory that nodes share with another one
        self.constants = _constants(program)

    def input(self, node: fx.Node) -> None:
        """Take the placeholder `node` as the network's one input."""
        self.nodes.append(Input(node.name, self.new_value(node)))

    def output(self, node: fx.Node) -> Value:
        """The value that the program returns."""
        results = node.args[0]
        result = results[0] if isinstance(results, tuple) and len(results) == 1 else None
        if not isinstance(result, fx.Node) or result not in self.values:
            raise UnsupportedOperationError("the engine runs models that return one tensor computed from the input.")
        return self.values[result]

    def unsupported(self, node: fx.Node, reason: str) -> UnsupportedOperationError:
        """The error for an operation that has no place in a graph."""
        stack = list(node.meta.get("nn_module_stack", {}).values())
        path, kind = stack[-1] if stack else ("", "")
        kind = kind.rsplit(".", 1)[-1] if isinstance(kind, str) else kind.__name__
        where = f"module '{path}' ({kind})" if path else f"the model itself ({kind or 'top level'})"
        return UnsupportedOperationError(f"cannot compile '{node.target}', which comes from {where}. {reason}")

    def new_value(self, node: fx.Node) -> Value:
        """A value for what `node` computes, of its shape for one image."""
        shape = tuple(int(n) for n in node.meta["val"].shape)
        if len(shape) not in (2, 4) or shape[0] != self.batch:
            raise self.unsupported(
                node, f"It makes a tensor of shape {shape}; the engine works on (batch, C, H, W) and (batch, features)."
            )
        value = self.values[node] = Value(node.name, shape[1:])
        return value

    def value(self, node: fx.Node, operand: Any) -> Value:
        """The value that an operand stands for."""
        if operand in self.owners and operand not in self.values:
            raise self.unsupported(node, f"Its operand '{operand}' was changed in place through another view of it.")
        if operand not in self.values:
            raise self.unsupported(node, f"Its operand '{operand}' is not computed from the input.")
        return self.values[operand]

    def same(self, node: fx.Node, operand: Any) -> None:
        """Let `node` stand for its operand."""
        self.values[node] = self.value(node, operand)

    def share(self, node: fx.Node, operand: fx.Node) -> None:
        """Remember that `node` may lie in the memory of its operand."""
        owner = self.owners.setdefault(operand, operand)
        self.owners[node] = owner

    def overwrite(self, operand: fx.Node, node: fx.Node) -> None:
        """Let `node` take its operand's place, as an operation in place does, for all who read the operand later.

        Others that are the same tensor change with it. Other views change too, in a way that is not followed: whoever
        reads one of them again is refused.
        """
        before, owner = self.values[operand], self.owners.get(operand, operand)
        for other in [operand, *(other for other, its in self.owners.items() if its is owner)]:
            if self.values.get(other) is before:
                self.values[other] = self.values[node]
            else:
                self.values.pop(other, None)
        self.share(node, operand)

    def add(self, node: fx.Node, kind: type[Node], /, *args: Any, **options: Any) -> None:
        """Append a graph node that makes a new value."""
        stack = list(node.meta.get("nn_module_stack", {}).values())
        name = (stack[-1][0] if stack else "") or node.name
        self.nodes.append(kind(name, self.new_value(node), *args, **options))

    def constant(self, operand: Any) -> torch.Tensor | None:
        """A parameter, buffer or number as float64; None when it is computed from the input."""
        if isinstance(operand, int | float):
            return torch.tensor(float(operand), dtype=torch.float64, device="cpu")
        tensor = self.constants.get(operand) if isinstance(operand, fx.Node) else None
        return None if tensor is None else tensor.detach().double()

    def weight(self, node: fx.Node, operand: Any) -> torch.Tensor:
        """The tensor behind an operand that must be constant."""
        tensor = self.constant(operand)
        if tensor is None:
            raise self.unsupported(node, "Its weights are computed while the model runs.")
        return tensor


def _constants(program: torch.export.ExportedProgram) -> dict[fx.Node, torch.Tensor]:
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    lifted = signature.inputs_to_lifted_tensor_constants
    found: dict[fx.Node, torch.Tensor] = {}
    for node in program.graph.nodes:
        if node.name in names:
            name = names[node.name]
            held = program.state_dict.get(name)
            found[node] = program.constants[name] if held is None else held
        elif node.name in lifted:
            found[node] = program.constants[lifted[node.name]]
    return found
