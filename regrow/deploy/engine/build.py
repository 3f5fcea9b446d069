"""Builds the kernels, once for each machine and network, and loads what was built."""

from __future__ import annotations

import ctypes
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path

from regrow.checks import warn
from regrow.deploy.engine import native
from regrow.deploy.engine.layout import side_bytes
from regrow.deploy.engine.tiles import SHAPES, Shape
from regrow.deploy.engine.toolchain import NoCompilerError, call, find_compiler, flags_for, processor, version_of
from regrow.system import cache_folder, cores, digest, remember

MOST_UNITS, LEAST_KERNELS = 4, 4
"""How many compilers share a build at most, and kernels for each at least: all of them read kernels.c first."""


@dataclass(frozen=True)
class Kernels:
    """What is to be built: kernels for tiles of any layer, and for the forms of a network's layers and halos."""

    tiles: tuple[Shape, ...]
    forms: tuple[str, ...] = ()
    halos: tuple[str, ...] = ()

    def sources(self, units: int) -> list[str]:
        """C files that are built by themselves and linked; the first is the one that runs plans."""
        kernels, threads = kernel_source("kernels.c"), [kernel_source("team.c"), kernel_source("shares.c")]
        shares = [self.definitions(unit, units) for unit in range(units)]
        return ["\n".join([share, kernels, *([] if unit else threads)]) for unit, share in enumerate(shares)]

    def definitions(self, unit: int = 0, units: int = 1) -> str:
        """The lists that kernels.c asks for, with one in `units` kernels in this unit, and the others elsewhere."""
        tiles, forms = list(enumerate(self.tiles)), list(enumerate(self.forms, 1))
        lists = {
            "TILES(T)": [f"T{shape}" for number, shape in tiles if number % units == unit],
            "FITTED(F)": [f"F({number}, {form})" for number, form in forms if number % units == unit],
            "HALOS(H)": [f"H({number}, {halo})" for number, halo in enumerate(self.halos, 1)],
        }
        if units > 1:
            lists["TILES_ELSEWHERE(T)"] = [f"T{shape}" for number, shape in tiles if number % units != unit]
            lists["FITTED_ELSEWHERE(F)"] = [f"F({number})" for number, _ in forms if number % units != unit]
        return "\n".join(f"#define {name} {' '.join(items)}" for name, items in lists.items())


@dataclass(frozen=True)
class Library:
    """The kernels, loaded."""

    handle: ctypes.CDLL
    lanes: int
    key: str
    compiler: tuple[str, ...]
    flags: tuple[str, ...]

    def peak(self) -> float:
        """Measure how many multiply-accumulates per second one thread can do at most."""
        return float(self.handle.regrow_peak())


def kernel_source(name: str = "kernels.c") -> str:
    """The text of one of the C files."""
    return resources.files("regrow.deploy.engine").joinpath(name).read_text()


def load_library(*, lanes: int | None = None) -> Library:
    """The kernels for this machine, built now if they never were; `lanes` asks for narrower vectors than it has.

    Where there is no compiler, those that any compiler has built here earlier will do.
    """
    try:
        compiler = find_compiler()
    except NoCompilerError:
        compiler = ()
    return _load(compiler, flags_for(lanes), str(cache_folder()), Kernels(SHAPES))


def fit_library(library: Library, kernels: Kernels) -> Library:
    """The engine with other kernels: those for one network (see `fitted`)."""
    return _load(library.compiler, library.flags, str(cache_folder()), kernels)


@cache
def _load(compiler: tuple[str, ...], flags: tuple[str, ...], folder: str, kernels: Kernels) -> Library:
    key = digest("\n".join([*kernels.sources(1), *flags, processor()]).encode())
    if compiler:
        key += "-" + digest("\n".join([*compiler, version_of(compiler)]).encode())
    path = _known(Path(folder), key)
    handle = _cached(path)
    if path is not None and handle is not None:
        key = path.stem.removeprefix("kernels-").rpartition("-")[0]
    else:
        handle = _built(compiler or find_compiler(), flags, Path(folder), kernels, key)
    return Library(handle, handle.regrow_lanes(), key, compiler, flags)


def _cached(path: Path | None) -> ctypes.CDLL | None:
    """A library in the cache, unless the system refuses to run what is there (a folder mounted with noexec)."""
    try:
        return None if path is None else _declared(path)
    except OSError as error:
        warn(f"the engine's kernels cannot be loaded from the cache and are built again: {error}", RuntimeWarning)
        return None


def _built(compiler: tuple[str, ...], flags: tuple[str, ...], folder: Path, kernels: Kernels, key: str) -> ctypes.CDLL:
    """The library, built now, and remembered if the cache can hold it."""
    with tempfile.TemporaryDirectory() as build:
        built = _compile(compiler, flags, kernels, Path(build))
        content = built.read_bytes()
        path = folder / f"kernels-{key}-{digest(content)}.so"
        try:
            return _cached(path if remember(path, content) else None) or _declared(built)
        except OSError as error:
            raise NoCompilerError(f"the system does not load what {compiler[0]} has built: {error}") from error


def _known(folder: Path, key: str) -> Path | None:
    """The library that was built earlier. Its name tells what is in it: loading a damaged one would end the process."""
    for path in sorted(folder.glob(f"kernels-{key}-*.so")):
        try:
            if path.stem.endswith(digest(path.read_bytes())):
                return path
        except OSError:
            continue
    return None


def _declared(path: Path) -> ctypes.CDLL:
    """A library with the types of its functions."""
    handle = ctypes.CDLL(str(path))
    handle.regrow_team_new.restype = ctypes.c_void_p
    handle.regrow_team_new.argtypes = [ctypes.c_int, ctypes.c_int]
    handle.regrow_team_free.argtypes = [ctypes.c_void_p]
    handle.regrow_team_size.argtypes = [ctypes.c_void_p]
    handle.regrow_run.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int]
    handle.regrow_run.restype = None
    handle.regrow_peak.restype = ctypes.c_double
    sizes = [getattr(handle, f"regrow_sizeof_{name}")() for name in ("op", "job", "borders", "exchange", "side")]
    expected = [ctypes.sizeof(structure) for structure in (native.Op, native.Job, native.Borders, native.Exchange)]
    if sizes != [*expected, side_bytes(handle.regrow_lanes())]:
        raise RuntimeError(f"{path} was built from other sources than this regrow's; delete it.")
    return handle


def _units(kernels: Kernels) -> int:
    worthwhile = (len(kernels.tiles) + len(kernels.forms)) // LEAST_KERNELS
    return max(1, min(cores(), MOST_UNITS, worthwhile))


def _compile(compiler: tuple[str, ...], flags: tuple[str, ...], kernels: Kernels, folder: Path) -> Path:
    """The library, built in `folder`."""
    sources = kernels.sources(_units(kernels))
    units = [folder / f"kernels{number}.c" for number in range(len(sources))]
    for unit, source in zip(units, sources, strict=True):
        unit.write_text(source)
    compiling = [[*flags, "-fPIC", "-c", str(unit), "-o", str(unit.with_suffix(".o"))] for unit in units]
    built = folder / "kernels.so"
    linking = ["-shared", "-pthread", *(str(unit.with_suffix(".o")) for unit in units), "-o", str(built), "-lm"]
    with ThreadPoolExecutor() as pool:
        list(pool.map(partial(call, compiler), compiling))
    call(compiler, linking)
    return built
