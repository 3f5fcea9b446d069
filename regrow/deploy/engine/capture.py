"""Turns a PyTorch module into a `Graph`, or says which operation of which module has no place in one."""

from __future__ import annotations

import inspect

import torch
from torch import fx, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from regrow.core.modules import inference
from regrow.deploy.engine.graph import Graph, Value
from regrow.deploy.engine.operations import HANDLERS, Arguments
from regrow.deploy.engine.tracer import Tracer, UnsupportedOperationError

__all__ = ["UnsupportedOperationError", "capture"]


def capture(model: nn.Module, example: torch.Tensor) -> Graph:
    """Trace `model` in evaluation mode on `example`, whose first dimension is the batch.

    The graph computes what the model computes for one image; the model itself is left as it was.
    """
    if example.dim() not in (2, 4):
        raise ValueError(
            "example_input must be (batch, features) or (batch, channels, height, width), "
            f"got shape {tuple(example.shape)}"
        )
    _takes_one_tensor(model, example)
    with inference(model):
        try:
            program = torch.export.export(model, (example,), strict=False)
        except GuardOnDataDependentSymNode as error:
            raise UnsupportedOperationError(
                f"{type(model).__name__} decides by the values of a tensor what to compute (in an `if`, a loop or an "
                "index); the engine runs models that always do the same."
            ) from error
    if not program.call_spec.out_spec.is_leaf():
        raise UnsupportedOperationError(
            f"the engine runs models that return one tensor; {type(model).__name__} returns it in a "
            f"{program.call_spec.out_spec.type.__name__}."
        )
    return _graph(program, Tracer(program, batch=example.shape[0]))


def _takes_one_tensor(model: nn.Module, example: torch.Tensor) -> None:
    try:
        inspect.signature(model.forward).bind(example)
    except TypeError as error:
        raise UnsupportedOperationError(
            f"the engine runs models with one input tensor; {type(model).__name__}.forward cannot be called with one: "
            f"{error}."
        ) from None


def _graph(program: torch.export.ExportedProgram, tracer: Tracer) -> Graph:
    output: Value | None = None
    for node in program.graph.nodes:
        if node.op == "placeholder" and node not in tracer.constants:
            tracer.input(node)
        elif node.op == "call_function":
            _call(node, tracer)
        elif node.op == "output":
            output = tracer.output(node)
    assert output is not None
    return Graph(tuple(tracer.nodes), output)


def _call(node: fx.Node, tracer: Tracer) -> None:
    target = node.target
    name = target._schema.name.removeprefix("aten::") if isinstance(target, torch._ops.OpOverload) else ""
    handler = HANDLERS.get(name.removesuffix("_"))
    if handler is None:
        raise tracer.unsupported(node, f"The engine can run {', '.join(sorted(HANDLERS))}.")
    handler(tracer, node, _arguments(node))
    first = node.args[0] if node.args else None
    if name.endswith("_") and isinstance(first, fx.Node):
        tracer.overwrite(first, node)


def _arguments(node: fx.Node) -> Arguments:
    """The call's arguments by the names of the operation's schema, defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    values: Arguments = {}
    for position, argument in enumerate(node.target._schema.arguments):
        given = node.kwargs.get(argument.name, argument.default_value if argument.has_default_value() else None)
        values[argument.name] = node.args[position] if position < len(node.args) else given
    return values
