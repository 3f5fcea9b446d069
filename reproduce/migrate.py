"""Rewrite records of older versions with the current names: `python -m reproduce.migrate FILE...`.

Each FILE has one record per line (`results/*.jsonl`) or is one record (`result.json` of a run). Old names of recipe
fields and of methods' options are replaced, and `key` is computed again for every record that changes. Running it again
changes nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from regrow.runs.recipe import Recipe
from regrow.system import write_atomically

FIELDS = {
    "decay_at": "weight_decay_at",
    "drops": "lr_drops",
    "drop_factor": "lr_drop_factor",
    "finetune_drops": "finetune_lr_drops",
}
"""Renamed recipe fields: old name to new name."""

OPTIONS: dict[str, dict[str, str]] = {
    "dpf": {"stabilise": "stabilize"},
    "set": {"zeta": "drop_fraction"},
    "rigl": {"drop": "drop_fraction"},
    "sparse-momentum": {"rate": "drop_fraction"},
    "dsr": {"drop": "drop_count"},
    "lottery": {"drop": "drop_fraction"},
}
"""Renamed options in a recipe's `options`, for each method: old name to new name."""

EVERY_METHOD = {"total": "total_steps", "decay": "weight_decay_at", "group": "process_group"}
"""Options that were renamed in all methods."""


def migrated(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with current names and, if it changed, a new key.

    >>> migrated({"key": "old", "recipe": {"method": "set", "options": ["zeta=0.2"]}})["recipe"]["options"]
    ['drop_fraction=0.2']
    """
    recipe = record.get("recipe")
    if not isinstance(recipe, dict):
        return record
    fields: dict[str, Any] = {FIELDS.get(name) or name: value for name, value in recipe.items()}
    renamed = {**EVERY_METHOD, **OPTIONS.get(fields.get("method", "dpf"), {})}
    if "options" in fields:
        fields["options"] = [_renamed(option, renamed) for option in fields["options"]]
    if fields == recipe:
        return record
    return {**record, "key": Recipe.of(fields).key(), "recipe": fields}


def migrate(path: Path) -> int:
    """Rewrite a file and return how many of its records changed; lines that do not change keep their bytes."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.suffix == ".jsonl" else [path.read_text("utf-8")]
    changed = 0
    for index, line in enumerate(lines):
        record = json.loads(line) if line.strip() else {}
        if (new := migrated(record)) != record:
            lines[index] = json.dumps(new, indent=2 if "\n" in line.strip() else None)
            changed += 1
    if changed:
        write_atomically(path, ("\n".join(line.rstrip("\n") for line in lines) + "\n").encode())
    return changed


def _renamed(option: str, names: dict[str, str]) -> str:
    name, equals, value = option.partition("=")
    return f"{names.get(name.strip(), name)}{equals}{value}"


def main(arguments: list[str]) -> int:
    """Migrate the files named on the command line."""
    if not arguments:
        print("usage: python -m reproduce.migrate FILE...", file=sys.stderr)
        return 2
    for path in map(Path, arguments):
        print(f"{path}: {migrate(path)} records changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
