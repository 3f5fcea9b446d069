"""Captures a model as a graph of its own layers, so that every channel can be followed from layer to layer.

`torch.fx` rather than `torch.export`: symbolic tracing keeps the layers, their names and the batch
dimension as they were, so what comes out reads like the model that went in; an exported program is a list
of ATen calls on lifted tensors. What cannot be traced (a branch on a value) stays whole, as one opaque
layer.
"""

from __future__ import annotations

import inspect
import operator
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
    """The model as a whole cannot be captured; the message says why."""


def capture(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[fx.GraphModule, dict[str, str]]:
    """The graph of `model` with the shapes of `inputs`, and the submodules that had to stay whole, with why.

    `model` is taken over, not copied. Raises `UntraceableError` if nothing of it can be traced.
    """
    whole: dict[str, str] = {}
    tracer = _Tracer(whole)
    while True:
        try:
            graph = tracer.trace(model)
            break
        except Exception as error:  # whatever a forward does with a symbolic tensor
            path = ".".join(tracer.path)
            if path in whole or not path:
                raise UntraceableError(f"its forward cannot be traced: {_one_line(error)}") from error
            whole[path] = f"cannot be traced: {_one_line(error)}"
            tracer = _Tracer(whole)
    plain = fx.Graph()  # one that does not know the tracer, which would have to be found when the model is unpickled
    plain.output(plain.graph_copy(graph, {}))
    traced = fx.GraphModule(model, plain)
    _remove_in_place(traced)
    with torch.no_grad():
        ShapeProp(traced).propagate(*inputs)
    return traced, whole


class _Tracer(fx.Tracer):
    """Leaves layers, plain subclasses of them and `whole` submodules as they are; remembers where it is."""

    def __init__(self, whole: dict[str, str]) -> None:
        super().__init__()
        self.whole = whole
        self.path: list[str] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_qualified_name in self.whole:
            return True
        return is_plain(m, (*LAYERS, *NORMS)) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        outer = self.path
        self.path = self.path_of_module(m).split(".")
        result = super().call_module(m, forward, args, kwargs)
        self.path = outer  # not reached after an exception: the innermost module that failed stays named
        return result


def is_plain(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether `module` computes exactly what one of torch's own `kinds` computes from its own parameters."""
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
    """Makes every operation return a new tensor: with a layer removed, `relu_` could change a shared one."""
    order = {node: i for i, node in enumerate(traced.graph.nodes)}
    for node in list(traced.graph.nodes):
        if not _out_of_place(traced, node):
            continue
        changed = node.args[0]
        if not isinstance(changed, fx.Node):
            raise UntraceableError(f"{node.format_node()} changes something that is not a traced tensor")
        for base in _bases(traced, changed):
            if any(order[user] > order[node] for user in base.users):
                raise UntraceableError(f"'{node.name}' changes a view of a tensor in place, which is read again later")
        # A later reader of the tensor sees the changed values.
        for user in [user for user in changed.users if order[user] > order[node]]:
            user.replace_input_with(changed, node)
    traced.recompile()


def _out_of_place(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Turns `node` into its out-of-place form if it works in place; whether it did."""
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
    """The tensors that `node` may share memory with, from itself upwards."""
    found: list[fx.Node] = []
    while node.args and isinstance(node.args[0], fx.Node):
        if node.op == "call_module":
            module = traced.get_submodule(str(node.target))
            shares = isinstance(module, nn.Identity | nn.Flatten | nn.Unflatten | nn.modules.dropout._DropoutNd)
        else:
            name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
            shares = name in _VIEWS or "dropout" in name
        if not shares:
            break
        node = node.args[0]
        found.append(node)
    return found


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn")


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
