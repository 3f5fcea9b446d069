"""The table of methods in the docs is what the classes say."""

import re
from pathlib import Path

import regrow
from docs.methods_table import table
from regrow.methods.registry import find_method, method_names, method_options

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_in_the_docs_is_current():
    assert (DOCS / "methods-table.md").read_text(encoding="utf-8") == table(), (
        "run `python -m docs.methods_table > docs/methods-table.md`"
    )


def test_the_table_has_every_method_of_the_package():
    ours = [name for name in method_names() if hasattr(regrow, name)]
    assert all(f"| `{name}` |" in table() for name in [*ours, "LotteryTicket"])


def test_the_docs_say_which_options_each_method_takes():
    section = (DOCS / "api.md").read_text(encoding="utf-8").split("## Every pruner")[1].split("```")[0]
    options, methods = (re.findall(r"^\| (`.*)$", part, re.MULTILINE) for part in section.split("| method |"))
    known = {row.split("`")[1] for row in options}
    assert known == set(method_options(regrow.Pruner))
    told = {}
    for row in methods:
        names, takes, _ = row.split(" |")
        listed = set(re.findall("`(.*?)`", re.split("[;:]", takes)[0]))
        taken = known - listed if takes.startswith(" all") else listed
        told |= dict.fromkeys(re.findall("`(.*?)`", names), taken)
    assert told == {name: known & set(method_options(find_method(name))) for name in method_names() if name in told}
    assert {name for name in method_names() if hasattr(regrow, name)} == set(told)
