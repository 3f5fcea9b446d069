"""Compare the engine with other runtimes on one model, and say whether its sparsity makes it faster."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from regrow.core.modules import inference, prepared
from regrow.engine.codegen.build import NoCompilerError, load_library
from regrow.engine.compiler import compile
from regrow.engine.runtime.model import Profile
from regrow.files.packed import save
from regrow.timing.runtimes import dense_runtimes, fastest, to_plain_onnx

ENGINE = "regrow"


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
            return f"Sparsity pays: the model is {self.gain:.1f} times faster with {rival}."
        if self.gain > 0.95:
            return f"Sparsity makes no difference to speed: equally fast for {rival}."
        return (
            f"Sparsity does not pay: dense is {1 / self.gain:.1f} times faster ({rival}). Prune more, or run it dense."
        )


def _times_faster(ratio: float) -> str:
    return f"{ratio:7.2f}x faster" if ratio >= 1 else f"{1 / ratio:7.2f}x slower"


def _as_fast(gain: float) -> str:
    if 0.95 < gain <= 1.05:
        return "the engine is as fast as"
    return f"the engine is {_times_faster(gain).strip()} than"


def compare(
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
