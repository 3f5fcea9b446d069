"""Speed of sparse models: the engine, dense runtimes and DeepSparse on the same weights.

    python -m benchmarks.engine --parts tuning [--networks resnet20 …]
    python -m benchmarks.engine --parts speed [--networks resnet20 …] [--batches 1 32] [--deepsparse FOLDER/bin/python]
    python -m benchmarks.engine --parts threads [--networks resnet20 …] [--batches 1 32]
    python -m benchmarks.engine --parts trained --runs RUN …

Each call measures a part and merges it into `results/benchmarks/engine.json`, or into the file given by `--name`
(`engine-avx2`, for a machine without AVX-512). Weights are random with synthetic masks whose layer density is
proportional to n^-0.3 (n weights in the layer, all layers included). Every runtime gets one thread; contenders take
turns in short bursts, and the minimum CPU time counts (with two threads, the minimum wall time). DeepSparse 1.8 needs a
separate environment (`pip install deepsparse==1.8.0`). `trained` compares the masks of finished runs with synthetic
ones that cost as many multiply-accumulates.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import regrow
from benchmarks.deepsparse import DeepSparse
from benchmarks.runner import RESULTS, Row, machine, report
from regrow.analysis import account
from regrow.engine.codegen.build import load_library
from regrow.engine.compiler import native_runner
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.torch_export import capture
from regrow.engine.runtime.model import CompiledModel
from regrow.engine.runtime.session import NativeRunner, RowsRunner
from regrow.models import Network, build
from regrow.timing import Contender, dense_runtimes, densities, fastest, prune_synthetically, to_plain_onnx

SIZES = {"resnet20": 32, "wrn28-2": 32, "resnet50": 224}
SPARSITIES = (0.8, 0.9, 0.95, 0.98)
BARS = {
    "dense": {"resnet20": (2.7, 5, 8.8, 15.5), "wrn28-2": (2.7, 5, 8.8, 15.5), "resnet50": (1.9, 3.5, 6, 11.5)},
    "deepsparse": (1.3, 1.5, 2, 3.4),
}


def pruned(name: str, sparsity: float) -> Network:
    """Return a network with random weights, non-trivial batch norms and synthetic masks."""
    torch.manual_seed(0)
    model = build(name, classes=1000 if name == "resnet50" else 10, size=SIZES.get(name, 32)).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.2)
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 1.5)
    prune_synthetically(model, sparsity)
    return model


def sparsity_for(name: str, macs: int) -> float:
    """The sparsity at which synthetic masks leave about `macs` multiply-accumulates."""
    dense = pruned(name, 0)
    layers = account(dense, dense.architecture.input_shape).layers
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        fractions = densities([layer.weights for layer in layers], middle)
        kept = sum(layer.macs * fraction for layer, fraction in zip(layers, fractions, strict=True))
        low, high = (middle, high) if kept > macs else (low, middle)
    return high


def images(name: str, count: int) -> Tensor:
    """A batch of noise."""
    return torch.randn(count, 3, SIZES[name], SIZES[name], generator=torch.Generator().manual_seed(0))


def narrow(model: nn.Module, x: Tensor) -> CompiledModel:
    """The model on kernels for AVX2."""
    graph = fuse(capture(model, x))
    runner = native_runner(graph, load_library(lanes=8), tune=True)
    return CompiledModel(runner, input_shape=graph.input.shape, output_shape=graph.output.shape)


def error(compiled: CompiledModel, model: nn.Module, x: Tensor) -> float:
    """The largest difference from torch, relative to the largest output."""
    with torch.no_grad():
        expected = model(x)
    return float((compiled(x) - expected).abs().max() / expected.abs().max())


def tuning(arguments: Any) -> list[Row]:
    """Seconds to build the kernels and to tune each network, with nothing in the cache."""
    rows: list[Row] = []
    builds = [_build_seconds() for _ in range(5)]
    built = {
        name: min(times) for name, times in zip(("build s", "build CPU s"), zip(*builds, strict=True), strict=True)
    }
    for name in arguments.networks:
        with tempfile.TemporaryDirectory() as folder, _cache(folder):
            # Libraries that torch loads on first use are not counted for any network.
            regrow.compile(pruned(name, 0.9), images(name, 1), tune=False)
            for sparsity in arguments.sparsities:
                model, x = pruned(name, sparsity), images(name, 1)
                taken = []
                for tune in (False, True, True):
                    start = time.perf_counter()
                    regrow.compile(model, x, tune=tune)
                    taken.append(time.perf_counter() - start)
                row: dict[str, Any] = {"part": "tuning", "network": name, "sparsity": sparsity, **built}
                row |= {"untuned compile s": taken[0], "tuning s": taken[1] - taken[0], "cached compile s": taken[2]}
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
    return rows


def _build_seconds() -> tuple[float, float]:
    """Return the wall time, and the CPU time of all compilers, which run in parallel."""
    with tempfile.TemporaryDirectory() as folder, _cache(folder):
        start, before = time.perf_counter(), os.times().children_user
        load_library()
        return time.perf_counter() - start, os.times().children_user - before


@contextlib.contextmanager
def _cache(folder: str) -> Any:
    before = os.environ.get("REGROW_CACHE")
    os.environ["REGROW_CACHE"] = folder
    try:
        yield
    finally:
        del os.environ["REGROW_CACHE"]
        if before is not None:
            os.environ["REGROW_CACHE"] = before


def speed(arguments: Any) -> list[Row]:
    """Every sparsity of a network and batch, and the dense network in every runtime, all in turns."""
    rows: list[Row] = []
    for name in arguments.networks:
        for batch in arguments.batches:
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                rows += _speed(name, batch, arguments, Path(folder), stack)
    return rows


def _speed(name: str, batch: int, arguments: Any, folder: Path, stack: contextlib.ExitStack) -> list[Row]:
    x, dense = images(name, batch), pruned(name, 0)
    contenders: dict[str, Contender] = {}
    found, left_out = dense_runtimes(dense, x, cache(partial(to_plain_onnx, dense, x, folder / "dense.onnx")))
    if left_out:  # a missing runtime could be the fastest one
        raise SystemExit(f"the bars are about all runtimes: {left_out}")
    contenders |= found
    runtimes = set(contenders)
    facts: dict[float, dict[str, float]] = {}
    for sparsity in arguments.sparsities:
        model = pruned(name, sparsity)
        compiled = regrow.compile(model, x[:1])
        contenders[f"engine {sparsity}"] = partial(compiled, x)
        if load_library().lanes == 16 and batch == 1:
            contenders[f"avx2 {sparsity}"] = partial(narrow(model, x[:1]), x)
        if arguments.deepsparse:
            path = to_plain_onnx(model, x, folder / f"{sparsity}.onnx")
            contenders[f"deepsparse {sparsity}"] = stack.enter_context(DeepSparse(arguments.deepsparse, path, x))
        facts[sparsity] = {"macs": compiled.profile(repeat=1).macs, "error": error(compiled, model, x)}
    if arguments.deepsparse:
        contenders["deepsparse"] = stack.enter_context(DeepSparse(arguments.deepsparse, folder / "dense.onnx", x))
        runtimes.add("deepsparse")
    best = fastest(contenders, arguments.seconds, clock="process_time")
    print({key: f"{value * 1e3:.3f} ms" for key, value in best.items()}, file=sys.stderr, flush=True)
    times = {runtime: best[runtime] for runtime in runtimes}
    return [_row(name, batch, sparsity, times, best, facts[sparsity]) for sparsity in arguments.sparsities]


def _row(
    name: str, batch: int, sparsity: float, dense: dict[str, float], best: dict[str, float], facts: dict[str, float]
) -> Row:
    engine, runtime, column = best[f"engine {sparsity}"], min(dense, key=dense.__getitem__), SPARSITIES.index(sparsity)
    row: dict[str, Any] = {"part": "speed", "network": name, "batch": batch, "sparsity": sparsity}
    row |= {"engine ms": engine * 1e3, "best dense ms": dense[runtime] * 1e3, "best dense": runtime}
    row |= {"times faster": dense[runtime] / engine, "bar": BARS["dense"][name][column] if batch == 1 else ""}
    if f"deepsparse {sparsity}" in best:
        rival = best[f"deepsparse {sparsity}"]
        row |= {"deepsparse ms": rival * 1e3, "times deepsparse": rival / engine}
        row["its bar"] = BARS["deepsparse"][column] if batch == 1 else 1.0
    row["GMAC/s"] = facts["macs"] * batch / engine / 1e9
    if f"avx2 {sparsity}" in best:
        row["AVX2 / AVX-512"] = best[f"avx2 {sparsity}"] / engine
    row["error"] = facts["error"]
    return row | {
        f"{runtime} ms": seconds * 1e3 for runtime, seconds in sorted(dense.items()) if runtime != "deepsparse"
    }


def threads(arguments: Any) -> list[Row]:
    """Measure the speedup of a second thread."""
    rows: list[Row] = []
    for name in arguments.networks:
        for batch in arguments.batches:
            x = images(name, batch)
            for sparsity in arguments.sparsities:
                model = pruned(name, sparsity)
                compiled = {str(count): regrow.compile(model, x[:1], threads=count) for count in (1, 2)}
                alone = _one_slice(compiled["2"]) if batch == 1 else None
                if alone is not None:
                    compiled["slice"] = alone
                best = fastest({key: partial(each, x) for key, each in compiled.items()}, arguments.seconds / 4)
                row: dict[str, Any] = {"part": "threads", "network": name, "batch": batch, "sparsity": sparsity}
                row |= {"engine ms": best["1"] * 1e3, "two threads ms": best["2"] * 1e3}
                if alone is not None:
                    row["share alone ms"] = best["slice"] * 1e3
                rows.append(row | {"two threads": best["1"] / best["2"], "bar": 1.7})
    return rows


def _one_slice(compiled: CompiledModel) -> CompiledModel | None:
    """Return a model that computes one thread's slice of the rows alone, without exchange: a bound for two threads."""
    runner = compiled._runner
    if not isinstance(runner, RowsRunner):
        return None
    alone = NativeRunner(runner.rows.library, runner.rows.plan, threads=1)
    return CompiledModel(alone, input_shape=compiled.input_shape, output_shape=compiled.output_shape)


