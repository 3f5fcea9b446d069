"""Runs the queue and the paper's 300-epoch training in FOLDER, for `results/queue/start.sh`, which documents both.

It brings FOLDER/code to the commit and the records that are here, and the long training to the checkpoint kept here,
without losing records or epochs that only FOLDER has.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import collect
from benchmarks.keep import KEPT, RECORDS, ROOT, epochs, git, long_run, recorded, replace_folder, unharvested
from regrow.runs.folder import RunFolderError, locked, write_whole
from regrow.runs.stop import stop_requests
from regrow.system import cpu_name

COMMIT = "20b086a408ac96c17131413c2e111857b5d09598"
"""The commit whose code the long training was started with: a training keeps its code to the end."""


def update(code: Path, root: Path) -> None:
    """Bring a clone to the commit and the records of `root`; records that only the clone has stay."""
    own = {file: new for file in RECORDS if (new := unharvested(code, file))}
    git(code, "fetch", "--quiet", root, "HEAD")
    ahead = git(code, "rev-list", "FETCH_HEAD..HEAD") != ""
    if ahead:
        print(f"{code} has commits of its own: its code stays")
    else:
        deleted = ("diff", "-z", "--name-only", "--no-renames", "--diff-filter=D")
        gone = git(code, *deleted, "HEAD", "FETCH_HEAD").split("\0")
        # Before the reset: once that is done, an interrupted update would not find them again.
        for file in {Path(name) for name in gone if name} - own.keys():
            (code / file).unlink(missing_ok=True)
        git(code, "reset", "--quiet", "FETCH_HEAD")
        # Files with such records are never without them, whenever this is interrupted.
        git(code, "checkout", "--quiet", "--", ".", *(f":(exclude){file.as_posix()}" for file in own))
    for file in RECORDS:
        before = collect.read(code / file)
        together = (before if ahead else {}) | own.get(file, {}) | collect.read(root / file)
        if together != before:
            collect.write(together, code / file)


def clone(root: Path, folder: Path, commit: str) -> None:
    """Make or repair a clone of `commit` with an environment."""
    if not folder.exists():
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        git(root, "clone", "--quiet", "--no-checkout", root, partial)
        partial.rename(folder)
    git(folder, "checkout", "--quiet", commit)
    install(folder)


def install(folder: Path) -> None:
    """Make the environment of a clone; this does nothing if it is complete."""
    subprocess.run(["make", "-C", folder, "install"], check=True)


def restore(folder: Path, root: Path) -> None:
    """Bring the long training in `folder` to the kept checkpoint if that is newer, and note the machine."""
    run, kept, machines = long_run(folder), root / KEPT, folder / "machines.jsonl"
    if epochs(kept) > epochs(run) or (kept.exists() and not (run / "checkpoint.pt").exists()):
        shutil.copyfile(kept / "machines.jsonl", machines)
        sources = {name: kept / name for name in ("checkpoint.pt", "metrics.jsonl")}
        replace_folder(run, {**sources, "recipe.toml": kept / "recipe.txt"})
    lines = machines.read_text("utf-8").splitlines() if machines.exists() else []
    here = {"epoch": epochs(run), "cpu": cpu_name()}
    if not lines or here.items() - json.loads(lines[-1]).items():
        lines.append(json.dumps({**here, "date": time.strftime("%Y-%m-%d")}))
        write_whole(machines, "".join(f"{line}\n" for line in lines).encode())


def train(folder: Path, commands: Mapping[str, Sequence[str | Path]]) -> None:
    """Run commands in the clones in `folder` until all end; a signal lets the trainings save their state."""
    with ExitStack() as logs, stop_requests() as stop:
        children = {}
        for name, command in commands.items():
            log = logs.enter_context((folder / f"{name}.log").open("wb"))
            # In sessions of their own, because a second signal, such as the terminal's Ctrl-C, would end them at once.
            children[name] = subprocess.Popen(
                command, cwd=folder / name, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        while not stop.signal and any(child.poll() is None for child in children.values()):
            time.sleep(0.5)
        for child in children.values():
            child.terminate()  # nothing if it has ended
        failed = [str(folder / f"{name}.log") for name, child in children.items() if child.wait()]
    if stop.signal:
        raise SystemExit("Stopped. The same command continues.")
    if failed:
        raise SystemExit(f"Failed, see {', '.join(failed)}. The same command tries again.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with a clone of this repository named code")
    folder = parser.parse_args().folder.resolve()
    code, run = folder / "code", long_run(folder)
    try:
        with locked(folder):
            for file in (folder / "runs").rglob("lock"):  # trainings may have outlived the process that started them
                with locked(file.parent):
                    pass
            update(code, ROOT)
            install(code)
            python = Path(".venv/bin/python")
            subprocess.run([code / python, "-m", "benchmarks.tuning"], cwd=code, stdout=subprocess.DEVNULL, check=True)
            commands = {"code": [code / python, "-m", "benchmarks.queue", folder / "runs" / "cpu"]}
            if collect.ended(run) is not None:
                print(f"the long training is finished: python -m benchmarks.keep {folder} records it")
            elif not recorded(ROOT):
                clone(ROOT, folder / "long", COMMIT)
                restore(folder, ROOT)
                options = ["--every", "16", "--channels-last", "--threads", "1", "--out", run]
                commands["long"] = [folder / "long/.venv/bin/regrow", "train", "cifar-resnet20", *options]
            print(f"training in {folder / 'runs'}; logs: {folder}/*.log; records: {code / 'results'}", flush=True)
            train(folder, commands)
    except (RunFolderError, subprocess.CalledProcessError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
