"""Train sparse neural networks in one pass, and take them to small files and fast inference."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from regrow.methods.registry import METHODS

__version__ = "0.1.0"

if TYPE_CHECKING:  # the same table for type checkers; a test compares them
    from regrow.analysis.costs import Account as Account
    from regrow.analysis.costs import account as account
    from regrow.core.pruner import Pruner as Pruner
    from regrow.core.schedule import Constant as Constant
    from regrow.core.schedule import Cubic as Cubic
    from regrow.core.state import Masks as Masks
    from regrow.core.state import Stats as Stats
    from regrow.core.weights import Memory as Memory
    from regrow.engine.compiler import compile as compile
    from regrow.engine.runtime.model import CompiledModel as CompiledModel
    from regrow.files.model_file import FormatError as FormatError
    from regrow.files.packed import load as load
    from regrow.files.packed import save as save
    from regrow.methods.acdc import ACDC as ACDC
    from regrow.methods.deepr import DeepR as DeepR
    from regrow.methods.dense import Dense as Dense
    from regrow.methods.dns import DNS as DNS
    from regrow.methods.dpf import DPF as DPF
    from regrow.methods.drop_and_grow import DropAndGrow as DropAndGrow
    from regrow.methods.dsd import DSD as DSD
    from regrow.methods.dsr import DSR as DSR
    from regrow.methods.feedback import Feedback as Feedback
    from regrow.methods.fixed import Fixed as Fixed
    from regrow.methods.granet import GraNet as GraNet
    from regrow.methods.incremental import Incremental as Incremental
    from regrow.methods.lottery import LotteryTicket as LotteryTicket
    from regrow.methods.oneshot import OneShot as OneShot
    from regrow.methods.rigl import RigL as RigL
    from regrow.methods.set import SET as SET
    from regrow.methods.sfp import SFP as SFP
    from regrow.methods.snip import SNIP as SNIP
    from regrow.methods.sparse_momentum import SparseMomentum as SparseMomentum
    from regrow.methods.srste import SRSTE as SRSTE
    from regrow.methods.static import Static as Static
    from regrow.shrinking.api import ShrinkReport as ShrinkReport
    from regrow.shrinking.api import shrink as shrink
    from regrow.shrinking.api import shrink_report as shrink_report
    from regrow.timing import bench as bench

# Public names and the modules that define them; a module is imported when its name is first used.
_MODULES = {
    "Account": "regrow.analysis.costs",
    "CompiledModel": "regrow.engine.runtime.model",
    "Constant": "regrow.core.schedule",
    "Cubic": "regrow.core.schedule",
    "DropAndGrow": "regrow.methods.drop_and_grow",
    "FormatError": "regrow.files.model_file",
    "LotteryTicket": "regrow.methods.lottery",
    "Masks": "regrow.core.state",
    "Memory": "regrow.core.weights",
    "Pruner": "regrow.core.pruner",
    "ShrinkReport": "regrow.shrinking.api",
    "Stats": "regrow.core.state",
    "account": "regrow.analysis.costs",
    "bench": "regrow.timing",
    "compile": "regrow.engine.compiler",
    "load": "regrow.files.packed",
    "save": "regrow.files.packed",
    "shrink": "regrow.shrinking.api",
    "shrink_report": "regrow.shrinking.api",
    **{path.partition(":")[2]: path.partition(":")[0] for path in METHODS.values()},
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import the module that defines `name` on first use: `regrow --help` should not wait for torch."""
    if name in _MODULES:
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
    if not name.startswith("_") and find_spec(f"regrow.{name}"):
        return import_module(f"regrow.{name}")
    from regrow.text import did_you_mean

    hint = did_you_mean(name, __all__, cutoff=0.6)
    raise AttributeError(f"module 'regrow' has no attribute {name!r}{hint and '.'}{hint}")


def __dir__() -> list[str]:
    """List names that are not imported yet, too, for completion."""
    return sorted({*globals(), *__all__})
