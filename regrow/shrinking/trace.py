"""Trace a model to a torch.fx graph of its layers, without in-place operations.

Symbolic tracing keeps layers, their names and the batch dimension, so the result reads like the original model. A
program of `torch.export` is a list of ATen calls on lifted tensors instead. A submodule that cannot be traced, for
example because it branches on a value, becomes a single node.
"""

from __future__ import annotations

import inspect
import operator
import textwrap
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYERS = (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)

_OUT_OF_PLACE: dict[Any, Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
_VIEWS = {
    *("view", "view_as", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "movedim", "t"),
    *("chunk", "split", "unbind", "narrow", "select", "getitem", "unfold", "expand", "contiguous", "detach"),
    *("to", "float"),
}


class UntraceableError(Exception):
    """The model cannot be traced; the message says why."""


def trace(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[fx.GraphModule, dict[str, str]]:
    """Return the graph of `model` with the shapes for `inputs`, and why submodules cannot be traced, by name.

    `model` is changed, not copied. Raises `UntraceableError` if nothing of it can be traced.
    """
    untraced: dict[str, str] = {}
    while True:
        tracer = _Tracer(untraced)
        try:
            graph = tracer.trace(model)
            break
        except Exception as error:  # a forward can raise anything for a symbolic tensor
            path = ".".join(tracer.path)
            if path in untraced or not path:
                raise UntraceableError(f"its forward cannot be traced: {_one_line(error)}") from error
            untraced[path] = f"cannot be traced: {_one_line(error)}"
    plain = fx.Graph()  # without a reference to the tracer class, which unpickling the model would have to import
    plain.output(plain.graph_copy(graph, {}))
    traced = fx.GraphModule(model, plain)
    _remove_in_place(traced)
    with torch.no_grad():
        ShapeProp(traced).propagate(*inputs)
    return traced, untraced


class _Tracer(fx.Tracer):
    """Treats layers, plain subclasses of them and `untraced` submodules as single nodes; tracks the current module."""

    def __init__(self, untraced: dict[str, str]) -> None:
        super().__init__()
        self.untraced = untraced
        self.path: list[str] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.untraced:
            return True
        return is_plain(m, (*LAYERS, *NORMS)) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        outer = self.path
        self.path = self.path_of_module(m).split(".")
        result = super().call_module(m, forward, args, kwargs)
        self.path = outer  # not reached after an exception, so that the path names the innermost module that failed
        return result


def is_plain(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Return whether `module` computes exactly what one of torch's `kinds` computes from its own parameters."""
    if module._forward_hooks or module._forward_pre_hooks or hasattr(module, "parametrizations"):
        return False
    for kind in kinds:
        if isinstance(module, kind):
            same = all(
                getattr(type(module), name, None) is getattr(kind, name, None) for name in ("forward", "_conv_forward")
            )
            return same and isinstance(module._parameters.get("weight"), nn.Parameter | None)
    return False


def _remove_in_place(traced: fx.GraphModule) -> None:
    """Make every operation return a new tensor: after a layer is removed, `relu_` could change a shared tensor."""
    order = {node: i for i, node in enumerate(traced.graph.nodes)}
    for node in list(traced.graph.nodes):
        if not _out_of_place(traced, node):
            continue
        changed = node.args[0]
        if not isinstance(changed, fx.Node):
            raise UntraceableError(f"{node.format_node()} changes something that is not a traced tensor")
        for base in _bases(traced, changed):
            if any(order[user] > order[node] for user in base.users):
                raise UntraceableError(f"'{node.name}' changes a view in place of a tensor that is read again later")
        # A later reader of the tensor sees the changed values.
        for user in [user for user in changed.users if order[user] > order[node]]:
            user.replace_input_with(changed, node)
    traced.recompile()


def _out_of_place(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Make `node` out of place; return whether it was in place."""
    if node.op == "call_module":
        module = traced.get_submodule(str(node.target))
        if getattr(module, "inplace", False) is not True or not _is_torch(module):
            return False
        module.inplace = False  # type: ignore[assignment]
        return not isinstance(module, nn.modules.dropout._DropoutNd)
    if node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__"):
        name = str(node.target)[:-1]
        if not callable(getattr(Tensor, name, None)):
            raise UntraceableError(f"it calls Tensor.{node.target}, which changes a tensor in place")
        node.target = name
        return True
    return node.op == "call_function" and _function_out_of_place(node)


def _function_out_of_place(node: fx.Node) -> bool:
    target: Any = node.target
    if target in _OUT_OF_PLACE:
        node.target = _OUT_OF_PLACE[target]
        return True
    name = getattr(target, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        home = F if hasattr(F, name[:-1]) else torch
        if not hasattr(home, name[:-1]):
            raise UntraceableError(f"it calls {name}, which changes a tensor in place")
        node.target = getattr(home, name[:-1])
        return True
    if getattr(target, "__module__", "") == F.__name__:
        given = inspect.signature(target).bind(*node.args, **node.kwargs).arguments
        if given.get("inplace") is True:
            given["inplace"] = False
            node.args, node.kwargs = (given.pop("input"),), given
            return not name.endswith("dropout")
    return False


def _bases(traced: fx.GraphModule, node: fx.Node) -> list[fx.Node]:
    """Return the tensors whose memory `node` may share."""
    found: list[fx.Node] = []
    while node.args and isinstance(node.args[0], fx.Node):
        if node.op == "call_module":
            module = traced.get_submodule(str(node.target))
            is_view = isinstance(module, nn.Identity | nn.Flatten | nn.Unflatten | nn.modules.dropout._DropoutNd)
        else:
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
            is_view = name in _VIEWS or "dropout" in name
        if not is_view:
            break
        node = node.args[0]
        found.append(node)
    return found


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn")


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return textwrap.shorten(f"{type(error).__name__}: {lines[0] if lines else ''}", 160, placeholder=" …")
