"""Real processes that train, started quickly: a fork server imports torch once."""

import multiprocessing
import subprocess
import time
from pathlib import Path

from regrow.runs.recipe import Recipe

# Small enough for seconds, with all that a state has: two phases, masks that move, momentum.
RECIPE = Recipe(
    data="digits",
    model="small",
    width=4,
    epochs=4,
    batch=64,
    sparsity=0.9,
    every=4,
    ramp_by="step",
    finetune_epochs=1,
    threads=1,
)


def context():
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["regrow.train.run", "torch._dynamo", "torch.distributed.fsdp"])
    return server


def train(recipe: Recipe, folder: Path, save_every: float = 0.05) -> None:
    from regrow.train.run import run

    run(recipe, folder, save_every=save_every)


def start(recipe: Recipe, folder: Path, target=train):
    process = context().Process(target=target, args=(recipe, folder))
    process.start()
    return process


def wait_for(path: Path, process, seconds: float = 60) -> None:
    """Wait until `path` exists, or the process has ended."""
    deadline = time.monotonic() + seconds
    while not path.exists() and process.is_alive():
        assert time.monotonic() < deadline, f"{path} did not appear within {seconds} s"
        time.sleep(0.005)


def stop_at_first_checkpoint(command: list[str | Path], folder: Path) -> None:
    """Run a command that trains in `folder`, stop it with SIGTERM, and check that it says how to resume."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (folder / "checkpoint.safetensors").exists() and process.poll() is None:
        time.sleep(0.02)
    process.terminate()
    _, errors = process.communicate()
    assert process.returncode == 143, errors
    assert f"all saved. Resume: regrow train --resume {folder}" in errors


def outcome(folder: Path) -> tuple[bytes, list, dict]:
    """What must be the same bits after any number of interruptions: all but the clock."""
    from regrow.runs.folder import read_metrics, read_result

    timed = {"seconds", "images_per_second"}
    records = [{k: v for k, v in record.items() if k not in timed} for record in read_metrics(folder)]
    result = {k: v for k, v in (read_result(folder) or {}).items() if k not in timed}
    return (folder / "model.safetensors").read_bytes(), records, result
