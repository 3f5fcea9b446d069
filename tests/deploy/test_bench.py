"""What is measured side by side is measured fairly, and what is said about it is what was measured."""

from __future__ import annotations

import sys
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
from regrow.commands.table import call
from regrow.deploy.bench.compare import Comparison, _peak, compare
from regrow.deploy.bench.deepsparse import DeepSparse
from regrow.deploy.bench.synthetic import densities, prune_synthetically
from regrow.deploy.bench.turns import fastest
from regrow.engine.codegen.build import KernelLibrary, load_library
from regrow.engine.runtime.model import LayerTime, Profile
from regrow.models import build
from regrow.train.config import RecipeError


@given(sizes=st.lists(st.integers(1, 10**7), min_size=1, max_size=30), sparsity=st.floats(0, 0.999))
def test_synthetic_densities_keep_the_share_that_was_asked_for(sizes: list[int], sparsity: float) -> None:
    shares = densities(sizes, sparsity)
    kept = sum(size * share for size, share in zip(sizes, shares, strict=True))
    assert kept == pytest.approx((1 - sparsity) * sum(sizes), rel=1e-6)
    assert all(0 < share <= 1 for share in shares)
    by_size = [share for _, share in sorted(zip(sizes, shares, strict=True))]
    # Of equal sizes, shares may differ by their last bit: vectors and what is left of them are not computed alike.
    assert all(larger <= smaller * (1 + 1e-12) for smaller, larger in pairwise(by_size))


def test_a_network_is_pruned_as_far_as_asked_for() -> None:
    model = build("resnet20")
    prune_synthetically(model, 0.9)
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    zeros = 1 - sum(int(w.count_nonzero()) for w in weights) / sum(w.numel() for w in weights)
    assert zeros == pytest.approx(0.9, abs=0.005)
    with pytest.raises(ValueError, match=r"in \[0, 1\), got 1.5"):
        prune_synthetically(model, 1.5)


def test_contenders_take_turns_and_each_one_runs_often_enough() -> None:
    calls: list[str] = []
    best = fastest({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 0)
    assert set(best) == {"a", "b"}
    assert all(0 < seconds < 1 for seconds in best.values())
    turns = [name for name, before in zip(calls, [None, *calls], strict=False) if name != before]
    assert calls.count("a") >= 9
    assert len(turns) >= 5


def test_an_environment_without_deepsparse_is_answered(tmp_path: Path) -> None:
    rival = DeepSparse(sys.executable, tmp_path / "net.onnx", torch.zeros(1))
    with rival, pytest.raises(ValueError, match="No module named 'deepsparse'"):
        rival.burst(1, "perf_counter")
    with pytest.raises(ValueError, match="can be started"):
        DeepSparse(str(tmp_path / "python"), tmp_path / "net.onnx", torch.zeros(1))


MEASURED = Comparison(
    seconds={"regrow": 0.001, "torch": 0.009, "openvino": 0.004, "deepsparse": 0.002},
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
        (0.001, "Sparsity pays: the model is 4.0 times faster with 90.0% zeros"),
        (0.004, "a draw"),
        (0.008, "does not pay"),
    ],
)
def test_the_verdict_compares_with_the_fastest_dense_runtime(seconds: float, sentence: str) -> None:
    verdict = replace(MEASURED, seconds={**MEASURED.seconds, "regrow": seconds}).verdict()
    assert sentence in verdict
    assert "openvino" in verdict


def test_a_comparison_shows_times_sizes_and_the_share_of_the_peak() -> None:
    text = str(MEASURED)
    assert "2,000     4.00x faster" not in text.splitlines()[1]
    assert "500     4.00x faster" in text
    assert "1,000     2.00x faster" in text
    assert "onnxruntime   not installed" in text
    assert "inductor      could not run: no C++ compiler" in text
    assert "12.5% of the dense weights' 4,000" in text
    assert "20.0 G/s: 50% of this machine's peak" in text
    assert "25" in MEASURED.profile.table(MEASURED.peak).splitlines()[1]
    assert "install gcc or clang" in replace(MEASURED, peak=None).verdict()


