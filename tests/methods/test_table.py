"""The tables of methods in the docs have every method and option."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

import regrow
from docs.methods_table import options_table, table
from regrow.methods.registry import METHODS, find_method, method_names, method_options
from tests.methods.networks import Training

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_has_every_method_of_the_package():
    ours = [name for name in method_names() if hasattr(regrow, name)]
    assert all(f"| `{name}` |" in table() for name in [*ours, "LotteryTicket"])


def test_the_docs_explain_every_option_of_all_pruners():
    section = (DOCS / "api.md").read_text(encoding="utf-8").split("## Every pruner")[1].split("```")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == set(method_options(regrow.Pruner))


def test_the_docs_say_which_options_each_method_takes():
    rows = dict(row.strip("| ").split(" | ") for row in options_table().splitlines())
    assert rows["`DPF`, `Incremental`, `DNS`"] == "all"
    assert rows["`OneShot`"] == "all but `every`"
    assert rows["`SNIP`, `ACDC`, `DSD`"] == "all but `every`; `sparsity` is a number"
    assert rows["`DeepR`, `Static`"].startswith("`sparsity` (a number), `scope`, `targets`, ")
    assert sum(row.count("`") for row in rows) == 2 * len(METHODS)


@pytest.mark.parametrize("name", [name for name in METHODS if find_method(name).takes_sparsity])
def test_a_schedule_is_refused_exactly_by_the_methods_that_say_so(name):
    method, training = find_method(name), Training(convs=(5,), hidden=(7,), momentum=0.9, decay=0.0, seed=3)
    options = {"total_steps": 100} if "total_steps" in method_options(method) else {}
    model, refused = training.model(), pytest.raises(TypeError, match="sparsity must be a number")
    with nullcontext() if method.takes_schedule else refused:
        method(model, training.optimizer(model), sparsity=regrow.Cubic(0.8, end=40), **options).detach()
