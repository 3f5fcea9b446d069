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
from regrow.export.wasm_template import ZIG
from regrow.text import install_hint

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
    shipped = "from regrow.export import wasm_template; print(len(wasm_template.read_template()))"
    assert int(run(python, "-c", shipped, cwd=tmp_path)) > 10_000
    published = "from regrow.report import published; print(len(published.table('macs')))"
    assert int(run(python, "-c", published, cwd=tmp_path)) > 0


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs():
    """The jobs of all workflows."""
    yaml = pytest.importorskip("yaml", reason="comes with the packages for the documentation")
    read = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in WORKFLOWS]
    assert [sorted(map(str, workflow)) for workflow in read if {"name", "jobs", "permissions"} - set(workflow)] == []
    return [job for workflow in read for job in workflow["jobs"].values()]


def test_workflows_run_what_exists():
    steps = [step for job in jobs() for step in job["steps"]]
    assert all(("run" in step) != ("uses" in step) for step in steps)
    assert [step["uses"] for step in steps if not re.search(r"@(v\d+|release/v1)$", step.get("uses", "@v1"))] == []
    commands = "\n".join(step.get("run", "") for step in steps)
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert {"test", "docs"} == set(re.findall(r"^make ([a-z]+)", commands, re.M)) <= targets
    assert all((ROOT / path).exists() for path in re.findall(r"tests/\w+", commands))


def test_workflows_test_every_python_and_the_oldest_and_the_usual_torch():
    matrices = [job["strategy"]["matrix"] for job in jobs() if "strategy" in job]
    rows = [row for matrix in matrices for row in matrix.get("include", [])]
    pythons = {row["python"] for row in rows} | {python for matrix in matrices for python in matrix.get("python", [])}
    named = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert sorted(pythons) == sorted(named)
    assert PROJECT["requires-python"] == f">={named[0]}"
    torches = {row["torch"] for row in rows}
    floor = next(each for each in PROJECT["dependencies"] if each.startswith("torch")).removeprefix("torch>=")
    usual = re.search(r"^TORCH \?= torch==(\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M).group(1)
    assert {f"{floor}.0", usual} <= torches


def test_the_version_has_one_home():
    assert "version" in PROJECT["dynamic"]
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "CITATION.cff")}
    assert [name for name, text in texts.items() if re.search(r"^version *[:=]", text, re.M)] == []


def test_the_core_needs_torch_and_numpy_and_any_supported_torch_can_be_tested():
    assert [re.split("[>=<]", each)[0] for each in PROJECT["dependencies"]] == ["torch", "numpy"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert not re.search(r"^torch\b", constraints, re.M)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^TORCH \?= torch==\d+\.\d+\.\d+$", makefile, re.M)
    assert makefile.count("-m pip") == makefile.count('install -c constraints.txt "$(TORCH)"') == 1


def test_tools_whose_warnings_are_errors_are_pinned():
    assert [each for each in EXTRAS["dev"] if not re.fullmatch(r"[a-z-]+==[\d.]+", each)] == []


def test_the_compiler_of_the_extra_is_the_one_that_builds_the_template():
    assert EXTRAS["compiler"] == [f"ziglang=={ZIG}"]


def test_every_extra_that_an_error_or_a_page_recommends_exists():
    files = [*(ROOT / "regrow").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    found = re.findall(r"(?:regrow\[|(?:install_hint\(|extra=)['\"])([a-z,]+)", text)
    named = {extra for extras in found for extra in extras.split(",")}
    assert install_hint("cli") == 'pip install "regrow[cli]" (in a clone: pip install -e ".[cli]")'
    assert named
    assert named <= EXTRAS.keys()
