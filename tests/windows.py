"""Run regrow as on Windows: `python -m tests.windows SCRIPT`, for tests on other systems.

Only what regrow itself imports is changed, since torch and the standard library have their own code for Windows:
modules that do not exist there cannot be imported, others lack what is POSIX only, locks are mandatory, and there is
no /proc.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import mmap
import os
import pathlib
import runpy
import signal
import sys
import time
from types import ModuleType
from typing import Any

import torch  # before anything is changed

MISSING_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
MISSING_NAMES = {
    "os": {
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_SYNC", "WNOHANG", "chown", "chroot", "fchmod"),
        *("fchown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getgroups", "getloadavg", "getpgid", "getpgrp"),
        *("getpriority", "getuid", "killpg", "lchown", "mkfifo", "mknod", "nice", "openpty", "posix_fadvise"),
        *("posix_fallocate", "posix_spawn", "pread", "pwrite", "register_at_fork", "sched_getaffinity", "sched_yield"),
        *("sched_setaffinity", "sendfile", "setpgid", "setpriority", "setsid", "setuid", "statvfs", "sync", "sysconf"),
        *("uname", "wait", "wait3", "wait4"),
    },
    "signal": {
        *(name for name in dir(signal) if name.startswith("SIG")),
        *("alarm", "pthread_kill", "pthread_sigmask", "setitimer", "sigwait"),
    }
    - {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"},
    "mmap": {name for name in dir(mmap) if name.startswith(("MAP_", "MADV_", "PROT_"))},
    "time": {name for name in dir(time) if name.startswith(("CLOCK_", "clock_", "pthread_"))},
}


class Windows(ModuleType):
    """A module as Windows has it."""

    def __init__(self, real: ModuleType, missing: set[str], **changed: Any) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(changed)
        self.__dict__["_real"], self.__dict__["_missing"] = real, missing

    def __getattr__(self, name: str) -> Any:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


def open_file(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if pathlib.Path(path).is_dir():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return os.open(path, flags, mode)


def kill(process: int, number: int) -> None:
    os.kill(process, signal.SIGKILL)  # Windows runs no handler


def locking(handle: int, mode: int, size: int) -> None:
    assert os.lseek(handle, 0, os.SEEK_CUR) > os.fstat(handle).st_size, "nobody could read a locked byte"
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


def replace(path: pathlib.Path, target: Any, real: Any = pathlib.Path.replace) -> Any:
    with os.scandir("/proc/self/fd") as entries:
        opened = {os.readlink(entry.path) for entry in entries}  # noqa: PTH115
    if opened & {str(path.absolute()), str(pathlib.Path(target).absolute())}:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return real(path, target)


def without_proc(real: Any) -> Any:
    def checked(path: pathlib.Path, *args: Any, **options: Any) -> Any:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return real(path, *args, **options)

    return checked


MODULES = {
    "sys": Windows(sys, set(), platform="win32"),
    "os": Windows(os, MISSING_NAMES["os"], open=open_file, kill=kill, name="nt"),
    "msvcrt": Windows(ModuleType("msvcrt"), set(), locking=locking, LK_NBLCK=2),
    **{name: Windows(sys.modules[name], MISSING_NAMES[name]) for name in ("signal", "mmap", "time")},
}


def import_as_on_windows(
    name: str,
    globals: Any = None,
    locals: Any = None,
    fromlist: Any = (),
    level: int = 0,
    *,
    real: Any = builtins.__import__,
) -> Any:
    if globals and str(globals.get("__name__")).partition(".")[0] == "regrow":
        if name in MISSING_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in MODULES:
            return MODULES[name]
    return real(name, globals, locals, fromlist, level)


if __name__ == "__main__":
    assert not any(name.partition(".")[0] == "regrow" for name in sys.modules)
    torch.set_num_threads(1)
    builtins.__import__ = import_as_on_windows
    pathlib.Path.stat, pathlib.Path.open = without_proc(pathlib.Path.stat), without_proc(pathlib.Path.open)
    pathlib.Path.replace = replace
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="regrow_on_windows")
