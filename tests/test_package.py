"""What `import regrow` gives, and what it says to a name or a value that is wrong."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import regrow
from regrow import models

# What type checkers see: name -> the module that it is imported from.
SEEN = {
    alias.name: node.module
    for node in ast.walk(ast.parse(Path(regrow.__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and node.module.startswith("regrow.")
    for alias in node.names
}


@pytest.mark.parametrize("name", regrow.__all__)
def test_every_public_name_is_what_type_checkers_take_it_for(name):
    assert getattr(regrow, name) is getattr(import_module(SEEN[name]), name)
    assert name in dir(regrow)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"has no attribute 'Cubics'. Did you mean 'Cubic'\?"):
        _ = regrow.Cubics
    with pytest.raises(AttributeError, match=r"Did you mean 'RigL'\?"):
        _ = regrow.rigl
    with pytest.raises(AttributeError, match=r"has no attribute 'prune_everything'$"):
        _ = regrow.prune_everything


def test_packages_need_no_import_of_their_own():
    code = "import regrow; regrow.data.load('digits', 'test'); regrow.models.build('resnet8')"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("module", ["regrow", "regrow.cli", "regrow.runs.recipe", "regrow.runs.find", "regrow.sweep"])
def test_torch_is_not_imported_before_it_is_needed(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("use", ["compile", "shrink"])
def test_a_shape_in_place_of_an_example_is_refused_with_what_would_be_right(use):
    with pytest.raises(TypeError, match=r"a tensor such as torch.randn\(1, 3, 32, 32\), got \(1, 1, 8, 8\)"):
        getattr(regrow, use)(models.build("small", classes=10, channels=1, size=8), (1, 1, 8, 8))


def test_only_models_and_their_states_are_saved(tmp_path):
    with pytest.raises(TypeError, match="a module, a state dict or the folder of a run, got int"):
        regrow.save(3, tmp_path / "model.regrow")
