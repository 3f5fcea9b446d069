"""Fills the prebuilt WebAssembly template with a network, without a compiler.

Plan and weights become data segments behind the template's own data; nothing is relocated. The body of a function that
the network does not call is replaced by a trap: functions keep their numbers, and the module stays small.

`python -m regrow.export.wasm_template` (`make template`) builds the template from the engine's source. It needs the
package `ziglang`, whose compiler produces the same bytes on every machine.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from regrow.export.wasm_plan import ModuleData, is_kernel, source_digest, template_source

ZIG = "0.17.0"
"""The release of `ziglang` that builds the template."""

_MAGIC = b"\0asm\1\0\0\0"
_CUSTOM, _MEMORY, _GLOBAL, _EXPORT, _START, _CODE, _DATA = 0, 5, 6, 7, 8, 10, 11
_ORDER = (1, 2, 3, 4, 5, 13, 6, 7, 8, 9, 12, 10, 11)
_TRAP = b"\0\0\x0b"  # no locals; unreachable; end
_FUNCTION_KIND, _MEMORY_KIND, _GLOBAL_KIND = 0, 2, 3
_PAGE, _ALIGNMENT, _CHECKSUM = 65536, 64, 4  # bytes
_MOST_BYTES = 2**31

_FLAGS = ("-target", "wasm32-freestanding", "-mcpu=generic+simd128+bulk_memory", "-O3", "-std=gnu11")
_EXPORTED = ("run", "unpack", "model", "__heap_base")


def read_template() -> bytes:
    """Return the template; raise an error if it was not built from the current source."""
    template = resources.files("regrow.export").joinpath("templates", "template.wasm").read_bytes()
    if _custom(template, "source") != source_digest().encode():
        raise RuntimeError("templates/template.wasm was not built from the current kernels; run `make template`.")
    return template


def fill(template: bytes, data: ModuleData, *, inputs: int, outputs: int, info: dict[str, Any]) -> bytes:
    """Return the module that runs a network: exports `memory`, `run`, and the addresses `x` and `y`.

    `info` is stored as JSON in the custom section `regrow`, which is the last one. The section, and so the module, ends
    with the CRC-32 of all bytes before it.
    """
    sections = {kind: body for kind, body in _sections(template) if kind != _CUSTOM}
    exported, globals_ = _exports(sections[_EXPORT]), _constant_globals(sections[_GLOBAL])
    heap, model = (globals_[exported[name][1]] for name in ("__heap_base", "model"))
    plan_at = _aligned(heap)
    constants_at = _aligned(plan_at + len(data.operations))
    x_at = _aligned(constants_at + len(data.constants))
    y_at = _aligned(x_at + 4 * inputs)
    arena_at = _aligned(y_at + 4 * outputs)
    # The packed weights are stored in the arena: they are unpacked and cleared before the first run.
    end = arena_at + max(data.arena_bytes, len(data.packed))
    if end > _MOST_BYTES:
        raise ValueError(f"the network needs {end / 2**30:.1f} GB; an exported module can use at most 2 GB.")
    header = struct.pack("<8I", plan_at, data.count, constants_at, arena_at, x_at, y_at, arena_at, len(data.packed))
    segments = [(model, header), (plan_at, data.operations), (arena_at, data.packed)]
    segments += [(constants_at + at, run) for at, run in _runs(data.constants)]
    sections[_MEMORY] = b"\1\1" + 2 * _unsigned(-(-end // _PAGE))  # one memory, which cannot grow
    sections[_START] = _unsigned(exported["unpack"][1])
    sections[_CODE] = _code(template, sections[_CODE], data.kernels)
    sections[_DATA] = _data(sections.get(_DATA, b"\0"), segments)
    sections[_GLOBAL] = _with_constants(sections[_GLOBAL], (x_at, y_at))
    sections[_EXPORT] = _export_section(
        ("memory", _MEMORY_KIND, 0),
        ("run", _FUNCTION_KIND, exported["run"][1]),
        ("x", _GLOBAL_KIND, len(globals_)),
        ("y", _GLOBAL_KIND, len(globals_) + 1),
    )
    module = _MAGIC + b"".join(_section(kind, sections[kind]) for kind in _ORDER if kind in sections)
    described = json.dumps({**info, "memory": -(-end // _PAGE) * _PAGE}).encode()
    module += _custom_section("regrow", described + bytes(_CHECKSUM))[:-_CHECKSUM]
    return module + zlib.crc32(module).to_bytes(_CHECKSUM, "little")


def info_of(module: bytes) -> dict[str, Any]:
    """Return the description at the end of a module."""
    described: dict[str, Any] = json.loads((_custom(module, "regrow") or b"")[:-_CHECKSUM])
    return described


def build() -> bytes:
    """Compile the template with the package `ziglang`, and append the digest of its source."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "template.c").write_text(template_source(), encoding="utf-8")
        _zig(folder, "cc", *_FLAGS, "-c", "template.c", "-o", "template.o")
        exports = [f"--export={name}" for name in _EXPORTED]
        layout = ["--stack-first", "-z", "stack-size=16384"]
        _zig(folder, "wasm-ld", "--no-entry", *exports, *layout, "--strip-debug", "template.o", "-o", "template.wasm")
        built = Path(folder, "template.wasm").read_bytes()
    return built + _custom_section("source", source_digest().encode())