def test_a_runtime_that_is_faster_is_not_said_to_be_slower() -> None:
    text = str(replace(MEASURED, seconds={**MEASURED.seconds, "regrow": 0.008}))
    assert "4.000        500     2.00x slower" in text
    assert "9.000        222     1.12x faster" in text


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [(0.001, "is 4.00x faster than"), (0.004, "is as fast as"), (0.008, "is 2.00x slower than")],
)
def test_a_dense_network_gets_no_verdict_on_sparsity(seconds: float, sentence: str) -> None:
    verdict = replace(MEASURED, nonzeros=1000, seconds={**MEASURED.seconds, "regrow": seconds}).verdict()
    assert verdict.startswith("Nothing is pruned")
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
    monkeypatch.setattr("regrow.deploy.bench.compare.compare", lambda *_, **__: measured)
    regrow.save(build("resnet8"), tmp_path / "model.regrow")
    assert call(["bench", "resnet8" if named else str(tmp_path / "model.regrow")]) == 0
    assert ("regrow bench resnet8 --sparsity 0.9" in capsys.readouterr().out) == hinted


def test_the_peak_is_more_than_a_convolution_reaches() -> None:
    model = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)).eval()
    compiled = regrow.compile(model, torch.randn(1, 32, 32, 32), tune=False)
    # In turns: a machine that is slower for a while is so for both.
    measured = [
        (load_library().peak(), max(layer.gmacs_per_second for layer in compiled.profile().layers)) for _ in range(3)
    ]
    peak, reached = (max(values) for values in zip(*measured, strict=True))
    assert 0.05 * peak < 1e9 * reached < peak


def test_two_threads_can_do_twice_as_much_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelLibrary, "peak", lambda _: 3e9)
    assert [_peak(threads) for threads in (1, 2)] == [3e9, 6e9]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet20", "--batch", "0"], "--batch must be at least 1"),
        (["resnet20", "--against", "deepsparse"], "go together"),
        (["resnet20", "--against", "deepsparse", "--environment", "nowhere"], "no virtual environment"),
        (["resnt20"], "resnet20"),
        (["resnet20", "--sparsity", "90"], r"--sparsity must be in \[0, 1\), got 90. Did you mean 0.9\?"),
        (["resnet20", "--seconds", "0"], "--seconds must be more than 0"),
        (["resnet20", "--seconds", "inf"], "--seconds must be more than 0"),
    ],
)
def test_wrong_options_are_answered_before_anything_is_measured(arguments: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        call(["bench", *arguments])


@pytest.mark.parametrize("option", [["--sparsity", "0.5"], ["--classes", "10"], ["--channels", "3"], ["--size", "32"]])
def test_options_of_networks_given_by_name_are_refused_for_files(tmp_path: Path, option: list[str]) -> None:
    regrow.save(build("resnet8"), tmp_path / "model.regrow")
    with pytest.raises(RecipeError, match=f"{option[0]} is for networks given by name"):
        call(["bench", str(tmp_path / "model.regrow"), *option])


@pytest.mark.filterwarnings("ignore:the sparse engine needs a C compiler:RuntimeWarning")
def test_without_a_compiler_the_verdict_says_so_and_inductor_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    for cache in ("TORCHINDUCTOR_CACHE_DIR", "REGROW_CACHE"):
        monkeypatch.setenv(cache, str(tmp_path))  # nothing that an earlier compiler has built
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(180, 4)).eval()
    with inductor_config.patch({"cpp.cxx": ("no-such-compiler",)}):
        found = compare(model, torch.randn(1, 3, 8, 8), seconds=0)
    assert "inductor      could not run: InvalidCxxCompiler" in str(found)
    assert "install gcc or clang" in found.verdict()
    assert {"regrow", "torch"} <= found.seconds.keys()


def test_a_rival_that_cannot_run_is_left_out(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval()
    found = compare(model, torch.randn(1, 3, 2, 2), seconds=0, deepsparse=sys.executable)
    assert "No module named 'deepsparse'" in found.left_out["deepsparse"]
    assert "deepsparse" not in found.seconds


def test_without_onnx_its_runtimes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4)).eval()
    found = compare(model, torch.randn(1, 3, 2, 2), seconds=0, deepsparse=sys.executable)
    assert {"regrow", "torch"} <= found.seconds.keys()
    for name in ("onnxruntime", "deepsparse"):
        assert "onnx is not installed" in found.left_out[name]


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
    found = compare(model, torch.randn(2, 3, 32, 32), seconds=0.1, tell=heard.append)
    assert [stage.split()[0] for stage in heard] == ["tuning", "preparing", "measuring"]
    assert found.sparsity == 0
    assert found.batch == 2
