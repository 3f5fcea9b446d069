"""`regrow selftest`: compare a device with the CPU, and measure what a pruner costs on it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from regrow.runs.recipe import UsageError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

_CHOICES: dict[str, dict[str, Any]] = {
    "global": {"sparsity": 0.9},
    "layer": {"sparsity": 0.9, "scope": "layer"},
    "erk": {"sparsity": 0.9, "scope": "erk"},
    "floor": {"sparsity": 0.9, "floor": 2},
    "2:4": {"sparsity": 0.5, "unit": "2:4"},
}
_DTYPES = ("float32", "bfloat16", "float16", "float64")


def selftest(*, device: Literal["cuda", "mps", "cpu"] = "cuda", network: str = "resnet50", steps: int = 20) -> int:
    """Check that a device selects the masks of the CPU, and measure time and memory. Paste the output into an issue.

    Args:
        device: The accelerator. With cpu, the code for accelerators runs on the CPU: it checks masks, and its timings
            say nothing about a GPU.
        network: The network that is timed.
        steps: Steps of which the fastest is shown.
    """
    import torch

    from regrow.core.bits import device_path
    from regrow.models import build
    from regrow.system import environment

    _check(device, steps)
    facts = environment()
    place = torch.device(device)
    name = torch.cuda.get_device_name() if device == "cuda" else device
    print(f"regrow {facts['versions']['regrow']}, torch {torch.__version__}, {name}\n")
    on_device: Callable[[], AbstractContextManager[None]] = device_path if device == "cpu" else nullcontext
    torch.manual_seed(0)
    wrong = 0
    print(f"{'masks':<10}{''.join(f'{dtype:>11}' for dtype in _DTYPES)}")
    small = build("resnet20")
    for label, options in _CHOICES.items():
        found = [_compare(small, getattr(torch, dtype), place, on_device, options) for dtype in _DTYPES]
        wrong += sum(each not in ("equal", "-") for each in found)
        print(f"{label:<10}{''.join(f'{each:>11}' for each in found)}")
    print(f"\n{network}, float32{'ms':>15}{'peak MB':>10}")
    with on_device():
        for label, milliseconds, memory in _measure(build(network), place, steps):
            print(f"{label:<20}{milliseconds:>11.2f}{'-' if memory is None else f'{memory / 1e6:.0f}':>10}")
    print(f"\n{'all masks are those of the CPU' if not wrong else f'{wrong} comparisons FAILED'}")
    return 1 if wrong else 0


def _check(device: str, steps: int) -> None:
    import torch

    available: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
    }
    if device in available and not available[device]():
        others = [name for name, is_there in available.items() if is_there()]
        raise UsageError(f"device {device!r} is not available on this machine: use --device {(*others, 'cpu')[0]}")
    if steps < 1:
        raise UsageError(f"--steps must be at least 1, got {steps}")


def _compare(
    model: nn.Module,
    dtype: torch.dtype,
    place: torch.device,
    on_device: Callable[[], AbstractContextManager[None]],
    options: dict[str, Any],
) -> str:
    """Return whether masks and pruned weights are equal on both; "-" if the device does not have the dtype."""
    import torch

    if place.type == "mps" and dtype is torch.float64:
        return "-"
    # Weights that were rounded to 8 bits tie at the threshold.
    expected = _pruned(copy.deepcopy(model).bfloat16().to(dtype), options)
    with on_device():
        found = _pruned(copy.deepcopy(model).bfloat16().to(place, dtype), options)
    same = all(torch.equal(found[name].cpu(), tensor) for name, tensor in expected.items())
    return "equal" if same and found.keys() == expected.keys() else "DIFFERENT"


def _pruned(model: nn.Module, options: dict[str, Any]) -> dict[str, Tensor]:
    """Return the masks and the weights after two mask updates, with gradients that make pruned weights grow back."""
    import torch

    import regrow

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    pruner = regrow.DPF(model, optimizer, every=1, **options)
    for parameter in model.parameters():
        values = torch.arange(parameter.numel(), dtype=torch.float32, device="cpu").remainder_(13).mul_(2**-8)
        parameter.grad = values.view(parameter.shape).to(parameter)
    optimizer.step()
    masks = {f"{name} mask": mask for name, mask in pruner.masks.items()}
    return masks | {name: parameter.detach() for name, parameter in model.named_parameters()}


def _measure(model: nn.Module, place: torch.device, steps: int) -> Iterator[tuple[str, float, int | None]]:
    """Yield what was measured, the milliseconds of the fastest step, and the most memory that a step needs."""
    import torch

    import regrow

    plans: dict[str, dict[str, Any] | None] = {
        "plain step": None,
        "step": {"every": 10**9},
        "mask update, global": {"every": 1},
        "mask update, layer": {"every": 1, "scope": "layer"},
    }
    for label, options in plans.items():
        copied = copy.deepcopy(model).to(place)
        optimizer = torch.optim.SGD(copied.parameters(), lr=1e-3, momentum=0.9)
        for parameter in copied.parameters():
            parameter.grad = torch.randn_like(parameter).mul_(1e-3)
        if options is not None:
            regrow.DPF(copied, optimizer, sparsity=0.9, **options)
        optimizer.step()  # the momentum exists
        best, memory = float("inf"), None
        if place.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            memory = -torch.cuda.memory_allocated()
        for _ in range(steps):
            _wait(place)
            start = time.perf_counter()
            optimizer.step()
            _wait(place)
            best = min(best, time.perf_counter() - start)
        if memory is not None:
            memory += torch.cuda.max_memory_allocated()
        yield label, 1e3 * best, memory


def _wait(place: torch.device) -> None:
    import torch

    if place.type == "cuda":
        torch.cuda.synchronize()
    elif place.type == "mps":
        torch.mps.synchronize()