def trained(arguments: Any) -> list[Row]:
    """Compare the masks of finished runs with synthetic masks of equal cost."""
    rows: list[Row] = []
    for run in arguments.runs:
        model = regrow.load(run)
        architecture = model.architecture
        x = torch.randn(1, *architecture.input_shape, generator=torch.Generator().manual_seed(0))
        kept = regrow.compile(model.eval(), x)
        macs = kept.profile(repeat=1).macs
        sparsity = sparsity_for(architecture.name, macs)
        other = regrow.compile(pruned(architecture.name, sparsity), x)
        best = fastest(
            {"trained": partial(kept, x), "synthetic": partial(other, x)}, arguments.seconds, clock="process_time"
        )
        row: dict[str, Any] = {"part": "trained", "network": architecture.name, "run": Path(run).name}
        row |= {"sparsity": _sparsity(model), "synthetic sparsity": sparsity, "M MACs": macs / 1e6}
        row |= {"engine ms": best["trained"] * 1e3, "GMAC/s": macs / best["trained"] / 1e9}
        row |= {"synthetic GMAC/s": other.profile(repeat=1).macs / best["synthetic"] / 1e9}
        rows.append(row)
    return rows


def _sparsity(model: nn.Module) -> float:
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    return 1 - sum(int(w.count_nonzero()) for w in weights) / sum(w.numel() for w in weights)


