"""Campaigns of `benchmarks.chaos`: kill real processes at random times, and check the files that they leave.

Every campaign kills with SIGKILL until its work is done, checks all files after every kill, and compares the result
with that of an undisturbed process. It returns the number of kills and of checked files, and raises an AssertionError
if anything is wrong.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from regrow import files
from regrow.cli.train import _train_one_rank
from regrow.files.model_file import load_model
from regrow.runs.folder import read_metrics, read_recipe, read_result
from regrow.runs.recipe import Recipe
from regrow.runs.stop import GRACE
from regrow.sweep import run_all
from regrow.sweep.jobs import jobs_for
from regrow.train import checkpoint
from regrow.train.distributed import launch
from regrow.train.run import run
from tests.train.processes import RECIPE, context, outcome

METHODS = ("dpf", "incremental", "oneshot", "snip", "dsr", "sparse-momentum", "set", "deepr", "rigl", "sfp")
# Checkpoints as often as possible, so that most kills happen while one is being written.
OFTEN = 0.01


@dataclass
class Tally:
    """Counts of a campaign."""

    kills: int = 0
    files: int = 0


def training(folder: Path, chance: random.Random) -> Tally:
    """Kill a training repeatedly until it finishes; its result is bit-identical to that of an undisturbed one."""
    recipe = RECIPE.changed(method=chance.choice(METHODS), sparsity=0.5, every="paper", seed=chance.randrange(1000))
    _undisturbed(_train, recipe, folder / "undisturbed")
    tally, disturbed = Tally(), folder / "disturbed"
    while _result(disturbed) is None:
        process = _start(_train, recipe, disturbed)
        if chance.random() < 0.7:
            _await_progress(process, disturbed)
        _kill_within(process, 0.3, chance, tally)
        tally.files += check_run(disturbed)
    assert outcome(disturbed) == outcome(folder / "undisturbed"), f"{recipe.name()} ended with other bits"
    return tally


def checkpoint_writing(folder: Path, chance: random.Random) -> Tally:
    """Kill a process that only writes checkpoints; the last one that it reported as written is there and complete."""
    return _writing(_save_checkpoints, _checkpoint_number, folder, chance)


def packing(folder: Path, chance: random.Random) -> Tally:
    """The same with packed files."""
    return _writing(_save_packed, _packed_number, folder, chance)


def two_writer_packing(folder: Path, chance: random.Random) -> Tally:
    """Kill two processes that pack to the same file; the file is always complete, and no other file is left."""
    tally, path = Tally(), folder / "file"
    folder.mkdir(parents=True)
    writers = [_start(_save_packed_forever, path, number) for number in range(2)]
    while not path.exists():
        assert all(writer.is_alive() for writer in writers), "a writer ended before its first file"
    for _ in range(10):
        number = chance.randrange(2)
        _kill_within(writers[number], 0.2, chance, tally)
        _packed_number(path)
        tally.files += 1
        writers[number] = _start(_save_packed_forever, path, number)
    for writer in writers:
        _kill_within(writer, 0.2, chance, tally)
    time.sleep(2.5)  # younger partial files could be those of a writer that has just started
    files.save({"weights": torch.zeros(1, 9), "number": torch.tensor(0)}, path)
    assert [each.name for each in folder.iterdir()] == ["file"], "a killed writer's partial file is left"
    return tally


def sweeping(folder: Path, chance: random.Random) -> Tally:
    """Kill the driver of a sweep and its workers in turn; no finished run is lost or changed, all results are equal."""
    shape = {"sparsity": 0.5, "every": "paper", "epochs": 12, "batch": 256, "finetune_epochs": 0}
    recipes = [RECIPE.changed(method=method, **shape) for method in chance.sample(METHODS, 4)]
    _undisturbed(_sweep, recipes, folder / "undisturbed")
    tally, disturbed, finished = Tally(), folder / "disturbed", {}
    jobs = jobs_for(recipes, disturbed)
    while any(_result(job.folder) is None for job in jobs):
        driver = _start(_sweep, recipes, disturbed)
        while driver.is_alive() and chance.random() < 0.85:
            _await_progress(driver, disturbed)
            driver.join(chance.uniform(0, 0.3))
            tally.kills += _kill_a_worker(disturbed, chance)
        _kill_within(driver, 1, chance, tally)
        tally.files += sum(check_run(job.folder) for job in jobs)
        for path, digest in finished.items():
            assert _digest(path) == digest, f"{path} was finished and has changed"
        finished |= {job.folder: _digest(job.folder) for job in jobs if _result(job.folder) is not None}
    for job in jobs:
        assert outcome(job.folder) == outcome(folder / "undisturbed" / job.name), f"{job.name} ended with other bits"
    return tally


def launching(folder: Path, chance: random.Random) -> Tally:
    """Kill the launcher of two processes; they end by themselves in time, and the run ends like an undisturbed one."""
    recipe = RECIPE.changed(seed=chance.randrange(1000), epochs=8)
    _undisturbed(_launch, recipe, folder / "undisturbed")
    tally, disturbed = Tally(), folder / "disturbed"
    while _result(disturbed) is None:
        launcher = _start(_launch, recipe, disturbed)
        if chance.random() < 0.7:
            _await_progress(launcher, disturbed)
        launcher.join(chance.uniform(0, 1))
        workers = _children(launcher)
        _kill_within(launcher, 0.1, chance, tally)
        await_end(workers)
        tally.files += check_run(disturbed)
    assert outcome(disturbed) == outcome(folder / "undisturbed"), f"{recipe.name()} ended with other bits"
    return tally


CAMPAIGNS: dict[str, Callable[[Path, random.Random], Tally]] = {
    "checkpoint writing": checkpoint_writing,
    "packing": packing,
    "two-writer packing": two_writer_packing,
    "training": training,
    "sweeping": sweeping,
    "launching": launching,
}


def check_run(folder: Path) -> int:
    """Read every file of a run folder, which must be complete or missing; return their number."""
    readers: dict[str, Callable[[Path], object]] = {
        "recipe.toml": lambda path: read_recipe(path.parent),
        "checkpoint.safetensors": checkpoint.load,
        "metrics.jsonl": lambda path: read_metrics(path.parent),
        "model.safetensors": load_model,
        "result.json": lambda path: read_result(path.parent),
    }
    found = [folder / name for name in readers if (folder / name).exists()]
    for path in found:
        readers[path.name](path)
    return len(found)


def _start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = context().Process(target=target, args=arguments)
    process.start()
    return process


def _undisturbed(target: Callable[..., None], *arguments: Any) -> None:
    process = _start(target, *arguments)
    process.join()
    assert process.exitcode == 0, f"the undisturbed process ended with {process.exitcode}"


def _kill_within(process: BaseProcess, seconds: float, chance: random.Random, tally: Tally) -> None:
    process.join(chance.uniform(0, seconds))
    if process.is_alive():
        process.kill()
        tally.kills += 1
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), f"it ended with {process.exitcode}"


def _await_progress(process: BaseProcess, folder: Path) -> None:
    """Wait for a new checkpoint, so that the work makes progress between two kills even on a busy machine."""

    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in folder.rglob("checkpoint.safetensors")}

    before = written()
    while process.is_alive() and written() == before:
        time.sleep(0.002)


def _kill_a_worker(folder: Path, chance: random.Random) -> int:
    """Kill one of the processes that have a run folder; they are named in the locks."""
    holders = [re.search(r"process (\d+)", lock.read_text()) for lock in folder.glob("*/lock")]
    workers = [int(holder[1]) for holder in holders if holder]
    try:
        os.kill(chance.choice(workers), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return 0
    return 1


def _children(process: BaseProcess) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    return [int(number) for number in found.stdout.split()]


def await_end(workers: list[int]) -> None:
    """Wait for processes whose parent was killed; they have `GRACE` seconds, and the machine may be busy."""
    deadline = time.monotonic() + 2 * GRACE
    while left := [worker for worker in workers if _is_running(worker)]:
        assert time.monotonic() < deadline, f"processes {left} have survived their launcher"
        time.sleep(0.01)


def _is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"  # a zombie process has ended, too


def _result(folder: Path) -> dict[str, Any] | None:
    return read_result(folder)


def _digest(folder: Path) -> str:
    names = ("result.json", "model.safetensors", "metrics.jsonl")
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()


def _train(recipe: Recipe, folder: Path) -> None:
    run(recipe, folder, save_every=OFTEN)


def _launch(recipe: Recipe, folder: Path) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    sys.exit(launch(_train_one_rank, (recipe, folder, OFTEN, frozenset()), nproc=2, restarts=0))


def _sweep(recipes: list[Recipe], folder: Path) -> None:
    run_all(recipes, folder, workers=2, retries=10**6)


def _writing(
    write: Callable[[Path], None], number: Callable[[Path], int], folder: Path, chance: random.Random
) -> Tally:
    tally, path, said = Tally(), folder / "file", folder / "said"
    folder.mkdir(parents=True)
    for _ in range(10):
        process = _start(write, path)
        while not said.exists():  # the first one takes a while
            assert process.is_alive(), "the process ended before its first file"
        _kill_within(process, 0.1, chance, tally)
        found, promised = number(path), int(said.read_text() or 0)
        assert found >= promised, f"{path} is older than the last one reported as written: {found}, not {promised}"
        tally.files += 1
    return tally


def _save_checkpoints(path: Path) -> None:
    """Write numbered checkpoints forever; the size of each follows from its number."""
    first = checkpoint.load(path)["number"] if path.exists() else 0
    for number in range(first + 1, 10**9):
        checkpoint.save(path, {"number": number, "weights": torch.full((1 + 7919 * number % 200_000,), float(number))})
        _say(path, number)


def _checkpoint_number(path: Path) -> int:
    state = checkpoint.load(path)
    assert bool((state["weights"] == state["number"]).all()), f"{path} is a mixture"
    return int(state["number"])


def _save_packed(path: Path) -> None:
    first = _packed_number(path) if path.exists() else 0
    for number in range(first + 1, 10**9):
        weights = torch.zeros(1 + 7919 * number % 5_000, 9)
        weights[::3] = number
        files.save({"weights": weights, "number": torch.tensor(number)}, path)
        _say(path, number)


def _save_packed_forever(path: Path, start: int) -> None:
    for number in range(start, 10**9, 2):
        weights = torch.zeros(1 + 7919 * number % 5_000, 9)
        weights[::3] = number
        files.save({"weights": weights, "number": torch.tensor(number)}, path)


def _packed_number(path: Path) -> int:
    state = files.load(path)
    assert isinstance(state, dict)
    assert bool((state["weights"][::3] == state["number"]).all()), f"{path} is a mixture"
    return int(state["number"])


def _say(path: Path, number: int) -> None:
    """Record that a file is written, in one write call, which a kill cannot interrupt."""
    handle = os.open(path.with_name("said"), os.O_WRONLY | os.O_CREAT)
    os.pwrite(handle, f"{number:012}".encode(), 0)
    os.close(handle)
