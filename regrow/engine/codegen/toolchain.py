"""The system's C compiler: where it is, what it is told, and what this machine is to it."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path

COMPILERS = ("gcc", "clang", "cc")


class NoCompilerError(RuntimeError):
    """There is no C compiler, or it cannot build the kernels."""


def find_compiler() -> tuple[str, ...]:
    """The command that `$CC` names, with its arguments, or the first of gcc, clang and cc that exists."""
    named = os.environ.get("CC")
    if named is not None:
        return _named_compiler(named)
    for candidate in COMPILERS:
        found = shutil.which(candidate)
        if found is not None:
            return (found,)
    raise NoCompilerError(f"no C compiler found (looked for {', '.join(COMPILERS)}).")


def _named_compiler(command: str) -> tuple[str, ...]:
    """A program, whose path may have spaces, or one with arguments."""
    try:
        readings = [[command], shlex.split(command)]
    except ValueError:  # a quotation that does not end
        readings = [[command]]
    for program, *arguments in filter(None, readings):
        found = shutil.which(program)
        if found is not None:
            return (found, *arguments)
    raise NoCompilerError(f"$CC is {command!r}, which was not found.")


def flags_for(lanes: int | None) -> tuple[str, ...]:
    """The options for this machine; `lanes` asks for narrower vectors than it has."""
    machine = platform.machine().lower()
    native_flag = "-march=native" if machine in ("x86_64", "amd64", "i686") else "-mcpu=native"
    narrower = {8: ("-mno-avx512f",), 4: ("-mno-avx512f", "-mno-avx2", "-mno-avx", "-mno-fma")}.get(lanes or 0, ())
    defined = () if lanes is None else (f"-DLANES={lanes}",)
    # The generic tuning does not park integers in vector registers, which costs more than the stack.
    return (
        "-O2",
        native_flag,
        "-mtune=generic",
        *narrower,
        *defined,
        "-std=gnu11",
        "-ffp-contract=fast",
        "-fno-math-errno",
    )


def version_of(compiler: tuple[str, ...]) -> str:
    """What the compiler says of itself."""
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout


def processor() -> str:
    """What `-march=native` stands for, so that a cache shared between machines holds one build for each."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    kept = [line for line in text.splitlines() if line.startswith(("model name", "flags", "Features", "CPU part"))]
    return "\n".join(sorted(set(kept)))


def call(compiler: tuple[str, ...], arguments: list[str]) -> None:
    """Run the compiler, or say what it says against it."""
    done = subprocess.run([*compiler, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoCompilerError(f"{' '.join(compiler)} could not build the kernels:\n{done.stderr.strip()[:2000]}")
