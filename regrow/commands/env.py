"""`regrow env`: what to put into a bug report."""

from __future__ import annotations


def env() -> int:
    """Print versions and machine, for bug reports."""
    from regrow.train.environment import environment

    facts = environment()
    for name, value in {**facts.pop("versions"), **facts}.items():
        if name != "command":
            print(f"{name:<12} {'-' if value is None else value}")
    return 0
