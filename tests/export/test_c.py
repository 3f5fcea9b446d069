"""Exported C files compile without warnings for all targets, and have the outputs of the model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regrow.engine.codegen.build import load_library
from regrow.engine.plan.weights import Format
from regrow.export.c_source import CExport, c
from regrow.models import build
from tests.engine.networks import Dense, Excite, sparsify

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
NEEDS_GCC = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
PACKAGES = "clang gcc-aarch64-linux-gnu gcc-arm-linux-gnueabihf qemu-user-static"
TARGETS = {
    "clang": (["clang", "-O2"], []),
    "gcc with this machine's vectors": (["gcc", "-O2", "-march=native"], []),
    "aarch64": (["aarch64-linux-gnu-gcc", "-O2", "-static"], ["qemu-aarch64-static"]),
    "armhf": (["arm-linux-gnueabihf-gcc", "-O2", "-static"], ["qemu-arm-static"]),
    "armhf with NEON": (["arm-linux-gnueabihf-gcc", "-O2", "-static", "-mfpu=neon"], ["qemu-arm-static"]),
}


class Everything(nn.Module):
    """One of each operation, on sizes that are not multiples of a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 6, 5, 2, 2), nn.BatchNorm2d(6)
        self.depthwise, self.excite, self.dense = nn.Conv2d(6, 6, 3, 1, 1, groups=6), Excite(6), Dense(6, 5)
        self.last = nn.Linear(16 * 9, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = self.excite(F.hardswish(self.depthwise(x)) + x)
        x = F.avg_pool2d(self.dense(x), 3, 2, 1, count_include_pad=False)
        return self.last(F.adaptive_avg_pool2d(x, 3).flatten(1))


def everything() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = Everything().eval()
    sparsify(model, 0.3, torch.Generator().manual_seed(0))
    return model, torch.randn(1, 3, 47, 41)


def compiled(export: CExport, command: list[str]) -> Path:
    program = export.source.with_suffix("")
    sources = [str(export.source), str(export.main)]
    done = subprocess.run([*command, *STRICT, *sources, "-o", str(program), "-lm"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, emulator: list[str]) -> str:
    done = subprocess.run([*emulator, str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@NEEDS_GCC
@pytest.mark.parametrize("weights", ["fp32", "fp16", "int8"])
def test_the_program_agrees_with_torch_in_every_format(tmp_path: Path, weights: str) -> None:
    export = c(*everything(), tmp_path / "net.c", weights=weights)
    assert "largest difference" in run(compiled(export, ["gcc", "-O1"]), [])


@NEEDS_GCC
@pytest.mark.parametrize("weights", ["fp32", "fp16", "int8"])
def test_the_file_compiles_without_a_c_library(tmp_path: Path, weights: Format) -> None:
    source = c(*everything(), tmp_path / "net.c", weights=weights).source
    assert set(re.findall(r"#include <(.+)>", source.read_text())) <= {"stddef.h", "stdint.h", "immintrin.h"}
    compiled = tmp_path / "net.o"
    subprocess.run(["gcc", "-O2", "-ffreestanding", *STRICT, "-c", str(source), "-o", str(compiled)], check=True)
    listed = subprocess.run(["nm", "-u", str(compiled)], capture_output=True, text=True, check=True).stdout
    assert set(listed.split()) - {"U"} <= {"memcpy", "memset"}


@NEEDS_GCC
@pytest.mark.parametrize("lanes", ["native", *(pytest.param(lanes, marks=pytest.mark.slow) for lanes in (4, 8, 16))])
def test_no_kernel_reads_or_writes_out_of_bounds(tmp_path: Path, lanes: int | str) -> None:
    native, sanitized = lanes == "native", ["-fsanitize=address,undefined", "-fno-sanitize-recover"]
    export = c(*everything(), tmp_path / "net.c", lanes=load_library().lanes if native else int(lanes))
    flags = ["-O1", "-g", *(["-march=native"] if native else []), "-Wno-psabi"]
    run(compiled(export, ["gcc", *flags, *sanitized]), [])


@NEEDS_GCC
def test_the_check_program_detects_a_wrong_result(tmp_path: Path) -> None:
    export = c(*everything(), tmp_path / "net.c")
    text = export.main.read_text()
    first = text.index("expected[NET_OUTPUTS] = {") + len("expected[NET_OUTPUTS] = {\n")
    export.main.write_text(text[:first] + "    9.0f," + text[first:].split(",", 1)[1])
    program = compiled(export, ["gcc", "-O1"])
    assert subprocess.run([str(program)], capture_output=True).returncode == 1


@NEEDS_GCC
def test_two_networks_can_be_in_one_program(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(5, 4), nn.ReLU()).eval(), torch.randn(1, 5)
    one, two = c(model, x, tmp_path / "one.c"), c(model, x, tmp_path / "2-two.c", weights="int8")
    assert "net_2_two_run(const float *x" in two.header.read_text()
    main = tmp_path / "both.c"
    main.write_text(
        '#include "one.h"\n#include "2-two.h"\n'
        "int main(void) { float x[5] = {0}, a[4], b[4]; one_run(x, a); net_2_two_run(x, b); return a[0] != b[0]; }\n"
    )
    command = ["gcc", *STRICT, str(main), str(one.source), str(two.source), "-o", str(tmp_path / "both"), "-lm"]
    assert subprocess.run(command).returncode == 0
    assert subprocess.run([str(tmp_path / "both")]).returncode == 0


@NEEDS_GCC
@pytest.mark.parametrize(
    "stem",
    ["main", "int", "bool", "exp", "index", "printf", "relu", "plan", "max", "load", "LANES", "x", "error", "math"],
)
def test_a_file_may_have_any_word_as_its_name(tmp_path: Path, stem: str) -> None:
    export = c(nn.Linear(5, 4).eval(), torch.randn(1, 5), tmp_path / f"{stem}.c")
    sources = [str(export.source), str(export.main)]
    for standard in ("c99", "gnu17"):
        command = ["gcc", *STRICT, f"-std={standard}", *sources, "-o", str(tmp_path / "program"), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        run(tmp_path / "program", [])


@pytest.mark.parametrize(
    ("weight", "weights", "message"),
    [
        (7e4, "fp16", r"'0' has weights up to 7e\+04, beyond the range of fp16; use weights='fp32'"),
        *((float("inf"), weights, "'0' has weights that are not finite") for weights in ("fp32", "fp16", "int8")),
    ],
)
def test_weights_that_a_format_cannot_hold_are_refused(
    tmp_path: Path, weight: float, weights: Format, message: str
) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU()).eval()
    nn.init.constant_(model[0].weight, weight)
    with pytest.raises(ValueError, match=message):
        c(model, torch.randn(1, 5), tmp_path / "net.c", weights=weights)
    assert list(tmp_path.iterdir()) == []


def test_small_formats_need_less_flash_and_report_their_error(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build("resnet20").eval()
    sparsify(model, 0.05, torch.Generator().manual_seed(0))
    x = torch.randn(1, 3, 32, 32)
    exports = [c(model, x, tmp_path / f"{w}.c", weights=w) for w in ("fp32", "fp16", "int8")]
    assert exports[0].flash > exports[1].flash > exports[2].flash
    assert exports[0].error < 1e-6 < exports[1].error < exports[2].error < 0.1
    assert exports[0].ram < 300_000


@pytest.mark.parametrize(
    ("options", "message"),
    [({"weights": "fp8"}, "fp32, fp16, int8"), ({"lanes": 5}, "4, 8 or 16"), ({"path": "net.cpp"}, r"end in \.c")],
)
def test_wrong_options_are_refused_before_anything_is_written(tmp_path: Path, options: dict, message: str) -> None:
    options = {"path": "net.c", **options}
    with pytest.raises(ValueError, match=message):
        c(nn.Linear(2, 2), torch.randn(1, 2), tmp_path / options.pop("path"), **options)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="session")
def toolchains() -> None:
    """Install cross compilers and emulators, if possible."""
    tools = {tool for command, emulator in TARGETS.values() for tool in (command[0], *emulator)}
    if all(map(shutil.which, tools)) or shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    for command in (["update"], ["install", "--yes", *PACKAGES.split()]):
        subprocess.run(["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600", *command], timeout=1200)


@pytest.mark.slow
@pytest.mark.usefixtures("toolchains")
@pytest.mark.parametrize("weights", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_devices_agree_with_torch(tmp_path: Path, target: str, weights: str) -> None:
    command, emulator = TARGETS[target]
    missing = [tool for tool in (command[0], *emulator) if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}, which could not be installed: apt-get install {PACKAGES}")
    lanes = load_library().lanes if "-march=native" in command else 4
    torch.manual_seed(0)
    model = build("resnet20").eval()
    sparsify(model, 0.05, torch.Generator().manual_seed(0))
    for number, (net, x) in enumerate([(model, torch.randn(1, 3, 32, 32)), everything()]):
        run(compiled(c(net, x, tmp_path / f"net{number}.c", weights=weights, lanes=lanes), command), emulator)
