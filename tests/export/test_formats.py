"""The command line and the package derive the export formats from one table."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pkgutil import resolve_name

import pytest
import torch
from torch import nn

import regrow
from regrow import export
from regrow.export import FORMATS

EXPORTED = [name for name in FORMATS if name != "packed"]  # which is `regrow.save`


@pytest.mark.parametrize("name", FORMATS)
def test_the_options_of_a_format_are_those_of_its_function(name: str) -> None:
    form = FORMATS[name]
    parameters = inspect.signature(resolve_name(form.writer)).parameters
    assert ("example_input" in parameters) == form.needs_example
    for option, described in form.options.items():
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[option].default == described.default


def test_options_of_the_same_name_are_the_same_option() -> None:
    # The command line has one option for all formats with this name, so its default must be that of each.
    options: dict[str, set[int]] = {}
    for form in FORMATS.values():
        for name, option in form.options.items():
            options.setdefault(name, set()).add(id(option))
    assert all(len(found) == 1 for found in options.values())
    assert len(options) < sum(len(form.options) for form in FORMATS.values())


@pytest.mark.parametrize("name", EXPORTED)
def test_the_function_of_a_format_is_an_attribute_of_the_package(name: str) -> None:
    assert getattr(export, name) is resolve_name(FORMATS[name].writer)


def test_an_unknown_format_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'regrow.export' has no attribute 'packed'"):
        _ = export.packed


def test_formats_are_listed_without_torch() -> None:
    code = "import sys, regrow.export; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_help_of_the_command_lists_formats_suffixes_and_options() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "regrow", "export", "--help"], capture_output=True, text=True, check=True
    )
    shown = " ".join(done.stdout.split())
    for name, form in FORMATS.items():
        assert f"{name}:" in shown
        assert form.suffix in shown
        assert all(f"--{option}" in shown for option in form.options)


@pytest.mark.parametrize("to", EXPORTED)
def test_an_export_warns_that_the_model_has_not_reached_its_final_sparsity(to, tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=100))
    with pytest.warns(UserWarning, match=r"has not reached its final sparsity: DPF is at step 0 .* ends at 90\.0%"):
        getattr(export, to)(model, torch.ones(1, 8), tmp_path / f"model{FORMATS[to].suffix}")
    pruner.detach()


@pytest.mark.parametrize("to", EXPORTED)
def test_an_argument_that_is_not_a_model_is_named(to, tmp_path):
    with pytest.raises(TypeError, match=r"model must be .*Module"):
        getattr(export, to)(nn.Linear(2, 2).state_dict(), torch.zeros(1, 2), tmp_path / f"x.{to}")
