"""The map of the code in docs/design.md is true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
TREE = PAGE.split("## Directory map")[1].split("Imports point one way")[0]
PLACEHOLDER = re.compile(r"/x(_file)?\.\w+$")
REGROW = ROOT / "regrow"
# "One file per method", per family of networks, per data set; the stages of the engine are on their own page.
AS_A_WHOLE = {REGROW / name for name in ("methods", "models", "data", "shrinking/rules")}
AS_A_WHOLE |= {REGROW / "engine" / stage for stage in ("frontend", "ops", "plan", "codegen", "runtime")}
AS_A_WHOLE |= {ROOT / "reproduce" / "theory"}


def named_in_the_tree():
    """Yield the files and folders of the tree, by their indentation."""
    parents = [ROOT]
    for line in TREE.splitlines():
        if not line.startswith("    ") or not line.strip():
            continue
        names = re.match(r"\s+((?:[\w.]+(?:\.py|/), )*[\w.]+(?:\.py|/))", line)
        assert names, f"no file or folder in {line!r}"
        depth = (len(line) - len(line.lstrip()) - 4) // 2
        parents = parents[: depth + 1]
        for name in names[1].split(", "):
            yield parents[-1] / name
        parents.append(parents[-1] / names[1].split(", ")[0])


def test_every_path_on_the_page_exists():
    paths = set(re.findall(r"`((?:regrow|reproduce)/[\w/.]*(?:\.py|/))`", PAGE))
    assert len(paths) > 60
    missing = [path for path in paths if not PLACEHOLDER.search(path) and not (ROOT / path).exists()]
    assert not missing


def test_every_file_and_folder_in_the_tree_exists():
    missing = [path for path in named_in_the_tree() if not path.exists()]
    assert not missing


@pytest.mark.parametrize("package", ["regrow", "reproduce"])
def test_every_folder_with_code_is_in_the_tree(package):
    folders = {path.parent for path in (ROOT / package).rglob("__init__.py")} - {ROOT / package}
    assert folders <= set(named_in_the_tree())


def test_every_module_is_in_the_tree_unless_its_package_is_described_as_a_whole():
    packages = {path.parent for package in ("regrow", "reproduce") for path in (ROOT / package).rglob("__init__.py")}
    modules = {path for package in packages - AS_A_WHOLE for path in package.glob("*.py") if path.stem != "__init__"}
    assert modules <= set(named_in_the_tree())


def test_the_tables_to_add_a_line_to_are_in_the_files_that_the_page_names():
    tables = re.findall(r"`(\w+)` in `([\w/.]+\.py)`", PAGE)
    assert len(tables) >= 7
    for name, path in tables:
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^((def|class) )?{name}\b", source, re.MULTILINE), (name, path)
