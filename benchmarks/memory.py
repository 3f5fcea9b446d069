"""Memory of DPF beyond plain training: permanent, and the additional peak in a step with a new mask."""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import regrow
from benchmarks.runner import report

CASES = {"plain SGD": None, "DPF": {}, "DPF, offload=True": {"offload": True}, "Incremental": {}}
PREDICTED = {"plain SGD": 0, "DPF": 5, "DPF, offload=True": 5, "Incremental": 1}


def measure(case: str, millions: int) -> tuple[float, float]:
    """Return the bytes per targeted weight that stay, and the peak above them during a step that makes a mask."""
    model = nn.Sequential(*(nn.Linear(1000, 1000, bias=False) for _ in range(millions)), nn.Linear(1000, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()  # the momentum exists
    regrow.DPF(
        small := nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1)), torch.optim.SGD(small.parameters()), sparsity=0.5
    )
    weights = millions * 10**6
    before = _resident()
    if case.startswith("DPF"):
        regrow.DPF(model, optimizer, sparsity=0.9, every=1, **(CASES[case] or {}))
    elif case == "Incremental":
        regrow.Incremental(model, optimizer, sparsity=0.9, every=1)
    for _ in range(2):
        optimizer.step()
    held = _resident() - before
    peaks = []
    for _ in range(3):
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        start = _resident()
        optimizer.step()
        peaks.append(_peak() - start)
    return held / weights, min(peaks) / weights


def _resident() -> int:
    ctypes.CDLL(None).malloc_trim(0)  # memory that is free but kept by the allocator does not count
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    return 1024 * int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


def rows(millions: int) -> list[dict[str, Any]]:
    found = []
    for case in CASES:
        child = [sys.executable, "-m", "benchmarks.memory", "--case", case, "--millions", str(millions)]
        output = subprocess.run(child, capture_output=True, text=True, check=True).stdout
        held, peak = map(float, output.split())
        found.append(
            {
                "measured": f"{millions} M float32 weights, {case}",
                "bytes per weight that stay": held,
                "predicted": PREDICTED[case],
                "peak above that in a step with a new mask": peak,
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--millions", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.case:
        print(*measure(options.case, options.millions))
        return
    report("The memory of DPF", rows(options.millions), name="memory")


if __name__ == "__main__":
    main()
