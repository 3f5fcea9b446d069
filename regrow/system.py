"""The machine: CPU count, locks, atomic writes, the cache folder, versions of the software. Imports without torch.

Differences between Linux, macOS and Windows are handled here, so that other modules need not know them.
"""

from __future__ import annotations

import _thread
import contextlib
import glob
import hashlib
import mmap
import os
import platform
import secrets
import signal
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

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

STOP_SIGNALS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)
)
"""Signals that ask a process to stop: Ctrl-C, a request to end, and a closed terminal (SIGBREAK on Windows)."""

if sys.platform == "win32":
    # The kernels' thread library has numbers of its own; its clock for processor time ticks 64 times a second.
    MONOTONIC_CLOCK = PROCESSOR_CLOCK = 1
else:
    MONOTONIC_CLOCK, PROCESSOR_CLOCK = time.CLOCK_MONOTONIC, time.CLOCK_THREAD_CPUTIME_ID
"""Numbers of the clocks that measure kernels; processor time is not affected by other processes."""

LIBRARY_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
"""End of the names of shared libraries."""

_PACKAGES = (
    *("torch", "numpy", "tyro", "rich", "safetensors", "pyarrow", "pillow", "altair", "tensorboard"),
    *("onnx", "onnxruntime", "openvino"),
)

_LARGEST_CACHED = 1 << 28
"""Largest file in bytes that is read from the folder of kernels."""


# Seconds after which a partial file that nobody has locked was left by a killed process.
_NEWLY_CREATED = 2.0

# The byte that is locked on Windows, where nobody else can read or write a locked byte: behind all content.
_LOCKED_BYTE = 1 << 30

# Windows refuses to replace a file while another process reads it, which takes a moment.
_REPLACE_TRIES, _REPLACE_PAUSE = 20, 0.05


def cores() -> int:
    """Return how many CPUs this process may use; in a container, this can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stop_this_process() -> None:
    """Let the main thread handle a SIGTERM. On Windows, `os.kill` would end the process at once."""
    if sys.platform == "win32":
        _thread.interrupt_main(signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)


def zeroed_memory(size: int) -> mmap.mmap:
    """Return zeroed memory of this process."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size)
    # A forked process must not compute in its parent's memory, and shared memory rarely has huge pages.
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


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
            with contextlib.suppress(OSError):  # some network file systems have no locks
                lock(file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if sys.platform != "win32":
                partial.replace(path)
        if sys.platform == "win32":
            _replace_closed(partial, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # the user does not know the partial file
    finally:
        partial.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _remove_abandoned(path: Path) -> None:
    """Remove the partial files of killed writers of `path`; those of living writers are locked."""
    for abandoned in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}"):
        with contextlib.suppress(OSError):
            handle = os.open(abandoned, os.O_RDONLY | safe_open_flags())
            try:
                # A writer locks its file right after it has created it.
                removable = time.time() - os.fstat(handle).st_mtime > _NEWLY_CREATED and lock(handle)
                if removable and sys.platform != "win32":
                    abandoned.unlink()
            finally:
                os.close(handle)
            if removable and sys.platform == "win32":
                abandoned.unlink()  # Windows does not remove an open file


def _replace_closed(partial: Path, path: Path) -> None:
    """Replace a file on Windows, which refuses that while `partial` is open or a process reads `path`."""
    for _ in range(_REPLACE_TRIES):
        try:
            partial.replace(path)
        except PermissionError:
            time.sleep(_REPLACE_PAUSE)
        else:
            return
    partial.replace(path)


def lock(handle: int) -> bool:
    """Lock an open file until it is closed; return False if another process has locked it."""
    try:
        if sys.platform == "win32":
            position = os.lseek(handle, 0, os.SEEK_CUR)
            os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(handle, position, os.SEEK_SET)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _sync_directory(folder: Path) -> None:
    """Make a rename in `folder` survive a power failure; Windows cannot open folders."""
    if sys.platform == "win32":
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
def trusted_folder(folder: Path) -> Iterator[int | Path | None]:
    """Open a folder; None if it is missing, or if anybody but this user and root can change what is in it.

    On Windows, which has neither open folders nor these permissions, it is the path of the folder.
    """
    if sys.platform == "win32":
        yield folder if folder.is_dir() else None
        return
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield None
        return
    try:
        yield handle if _only_we_can_write(os.fstat(handle)) else None
    finally:
        os.close(handle)


def read_trusted(folder: int | Path, name: str) -> bytes | None:
    """Read a file of a `trusted_folder`; None if it is missing, or if anybody but this user and root can change it."""
    try:
        if isinstance(folder, Path):
            handle = os.open(folder / name, os.O_RDONLY)
        else:
            handle = os.open(name, os.O_RDONLY | safe_open_flags(), dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        suitable = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_CACHED and _only_we_can_write(status)
        return file.read(_LARGEST_CACHED) if suitable else None


def safe_open_flags() -> int:
    """Return the flags of `os.open` that refuse symbolic links and do not wait for FIFOs; Windows has none."""
    if sys.platform == "win32":
        return 0
    return os.O_NOFOLLOW | os.O_NONBLOCK


def is_own(status: os.stat_result) -> bool:
    """Return whether a file belongs to this user; on Windows, which does not report owners, assume one user."""
    return sys.platform == "win32" or status.st_uid == os.geteuid()


def _only_we_can_write(status: os.stat_result) -> bool:
    """Return whether a file or folder belongs to this user or root, and nobody else can write to it."""
    if sys.platform == "win32":
        return True  # files have no permission bits there; a user's folders belong to that user
    return (status.st_uid == 0 or is_own(status)) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read_cached(path: Path) -> bytes | None:
    """Return what `write_cached` wrote; None if it is missing, or if anybody but this user and root can change it."""
    with trusted_folder(path.parent) as folder:
        return None if folder is None else read_trusted(folder, path.name)


def write_cached(path: Path, content: bytes) -> bool:
    """Write a file of the cache and return True; warn and return False if it cannot be written or read again.

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
    """Return the commit of the checkout that regrow runs from, marked if its code differs; None if it is installed."""
    package = Path(__file__).parent
    if not (package.parent / ".git").exists():
        return None
    git = ["git", "-C", str(package)]
    found = _output_of([*git, "rev-parse", "--short=12", "HEAD"])
    changed = _output_of(
        [*git, "diff", "--name-only", "HEAD", "--", "."]
    )  # other files, such as results, do not matter
    return f"{found}-dirty" if found and changed else found


def _output_of(command: list[str]) -> str | None:
    """Return what a command prints; None if it fails."""
    try:
        found = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def cpu_name() -> str:
    """Return the processor's name as the operating system reports it, with family and model where they are known."""
    if sys.platform == "darwin":
        return _output_of(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "model name" in facts and "cpu family" in facts:
            return f"{facts['model name']} (family {facts['cpu family']}, model {facts.get('model')})"
        if "model name" in facts:
            return facts["model name"]
    return platform.processor() or platform.machine()


def cpu_features() -> str:
    """Return the CPU features that compiled code depends on: a cache shared by machines has one build for each CPU."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return f"{cpu_name()} {platform.processor()}"
    kept = [line for line in text.splitlines() if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join(sorted(set(kept)))


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
