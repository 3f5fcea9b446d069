"""What is released installs and works away from the repository."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path

import pytest

import regrow

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def run(*command, cwd):
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "REGROW_DATA")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_made_from_the_source_distribution_trains_and_compiles_in_a_clean_environment(tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path, cwd=ROOT)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = next(path for path in tmp_path.iterdir() if path.is_dir())
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=unpacked)

    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", next(tmp_path.glob("*.whl")), cwd=tmp_path)
    # torch and the extras come from here; as a folder on the path, it does not bring an editable regrow with it.
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    Path(packages, "torch.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")

    assert "site-packages" in run(python, "-c", "import regrow; print(regrow.__file__)", cwd=tmp_path)
    assert run(python, "-m", "regrow", "--version", cwd=tmp_path) == f"regrow {regrow.__version__}\n"
    assert regrow.__version__ in run(tmp_path / "env" / "bin" / "regrow", "env", cwd=tmp_path)
    run(python, "-m", "regrow", "train", "digits", "--epochs", "1", "--out", "run", cwd=tmp_path)
    compiled = "import regrow, torch; print(regrow.compile(regrow.load('run'), torch.ones(1, 1, 8, 8), tune=False))"
    assert "CompiledModel" in run(python, "-W", "error::RuntimeWarning", "-c", compiled, cwd=tmp_path)
    published = "from regrow.report import published; print(len(published.table('macs')))"
    assert int(run(python, "-c", published, cwd=tmp_path)) > 0


def test_the_version_has_one_home():
    assert "version" in PROJECT["dynamic"]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "CITATION.cff")}
    assert [name for name, text in texts.items() if re.search(r"^version *[:=]", text, re.M)] == []


def test_the_core_needs_torch_and_numpy_and_the_torch_that_is_tested():
    assert [re.split("[>=<]", each)[0] for each in PROJECT["dependencies"]] == ["torch", "numpy"]
    floor = next(each for each in PROJECT["dependencies"] if each.startswith("torch")).removeprefix("torch>=")
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert re.search(r"^torch==(\S+)$", constraints, re.M).group(1).startswith(floor)


def test_every_extra_that_an_error_or_a_page_recommends_exists():
    files = [*(ROOT / "regrow").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    found = re.findall(r"regrow\[([a-z,]+)\]", "".join(path.read_text(encoding="utf-8") for path in files))
    named = {extra for extras in found for extra in extras.split(",")}
    assert named
    assert named <= EXTRAS.keys()
