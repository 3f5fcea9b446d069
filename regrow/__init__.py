"""Train sparse neural networks in one pass, and take them to small files and fast inference."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from regrow.host.hints import did_you_mean
from regrow.version import __version__

if TYPE_CHECKING:
    from regrow.core import Constant, Cubic, Masks, Memory, Stats
    from regrow.deploy.container import FormatError
    from regrow.deploy.pack import load, save
    from regrow.deploy.shrink import ShrinkReport, shrink, shrink_report
    from regrow.engine import CompiledModel, compile
    from regrow.methods import (
        ACDC,
        DNS,
        DPF,
        DSD,
        DSR,
        NM,
        SET,
        SFP,
        SNIP,
        SRSTE,
        DeepR,
        Dense,
        Feedback,
        Fixed,
        GraNet,
        Incremental,
        LotteryTicket,
        LowRank,
        OneShot,
        Pruner,
        Rewire,
        RigL,
        Sign,
        SparseMomentum,
        Static,
        Uniform,
        from_scratch,
        steps_of_equal_flops,
    )

__all__ = [
    "ACDC",
    "DNS",
    "DPF",
    "DSD",
    "DSR",
    "NM",
    "SET",
    "SFP",
    "SNIP",
    "SRSTE",
    "CompiledModel",
    "Constant",
    "Cubic",
    "DeepR",
    "Dense",
    "Feedback",
    "Fixed",
    "FormatError",
    "GraNet",
    "Incremental",
    "LotteryTicket",
    "LowRank",
    "Masks",
    "Memory",
    "OneShot",
    "Pruner",
    "Rewire",
    "RigL",
    "ShrinkReport",
    "Sign",
    "SparseMomentum",
    "Static",
    "Stats",
    "Uniform",
    "__version__",
    "compile",
    "from_scratch",
    "load",
    "save",
    "shrink",
    "shrink_report",
    "steps_of_equal_flops",
]

_HOMES = (
    "regrow.core",
    "regrow.deploy.container",
    "regrow.engine",
    "regrow.deploy.pack",
    "regrow.deploy.shrink",
    "regrow.methods",
)


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: `regrow --help` should not wait for torch."""
    if name in __all__:
        for home in _HOMES:
            module = import_module(home)
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    if not name.startswith("_") and find_spec(f"regrow.{name}"):
        return import_module(f"regrow.{name}")
    hint = did_you_mean(name, __all__, cutoff=0.6)
    raise AttributeError(f"module 'regrow' has no attribute {name!r}{hint and '.'}{hint}")


def __dir__() -> list[str]:
    """Let completion see what is not imported yet."""
    return sorted({*globals(), *__all__})
