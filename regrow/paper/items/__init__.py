"""Everything of the paper that can be reproduced, by name."""

from __future__ import annotations

from regrow.paper.item import Item
from regrow.paper.items import claims, figures, lottery, settings, tables, theorems
from regrow.text import did_you_mean
from regrow.train.config import RecipeError


def all_items() -> dict[str, Item]:
    """Return the items in the order of the paper."""
    groups = (tables.ITEMS, figures.ITEMS, lottery.ITEMS, settings.ITEMS, theorems.ITEMS, claims.ITEMS)
    return {item.name: item for items in groups for item in items}


def find_item(name: str) -> Item:
    """Return an item by its name.

    >>> find_item("table2").title
    'Table 2: unstructured, against simple methods, with and without fine-tuning'
    """
    items = all_items()
    if name not in items:
        raise RecipeError(f"there is no item {name!r}.{did_you_mean(name, items)} `regrow reproduce` lists them all.")
    return items[name]
