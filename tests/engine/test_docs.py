"""The page "Inside the engine": its operation works as it is printed, and its words are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from regrow.engine import ops

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")

# The example has no convolutions, so their kernels need not be built.
FEWER_KERNELS = "from regrow.engine.codegen import build\nbuild.SHAPES = build.SHAPES[:1]\n"


def test_the_operation_of_the_walk_through_works_as_it_is_printed(tmp_path: Path) -> None:
    operation, use = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (kernel,) = re.findall(r"```c\n(.*?)```", PAGE, re.DOTALL)
    assert operation.startswith("# softmax.py")
    assert kernel.startswith("/* softmax.c */")
    (tmp_path / "softmax.py").write_text(operation)
    (tmp_path / "softmax.c").write_text(kernel)
    (tmp_path / "use.py").write_text(FEWER_KERNELS + use + "assert fast.native\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "REGROW_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "use.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_entry_of_an_activation_is_quoted_from_the_code() -> None:
    (entry,) = re.findall(r'^    ("gelu": .*)$', PAGE, re.MULTILINE)
    assert entry in (Path(ops.__path__[0]) / "activations.py").read_text()


ONE_ENTRY = """\
import torch
import torch.nn.functional as F
from torch import nn

from regrow.engine.ops.activations import FUNCTIONS, Function
from regrow.engine.ops.base import lowers
from regrow.engine.ops.pointwise import _activation

FUNCTIONS["leaky_relu"] = Function("leaky_relu", F.leaky_relu, "max(x, 0.01f * x)", arguments={"negative_slope": 0.01})
lowers("leaky_relu")(_activation)  # the module does this for each entry when it is imported
FEWER_KERNELS

import regrow
from regrow.engine.frontend.torch_export import UnsupportedOperationError

torch.manual_seed(0)
x = torch.randn(2, 24)
model = nn.Sequential(nn.Linear(24, 16), nn.LeakyReLU(), nn.Linear(16, 8), nn.GELU()).eval()
fast = regrow.compile(model, x)
assert fast.native
torch.testing.assert_close(fast(x), model(x))
try:
    regrow.compile(nn.Sequential(nn.Linear(24, 16), nn.LeakyReLU(0.2)).eval(), x)
except UnsupportedOperationError as error:
    assert "negative_slope" in str(error)
else:
    raise AssertionError("another slope was computed with the entry for 0.01")
"""


def test_an_activation_with_arguments_of_its_own_costs_one_entry(tmp_path: Path) -> None:
    # In its own process: this one has compiled the kernels without the new function.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "REGROW_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", ONE_ENTRY.replace("FEWER_KERNELS\n", FEWER_KERNELS)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_stage_and_file_of_the_page_exists() -> None:
    engine = ROOT / "regrow" / "engine"
    rows = re.findall(r"^\| `(\w+)/` \|.*\| (.*) \|$", PAGE, re.MULTILINE)
    assert {stage for stage, _ in rows} == {path.name for path in engine.iterdir() if (path / "__init__.py").exists()}
    assert all((engine / stage / file).exists() for stage, files in rows for file in re.findall(r"`(.+?)`", files))
