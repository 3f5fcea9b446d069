"""Runtimes are measured in turns, and the summary of a comparison agrees with its numbers."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._inductor import config as inductor_config

import regrow
from regrow.cli import call
from regrow.engine.codegen.build import KernelLibrary, load_library
from regrow.engine.runtime.model import LayerTime, Profile
from regrow.models import build
from regrow.runs.recipe import UsageError
from regrow.timing import RuntimeComparison, _peak, bench, densities, fastest, prune_synthetically


@given(sizes=st.lists(st.integers(1, 10**7), min_size=1, max_size=30), sparsity=st.floats(0, 0.999))
def test_synthetic_densities_add_up_to_the_requested_sparsity(sizes: list[int], sparsity: float) -> None:
    fractions = densities(sizes, sparsity)
    kept = sum(size * fraction for size, fraction in zip(sizes, fractions, strict=True))
    assert kept == pytest.approx((1 - sparsity) * sum(sizes), rel=1e-6)
    assert all(0 < fraction <= 1 for fraction in fractions)
    by_size = [fraction for _, fraction in sorted(zip(sizes, fractions, strict=True))]
    # For equal sizes, the last bit may differ: vector and scalar instructions round differently.
    assert all(larger <= smaller * (1 + 1e-12) for smaller, larger in pairwise(by_size))


def test_a_network_is_pruned_to_the_requested_sparsity() -> None:
    model = build("resnet20")
    prune_synthetically(model, 0.9)
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    zeros = 1 - sum(int(w.count_nonzero()) for w in weights) / sum(w.numel() for w in weights)
    assert zeros == pytest.approx(0.9, abs=0.005)
    with pytest.raises(ValueError, match=r"in \[0, 1\), got 1.5"):
        prune_synthetically(model, 1.5)


def test_contenders_take_turns_and_the_least_time_of_each_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, clock = "", 0.0
    seconds = {"a": iter([9, 9, 9, 3, 9, 9, 9, 9, 9, 9, 9]), "b": iter([0.01, 0.01, 7, 7, 7, 7, 5, 7, 7, 7, 7])}

    def run(name: str) -> None:
        nonlocal calls, clock
        calls, clock = calls + name, clock + next(seconds[name])

    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    best = fastest({"a": lambda: run("a"), "b": lambda: run("b")}, 0)
    # After two runs of each, a turn has one run of a, which is slow, and three of b; there are three turns.
    assert calls == "aabb" + "abbb" + "bbba" + "abbb"
    assert best == {"a": 3, "b": 5}


MEASURED = RuntimeComparison(
    seconds={"regrow": 0.001, "torch": 0.009, "openvino": 0.004},
    left_out={"onnxruntime": "not installed", "inductor": "could not run: no C++ compiler"},
    batch=2,
    weights=1000,
    nonzeros=100,
    packed_bytes=500,
    profile=Profile((LayerTime("conv", "conv", 0.001, 10_000_000),)),
    peak=40e9,
)


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        (0.001, "Sparsity helps: the model is 4.0 times faster with 90.0% zeros"),
        (0.004, "equally fast for 90.0% zeros"),
        (0.008, "does not help"),
    ],
)
def test_the_verdict_compares_with_the_fastest_dense_runtime(seconds: float, sentence: str) -> None:
    verdict = replace(MEASURED, seconds={**MEASURED.seconds, "regrow": seconds}).verdict()
    assert sentence in verdict
    assert "openvino" in verdict


def test_a_comparison_shows_times_sizes_and_the_percentage_of_the_peak() -> None:
    text = str(MEASURED)
    assert [line.split() for line in text.splitlines()[:6]] == [
        ["ms", "images/s", "regrow", "is"],
        ["regrow", "1.000", "2,000"],
        ["openvino", "4.000", "500", "4.00x", "faster"],
        ["torch", "9.000", "222", "9.00x", "faster"],
        ["onnxruntime", "not", "installed"],
        ["inductor", "could", "not", "run:", "no", "C++", "compiler"],
    ]
    assert "12.5% of the dense weights' 4,000" in text
    assert "20.0 G/s: 50% of this machine's peak" in text
    # 10 M MACs in 1 ms are 10 GMAC/s, a quarter of 40e9.
    header, layer, _ = MEASURED.profile.table(MEASURED.peak).splitlines()
    assert header.endswith("GMAC/s  % of peak")
    assert layer.split() == ["conv", "conv", "1000.0", "10,000", "10.0", "25"]
    assert "install gcc or clang" in replace(MEASURED, peak=None).verdict()


def test_faster_and_slower_runtimes_are_distinguished() -> None:
    text = str(replace(MEASURED, seconds={**MEASURED.seconds, "regrow": 0.008}))
    assert "4.000        500     2.00x slower" in text
    assert "9.000        222     1.12x faster" in text


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [(0.001, "is 4.00x faster than"), (0.004, "is as fast as"), (0.008, "is 2.00x slower than")],
)
def test_a_dense_network_is_only_compared_by_speed(seconds: float, sentence: str) -> None:
    verdict = replace(MEASURED, nonzeros=1000, seconds={**MEASURED.seconds, "regrow": seconds}).verdict()
    assert verdict.startswith("The model is not pruned")
    assert f"the engine {sentence} the fastest dense runtime here, openvino" in verdict


@pytest.mark.parametrize(
    ("nonzeros", "named", "hinted"), [(1000, True, True), (1000, False, False), (100, True, False)]
)
def test_pruning_is_suggested_for_a_dense_network_given_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    nonzeros: int,
    named: bool,
    hinted: bool,
) -> None:
    measured = replace(MEASURED, nonzeros=nonzeros)
    monkeypatch.setattr("regrow.timing.bench", lambda *_, **__: measured)
    regrow.save(build("resnet8"), tmp_path / "model.regrow")
    assert call(["bench", "resnet8" if named else str(tmp_path / "model.regrow")]) == 0
    assert ("regrow bench resnet8 --sparsity 0.9" in capsys.readouterr().out) == hinted


def test_the_peak_is_a_rate() -> None:
    # Floats per second, of one core: at most four vectors in each of ten billion cycles, and more than Python does.
    library = load_library()
    assert 1e6 * library.lanes < library.peak() < 4 * 1e10 * library.lanes


def test_the_peak_grows_with_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelLibrary, "peak", lambda _: 3e9)
    assert [_peak(threads) for threads in (1, 2)] == [3e9, 6e9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet20", "--batch", "0"], "--batch must be at least 1"),
        (["resnt20"], "resnet20"),
        (["resnet20", "--sparsity", "90"], r"--sparsity must be in \[0, 1\), got 90. Did you mean 0.9\?"),
        (["resnet20", "--seconds", "0"], "--seconds must be more than 0"),
        (["resnet20", "--seconds", "inf"], "--seconds must be more than 0"),
    ],
)
def test_wrong_options_are_errors_before_anything_is_measured(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(["bench", *arguments])


@pytest.mark.parametrize("option", [["--sparsity", "0.5"], ["--classes", "10"], ["--channels", "3"], ["--size", "32"]])
def test_options_of_networks_given_by_name_are_refused_for_files(tmp_path: Path, option: list[str]) -> None:
    regrow.save(build("resnet8"), tmp_path / "model.regrow")
    with pytest.raises(UsageError, match=f"{option[0]} is for networks given by name"):
        call(["bench", str(tmp_path / "model.regrow"), *option])


@pytest.mark.filterwarnings("ignore:the sparse engine needs a C compiler:RuntimeWarning")
def test_without_a_compiler_the_verdict_names_one_and_inductor_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    for cache in ("TORCHINDUCTOR_CACHE_DIR", "REGROW_CACHE"):
        monkeypatch.setenv(cache, str(tmp_path))  # nothing that an earlier compiler has built
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(180, 4)).eval()
    with inductor_config.patch({"cpp.cxx": ("no-such-compiler",)}):
        found = bench(model, torch.randn(1, 3, 8, 8), seconds=0)
    assert "inductor      could not run: InvalidCxxCompiler" in str(found)
    assert "install gcc or clang" in found.verdict()
    assert {"regrow", "torch"} <= found.seconds.keys()


def test_without_onnx_its_runtimes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval()
    found = bench(model, torch.randn(1, 3, 2, 2), seconds=0)
    assert {"regrow", "torch"} <= found.seconds.keys()
    assert "onnx is not installed" in found.left_out["onnxruntime"]


@pytest.mark.slow
def test_a_sparse_network_is_compared_with_every_installed_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["bench", "resnet8", "--sparsity", "0.9", "--seconds", "1"]) == 0
    shown = capsys.readouterr().out
    for expected in (
        "layer1.0.conv1",
        "% of peak",
        "regrow",
        "torch",
        "inductor",
        "onnxruntime",
        "On disk",
        "Sparsity",
    ):
        assert expected in shown
    assert "could not run" not in shown
    model = build("resnet8").eval()
    heard: list[str] = []
    found = bench(model, torch.randn(2, 3, 32, 32), seconds=0.1, tell=heard.append)
    assert [stage.split()[0] for stage in heard] == ["tuning", "preparing", "measuring"]
    assert found.sparsity == 0
    assert found.batch == 2
