"""Times a model in the engine and in other runtimes, in turns, and says whether its sparsity makes it faster."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regrow.core.modules import inference, prepared
from regrow.engine.codegen.build import NoCompilerError, load_library
from regrow.engine.compiler import compile
from regrow.engine.runtime.model import Profile
from regrow.files.packed import save

Run = Callable[[], object]
Clock = Literal["perf_counter", "process_time"]

ENGINE = "regrow"

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


@dataclass(frozen=True)
class RuntimeComparison:
    """The minimum seconds for a batch in each runtime, and facts about the model."""

    seconds: dict[str, float]
    left_out: Mapping[str, str]  # runtimes that were not measured, with the reason
    batch: int
    weights: int
    nonzeros: int
    packed_bytes: int
    profile: Profile
    peak: float | None  # of all threads, in multiply-accumulates per second

    @property
    def sparsity(self) -> float:
        """Fraction of weights that are zero."""
        return 1 - self.nonzeros / self.weights if self.weights else 0.0

    @property
    def pruned(self) -> bool:
        """Whether the model is pruned: every trained network has a few zeros."""
        return self.sparsity >= 0.0005

    @property
    def best_dense(self) -> str:
        """The fastest runtime that does not skip zeros."""
        return min((name for name in self.seconds if name != ENGINE), key=self.seconds.__getitem__)

    @property
    def gain(self) -> float:
        """How many times faster the engine is than the best dense runtime."""
        return self.seconds[self.best_dense] / self.seconds[ENGINE]

    def __str__(self) -> str:
        return f"{self._times()}\n\n{self._size()}\n\n{self.verdict()}"

    def _times(self) -> str:
        rows = [f"{'':12}  {'ms':>9}  {'images/s':>9}  {'regrow is':>14}"]
        for name, seconds in sorted(self.seconds.items(), key=lambda item: item[1]):
            row = f"{name:12}  {seconds * 1e3:9.3f}  {self.batch / seconds:9,.0f}"
            rows.append(row if name == ENGINE else f"{row}  {_times_faster(seconds / self.seconds[ENGINE])}")
        rows += [f"{name:12}  {why}" for name, why in self.left_out.items()]
        return "\n".join(rows)

    def _size(self) -> str:
        dense = 4 * self.weights
        fraction = self.packed_bytes / dense if dense else 0.0
        size = f"On disk, packed: {self.packed_bytes:,} bytes, {fraction:.1%} of the dense weights' {dense:,}."
        speed = self.profile.macs * self.batch / self.seconds[ENGINE]
        millions = self.profile.macs / 1e6
        count = f"{millions:,.1f}" if millions >= 1 else f"{millions:.3f}"
        work = f"Multiply-accumulates with non-zero weights: {count} M per image"
        if self.peak is None:
            return f"{size}\n{work}."
        return f"{size}\n{work}, {speed / 1e9:.1f} G/s: {speed / self.peak:.0%} of this machine's peak."

    def verdict(self) -> str:
        """Say in one sentence whether sparsity makes this model faster on this machine."""
        rival = f"{self.sparsity:.1%} zeros against the fastest dense runtime here, {self.best_dense}"
        if self.peak is None:
            return "Without a C compiler, the engine uses torch and does not skip zeros: install gcc or clang."
        if not self.pruned:
            dense = f"the fastest dense runtime here, {self.best_dense}"
            return f"The model is not pruned: {_as_fast(self.gain)} {dense}."
        if self.gain > 1.05:
            return f"Sparsity helps: the model is {self.gain:.1f} times faster with {rival}."
        if self.gain > 0.95:
            return f"Sparsity makes no difference to speed: equally fast for {rival}."
        return (
            f"Sparsity does not help: dense is {1 / self.gain:.1f} times faster ({rival}). Prune more, or run it dense."
        )


def _times_faster(ratio: float) -> str:
    return f"{ratio:7.2f}x faster" if ratio >= 1 else f"{1 / ratio:7.2f}x slower"


def _as_fast(gain: float) -> str:
    if 0.95 < gain <= 1.05:
        return "the engine is as fast as"
    return f"the engine is {_times_faster(gain).strip()} than"


def bench(
    model: nn.Module,
    x: Tensor,
    *,
    threads: int = 1,
    seconds: float = 10.0,
    tell: Callable[[str], None] = lambda stage: None,
) -> RuntimeComparison:
    """Time `model` on the batch `x` in every installed runtime, in turns, for about `seconds` in total.

    Every runtime has `threads` threads; `torch.set_num_threads` is restored afterwards. `tell` is called with the name
    of each stage, to show progress.

    >>> print(regrow.bench(model, torch.randn(1, 3, 32, 32)))  # doctest: +SKIP
    """
    model, x = prepared(model, x)
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as temporary, inference(model):
            folder = Path(temporary)
            tell("tuning the engine (once for each model)")
            compiled = compile(model, x[:1], threads=threads)
            tell("preparing the other runtimes")
            as_onnx = cache(partial(to_plain_onnx, model, x, folder / "model.onnx"))
            found, left_out = dense_runtimes(model, x, as_onnx, threads=threads)
            save(model, folder / "model.regrow")
            tell(f"measuring for {seconds:g} seconds")
            return RuntimeComparison(
                seconds=fastest({ENGINE: partial(compiled, x), **found}, seconds),
                left_out=left_out,
                batch=len(x),
                weights=sum(weight.numel() for weight in weights),
                nonzeros=sum(int(weight.count_nonzero()) for weight in weights),
                packed_bytes=(folder / "model.regrow").stat().st_size,
                profile=compiled.profile(),
                peak=_peak(threads),
            )
    finally:
        torch.set_num_threads(before)


def _peak(threads: int) -> float | None:
    """Return the peak multiply-accumulates per second of `threads` threads; None without a C compiler."""
    try:
        return threads * load_library().peak()
    except NoCompilerError:
        return None
