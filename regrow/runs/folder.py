"""A run folder on disk: its lock, its recipe and result, metrics.jsonl, and errors that say what to do.

Every file is written as a whole or not at all, so a run can resume after a crash at any time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regrow.runs.recipe import Recipe, read_toml
from regrow.system import lock, safe_open_flags, write_atomically

FIXES = {
    errno.ENOSPC: "The disk is full: free some space, then run the same command again to continue.",
    errno.EDQUOT: "The disk quota is exceeded: free some space, then run the same command again to continue.",
    errno.EFBIG: "The file exceeds the size limit of this process (ulimit -f).",
    errno.EACCES: "The folder is not writable: choose another one with --out.",
    errno.EROFS: "The file system is read-only: choose another folder with --out.",
}
"""Advice for operating system errors that prevent writing a file."""

DIVERGED = "diverged.json"
"""File in the folder of a run whose loss or weights became infinite or NaN."""

CHECKPOINT = "checkpoint.safetensors"
"""File in a run folder with the state between two steps."""

# Parsed JSON takes up to 30 times the memory of its text. A large run (1,000 layers, 300 epochs) has 20 MB of metrics.
_LARGEST_JSON = 1 << 20
_LARGEST_METRICS = 64 << 20


class RunFolderError(OSError):
    """A run folder cannot be used; the message says why and what to do."""


class InUseError(RunFolderError):
    """Another process uses the folder."""


def open_inside(path: Path, flags: int) -> int:
    """Open a file of a run folder and return its descriptor; only a regular file inside the folder is opened.

    The folder may come from elsewhere: a symbolic link could lead to any file of the user, and a FIFO blocks forever.
    """
    if not safe_open_flags() and path.is_symlink():
        raise _not_inside(path)
    try:
        handle = os.open(path, flags | safe_open_flags(), 0o644)
    except OSError as error:
        if path.is_symlink():
            raise _not_inside(path) from None
        if error.errno == errno.ENXIO:  # a FIFO that nobody reads, or a socket
            raise _not_inside(path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise _not_inside(path)
    return handle


def check_inside(path: Path) -> os.stat_result:
    """Return the facts about a file of a run folder; raise if it is a symbolic link or not a regular file."""
    facts = path.lstat()
    if not stat.S_ISREG(facts.st_mode):
        raise _not_inside(path)
    return facts


def check_entries(folder: Path) -> None:
    """Raise if a run folder, which may come from elsewhere, holds anything but regular files and folders."""
    for entry in folder.iterdir():
        if not stat.S_ISDIR(entry.lstat().st_mode):
            check_inside(entry)


def read_inside(path: Path, most: int | None = None) -> bytes:
    """Return the content of a file of a run folder, which may have at most `most` bytes.

    A missing file is a `FileNotFoundError`, any other problem a `RunFolderError`.
    """
    try:
        with os.fdopen(open_inside(path, os.O_RDONLY), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise RunFolderError(f"{path} has {size:,} bytes, more than the {most:,} allowed.")
            return file.read(size)
    except (RunFolderError, FileNotFoundError):
        raise
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from error


def _not_inside(path: Path) -> RunFolderError:
    what = "a symbolic link" if path.is_symlink() else "not a regular file"
    return RunFolderError(f"{path} is {what}. A run folder may hold only regular files: remove it, or copy the file.")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock `folder` for this process. The operating system releases the lock however the process ends."""
    path = folder / "lock"
    with writing(path):
        file = os.fdopen(open_inside(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+", encoding="utf-8")
    with file:
        if not lock(file.fileno()):
            file.seek(0)
            holder = file.read(100).strip() or "another process"
            raise InUseError(f"{folder} is in use by {holder}. Stop it, or choose another folder with --out.")
        file.truncate(0)
        file.write(f"process {os.getpid()} (since {time.strftime('%H:%M')})")
        file.flush()
        yield
        file.truncate(0)


@contextlib.contextmanager
def made(folder: Path, *, file: Path | None = None) -> Iterator[bool]:
    """Make `folder` and say whether it is new; after an error, new folders are removed again if they are empty.

    If it cannot be made, the error names the `file` that it is for.
    """
    with writing(file or folder):
        new = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield bool(new)
    except BaseException:
        with contextlib.suppress(OSError):  # it has files
            for each in new:
                each.rmdir()
        raise


@contextlib.contextmanager
def entered(folder: Path) -> Iterator[None]:
    """Make `folder` and lock it; after an error, remove it if it contains only the lock."""
    with made(folder) as new, locked(folder):
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):  # others may have removed it
                if new and [entry.name for entry in folder.iterdir()] == ["lock"]:
                    (folder / "lock").unlink()
            raise


def check_not_in_a_run(folder: Path) -> None:
    """Raise if `folder` or a folder above it is the folder of another run."""
    folder = folder.resolve()
    for each in (folder, *folder.parents):
        # A recipe.toml alone may be a recipe that the user has written.
        if (each / "recipe.toml").is_file() and (each is folder or (each / "metrics.jsonl").is_file()):
            raise RunFolderError(f"{each} is the folder of one run. Choose another folder with --out.")


def read_recipe(folder: Path | str) -> Recipe:
    """Return the recipe of the run in `folder`."""
    path = Path(folder) / "recipe.toml"
    if not path.is_file():
        raise RunFolderError(f"{folder} is not a run folder: it has no recipe.toml.")
    check_inside(path)
    return recipe_of_run(read_toml(path), str(path))


def recipe_of_run(fields: Mapping[str, Any], origin: str) -> Recipe:
    """Return the recipe of a run. Older versions left `every` out for the paper's period, which was the default."""
    return Recipe.of({**fields, "every": fields.get("every") or "paper"}, origin)


def read_result(folder: Path | str) -> dict[str, Any] | None:
    """Return the result of the run in `folder`, or None if the run is not finished."""
    return read_object(Path(folder) / "result.json")


def read_divergence(folder: Path | str) -> dict[str, Any] | None:
    """Return the record of how the run in `folder` diverged, or None if it did not."""
    return read_object(Path(folder) / DIVERGED)


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file of a run folder, or None if there is no file."""
    try:
        result = json.loads(read_inside(path, _LARGEST_JSON))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged: {error}") from None
    if not isinstance(result, dict):
        raise RunFolderError(f"{path} is damaged: expected a JSON object, got a {type(result).__name__}")
    return result


class Metrics:
    """Appends one line per epoch to metrics.jsonl, after cutting the file back to `position` bytes.

    A checkpoint stores the position: a resumed run removes the lines written after its checkpoint.
    """

    def __init__(self, path: Path, position: int) -> None:
        self.path = path
        with writing(path):
            self._file = os.fdopen(open_inside(path, os.O_RDWR | os.O_CREAT), "r+b")
            if not 0 <= position <= os.fstat(self._file.fileno()).st_size:
                self._file.close()
                raise RunFolderError(
                    f"{path} is shorter than its checkpoint expects. Restore the file, or remove both."
                )
            self._file.truncate(position)
            self._file.seek(position)
            self._identity = os.fstat(self._file.fileno())

    @property
    def position(self) -> int:
        """Length of the file in bytes."""
        return self._file.tell()

    def check_present(self) -> None:
        """Raise if the file is no longer in its folder, because somebody removed or replaced the folder."""
        try:
            present = os.path.samestat(self.path.lstat(), self._identity)
        except OSError:
            present = False
        if not present:
            raise RunFolderError(f"{self.path.parent} was removed or replaced while its run was trained.")

    def append(self, record: dict[str, Any]) -> None:
        """Write a line and sync it to disk, because a checkpoint that counts it may follow."""
        with writing(self.path):
            self._file.write((json.dumps(record, allow_nan=False) + "\n").encode())
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run; an incomplete last line, which a running process may leave, is skipped."""
    path = folder / "metrics.jsonl"
    lines = read_inside(path, _LARGEST_METRICS).splitlines(keepends=True)
    return [_record(path, number, line) for number, line in enumerate(lines, 1) if line.endswith(b"\n")]


def _record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}, line {number} is damaged: {error}") from None
    if not isinstance(record, dict):
        raise RunFolderError(f"{path}, line {number} is damaged: expected a JSON object, got {line[:40]!r}")
    return record


def write_whole(path: Path, content: bytes) -> None:
    """Replace `path` atomically: a reader sees the old content or the new one, never a part."""
    with writing(path):
        write_atomically(path, content)


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON."""
    write_whole(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into the `RunFolderError` of `cannot_write`."""
    try:
        yield
    except RunFolderError:
        raise
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> RunFolderError:
    """Return the error that says why `path` cannot be written and what to do about it."""
    return RunFolderError(f"cannot write {path}: {error.strerror}. {FIXES.get(error.errno or 0, '')}".rstrip())


def remove_partial(folder: Path) -> None:
    """Remove the temporary files of a killed process; the caller holds the folder's lock."""
    for path in folder.glob(".*"):
        if re.fullmatch(r"\.[a-z]+\.(json|toml|safetensors)\.[0-9a-f]{8}", path.name):
            path.unlink(missing_ok=True)


def remove_shards(folder: Path, keep: str) -> None:
    """Remove the sharded tensors of earlier checkpoints, complete or not."""
    for path in folder.glob("shards-*"):
        if path.name != keep:
            shutil.rmtree(path, ignore_errors=True)
