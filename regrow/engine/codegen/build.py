"""Puts the C files together, compiles them for this machine, caches the result and loads it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from regrow.checks import warn
from regrow.engine.codegen.structs import plan_header
from regrow.engine.ops.activations import FUNCTIONS
from regrow.engine.ops.base import kernels as registered_kernels
from regrow.engine.ops.base import structures
from regrow.engine.plan.tiles import SHAPES, Shape
from regrow.system import (
    LIBRARY_SUFFIX,
    cores,
    cpu_features,
    digest,
    is_own,
    kernel_folder,
    read_trusted,
    trusted_folder,
    write_cached,
)

COMPILERS = ("gcc", "clang", "cc")

MOST_UNITS, LEAST_KERNELS = 4, 4
"""Maximum number of parallel compilers, and minimum number of kernels for each: each one parses the headers first."""


# Start of the names of temporary folders in which kernels are built.
_BUILD = "regrow-build-"


class NoCompilerError(RuntimeError):
    """There is no C compiler, or it cannot build the kernels."""


# ---- C files


def source_files() -> dict[str, str]:
    """Return all C files by name: the shared ones, plan.h, and one file per operation."""
    folder = resources.files("regrow.engine.codegen").joinpath("kernels")
    files = {
        file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith((".h", ".c"))
    }
    files |= {kernel.source.name: kernel.source.read_text(encoding="utf-8") for kernel in registered_kernels()}
    files["plan.h"] = plan_header(structures(), {name: function.c for name, function in FUNCTIONS.items()})
    return files


def joined_source(*names: str, lines: bool = False, attributes: str = "unused") -> str:
    """Return C files and the headers that they include as one text, with all functions static.

    With `lines`, compilers report errors by the names and lines of the files. `attributes` are those of functions that
    other files call.
    """
    files, seen = source_files(), set[str]()

    def expand(name: str) -> Iterable[str]:
        if name in seen:
            return
        seen.add(name)
        if lines:
            yield f'#line 1 "{name}"'
        for number, line in enumerate(files[name].splitlines(), 1):
            included = re.fullmatch(r'#include "(.+)"', line)
            if included is None:
                yield line
            else:
                yield from expand(included[1])
                if lines:
                    yield f'#line {number + 1} "{name}"'

    return "\n".join(
        [f"#define LOCAL static __attribute__(({attributes}))", *(line for name in names for line in expand(name)), ""]
    )


def operation_files() -> list[str]:
    """Return the names of the C files that run a plan: one per operation, and the dispatch."""
    return [*dict.fromkeys(kernel.source.name for kernel in registered_kernels()), "run.c"]


@dataclass(frozen=True)
class Kernels:
    """The kernels to build: tiles for any layer, and variants for the layers and halos of one network."""

    tiles: tuple[Shape, ...]
    variants: tuple[str, ...] = ()
    halos: tuple[str, ...] = ()

    def sources(self, units: int) -> list[str]:
        """Return C files that are compiled separately and linked; the first one runs plans."""
        everything = [*operation_files(), "thread_pool.c", "halo_exchange.c"]
        files = [everything, *(["conv.c"] for _ in range(1, units))]
        return [
            self.definitions(unit, units) + "\n" + joined_source(*names, lines=True) for unit, names in enumerate(files)
        ]

    def definitions(self, unit: int = 0, units: int = 1) -> str:
        """Return the macros that list the kernels: every `units`-th one in this unit, and those elsewhere."""
        tiles, variants = list(enumerate(self.tiles)), list(enumerate(self.variants, 1))
        lists = {
            "TILES(T)": [f"T{shape}" for number, shape in tiles if number % units == unit],
            "VARIANTS(V)": [f"V({number}, {variant})" for number, variant in variants if number % units == unit],
            "HALOS(H)": [f"H({number}, {halo})" for number, halo in enumerate(self.halos, 1)],
        }
        if units > 1:
            lists["TILES_ELSEWHERE(T)"] = [f"T{shape}" for number, shape in tiles if number % units != unit]
            lists["VARIANTS_ELSEWHERE(V)"] = [f"V({number})" for number, _ in variants if number % units != unit]
        return "\n".join(f"#define {name} {' '.join(items)}" for name, items in lists.items())


# ---- the compiler


def find_compiler() -> tuple[str, ...]:
    """Return the command in `$CC` with its arguments, or the first of gcc, clang, cc and the package ziglang."""
    named = os.environ.get("CC")
    if named is not None:
        return _named_compiler(named)
    zig = [(sys.executable, "-m", "ziglang", "cc")] if find_spec("ziglang") is not None else []
    others = [(found,) for found in map(shutil.which, COMPILERS) if found is not None]
    # clang on Windows often targets Microsoft's C library, which has no POSIX threads.
    for compiler in (*zig, *others) if sys.platform == "win32" else (*others, *zig):
        return compiler
    raise NoCompilerError(f"no C compiler found (looked for {', '.join(COMPILERS)} and the package ziglang).")


def _named_compiler(command: str) -> tuple[str, ...]:
    """Find a program whose path may have spaces, or one with arguments."""
    try:
        readings = [[command], shlex.split(command)]
    except ValueError:  # an unclosed quotation
        readings = [[command]]
    for program, *arguments in filter(None, readings):
        found = shutil.which(program)
        if found is not None:
            return (found, *arguments)
    raise NoCompilerError(f"$CC is {command!r}, which was not found.")


def flags_for(lanes: int | None) -> tuple[str, ...]:
    """Return the options for this machine; `lanes` selects narrower vectors than it has."""
    machine = platform.machine().lower()
    native_flag = "-march=native" if machine in ("x86_64", "amd64", "i686") else "-mcpu=native"
    narrower = {8: ("-mno-avx512f",), 4: ("-mno-avx512f", "-mno-avx2", "-mno-avx", "-mno-fma")}.get(lanes or 0, ())
    defined = () if lanes is None else (f"-DLANES={lanes}",)
    # The tuning for some CPUs spills integers to vector registers, which is slower than the stack.
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
    """Return the output of `--version`."""
    return subprocess.run(
        [*compiler, "--version"], capture_output=True, encoding="utf-8", errors="replace", check=False
    ).stdout


def _options_for(compiler: tuple[str, ...], flags: tuple[str, ...]) -> list[str]:
    """Return `flags` as `compiler` spells them: Zig takes the name of a CPU, without tuning."""
    if not (len(compiler) > 1 and compiler[-1] == "cc" and ("ziglang" in compiler or Path(compiler[0]).stem == "zig")):
        return list(flags)
    cpu = "x86_64_v2" if "-mno-avx" in flags else "x86_64_v3" if "-mno-avx512f" in flags else "native"
    return [f"-mcpu={cpu}", *(flag for flag in flags if not flag.startswith(("-march", "-mcpu", "-mtune", "-mno-")))]


def call_compiler(compiler: tuple[str, ...], arguments: list[str]) -> None:
    """Run the compiler; an error quotes its messages."""
    done = subprocess.run([*compiler, *arguments], capture_output=True, encoding="utf-8", errors="replace", check=False)
    if done.returncode != 0:
        raise NoCompilerError(f"{' '.join(compiler)} could not build the kernels:\n{done.stderr.strip()[:2000]}")
    if not Path(arguments[arguments.index("-o") + 1]).is_file():
        raise NoCompilerError(f"{' '.join(compiler)} built nothing: is it a C compiler? Set CC to one.")


# ---- the library


@dataclass(frozen=True)
class KernelLibrary:
    """The kernels, loaded."""

    handle: ctypes.CDLL
    lanes: int
    key: str
    compiler: tuple[str, ...]
    flags: tuple[str, ...]

    def peak(self) -> float:
        """Measure the multiply-accumulates per second that one thread can reach."""
        return float(self.handle.regrow_peak())


def load_library(*, lanes: int | None = None) -> KernelLibrary:
    """Load the kernels for this machine, from the cache if possible; `lanes` selects narrower vectors than it has.

    Without a compiler, kernels in the cache from any compiler are used.
    """
    try:
        compiler = find_compiler()
    except NoCompilerError:
        compiler = ()
    return _load(compiler, flags_for(lanes), str(kernel_folder()), Kernels(SHAPES))


def specialized_library(library: KernelLibrary, kernels: Kernels) -> KernelLibrary:
    """Load the engine with the kernels of one network (see `specialize`)."""
    return _load(library.compiler, library.flags, str(kernel_folder()), kernels)


@cache
def _load(compiler: tuple[str, ...], flags: tuple[str, ...], folder: str, kernels: Kernels) -> KernelLibrary:
    key = digest("\n".join([*kernels.sources(1), *flags, cpu_features()]).encode())
    if compiler:
        key += "-" + digest("\n".join([*compiler, version_of(compiler)]).encode())
    handle, key = _cached(Path(folder), key) or (
        _built(compiler or find_compiler(), flags, Path(folder), kernels, key),
        key,
    )
    return KernelLibrary(handle, handle.regrow_lanes(), key, compiler, flags)


def _cached(folder: Path, key: str) -> tuple[ctypes.CDLL, str] | None:
    """Load a library from the cache and return it with its full key; None if there is none, or if it cannot be loaded.

    Its name has a digest of its content: loading a damaged file would crash the process. Nobody but this user and root
    can change the open folder, so the file that was checked is the one that is loaded.
    """
    name_of_library = re.compile(rf"kernels-({key}(?:-[0-9a-f]+)?)-([0-9a-f]+){re.escape(LIBRARY_SUFFIX)}")
    with trusted_folder(folder) as opened:
        if opened is None:
            return None
        for known in filter(None, map(name_of_library.fullmatch, sorted(entry.name for entry in os.scandir(opened)))):
            content = read_trusted(opened, known[0])
            if content is None or digest(content) != known[2]:
                continue
            try:
                return _loaded_from(opened, known[0], content), known[1]
            except (OSError, AttributeError) as error:  # the folder may be mounted with noexec
                warn(
                    f"the engine's kernels cannot be loaded from the cache and are built again: {error}", RuntimeWarning
                )
    return None


def _loaded_from(folder: int | Path, name: str, content: bytes) -> ctypes.CDLL:
    """Load a library from an open folder: another folder may be at its path by now."""
    if isinstance(folder, Path):  # Windows
        return _declared(folder / name)
    place = Path("/proc/self/fd", str(folder))
    if place.is_dir():
        return _declared(place / name)
    with tempfile.TemporaryDirectory() as private:  # macOS
        copied = Path(private, name)
        copied.write_bytes(content)
        return _declared(copied)


def _built(compiler: tuple[str, ...], flags: tuple[str, ...], folder: Path, kernels: Kernels, key: str) -> ctypes.CDLL:
    """Build the library in a private folder, and store it in the cache if nobody else can change it."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    # Windows cannot remove a library that is loaded.
    with tempfile.TemporaryDirectory(prefix=_BUILD, ignore_cleanup_errors=sys.platform == "win32") as build:
        built = _compile(compiler, flags, kernels, Path(build))
        content = built.read_bytes()
        stored = write_cached(folder / f"kernels-{key}-{digest(content)}{LIBRARY_SUFFIX}", content)
        found = _cached(folder, key) if stored else None
        try:
            return _declared(built) if found is None else found[0]
        except OSError as error:
            raise NoCompilerError(f"the system cannot load the library that {compiler[0]} built: {error}") from error


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary folders of this user's builds that were killed more than an hour ago."""
    for path in folder.glob(f"{_BUILD}*"):
        with contextlib.suppress(OSError):
            facts = path.lstat()
            if is_own(facts) and time.time() - facts.st_mtime > 3600:
                shutil.rmtree(path)


