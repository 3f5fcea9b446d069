"""Nothing needs a POSIX system: training, files and the engine work without it."""

from __future__ import annotations

import ast
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regrow.engine.codegen.build import Kernels
from regrow.engine.plan.tiles import SHAPES
from regrow.export.c_source import c
from regrow.models import build
from tests.engine.networks import sparsify

ROOT = Path(__file__).parents[1]

PRIVATE_TORCH = {
    "torch._dynamo",  # imported early by the processes of a sweep
    "torch._ops.OpOverload",
    "torch._utils",
    "torch.multiprocessing._prctl_pr_set_pdeathsig",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.conv._ConvNd",
    "torch.nn.modules.conv._ConvTransposeNd",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._pytree",
    "torch.utils._pytree.tree_leaves",
}
"""The private names of torch that regrow uses, besides its `_foreach_` operations: they may change without notice."""

ON_WINDOWS = """
import sys, threading, warnings
from pathlib import Path
warnings.filterwarnings("error", category=EncodingWarning, module="regrow")  # files need the same encoding everywhere

import torch, regrow, regrow.system
from regrow.cli import main
from regrow.runs.folder import InUseError, locked
from regrow.runs.recipe import load_recipe
from regrow.runs.stop import StoppedError
from regrow.train.run import run

assert regrow.system.sys.platform == "win32"
arguments = ["train", "digits", "--epochs", "2", "--out", "run"]

def stop(event):
    if getattr(event, "step", 0) == 12:
        regrow.system.stop_this_process()

try:
    run(load_recipe("digits").changed(epochs=2), "run", listeners=[stop])
    sys.exit("the run was not stopped")
except StoppedError as stopped:
    print("stopped at", stopped.step)
with locked(Path("run")):
    try:
        with locked(Path("run")):
            sys.exit("the folder was locked twice")
    except InUseError as refused:
        print(refused)
for command in (arguments, ["export", "run", "--to", "packed", "--out", "model.regrow"]):
    try:
        main(command)
    except SystemExit as ended:
        assert not ended.code, ended
model, x = regrow.load("model.regrow"), torch.randn(2, 1, 8, 8)
for _ in range(2):  # built, then from the cache
    fast = regrow.compile(model, x)
    print(fast)
    torch.testing.assert_close(fast(x), model(x))
"""


NO_COMPILER = """
import sys
import torch, regrow
from regrow.engine.codegen.build import find_compiler, load_library
from regrow.models import build
assert find_compiler() == (sys.executable, "-m", "ziglang", "cc"), find_compiler()
torch.manual_seed(0)
model, x = build("resnet20").eval(), torch.randn(2, 3, 32, 32)
with torch.no_grad():
    for weight in model.parameters():
        if weight.dim() == 4:
            weight *= torch.rand_like(weight) < 0.1
    expected = model(x)
fast = regrow.compile(model, x, threads=2)
print(fast, load_library().lanes, f"{(fast(x) - expected).abs().max() / expected.abs().max():.1e}")
torch.testing.assert_close(fast(x), expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
for lanes in (4, 8):
    assert load_library(lanes=lanes).lanes == lanes
"""

ZIG_TARGETS = [
    *("x86_64-windows-gnu", "aarch64-windows-gnu", "x86_64-macos", "aarch64-macos"),
    *("x86_64-linux-musl", "aarch64-linux-gnu", "arm-linux-gnueabihf"),
]


def zig() -> list[str]:
    """The command of Zig's C compiler."""
    pytest.importorskip("ziglang", reason='the compiler is not installed: pip install "regrow[compiler]"')
    return [sys.executable, "-m", "ziglang", "cc"]


def private_names(tree: ast.Module) -> set[str]:
    """Names of torch with a part that starts with an underscore: imported, or written out."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    parts = {name: name.split(".") for name in found if re.fullmatch(r"torch(\.\w+)+", name)}
    private = {name for name, (_, *rest) in parts.items() if any(part.startswith("_") for part in rest)}
    # An attribute of a private name is not counted again: `torch._ops.OpOverload` contains `torch._ops`.
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def test_few_private_names_of_torch_are_used_and_this_torch_has_them() -> None:
    files = sorted((ROOT / "regrow").rglob("*.py"))
    used = set().union(*(private_names(ast.parse(path.read_text(encoding="utf-8"))) for path in files))
    used = {name for name in used if not name.startswith(("torch._foreach_", "torch.__"))}
    assert used == PRIVATE_TORCH
    for name in PRIVATE_TORCH:
        assert pkgutil.resolve_name(name) is not None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="changes Linux to look like Windows")
def test_a_run_trains_stops_resumes_and_is_compiled_without_anything_of_posix(tmp_path: Path) -> None:
    encoding = "cp1252"  # of many Windows machines
    script = tmp_path / "script.py"
    script.write_text(ON_WINDOWS, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "REGROW_CACHE": str(tmp_path / "cache")}
    env |= {"PYTHONIOENCODING": encoding, "PYTHONWARNDEFAULTENCODING": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.windows", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    said = done.stdout.decode(encoding)
    assert done.returncode == 0, said + done.stderr.decode(errors="replace")
    assert "stopped at 12" in said
    assert "run is in use by process" in said
    assert said.count("CompiledModel") == 2
    assert len(list((tmp_path / "cache" / "kernels").glob("*.dll"))) >= 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="hides compilers through PATH")
def test_a_machine_without_a_compiler_builds_the_engine_with_zig(tmp_path: Path) -> None:
    zig()
    script = tmp_path / "script.py"
    script.write_text(NO_COMPILER, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    env = {name: value for name, value in os.environ.items() if name != "CC"}
    env |= {"PATH": str(tmp_path / "empty"), "PYTHONPATH": str(ROOT), "REGROW_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-W", "error::RuntimeWarning", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CompiledModel" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("target", ZIG_TARGETS)
def test_exported_c_and_the_engine_compile_for_other_systems(tmp_path: Path, target: str) -> None:
    model = build("resnet20").eval()
    sparsify(model, 0.05, torch.Generator().manual_seed(0))
    export = c(model, torch.randn(1, 3, 32, 32), tmp_path / "net.c")
    kernels = tmp_path / "kernels.c"
    kernels.write_text(Kernels(SHAPES[:2]).sources(1)[0], encoding="utf-8")
    program = ["-std=c99", "-Wall", "-Wextra", "-Werror", str(export.source), str(export.main), "-lm"]
    library = ["-std=gnu11", "-fPIC", "-shared", "-pthread", str(kernels)]
    for sources, built in ((program, tmp_path / "program"), (library, tmp_path / "library")):
        command = [*zig(), "-target", target, "-O2", "-ffp-contract=fast", *sources, "-o", str(built)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert b"regrow_pool_new" in built.read_bytes() or sources is program
