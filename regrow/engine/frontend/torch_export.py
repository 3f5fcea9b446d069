"""Turns a PyTorch module into a `Graph` by way of torch.export, or names the operation that the engine cannot run."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from regrow.core.modules import inference
from regrow.engine.frontend.graph import Graph, Node, Value
from regrow.engine.ops.base import lowerings
from regrow.engine.ops.reshape import Input


class UnsupportedOperationError(ValueError):
    """The model contains an operation that the engine cannot run; the message names it and its module."""


def capture(model: nn.Module, example: torch.Tensor) -> Graph:
    """Trace `model` in evaluation mode on `example`, whose first dimension is the batch.

    The graph is for one image. The model is not changed.
    """
    if example.dim() not in (2, 4):
        raise ValueError(
            "example_input must be (batch, features) or (batch, channels, height, width), "
            f"got shape {tuple(example.shape)}"
        )
    _check_one_input(model, example)
    with inference(model):
        try:
            program = torch.export.export(model, (example,), strict=False)
        except GuardOnDataDependentSymNode as error:
            raise UnsupportedOperationError(
                f"{type(model).__name__} chooses its operations by the values of a tensor (in an `if`, a loop or an "
                "index); the engine runs models that always compute the same operations."
            ) from error
    if not program.call_spec.out_spec.is_leaf():
        raise UnsupportedOperationError(
            f"the engine runs models that return one tensor; {type(model).__name__} returns it in a "
            f"{program.call_spec.out_spec.type.__name__}."
        )
    return GraphBuilder(program, batch=example.shape[0]).build(program)


def _check_one_input(model: nn.Module, example: torch.Tensor) -> None:
    try:
        inspect.signature(model.forward).bind(example)
    except TypeError as error:
        raise UnsupportedOperationError(
            f"the engine runs models with one input tensor; {type(model).__name__}.forward cannot be called with one: "
            f"{error}."
        ) from None


class GraphBuilder:
    """The graph so far, and the value that each node of the exported program has in it."""

    def __init__(self, program: torch.export.ExportedProgram, *, batch: int) -> None:
        self.batch = batch
        self.nodes: list[Node] = []
        self.values: dict[fx.Node, Value] = {}
        self.owners: dict[fx.Node, fx.Node] = {}  # of memory that several nodes share
        self.constants = _constants(program)

    def build(self, program: torch.export.ExportedProgram) -> Graph:
        """Lower all operations of the program."""
        output: Value | None = None
        for node in program.graph.nodes:
            if node.op == "placeholder" and node not in self.constants:
                self.nodes.append(Input(node.name, Call(self, node).new_value()))
            elif node.op == "call_function":
                self.lower(node)
            elif node.op == "output":
                output = self.output(node)
        assert output is not None
        return Graph(tuple(self.nodes), output)

    def lower(self, node: fx.Node) -> None:
        """Lower one operation."""
        name, known = _operation(node), lowerings()
        call = Call(self, node, name.removesuffix("_"))
        if call.name not in known:
            calls = (other for other in node.graph.nodes if other.op == "call_function" and other.target != node.target)
            others = {str(other.target) for other in calls if _operation(other).removesuffix("_") not in known}
            also = f"It cannot run {', '.join(sorted(others))} of this model either. " if others else ""
            raise call.unsupported(f"{also}The engine can run {', '.join(known)}.")
        call.args = _arguments(node)
        known[call.name](call)
        first = node.args[0] if node.args else None
        if name.endswith("_") and isinstance(first, fx.Node):
            self.overwrite(first, node)

    def output(self, node: fx.Node) -> Value:
        """Return the value that the program returns."""
        results = node.args[0]
        result = results[0] if isinstance(results, tuple) and len(results) == 1 else None
        if not isinstance(result, fx.Node) or result not in self.values:
            raise UnsupportedOperationError("the engine runs models that return one tensor computed from the input.")
        return self.values[result]

    def share(self, node: fx.Node, operand: fx.Node) -> None:
        """Record that `node` may be a view of its operand's memory."""
        owner = self.owners.setdefault(operand, operand)
        self.owners[node] = owner

    def overwrite(self, operand: fx.Node, node: fx.Node) -> None:
        """Replace `operand` by `node`, the result of an in-place operation, for all later readers.

        Aliases of the operand are replaced, too. Other views of its memory also change, which is not tracked: reading
        one of them later raises an error.
        """
        before, owner = self.values[operand], self.owners.get(operand, operand)
        for other in [operand, *(other for other, its in self.owners.items() if its is owner)]:
            if self.values.get(other) is before:
                self.values[other] = self.values[node]
            else:
                self.values.pop(other, None)
        self.share(node, operand)


