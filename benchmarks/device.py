"""Work of an accelerator in a step and in a mask update: launches, host syncs, bytes copied to the host.

Nothing is timed: the code path for accelerators runs on CPU tensors, and a dispatch mode counts its operations.
A launch is a dispatched operation that computes; a foreach operation counts once, views and allocations do not count.
A sync is an operation whose result the host waits for: `item`, `nonzero`, boolean indexing, `bincount`, or a copy to
the host.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import regrow
from benchmarks.runner import RESULTS, machine, table
from regrow.core.bits import device_path
from regrow.core.pruner import Pruner
from regrow.core.targets import find_targets
from regrow.methods.registry import METHODS, find_method
from regrow.models import build

SYNCS = ("_local_scalar_dense", "nonzero", "bincount", "masked_select", "unique_dim", "_unique2", "equal")
_STEPS = 3  # the second one of a training, with a mask update, the third one, and the fourth, where a phase begins
FREE = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "lift_fresh", "set_")


@dataclass
class Counts:
    """Operations that a device would have to do."""

    launches: int = 0
    syncs: int = 0
    host_bytes: int = 0
    transient_bytes: int = 0
    """Peak memory above the memory in use at the start."""

    def recorded(self) -> dict[str, int]:
        """Return the counts without the memory, which depends on when Python frees tensors."""
        return {name: value for name, value in asdict(self).items() if name != "transient_bytes"}


class Counting(TorchDispatchMode):
    """Counts the operations on tensors that stand for those of an accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.names = Counts(), list[str]()
        self._storages: set[int] = set()
        self._used = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation and run it."""
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = operation(*args, **(kwargs or {}))
        name = operation.overloadpacket.__name__
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self._track(given, made)
        if name not in FREE and not operation.is_view and (given or made):
            self.counts.launches += 1
            self.names.append(name)
        if name in SYNCS or (name in ("index", "index_put_") and any(t.dtype is torch.bool for t in given[1:])):
            self.counts.syncs += 1
            self.counts.host_bytes += given[0].itemsize if name == "_local_scalar_dense" else 0
        return result

    def host_copy(self, tensor: Tensor) -> None:
        """Count a copy to the host."""
        self.counts.syncs += 1
        self.counts.host_bytes += tensor.nbytes

    def _track(self, given: list[Tensor], made: list[Tensor]) -> None:
        old = {tensor.untyped_storage().data_ptr() for tensor in given}
        for tensor in made:
            storage = tensor.untyped_storage()
            if (address := storage.data_ptr()) not in old and address not in self._storages and storage.nbytes():
                self._storages.add(address)
                self._used += storage.nbytes()
                finalize(storage, self._free, address, storage.nbytes())
        self.counts.transient_bytes = max(self.counts.transient_bytes, self._used)

    def _free(self, address: int, size: int) -> None:
        self._storages.discard(address)
        self._used -= size


@contextmanager
def counted() -> Iterator[Counts]:
    """Count the operations of a device inside a `with` block.

    `tolist()` and `numpy()` of a CPU tensor are not dispatched operations, so they are counted where they are called.
    """
    mode, to_list, to_numpy, to_cpu = Counting(), Tensor.tolist, Tensor.numpy, Tensor.cpu

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            mode.host_copy(tensor)
            with torch.utils._python_dispatch._disable_current_modes():
                return function(tensor, *args, **kwargs)

        return call

    Tensor.tolist, Tensor.numpy, Tensor.cpu = counting(to_list), counting(to_numpy), counting(to_cpu)  # type: ignore[method-assign]
    try:
        with mode:
            yield mode.counts
    finally:
        Tensor.tolist, Tensor.numpy, Tensor.cpu = to_list, to_numpy, to_cpu  # type: ignore[method-assign]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer whose fused step is one launch.

    The weights are rounded and stay so: there are ties at every threshold, which is the case with the most launches.
    """
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data.bfloat16())
        parameter.grad = torch.zeros_like(parameter)
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)


def count_steps(model: nn.Module, method: type[Pruner], **options: Any) -> dict[str, Counts]:
    """Return the counts of the first step without and of the first with a mask update, if there are such steps."""
    model, found = copy.deepcopy(model), {}
    optimizer = sgd(model)
    with device_path():
        pruner = method(model, optimizer, **options)
        optimizer.step()  # the momentum exists
        for _ in range(_STEPS):
            updates = pruner.updates
            with counted() as counts:
                optimizer.step()
            found.setdefault("refresh" if pruner.updates > updates else "step", counts)
        pruner.detach()
    return found


def measure(model: nn.Module, method: type[Pruner] = regrow.DPF, **options: Any) -> dict[str, Counts]:
    """Return the counts that steps without and with a mask update add to a plain step."""
    bare = copy.deepcopy(model)
    optimizer = sgd(bare)
    optimizer.step()
    with counted() as plain:
        optimizer.step()
    known = inspect.signature(method).parameters
    usual = {"sparsity": 0.9, "every": 2, "total_steps": 40, "at": 2, "compressor": "sign"}
    if "masks" in known:
        options["masks"] = {name: p.detach() > 0 for name, p in model.named_parameters() if p.ndim > 1}
    if method is regrow.DSD:
        usual["switches"] = (0.075, 0.75)
    options = {name: value for name, value in usual.items() if name in known} | options
    return {kind: added(counts, plain) for kind, counts in count_steps(model, method, **options).items()}


def added(counts: Counts, plain: Counts) -> Counts:
    """Return the counts that a pruner adds to a plain step."""
    return Counts(
        counts.launches - plain.launches,
        counts.syncs - plain.syncs,
        counts.host_bytes - plain.host_bytes,
        max(counts.transient_bytes - plain.transient_bytes, 0),
    )


def main() -> None:
    """Count for DPF on ResNet-50 and for every method on ResNet-20, and write `results/benchmarks/device.json`."""
    model = build("resnet50", size=224)
    targeted = sum(target.param.nbytes for target in find_targets(model))
    scopes = {scope: measure(model, scope=scope) for scope in ("global", "layer")}
    small = build("resnet20")
    methods = {name: measure(small, find_method(name)) for name in METHODS}
    fractions = {scope: round(kinds["refresh"].transient_bytes / targeted, 3) for scope, kinds in scopes.items()}
    print(
        table(
            [
                {"counted": f"{name}, {kind}", **c.recorded()}
                for name, kinds in (scopes | methods).items()
                for kind, c in kinds.items()
            ]
        )
    )
    print(f"memory of a refresh, as a fraction of the weights: {fractions}")
    result = {
        "title": "Launches, host syncs and bytes copied to the host that a pruner adds to an optimizer step",
        "command": "python -m benchmarks.device",
        "date": date.today().isoformat(),
        "machine": machine(),
        "resnet50": _recorded(scopes),
        "transient_share": fractions,
        "methods": _recorded(methods),
        "network of the methods": "resnet20",
    }
    path = RESULTS / "device.json"
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _recorded(counts: dict[str, dict[str, Counts]]) -> dict[str, dict[str, dict[str, int]]]:
    return {name: {kind: each.recorded() for kind, each in kinds.items()} for name, kinds in counts.items()}


if __name__ == "__main__":
    main()
