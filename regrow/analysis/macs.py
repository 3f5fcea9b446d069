"""Multiply-accumulates (MACs) of each weight in one forward pass."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from regrow.core.modules import evaluating

aten = torch.ops.aten

_CONVOLUTIONS = {aten.convolution, aten._convolution, aten.cudnn_convolution, aten.convolution_overrideable}
_RELUS = {aten.relu, aten.relu_, aten.hardtanh, aten.hardtanh_, aten.leaky_relu, aten.leaky_relu_}
_NORMS = {
    aten.native_batch_norm,
    aten.cudnn_batch_norm,
    aten.miopen_batch_norm,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_no_training,
    aten._batch_norm_no_update,
    aten.native_layer_norm,
    aten.native_group_norm,
}


@dataclass
class MacCounts:
    """Multiply-accumulates of one forward pass of the dense model."""

    macs: dict[str, int] = field(default_factory=dict)
    """For each parameter used in a product: every weight counts once for each output position it contributes to."""
    convolutions: set[str] = field(default_factory=set)
    """The parameters that are used in a convolution."""
    products: int = 0
    """MACs of products without a parameter, such as attention scores."""
    norm_elements: int = 0
    relu_elements: int = 0


def count_macs(model: nn.Module, parameters: Mapping[str, Tensor], *inputs: Tensor) -> MacCounts:
    """Run `model` once on `inputs`, in evaluation mode and without gradients, and count its MACs."""
    counter = _Counter(parameters, list(model.buffers()))
    with _plain_evaluation(model), counter:
        model(*inputs)
    return counter.counts


@contextmanager
def _plain_evaluation(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, without the fused kernels (recurrence, attention) that would hide products."""
    backends: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
    fused = [(backend, backend.enabled) for backend in backends]
    fast_attention = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for backend, _ in fused:
            backend.enabled = False
        with evaluating(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_attention)
        for backend, enabled in fused:
            backend.enabled = enabled


class _Counter(TorchDispatchMode):
    """Counts tensor operations below the Python API, so that functional calls count like modules."""

    def __init__(self, parameters: Mapping[str, Tensor], buffers: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.counts = MacCounts()
        self._owners: dict[int, list[tuple[int, str]]] = {}
        self._kept_alive: list[Tensor] = []
        # Storages that do not depend on the input, to follow weights that the forward pass computes.
        self._fixed = {tensor.untyped_storage()._cdata for tensor in (*parameters.values(), *buffers)}
        for name, parameter in parameters.items():
            if parameter.dim() > 1:
                self._own(parameter, name)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        operation = func.overloadpacket
        if formula := flop_registry.get(operation):
            self._count_product(operation, formula, args, kwargs, result)
        elif self._is_fixed(args):
            self._follow(args, result)
        elif operation in _NORMS:
            self.counts.norm_elements += result[0].numel()
        elif operation in _RELUS:
            self.counts.relu_elements += result.numel()
        return result

    def _count_product(self, operation: Any, formula: Callable[..., int], args: Any, kwargs: Any, result: Any) -> None:
        macs = formula(*args, **kwargs, out_val=result) // 2
        operands = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        owners = [name for operand in operands if (name := self._owner(operand)) is not None]
        if not owners:
            self.counts.products += macs
            return
        owner = owners[-1]  # the weight comes after the input, which can be a parameter, too
        self.counts.macs[owner] = self.counts.macs.get(owner, 0) + macs
        if operation in _CONVOLUTIONS:
            self.counts.convolutions.add(owner)

    def _own(self, tensor: Tensor, name: str) -> None:
        spans = self._owners.setdefault(tensor.untyped_storage()._cdata, [])
        spans.append((int(tensor.storage_offset()), name))
        spans.sort()

    def _owner(self, tensor: Tensor) -> str | None:
        # A view has the storage of its parameter. Of parameters that share it, the last one that starts before the view
        # is its owner.
        spans = self._owners.get(tensor.untyped_storage()._cdata, [])
        position = bisect_right([offset for offset, _ in spans], int(tensor.storage_offset()))
        return spans[position - 1][1] if position else None

    def _is_fixed(self, args: tuple[Any, ...]) -> bool:
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        return bool(tensors) and all(tensor.untyped_storage()._cdata in self._fixed for tensor in tensors)

    def _follow(self, args: tuple[Any, ...], results: Any) -> None:
        """Treat a tensor computed only from weights, such as a standardized weight, as the largest of these weights."""
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        owned = [tensor for tensor in tensors if self._owner(tensor) is not None]
        largest = max(owned, key=Tensor.numel, default=None)
        for result in tree_leaves(results):
            if not isinstance(result, Tensor) or result.untyped_storage()._cdata in self._fixed:
                continue
            self._fixed.add(result.untyped_storage()._cdata)
            self._kept_alive.append(result)
            if largest is not None and (name := self._owner(largest)) is not None:
                self._own(result, name)