class Call:
    """One call of a torch operation: `args` by the names of its schema, and the graph that it is lowered to."""

    def __init__(self, graph: GraphBuilder, node: fx.Node, name: str = "") -> None:
        self.graph, self.node, self.name = graph, node, name
        self.args: dict[str, Any] = {}

    def unsupported(self, reason: str) -> UnsupportedOperationError:
        """Make the error for an operation that cannot be lowered."""
        stack = list(self.node.meta.get("nn_module_stack", {}).values())
        path, kind = stack[-1] if stack else ("", "")
        kind = kind.rsplit(".", 1)[-1] if isinstance(kind, str) else kind.__name__
        where = f"module '{path}' ({kind})" if path else f"the model itself ({kind or 'top level'})"
        return UnsupportedOperationError(f"cannot compile '{self.node.target}', which comes from {where}. {reason}")

    def pair(self, name: str) -> tuple[int, int]:
        """Return an argument that is one integer, or one for rows and one for columns."""
        value = self.args[name]
        return (value, value) if isinstance(value, int) else (int(value[0]), int(value[-1]))

    def value(self, name: str) -> Value:
        """Return the value of an argument that is computed from the network's input."""
        return self.value_of(self.args[name])

    def value_of(self, operand: Any) -> Value:
        """Return the value of an operand."""
        if operand in self.graph.owners and operand not in self.graph.values:
            raise self.unsupported(f"Its operand '{operand}' was changed in place through another view of it.")
        if operand not in self.graph.values:
            raise self.unsupported(f"Its operand '{operand}' is not computed from the input.")
        return self.graph.values[operand]

    def constant(self, name: str) -> torch.Tensor | None:
        """Return a parameter, buffer or number as float64; None if it is computed from the input."""
        operand = self.args[name]
        if isinstance(operand, int | float):
            return torch.tensor(float(operand), dtype=torch.float64, device="cpu")
        tensor = self.graph.constants.get(operand) if isinstance(operand, fx.Node) else None
        return None if tensor is None else tensor.detach().double()

    def weight(self, name: str) -> torch.Tensor:
        """Return an argument that must be constant, as float64."""
        tensor = self.constant(name)
        if tensor is None:
            raise self.unsupported("Its weights are computed while the model runs.")
        return tensor

    def new_value(self) -> Value:
        """Make the value that the call computes, with its shape for one image."""
        shape = tuple(int(n) for n in self.node.meta["val"].shape)
        if len(shape) not in (2, 4) or shape[0] != self.graph.batch:
            raise self.unsupported(
                f"It makes a tensor of shape {shape}; the engine works on (batch, C, H, W) and (batch, features)."
            )
        value = self.graph.values[self.node] = Value(self.node.name, shape[1:])
        return value

    def add(self, kind: type[Node], /, *args: Any, **options: Any) -> None:
        """Append a node that computes a new value; the arguments are those of its class after `name` and `out`."""
        stack = list(self.node.meta.get("nn_module_stack", {}).values())
        name = (stack[-1][0] if stack else "") or self.node.name
        self.graph.nodes.append(kind(name, self.new_value(), *args, **options))

    def same(self, name: str) -> None:
        """Let the result be the value of an argument."""
        self.graph.values[self.node] = self.value(name)

    def shares_memory(self, name: str) -> None:
        """Record that the result may be a view of an argument's memory."""
        self.graph.share(self.node, self.args[name])


def _operation(node: fx.Node) -> str:
    """Return the name of the operation that a node calls; empty if it is not one of torch's."""
    target = node.target
    return target._schema.name.removeprefix("aten::") if isinstance(target, torch._ops.OpOverload) else ""


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments by the names of the operation's schema, with defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    values: dict[str, Any] = {}
    for position, argument in enumerate(node.target._schema.arguments):
        given = node.kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None)
        values[argument.name] = node.args[position] if position < len(node.args) else given
    # In-place operations call their tensor `self`, even if the others of their name call it `input`.
    return {"input": values["self"], **values} if "self" in values else values


def _constants(program: torch.export.ExportedProgram) -> dict[fx.Node, torch.Tensor]:
    signature = program.graph_signature
    lifted = signature.inputs_to_lifted_tensor_constants
    names = {**lifted, **signature.inputs_to_parameters, **signature.inputs_to_buffers}
    stored = {**program.constants, **program.state_dict}  # buffers that are not in the state_dict are constants
    return {node: stored[names[node.name]] for node in program.graph.nodes if node.name in names}
