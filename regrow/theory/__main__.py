"""`python -m regrow.theory FOLDER`: runs the theorems' experiments and says whether the bounds held."""

from __future__ import annotations

import sys
from pathlib import Path

from regrow.theory.study import run


def main() -> None:
    """Run everything into the folder that was named."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m regrow.theory FOLDER")
    records = run(Path(sys.argv[1]))
    last = {(r.theorem, r.model, r.sparsity): r for r in records}
    for record in last.values():
        print(
            f"{record.theorem:<16} {record.model:<13} {record.sparsity:>4.0%} pruned  T = {record.steps:<5} "
            f"measured {record.measured:.3g}  bound {record.bound:.3g}"
        )
    broken = [record for record in records if not record.measured <= record.bound]
    print(f"{len(records) - len(broken)} of {len(records)} measurements are within their bound")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
