"""The engine's measurements as Markdown: one line for each model, with the targets that it missed."""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]


def heading(result: dict[str, Any]) -> str:
    """Return how it was measured."""
    made = f"`{result['command']}`, {result['date']}, {result['machine']['cpu']}, one thread, minimum CPU time."
    return f"{made} Masks are synthetic (density of a layer ~ n^-0.3 for n weights). In brackets: missed targets."


def lines(rows: Rows) -> list[dict[str, str]]:
    """Return the speed of each model."""
    return [_line(row) for row in rows if row["part"] == "speed"]


def _line(row: dict[str, Any]) -> dict[str, str]:
    return {
        "network, batch": f"{row['network']}, {row['batch']}",
        "best dense runtime, ms": f"{row['best dense ms']:.3g} ({row['best dense']})",
        "zeros": f"{row['sparsity']:.0%}",
        "engine, ms": f"{row['engine ms']:.3g}",
        "times faster than dense": _beside(row["times faster"], row["bar"]),
        "than DeepSparse": _beside(row["times deepsparse"], row["its bar"]) if "times deepsparse" in row else "",
        "GMAC/s": f"{row['GMAC/s']:.0f}",
    }


def _beside(value: float, aim: float | str) -> str:
    return f"{value:.2f}" if isinstance(aim, str) or value >= aim else f"{value:.2f} (target: {aim:g})"


def facts(rows: Rows) -> str:
    """Return the other measurements as sentences."""
    parts = {name: [row for row in rows if row["part"] == name] for name in ("speed", "tuning", "trained")}
    error = max(row["error"] for row in parts["speed"])
    told = [f"The largest error against torch is {error:.0e} of the largest output."]
    slower = [row["AVX2 / AVX-512"] for row in parts["speed"] if "AVX2 / AVX-512" in row]
    if slower:
        told.append(f"Kernels for AVX2 take {min(slower):.2f} to {max(slower):.2f} times as long (target: 1.1).")
    if parts["tuning"]:
        # Where only processor time was measured, one compiler did it all.
        built = max(row.get("build s", row["build CPU s"]) for row in parts["tuning"])
        tuned = max(row["tuning s"] for row in parts["tuning"])
        told.append(f"Building the kernels takes {built:.0f} s once, and tuning a network up to {tuned:.0f} s once.")
    told += [
        f"A trained mask of {row['network']} at {row['sparsity']:.1%} runs at {row['GMAC/s']:.0f} GMAC/s, a synthetic "
        f"one with as many multiply-accumulates at {row['synthetic GMAC/s']:.0f}."
        for row in parts["trained"]
    ]
    return " ".join(told)


def gains(rows: Rows) -> list[dict[str, str]]:
    """Return the speedup of a second thread: one line for each network and batch, one column for each sparsity."""
    shared = [row for row in rows if row["part"] == "threads"]
    columns = {f"{row['sparsity']:.0%}": "" for row in sorted(shared, key=lambda row: row["sparsity"])}
    lines: dict[str, dict[str, str]] = {}
    for row in shared:
        name = f"{row['network']}, {row['batch']}"
        line = lines.setdefault(name, {"two threads (wall time): network, batch": name, **columns})
        line[f"{row['sparsity']:.0%}"] = _beside(row["two threads"], row["bar"])
    return list(lines.values())


def most(rows: Rows) -> str:
    """Return the speedup of a second thread if threads that split an image had nothing to exchange."""
    found = [
        f"{row['engine ms'] / row['share alone ms']:.2f} ({row['network']}, {row['sparsity']:.0%})"
        for row in rows
        if row["part"] == "threads" and row["two threads"] < row["bar"] and "share alone ms" in row
    ]
    return f"Without waiting and exchange, the speedup would be {', '.join(found)}." if found else ""


def machine(limits: Rows) -> str:
    """Return the peak performance of the processor."""
    wide, narrow = (next(row for row in limits if row.get("lanes") == lanes) for lanes in (16, 8))
    written = ", ".join(f"{wide[f'{level} write GB/s']:.0f}" for level in ("L1", "L2", "L3"))
    return (
        "**Limits of the machine** (`python -m benchmarks.roofline`). With operands in registers: "
        f"{wide['registers GMAC/s']:.0f} GMAC/s, and {wide['L1 GMAC/s']:.0f} with one in the first-level cache, "
        f"as every non-zero weight needs; with AVX2 {narrow['registers GMAC/s']:.0f} and "
        f"{narrow['L1 GMAC/s']:.0f}. It writes {written} GB/s to its three cache levels. The table has the "
        "minimum times of a network's arithmetic and of reading and writing its activations once; they overlap in part:"
    )


def floors(limits: Rows, rows: Rows) -> list[dict[str, str]]:
    """Return the minimum possible time of each network, and the engine's time."""
    speeds = {(row["network"], row["sparsity"]): row for row in rows if row["part"] == "speed" and row["batch"] == 1}
    return [
        {
            "network": row["network"],
            "zeros": f"{row['sparsity']:.0%}",
            "arithmetic, ms": f"{row['arithmetic ms']:.3g}",
            "activations, ms": f"{row['activations ms']:.3g}",
            "engine, ms": f"{speed['engine ms']:.3g}",
            "target, ms": f"{speed['best dense ms'] / speed['bar']:.3g}",
        }
        for row in limits
        if row["part"] == "network" and (speed := speeds.get((row["network"], row["sparsity"])))
    ]
