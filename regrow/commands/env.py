"""`regrow env`: what to put into a bug report."""

from __future__ import annotations


def env() -> int:
    """Print versions and machine, for bug reports."""
    from regrow.host.cache import cache_folder
    from regrow.train.environment import environment

    facts = environment()
    engine = {"compiler": _compiler(), "cache": cache_folder()}
    for name, value in {**facts.pop("versions"), **facts, **engine}.items():
        if name != "command":
            print(f"{name:<12} {'-' if value is None else value}")
    return 0


def _compiler() -> str | None:
    """What the engine's kernels are built with."""
    from regrow.engine.codegen.build import NoCompilerError, find_compiler, version_of

    try:
        return version_of(find_compiler()).partition("\n")[0]
    except (NoCompilerError, OSError):
        return None
