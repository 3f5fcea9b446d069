"""The machine: CPU count, atomic writes, the cache folder, versions of the software. Imports without torch."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import platform
import secrets
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from regrow import __version__
from regrow.checks import warn

_PACKAGES = (
    *("torch", "numpy", "tyro", "rich", "safetensors", "pyarrow", "pillow", "altair", "tensorboard"),
    *("onnx", "onnxruntime", "openvino"),
)

_LARGEST_CACHED = 1 << 28
"""Largest file in bytes that is read from the folder of kernels."""


# Seconds after which a partial file that nobody has locked was left by a killed process.
_NEWLY_CREATED = 2.0


def cores() -> int:
    """Return how many CPUs this process may use; in a container, this can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write_atomically(path: str | Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace the file `path` by `data`; after a crash at any moment, it has its old or its new content.

    `mode` are the permissions before the umask is applied.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            _lock(file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # the user does not know the partial file
    finally:
        partial.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _remove_abandoned(path: Path) -> None:
    """Remove the partial files of killed writers of `path`; those of living writers are locked."""
    for abandoned in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}"):
        with contextlib.suppress(OSError):
            handle = os.open(abandoned, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            try:
                # A writer locks its file right after it has created it.
                if time.time() - os.fstat(handle).st_mtime > _NEWLY_CREATED and _lock(handle):
                    abandoned.unlink()
            finally:
                os.close(handle)


def _lock(handle: int) -> bool:
    """Lock an open file until it is closed; return False if another process has locked it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_directory(folder: Path) -> None:
    """Make a rename in `folder` survive a power failure, on systems that can open folders."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """Return the folder for kernels, measured tiles, downloads and decoded images; it can be deleted at any time.

    It is `$REGROW_CACHE` or, if that is not set, `regrow` in the user's cache folder (`$XDG_CACHE_HOME`, `~/.cache`).
    """
    chosen = os.environ.get("REGROW_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "regrow"
    except RuntimeError:
        raise OSError("the home folder is unknown. Set REGROW_CACHE to a folder that can be written.") from None


def kernel_folder() -> Path:
    """Return the folder of the cache for kernels and measured tiles, which only this user can change.

    It is a folder of its own because libraries in it are executed, and users may share the rest of the cache.
    """
    return cache_folder() / "kernels"


@contextmanager
def trusted_folder(folder: Path) -> Iterator[int | None]:
    """Open a folder; None if it is missing, or if anybody but this user and root can change what is in it."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    try:
        yield handle if _is_ours(os.fstat(handle)) else None
    finally:
        os.close(handle)


def read_trusted(folder: int, name: str) -> bytes | None:
    """Read a file of a `trusted_folder`; None if it is missing, or if anybody but this user and root can change it."""
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        suitable = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_CACHED and _is_ours(status)
        return file.read(_LARGEST_CACHED) if suitable else None


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def recall(path: Path) -> bytes | None:
    """Return what `remember` wrote; None if the file is missing, or if anybody but this user and root can change it."""
    with trusted_folder(path.parent) as folder:
        return None if folder is None else read_trusted(folder, path.name)


def remember(path: Path, content: bytes) -> bool:
    """Write a file of the cache and return True; if that is impossible, or useless for `recall`, warn and return False.

    Others cannot write to the file or to a folder that is made for it, whatever the umask allows.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with trusted_folder(path.parent) as folder:
            if folder is None:
                status = path.parent.stat()
                owner, mode = status.st_uid, stat.S_IMODE(status.st_mode)
                raise PermissionError(None, f"other users can change it: its owner is {owner}, its mode {mode:o}")
        write_atomically(path, content, mode=0o644)
    except OSError as error:
        warn(
            f"{path.parent} cannot be used as a cache ({error.strerror or error}): kernels and measurements of this "
            "model are lost when the program ends. Set REGROW_CACHE to a folder of your own that can be written.",
            RuntimeWarning,
        )
        return False
    return True


def digest(content: bytes) -> str:
    """Return the start of the SHA-256 digest of `content`, used as a cache key."""
    return hashlib.sha256(content).hexdigest()[:20]


def versions() -> dict[str, str]:
    """Return the versions of Python, regrow and those of its optional and required packages that are installed."""
    found = {"python": platform.python_version(), "regrow": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def environment(processes: int = 1) -> dict[str, Any]:
    """Return versions, machine and command line of a run that uses `processes` processes."""
    import torch

    return {
        "versions": versions(),
        "commit": commit(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "REGROW_DATA": os.environ.get("REGROW_DATA"),
        "command": sys.argv,
    }


def commit() -> str | None:
    """Return the commit of the checkout that regrow runs from, marked if files differ; None if it is installed."""
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def cpu_name() -> str:
    """Return the processor's name as the operating system reports it, with family and model where they are known."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "model name" in facts and "cpu family" in facts:
            return f"{facts['model name']} (family {facts['cpu family']}, model {facts.get('model')})"
        if "model name" in facts:
            return facts["model name"]
    return platform.processor() or platform.machine()


@contextmanager
def shown_if_slow(what: str, after: float = 2.0) -> Iterator[None]:
    """Show on a terminal how long something has been taking, once that is more than `after` seconds."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    done, began = threading.Event(), time.monotonic()

    def show() -> None:
        if done.wait(after):
            return
        while True:
            print(f"\r{what} … {time.monotonic() - began:.0f} s", end="", file=sys.stderr, flush=True)
            if done.wait(1.0):
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)  # erase the line
                return

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        done.set()
        shower.join()
