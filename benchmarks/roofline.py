"""Upper limit of a sparse network's speed on this machine, from its arithmetic and its memory bandwidth.

    python -m benchmarks.roofline [--networks resnet20 …]

It measures one thread with vectors of 16 and of 8 floats: multiply-accumulates per second with all operands in
registers, and with one operand from each cache level, as every non-zero weight needs; and the bandwidth of reading and
writing each level. From these it computes the minimum time of the arithmetic and of the activations of each network, if
every step reads its input and writes its output, with halo, once. The two times overlap in part.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import SIZES, SPARSITIES, images, pruned
from benchmarks.runner import Row, report
from regrow.engine.codegen.build import find_compiler
from regrow.engine.compiler import steps_of
from regrow.engine.frontend.fuse import fuse
from regrow.engine.frontend.torch_export import capture
from regrow.engine.ops.conv import conv_steps
from regrow.engine.ops.move import HaloStep
from regrow.engine.plan.steps import Buffer, Schedule
from regrow.engine.plan.tiles import problem_of

SOURCE = r"""
#include <time.h>
typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
enum { SUMS = 12 };
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
#define EACH _Pragma("GCC unroll 12") for (int i = 0; i < SUMS; i++)
#define SWEEP \
    for (long round = 0; round < rounds; round++) \
        for (long at = 0; at + SUMS <= n; at += SUMS) \
            EACH

/* Seconds for each vector of `n` at `p`, at best: multiplied into sums (0), or the same without reading (1), or
 * written (2), or read (3). */
double seconds(vec *p, long n, int what, long rounds, int tries)
{
    double least = 1e9;
    volatile float given = 0.5f, taken;
    for (int try = 0; try < tries; try++) {
        const vec factor = given - (vec){0};
        vec sums[SUMS];
        EACH sums[i] = factor * (float)i;
        const double start = now();
        if (what == 0) SWEEP sums[i] += factor * p[at + i];
        if (what == 1) SWEEP sums[i] = sums[i] * factor + factor;
        if (what == 2) SWEEP p[at + i] = sums[i];
        if (what == 3) SWEEP __asm__ volatile("" : : "x"(p[at + i]));
        const double spent = now() - start;
        EACH taken = sums[i][0];
        if (spent < least) least = spent;
    }
    (void)taken;
    return least / (double)(n / SUMS * SUMS * rounds);
}
"""
LEVELS = {"L1": 24 << 10, "L2": 1 << 20, "L3": 12 << 20}
"""Sizes in bytes that fit each cache level and far exceed the one before."""

NARROWER = {16: (), 8: ("-mno-avx512f",)}


def machine_limits(lanes: int) -> dict[str, dict[str, float]]:
    """Seconds for each vector, by level and by what is done with it."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "limits.c", Path(folder) / "limits.so"
        source.write_text(SOURCE)
        flags = ("-O3", "-march=native", *NARROWER[lanes], f"-DLANES={lanes}", "-ffp-contract=fast")
        subprocess.run([*find_compiler(), *flags, "-fPIC", "-shared", str(source), "-o", str(library)], check=True)
        seconds = ctypes.CDLL(str(library)).seconds
    seconds.restype = ctypes.c_double
    seconds.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_long, ctypes.c_int]
    limits = {}
    for level, size in LEVELS.items():
        memory = torch.zeros(size // 4 + 64)
        start, vectors = -(-memory.data_ptr() // 64) * 64, size // (4 * lanes)
        rounds = max(1, (4 << 20) // size)
        names = ("multiply", "registers", "write", "read")
        limits[level] = {name: float(seconds(start, vectors, what, rounds, 40)) for what, name in enumerate(names)}
    return limits


def machine_row(lanes: int, limits: dict[str, dict[str, float]]) -> Row:
    """Return the limits of the machine in common units."""
    row: dict[str, Any] = {"part": "machine", "lanes": lanes}
    row["registers GMAC/s"] = lanes / limits["L1"]["registers"] / 1e9
    for level, each in limits.items():
        row[f"{level} GMAC/s"] = lanes / each["multiply"] / 1e9
        row |= {f"{level} {what} GB/s": 4 * lanes / each[what] / 1e9 for what in ("read", "write")}
    return row


def network_row(name: str, sparsity: float, lanes: int, limits: dict[str, dict[str, float]]) -> Row:
    """The least time of one image, from the steps that the engine takes."""
    steps = steps_of(fuse(capture(pruned(name, sparsity), images(name, 1))), lanes)
    row: dict[str, Any] = {"part": "network", "network": name, "sparsity": sparsity, "lanes": lanes}
    row["arithmetic ms"] = 1e3 * _products(steps) * limits["L1"]["multiply"]
    row["activations ms"] = 1e3 * _traffic(steps, limits)
    return row


def _products(plan: Schedule) -> float:
    """Vectors that are multiplied."""
    problems = [problem_of(step, plan.lanes) for step in conv_steps(plan)]
    rows = [step.writes[0].planes.grid.rows if step.band and step.writes[0].planes else 0 for step in conv_steps(plan)]
    return sum(p.nonzeros_per_output * p.outputs * (r or p.rows) * p.cols for p, r in zip(problems, rows, strict=True))


def _traffic(plan: Schedule, limits: dict[str, dict[str, float]]) -> float:
    """Seconds for reading and writing every step's operands once, each in the nearest cache that holds it."""

    def spent(buffer: Buffer, what: str) -> float:
        size = buffer.nbytes(plan.lanes)
        level = next((level for level, most in LEVELS.items() if size <= 1.5 * most), "L3")
        return size / (4 * plan.lanes) * limits[level][what]

    steps = [step for step in plan.steps if not isinstance(step, HaloStep)]
    read = sum(spent(buffer, "read") for step in steps for buffer in step.reads)
    return read + sum(spent(buffer, "write") for step in steps for buffer in step.writes)


def main() -> None:
    """Measure the machine, and compute the limits of the networks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=SIZES, default=list(SIZES))
    names = parser.parse_args().networks
    torch.set_num_threads(1)
    limits = {lanes: machine_limits(lanes) for lanes in NARROWER}
    rows = [machine_row(lanes, each) for lanes, each in limits.items()]
    rows += [network_row(name, sparsity, 16, limits[16]) for name in names for sparsity in SPARSITIES]
    report("What the machine allows a sparse network, one thread", rows, name="roofline")


if __name__ == "__main__":
    main()