def _zig(folder: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ziglang", *arguments], cwd=folder, check=True)


def _sections(data: bytes, at: int = len(_MAGIC)) -> Iterator[tuple[int, bytes]]:
    """Yield the sections of a module, or the subsections of a section from offset `at` on."""
    while at < len(data):
        kind = data[at]
        size, at = _read_unsigned(data, at + 1)
        yield kind, data[at : at + size]
        at += size


def _custom(module: bytes, name: str) -> bytes | None:
    """Return the contents of a custom section, or None."""
    prefix = _text(name)
    bodies = (body for kind, body in _sections(module) if kind == _CUSTOM and body.startswith(prefix))
    return next((body[len(prefix) :] for body in bodies), None)


def _function_names(section: bytes) -> dict[int, str]:
    """Return the functions' names by number, from the custom section `name`."""
    names = {}
    for kind, body in _sections(section, 0):
        if kind == 1:
            count, at = _read_unsigned(body, 0)
            for _ in range(count):
                number, at = _read_unsigned(body, at)
                names[number], at = _read_text(body, at)
    return names


def _exports(section: bytes) -> dict[str, tuple[int, int]]:
    """Return the kind and number of each export, by name."""
    count, at = _read_unsigned(section, 0)
    found = {}
    for _ in range(count):
        name, at = _read_text(section, at)
        kind = section[at]
        number, at = _read_unsigned(section, at + 1)
        found[name] = (kind, number)
    return found


def _constant_globals(section: bytes) -> list[int]:
    """Return the values of the globals, which are all of type i32."""
    count, at = _read_unsigned(section, 0)
    values = []
    for _ in range(count):
        value, at = _read_signed(section, at + 3)  # after type, mutability and i32.const
        values.append(value)
        at += 1  # end
    return values


def _with_constants(section: bytes, values: tuple[int, ...]) -> bytes:
    count, at = _read_unsigned(section, 0)
    added = b"".join(b"\x7f\0\x41" + _signed(value) + b"\x0b" for value in values)
    return _unsigned(count + len(values)) + section[at:] + added


def _export_section(*exports: tuple[str, int, int]) -> bytes:
    entries = (_text(name) + bytes([kind]) + _unsigned(number) for name, kind, number in exports)
    return _unsigned(len(exports)) + b"".join(entries)


def _code(template: bytes, section: bytes, kernels: frozenset[str]) -> bytes:
    """Return the code section with only the kernels that are called."""
    names = _function_names(_custom(template, "name") or b"")
    if missing := kernels - set(names.values()):
        raise RuntimeError(f"the template has no function {', '.join(sorted(missing))}; run `make template`.")
    count, at = _read_unsigned(section, 0)
    bodies = []
    for number in range(count):
        size, at = _read_unsigned(section, at)
        unneeded = is_kernel(names[number]) and names[number] not in kernels
        body = _TRAP if unneeded else section[at : at + size]
        bodies.append(_unsigned(len(body)) + body)
        at += size
    return _unsigned(count) + b"".join(bodies)


def _data(section: bytes, segments: list[tuple[int, bytes]]) -> bytes:
    """Return the data section with more active segments."""
    count, at = _read_unsigned(section, 0)
    added = [b"\0\x41" + _signed(where) + b"\x0b" + _unsigned(len(what)) + what for where, what in segments]
    return _unsigned(count + len(added)) + section[at:] + b"".join(added)


def _runs(constants: bytes, apart: int = 16) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of `constants` between long runs of zeros; memory is initialized to zero."""
    at = np.flatnonzero(np.frombuffer(constants, np.uint8))
    for run in np.split(at, np.flatnonzero(np.diff(at) > apart) + 1):
        if len(run):
            yield int(run[0]), constants[run[0] : run[-1] + 1]


def _section(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + _unsigned(len(body)) + body


def _custom_section(name: str, body: bytes) -> bytes:
    return _section(_CUSTOM, _text(name) + body)


def _text(text: str) -> bytes:
    return _unsigned(len(text.encode())) + text.encode()


def _unsigned(value: int) -> bytes:
    """Encode a number in LEB128, as the format stores all numbers."""
    coded = bytearray()
    while value > 127:
        coded.append(value & 127 | 128)
        value >>= 7
    return bytes([*coded, value])


def _signed(value: int) -> bytes:
    coded = bytearray()
    while not -64 <= value < 64:
        coded.append(value & 127 | 128)
        value >>= 7
    return bytes([*coded, value & 127])


def _read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the offset after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _read_signed(data: bytes, at: int) -> tuple[int, int]:
    value, end = _read_unsigned(data, at)
    bits = 7 * (end - at)
    return (value - (1 << bits) if data[end - 1] & 64 else value), end


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    length, at = _read_unsigned(data, at)
    return data[at : at + length].decode(), at + length


def _aligned(address: int) -> int:
    return -(-address // _ALIGNMENT) * _ALIGNMENT


if __name__ == "__main__":
    Path(__file__).with_name("templates").joinpath("template.wasm").write_bytes(build())