PARTS = {"tuning": tuning, "speed": speed, "threads": threads, "trained": trained}
KEYS = ("part", "network", "batch", "sparsity", "run")


def merged(rows: list[Row], name: str) -> list[Row]:
    """Return the rows of earlier calls on this machine, updated with those measured now."""
    path = RESULTS / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {"machine": {}, "rows": []}
    if known["rows"] and known["machine"]["cpu"] != machine()["cpu"]:
        raise SystemExit(f"{path} was measured on {known['machine']['cpu']}: pass another --name for this machine")
    table = {tuple(row.get(key) for key in KEYS): row for row in (*known["rows"], *rows)}
    order = {name: number for number, name in enumerate([*PARTS, *SIZES])}

    def place(row: Row) -> tuple[Any, ...]:
        return (
            order[row["part"]],
            order.get(row["network"], 99),
            row.get("batch", 0),
            row.get("run", ""),
            row["sparsity"],
        )

    return sorted(table.values(), key=place)


def main() -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["tuning", "speed", "threads"])
    parser.add_argument("--runs", nargs="+", metavar="RUN", default=[], help="for `trained`: folders of finished runs")
    parser.add_argument("--deepsparse", metavar="PYTHON", help="the Python of an environment with DeepSparse 1.8")
    parser.add_argument("--networks", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32])
    parser.add_argument("--sparsities", nargs="+", type=float, choices=SPARSITIES, default=list(SPARSITIES))
    parser.add_argument("--seconds", type=float, default=30.0, help="of measuring, for each network and batch")
    parser.add_argument("--name", default="engine", help="of the file of results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    merged([], arguments.name)  # refuses before anything is measured
    rows = [row for part in arguments.parts for row in PARTS[part](arguments)]
    title = "The sparse engine beside dense runtimes and DeepSparse, one thread each"
    command = "python -m benchmarks.engine" + ("" if arguments.name == "engine" else f" --name {arguments.name}")
    report(title, merged(rows, arguments.name), name=arguments.name, command=command)


if __name__ == "__main__":
    main()
