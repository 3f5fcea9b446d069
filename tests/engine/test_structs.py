"""Python and C agree on every field of every struct, and every C file compiles on its own."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

import regrow
from regrow.engine.codegen.build import source_files
from regrow.engine.codegen.structs import ENTRIES, FOUR, SHARED, op_struct, side_struct
from regrow.engine.ops.base import structures

COMPILERS = [compiler for compiler in ("gcc", "clang") if shutil.which(compiler)]
STRICT = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name, text in source_files().items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.skipif(not COMPILERS, reason="needs a C compiler")
@pytest.mark.parametrize(("lanes", "bits"), [(4, 32), (8, 16), (16, 8)])
def test_every_field_has_the_same_offset_and_size_in_c(lanes: int, bits: int, sources: Path, tmp_path: Path) -> None:
    described = [*SHARED, *structures(), side_struct(lanes), ENTRIES[bits], op_struct(structures())]
    described += [FOUR] if bits == 32 else []
    lines, expected = [], []
    for structure in described:
        name = structure.__name__
        for field in (field[0] for field in structure._fields_):
            c_field = f"((struct {name} *)0)->{field.rstrip('_')}"
            lines.append(f'printf("%zu %zu\\n", offsetof(struct {name}, {field.rstrip("_")}), sizeof({c_field}));')
            found = getattr(structure, field)
            expected.append((name, field, found.offset, found.size))
        lines.append(f'printf("%zu %zu\\n", (size_t)0, sizeof(struct {name}));')
        expected.append((name, "", 0, ctypes.sizeof(structure)))
    program = tmp_path / "offsets.c"
    program.write_text('#include <stdio.h>\n#include "plan.h"\nint main(void)\n{\n' + "\n".join(lines) + "\n}\n")
    options = [f"-I{sources}", f"-DLANES={lanes}", f"-DWEIGHT_BITS={bits}", "-Wno-psabi"]
    subprocess.run([COMPILERS[0], *options, str(program), "-o", str(tmp_path / "offsets")], check=True)
    printed = subprocess.run([str(tmp_path / "offsets")], capture_output=True, text=True, check=True).stdout
    in_c = [tuple(map(int, line.split())) for line in printed.splitlines()]
    assert [(name, field, *found) for (name, field, *_), found in zip(expected, in_c, strict=True)] == expected


@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_c_file_compiles_on_its_own(compiler: str, sources: Path) -> None:
    for file in sorted(sources.glob("*.[ch]")):
        command = [compiler, *STRICT, "-O1", "-march=native", "-x", "c", "-fsyntax-only", str(file)]
        command += ["-Wno-pragma-once-outside-header"] if compiler == "clang" else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{file.name}: {done.stderr}"


@pytest.mark.skipif(shutil.which("clang-format") is None, reason="needs clang-format")
def test_every_c_file_is_formatted() -> None:
    folder = Path(regrow.__file__).parent
    files = [str(file) for file in sorted(folder.rglob("*.[ch]"))]
    assert str(folder / "export" / "templates" / "template.c") in files
    done = subprocess.run(
        ["clang-format", "--dry-run", "-Werror", *files], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr


def test_kernels_need_no_mathematical_library() -> None:
    for name, text in source_files().items():
        assert "math.h>" not in text, name
