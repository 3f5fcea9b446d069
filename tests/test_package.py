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
    if isinstance(node, ast.ImportFrom) and node.module.startswith("regrow.") and node.names[0].asname
    for alias in node.names
}


def test_type_checkers_see_the_same_names():
    assert {"__version__", *SEEN} == {"__version__", *regrow._MODULES} == set(regrow.__all__)


@pytest.mark.parametrize("name", regrow._MODULES)
def test_every_public_name_is_the_one_that_type_checkers_see(name):
    value = getattr(regrow, name)
    assert value is getattr(import_module(SEEN[name]), name)
    assert value.__module__ == regrow._MODULES[name]
    assert name in dir(regrow)


def test_a_method_loads_neither_engine_files_data_nor_models():
    code = "import sys, regrow; regrow.DPF; print(*(name for name in sys.modules if name.startswith('regrow')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "regrow.methods.dpf" in loaded
    packages = {name.split(".")[1] for name in loaded if "." in name}
    assert packages <= {"checks", "core", "methods", "text"}


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"has no attribute 'Cubics'. Did you mean 'Cubic'\?"):
        _ = regrow.Cubics
    with pytest.raises(AttributeError, match=r"Did you mean 'RigL'\?"):
        _ = regrow.rigl
    with pytest.raises(AttributeError, match=r"has no attribute 'prune_everything'$"):
        _ = regrow.prune_everything


def test_packages_do_not_have_to_be_imported_separately():
    code = "import regrow; regrow.data.load('digits', 'test'); regrow.models.build('resnet8')"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("module", ["regrow", "regrow.cli", "regrow.runs.recipe", "regrow.runs.find", "regrow.sweep"])
def test_torch_is_not_imported_before_it_is_needed(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("use", ["compile", "shrink"])
def test_a_shape_in_place_of_an_example_is_refused_with_a_correct_call(use):
    with pytest.raises(TypeError, match=r"a tensor such as torch.randn\(1, 3, 32, 32\), got \(1, 1, 8, 8\)"):
        getattr(regrow, use)(models.build("small", classes=10, channels=1, size=8), (1, 1, 8, 8))


def test_only_models_and_their_states_are_saved(tmp_path):
    with pytest.raises(TypeError, match="a module, a state dict or the folder of a run, got int"):
        regrow.save(3, tmp_path / "model.regrow")
