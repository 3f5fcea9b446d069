"""The thread pool under sanitizers for races and memory: the engine's own C code, called from C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from regrow.engine.codegen.build import load_library
from regrow.engine.codegen.specialize import specialize
from regrow.engine.codegen.structs import ThreadMode
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.graph import Graph
from regrow.engine.frontend.torch_export import capture
from regrow.engine.plan.lower import Plan, lower
from regrow.engine.plan.schedule import schedule
from regrow.engine.plan.split import slice_schedule
from regrow.models import build
from tests.engine.networks import sparsify

IMAGES, RUNS = 5, 20

needs_tools = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("setarch")), reason="needs gcc and setarch")

MAIN = """
#include <math.h>
#include <stdio.h>

static void *read_file(const char *path, size_t size)
{
    FILE *file = fopen(path, "rb");
    void *data = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (file == NULL || fread(data, 1, size, file) != size) exit(2);
    fclose(file);
    return data;
}

int main(void)
{
    struct thread_pool *pool = regrow_pool_new(THREADS, 2);
    struct run_args args = {.pool = pool, .count = OPS, .mode = MODE, .x_floats = X, .y_floats = Y};
    float *x = read_file("x", IMAGES * X * sizeof *x), *expected = read_file("y", IMAGES * Y * sizeof *x);
    float y[IMAGES * Y];
    args.arena_bytes = ARENA;
    args.ops = read_file("ops", OPS * sizeof *args.ops);
    args.constants = read_file("constants", CONSTANTS);
    args.arenas = aligned_alloc(4096, (size_t)THREADS * ARENA);
    memset(args.arenas, 0x7f, (size_t)THREADS * ARENA); /* large numbers: reading cells that were never written shows */
    for (int run = 0; run < RUNS; run++) {
        memset(y, 0, sizeof y);
        regrow_run(&args, x, y, run % 2 ? IMAGES : 1);
        for (int i = 0; i < (run % 2 ? IMAGES : 1) * Y; i++)
            if (!(fabsf(y[i] - expected[i]) <= 1e-4f)) return 3;
    }
    regrow_pool_free(pool);
    free(x), free(expected), free((void *)args.ops), free((void *)args.constants), free(args.arenas);
    return 0;
}
"""


NO_THREAD_STARTS = """
#include <pthread.h>
#define pthread_create(...) 0
#define pthread_join(...) 0
"""


def write_program(folder: Path, plan: Plan, threads: int, mode: ThreadMode, before: str = "") -> None:
    plan, kernels = specialize(plan)  # with as little waiting as possible
    sizes = {
        "THREADS": threads,
        "OPS": len(plan.ops),
        "MODE": int(mode),
        "ARENA": -(-plan.arena_bytes // 4096) * 4096,
        "X": 3 * 32 * 32,
        "Y": 10,
        "CONSTANTS": plan.constants.nbytes,
        "IMAGES": IMAGES,
        "RUNS": RUNS,
    }
    defined = "\n".join(f"#define {name} {size}" for name, size in sizes.items())
    (folder / "main.c").write_text("\n".join([before, *kernels.sources(1), defined, MAIN]))
    (folder / "ops").write_bytes(bytes(plan.ops))
    (folder / "constants").write_bytes(plan.constants.tobytes())


def write_data(folder: Path, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        expected = model(x).numpy()
    (folder / "x").write_bytes(np.ascontiguousarray(x.numpy()).tobytes())
    (folder / "y").write_bytes(np.ascontiguousarray(expected).tobytes())


def run_program(folder: Path, lanes: int, *flags: str) -> None:
    options = ["-g", "-march=native", f"-DLANES={lanes}", "-std=gnu11", "-pthread", *flags]
    build_command = ["gcc", *options, "main.c", "-o", "main", "-lm"]
    subprocess.run(build_command, cwd=folder, check=True, capture_output=True, text=True)
    done = subprocess.run(["setarch", "-R", "./main"], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[:3000]


def sparse_model(name: str) -> tuple[nn.Module, torch.Tensor, Graph, int]:
    torch.manual_seed(0)
    model, x = build(name, classes=10, size=32).eval(), torch.randn(IMAGES, 3, 32, 32)
    sparsify(model, 0.2, torch.Generator().manual_seed(0))
    return model, x, fuse(capture(model, x[:1])), min(8, load_library().lanes)


@needs_tools
def test_a_batch_does_not_wait_for_threads_that_have_not_started(tmp_path: Path) -> None:
    model, x, graph, lanes = sparse_model("resnet8")
    plan = lower(schedule(graph, lanes), threads=2)
    write_program(tmp_path, plan, 2, ThreadMode.PER_IMAGE, before=NO_THREAD_STARTS)
    write_data(tmp_path, model, x)
    run_program(tmp_path, lanes, "-O1")


@pytest.mark.slow
@needs_tools
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize(
    ("name", "mode", "threads"),
    [
        ("resnet8", ThreadMode.PER_IMAGE, 2),
        ("resnet8", ThreadMode.PER_LAYER, 2),
        ("resnet8", ThreadMode.PER_LAYER, 3),  # for whom there are too few tiles in every layer
        ("resnet8", ThreadMode.PER_ROWS, 2),
        ("resnet8", ThreadMode.PER_ROWS, 4),
        ("wrn10-1", ThreadMode.PER_ROWS, 4),
    ],
)
def test_sanitizers_find_nothing(name: str, mode: ThreadMode, sanitizer: str, threads: int, tmp_path: Path) -> None:
    model, x, graph, lanes = sparse_model(name)
    by_rows = mode is ThreadMode.PER_ROWS
    steps = slice_schedule(graph, lanes, threads) if by_rows else schedule(graph, lanes)
    assert steps is not None
    write_program(tmp_path, lower(steps, threads=1 if by_rows else threads), threads, mode)
    write_data(tmp_path, model, x)
    run_program(tmp_path, lanes, "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