def _declared(path: Path) -> ctypes.CDLL:
    """Load a library and declare the types of its functions."""
    handle = ctypes.CDLL(str(path))
    handle.regrow_pool_new.restype = ctypes.c_void_p
    handle.regrow_pool_new.argtypes = [ctypes.c_int, ctypes.c_int]
    handle.regrow_pool_free.argtypes = [ctypes.c_void_p]
    handle.regrow_pool_size.argtypes = [ctypes.c_void_p]
    handle.regrow_run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int]
    handle.regrow_run.restype = None
    handle.regrow_peak.restype = ctypes.c_double
    return handle


def _units(kernels: Kernels) -> int:
    worthwhile = (len(kernels.tiles) + len(kernels.variants)) // LEAST_KERNELS
    return max(1, min(cores(), MOST_UNITS, worthwhile))


def _compile(compiler: tuple[str, ...], flags: tuple[str, ...], kernels: Kernels, folder: Path) -> Path:
    """Build the library in `folder`."""
    sources = kernels.sources(_units(kernels))
    units = [folder / f"kernels{number}.c" for number in range(len(sources))]
    for unit, source in zip(units, sources, strict=True):
        unit.write_text(source, encoding="utf-8")
    options = [*_options_for(compiler, flags), "-fPIC"]
    compiling = [[*options, "-c", str(unit), "-o", str(unit.with_suffix(".o"))] for unit in units]
    built = folder / f"kernels{LIBRARY_SUFFIX}"
    linking = ["-shared", "-pthread", *(str(unit.with_suffix(".o")) for unit in units), "-o", str(built)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(call_compiler, compiler), compiling))
    call_compiler(compiler, linking)
    return built
