"""Rewrite what older versions wrote in the current form: `python -m reproduce.migrate FILE...`.

Each FILE has one record per line (`results/*.jsonl`), is one record (`result.json`), a recipe (`recipe.toml`), or the
folder of a run, which has both. Old names of recipe fields and of methods' options are replaced, defaults that meant
something else are written out, options that are fields now become fields, and the recipe is stored with all its fields.
`key` is computed again. Running it again changes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regrow.methods.registry import built_in_name
from regrow.runs.folder import DIVERGED
from regrow.runs.recipe import PASSED_ON, Recipe
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
    """Return the record with the current recipe and key.

    >>> migrated({"key": "old", "recipe": {"method": "set", "options": ["zeta=0.2"]}})["recipe"]["options"]
    ['drop_fraction=0.2']
    """
    if not isinstance(record.get("recipe"), dict):
        return record
    recipe = current(record["recipe"])
    return {**record, "key": recipe.key(), "recipe": json.loads(json.dumps(dataclasses.asdict(recipe)))}


def current(fields: Mapping[str, Any]) -> Recipe:
    """Return the recipe that an older version wrote as `fields`."""
    new = {FIELDS.get(name) or name: value for name, value in fields.items()}
    if len(new) < len(fields):
        raise ValueError(f"the recipe has a field under its old and its new name: {', '.join(fields)}")
    # It was None, which TOML cannot store, when the paper's period was the default.
    new["every"] = new.get("every") or "paper"
    method = new.get("method", "dpf")
    renamed = {**EVERY_METHOD, **OPTIONS.get(built_in_name(method) or method, {})}
    options = [_renamed(option, renamed) for option in new.pop("options", ())]
    for option in options:
        name, _, value = option.partition("=")
        if name.strip() in PASSED_ON:
            new[name.strip()] = _value(value.strip())
    kept = [option for option in options if option.partition("=")[0].strip() not in PASSED_ON]
    return Recipe.of({**new, "options": kept})


def _value(text: str) -> Any:
    """Return the value of an option, in which a word needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def migrate(path: Path) -> int:
    """Rewrite a file, or the files of a run folder, and return how many recipes changed.

    Lines that do not change keep their bytes.
    """
    if path.is_dir():
        return sum(migrate(file) for name in ("recipe.toml", "result.json", DIVERGED) if (file := path / name).exists())
    old = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        lines = [current(tomllib.loads(old)).to_toml()]
        changed = int(lines != [old])
    else:
        lines = old.splitlines() if path.suffix == ".jsonl" else [old]
        changed = 0
        for index, line in enumerate(lines):
            record = json.loads(line) if line.strip() else {}
            if (new := migrated(record)) != record:
                lines[index] = json.dumps(new, indent=2 if "\n" in line.strip() else None, ensure_ascii=False)
                changed += 1
    if changed:
        write_atomically(path, ("\n".join(line.rstrip("\n") for line in lines) + "\n").encode())
    return changed


def _renamed(option: str, names: dict[str, str]) -> str:
    name, equals, value = option.partition("=")
    return f"{names.get(name.strip(), name)}{equals}{value}"


def main(arguments: list[str]) -> int:
    """Migrate the files and folders named on the command line."""
    if not arguments:
        print("usage: python -m reproduce.migrate FILE...", file=sys.stderr)
        return 2
    for path in map(Path, arguments):
        print(f"{path}: {migrate(path)} recipes changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
