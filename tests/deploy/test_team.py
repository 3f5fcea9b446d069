"""Teams of threads under the sanitizers for races and for memory: the engine's own code, driven from C."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from regrow.deploy.engine.build import load_library
from regrow.deploy.engine.capture import capture
from regrow.deploy.engine.fitted import fitted
from regrow.deploy.engine.fuse import fuse
from regrow.deploy.engine.plan import Plan, write_plan
from regrow.deploy.engine.schedule import schedule
from regrow.deploy.engine.sessions import Division
from regrow.deploy.engine.shares import share_schedule
from regrow.models import build
from tests.deploy.networks import sparsify

IMAGES, RUNS = 3, 20

MAIN = """
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
    struct team *team = regrow_team_new(THREADS, 2);
    struct job job = {.team = team, .count = OPS, .divide = DIVIDE, .arena_bytes = ARENA, .x_floats = X, .y_floats = Y};
    float *x = read_file("x", IMAGES * X * sizeof *x), *expected = read_file("y", IMAGES * Y * sizeof *x);
    float y[IMAGES * Y];
    job.ops = read_file("ops", OPS * sizeof *job.ops);
    job.constants = read_file("constants", CONSTANTS);
    job.arenas = aligned_alloc(4096, (size_t)THREADS * ARENA);
    memset(job.arenas, 0x7f, (size_t)THREADS * ARENA); /* large numbers: whoever reads what nobody wrote is seen */
    for (int run = 0; run < RUNS; run++) {
        memset(y, 0, sizeof y);
        regrow_run(&job, x, y, run % 2 ? IMAGES : 1);
        for (int i = 0; i < (run % 2 ? IMAGES : 1) * Y; i++)
            if (!(fabsf(y[i] - expected[i]) <= 1e-4f)) return 3;
    }
    regrow_team_free(team);
    free(x), free(expected), free((void *)job.ops), free((void *)job.constants), free(job.arenas);
    return 0;
}
"""


def write_program(folder: Path, plan: Plan, threads: int, divide: Division) -> None:
    plan, kernels = fitted(plan)  # whose operations wait for each other as rarely as they can
    sizes = {
        "THREADS": threads,
        "OPS": len(plan.ops),
        "DIVIDE": int(divide),
        "ARENA": -(-plan.arena_bytes // 4096) * 4096,
        "X": 3 * 32 * 32,
        "Y": 10,
        "CONSTANTS": plan.constants.nbytes,
        "IMAGES": IMAGES,
        "RUNS": RUNS,
    }
    defined = "\n".join(f"#define {name} {size}" for name, size in sizes.items())
    (folder / "main.c").write_text("\n".join([*kernels.sources(1), defined, MAIN]))
    (folder / "ops").write_bytes(bytes(plan.ops))
    (folder / "constants").write_bytes(plan.constants.tobytes())


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("setarch")), reason="needs gcc and setarch")
@pytest.mark.parametrize(("sanitizer", "threads"), [("thread", 2), ("thread", 4), ("address,undefined", 4)])
@pytest.mark.parametrize(
    ("name", "divide"),
    [("resnet8", Division.TOGETHER), ("resnet8", Division.BY_ROWS), ("wrn10-1", Division.BY_ROWS)],
)
def test_sanitizers_find_nothing(name: str, divide: Division, sanitizer: str, threads: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = build(name, classes=10, size=32).eval(), torch.randn(IMAGES, 3, 32, 32)
    sparsify(model, 0.2, torch.Generator().manual_seed(0))
    graph, lanes = fuse(capture(model, x[:1])), min(8, load_library().lanes)
    by_rows = divide is Division.BY_ROWS
    steps = share_schedule(graph, lanes, threads) if by_rows else schedule(graph, lanes)
    assert steps is not None
    plan = write_plan(steps, threads=1 if by_rows else threads)
    write_program(tmp_path, plan, threads, divide)
    with torch.no_grad():
        expected = model(x).numpy()
    (tmp_path / "x").write_bytes(np.ascontiguousarray(x.numpy()).tobytes())
    (tmp_path / "y").write_bytes(np.ascontiguousarray(expected).tobytes())
    flags = ["-O1", "-g", "-march=native", f"-DLANES={lanes}", "-std=gnu11", "-pthread", f"-fsanitize={sanitizer}"]
    build_command = ["gcc", *flags, "-fno-sanitize-recover=all", "main.c", "-o", "main", "-lm"]
    subprocess.run(build_command, cwd=tmp_path, check=True, capture_output=True, text=True)
    done = subprocess.run(["setarch", "-R", "./main"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[:3000]
