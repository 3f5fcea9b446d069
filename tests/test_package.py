import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import regrow

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
    with pytest.raises(AttributeError, match="has no attribute 'DFP'"):
        _ = regrow.DFP


@pytest.mark.parametrize("module", ["regrow", "regrow.cli", "regrow.train.config", "regrow.train.catalog"])
def test_torch_is_not_imported_before_it_is_needed(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
