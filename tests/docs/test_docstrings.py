"""The examples in docstrings run and give the results shown."""

import doctest
import pkgutil
from importlib import import_module

import pytest

import regrow

RUN_SOMETHING = ("__main__", "hf", "lightning")  # on import: a program, or a framework that need not be installed
MODULES = [
    found.name
    for found in pkgutil.walk_packages(regrow.__path__, "regrow.")
    if found.name.rpartition(".")[2] not in RUN_SOMETHING
]


def shown(module):
    """The examples of `module` that show a result; those that do not would read files or train."""
    found = doctest.DocTestFinder(exclude_empty=True).find(module)
    return [test for test in found if test.examples and any(example.want for example in test.examples)]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    for test in shown(import_module(name)):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_docstring_examples_are_collected():
    assert sum(len(shown(import_module(name))) for name in ("regrow.core.state", "regrow.core.schedule")) >= 2
