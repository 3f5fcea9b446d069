"""The table of methods in the docs is what the classes say."""

from pathlib import Path

import regrow
from regrow.methods.registry import method_names
from regrow.methods.table import table

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_in_the_docs_is_current():
    assert (DOCS / "methods-table.md").read_text(encoding="utf-8") == table(), (
        "run `python -m regrow.methods.table > docs/methods-table.md`"
    )


def test_the_table_has_every_method_of_the_package():
    ours = [name for name in method_names() if hasattr(regrow, name)]
    assert all(f"| `{name}` |" in table() for name in [*ours, "LotteryTicket"])
