"""Runtimes that can run a model, a timer that gives them turns, and synthetic masks for measurements."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Run = Callable[[], object]
Clock = Literal["perf_counter", "process_time"]

PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino"}
"""Runtimes that are separate packages, and the names to install them by."""

BURST = 0.02
"""Seconds that a contender runs in each turn, so that its data is in the caches."""

EXPONENT = -0.3
"""A synthetic mask keeps a fraction proportional to n^-0.3 of the weights of a layer of n weights."""


@runtime_checkable
class SelfTimed(Protocol):
    """A contender that measures its own runs, such as one in another process."""

    def burst(self, times: int, clock: Clock) -> float:
        """Return the minimum seconds of `times` runs by a clock of the module `time`."""


Contender = Run | SelfTimed


def dense_runtimes(
    model: nn.Module, x: Tensor, as_onnx: Callable[[], Path], *, threads: int = 1
) -> tuple[dict[str, Run], dict[str, str]]:
    """Return the runtimes that can run the model on `threads` threads, and the reason for each of the others.

    `as_onnx` returns the path of the model as an ONNX file (see `to_plain_onnx`). torch and inductor use
    `torch.set_num_threads`.
    """
    make: dict[str, Callable[[], Run]] = {
        "inductor": lambda: inductor(model, x),
        "onnxruntime": lambda: onnx_runtime(as_onnx(), x, threads),
        "openvino": lambda: openvino(as_onnx(), x, threads),
    }
    found: dict[str, Run] = {"torch": eager(model, x)}
    left_out: dict[str, str] = {}
    for name, start in make.items():
        if name in PACKAGES and find_spec(PACKAGES[name]) is None:
            left_out[name] = "not installed"
            continue
        try:
            run = start()
            run()  # inductor compiles in the first run
        except Exception as error:  # of any type: the other runtimes can still be measured
            left_out[name] = could_not_run(error)
        else:
            found[name] = run
    return found, left_out


def could_not_run(error: Exception) -> str:
    """Return in one line why a runtime is left out."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"could not run: {lines[0]}"


def to_plain_onnx(model: nn.Module, x: Tensor, path: Path) -> Path:
    """Write `model` for the batch size of `x` in ONNX opset 13, which all runtimes can read."""
    with warnings.catch_warnings(), redirect_stdout(None):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), str(path), opset_version=13, dynamo=False)
    return path


def eager(model: Callable[[Tensor], object], x: Tensor) -> Run:
    """Run `model` in PyTorch."""

    def run() -> object:
        with torch.inference_mode():
            return model(x)

    return run


def inductor(model: nn.Module, x: Tensor) -> Run:
    """Run `model` with `torch.compile` and frozen weights."""
    torch.compiler.reset()
    return eager(torch.compile(model, options={"freezing": True}), x)


def onnx_runtime(path: Path, x: Tensor, threads: int) -> Run:
    """Run an ONNX file in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)


def openvino(path: Path, x: Tensor, threads: int) -> Run:
    """Run an ONNX file in OpenVINO, in float32 like the others."""
    import openvino

    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    core = openvino.Core()
    request = core.compile_model(core.read_model(path), "CPU", options).create_infer_request()
    feed = {0: x.numpy()}
    return lambda: request.infer(feed)


def fastest(contenders: Mapping[str, Contender], seconds: float, *, clock: Clock = "perf_counter") -> dict[str, float]:
    """Return the minimum time of one run of each contender, measured in turns.

    Takes about `seconds` in total, and at least three turns. Turns make a busy machine or a slower clock affect all
    contenders alike. With the clock "process_time", for contenders with one thread, waiting for a CPU does not count.
    """
    times = {name: _repetitions(burst(contender, 2, clock)) for name, contender in contenders.items()}
    best = dict.fromkeys(contenders, float("inf"))
    deadline, turns = time.monotonic() + seconds, 0
    while turns < 3 or time.monotonic() < deadline:
        for name in list(contenders)[:: -1 if turns % 2 else 1]:
            best[name] = min(best[name], burst(contenders[name], times[name], clock))
        turns += 1
    return best


def _repetitions(seconds: float) -> int:
    """Return the number of runs in a turn: at least three, unless a run takes long."""
    return min(50, max(3 if seconds < 0.2 else 1, int(BURST / seconds)))


def burst(contender: Contender, times: int, clock: Clock) -> float:
    """Return the minimum seconds of `times` consecutive runs."""
    if isinstance(contender, SelfTimed):
        return contender.burst(times, clock)
    now: Callable[[], float] = getattr(time, clock)
    best = float("inf")
    for _ in range(times):
        start = now()
        contender()
        best = min(best, now() - start)
    return best


def prune_synthetically(model: nn.Module, sparsity: float, *, seed: int = 0) -> None:
    """Set a fraction `sparsity` of the weights of `model` to zero, in place and at random positions.

    Large layers get more zeros than small ones, as in trained networks.
    """
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must be in [0, 1), got {sparsity}")
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight, density in zip(weights, densities([weight.numel() for weight in weights], sparsity), strict=True):
            weight.mul_(torch.rand(weight.shape, generator=generator) < density)


def densities(sizes: list[int], sparsity: float) -> list[float]:
    """Return the fraction of weights that each layer keeps, so that a fraction `sparsity` of all weights is zero."""
    numbers: Tensor = torch.tensor(sizes, dtype=torch.float64)
    low, high = 0.0, float(numbers.max()) ** -EXPONENT
    for _ in range(60):
        middle = (low + high) / 2
        kept = ((middle * numbers**EXPONENT).clamp(max=1) * numbers).sum()
        low, high = (low, middle) if kept > (1 - sparsity) * numbers.sum() else (middle, high)
    kept_fractions: list[float] = (high * numbers**EXPONENT).clamp(max=1).tolist()
    return kept_fractions
