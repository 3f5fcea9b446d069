"""Sessions are kept for later calls of the same process, and for no other process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import regrow
from regrow.engine.plan.memory import allocate
from regrow.engine.runtime.session import SessionCache
from regrow.system import cores

FORK = """
import os, sys, torch, regrow
from regrow.models import build

torch.manual_seed(0)
x = torch.randn(1, 3, 32, 32)
images = torch.randn(2, 3, 32, 32)[:, None]
fast = regrow.compile(build("resnet8").eval(), x, tune=False, threads=THREADS)
expected = [fast(image) for image in images]
child = os.fork()
me = 0 if child else 1
if CALLS:
    same = all(torch.equal(fast(images[me]), expected[me]) for _ in range(300))
else:
    same = True
if child:
    _, status = os.waitpid(child, 0)
    same = same and os.waitstatus_to_exitcode(status) == 0
sys.exit(0 if same else 1)
"""


@pytest.mark.parametrize("calls", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["calls", "exits"])
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_forked_process_has_its_own_memory_and_threads(threads: int, calls: bool) -> None:
    script = FORK.replace("THREADS", str(threads)).replace("CALLS", str(calls))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc to see how memory is mapped")
@pytest.mark.parametrize("size", [1000, 4 << 20])
def test_memory_is_private(size: int) -> None:
    block = allocate(size)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions = line.split()[:2]
        first, last = (int(end, 16) for end in span.split("-"))
        if first <= block.ctypes.data < last:
            assert permissions == "rw-p"
            return
    raise AssertionError("the block is not in the memory map")


def tasks() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_at_most_one_session_per_core_is_kept() -> None:
    pool = SessionCache[int]()
    for session in range(cores() + 5):
        pool.give(session)
    kept = list(iter(pool.take, None))
    assert len(kept) == cores()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to count threads")
def test_a_profile_starts_no_threads() -> None:
    x = torch.randn(1, 3, 32, 32)
    compiled = regrow.compile(regrow.models.build("resnet8").eval(), x, tune=False, threads=2)
    compiled(x)
    before = tasks()
    assert compiled.profile(repeat=3).macs
    assert tasks() == before


def test_a_kept_session_is_used_again() -> None:
    pool = SessionCache[object]()
    assert pool.take() is None
    kept = object()
    pool.give(kept)
    assert pool.take() is kept
    pool.give(kept)
    pool.clear()
    assert pool.take() is None
