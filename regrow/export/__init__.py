"""Export models for other runtimes and devices: `onnx()`, `program()`, `c()` and `wasm()`.

A new format is a module with one function, and a line in `formats.FORMATS`; its function is then an attribute here.
"""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from regrow.export.formats import FORMATS

if TYPE_CHECKING:
    from regrow.export.c_source import CExport as CExport
    from regrow.export.c_source import c as c
    from regrow.export.onnx_file import onnx as onnx
    from regrow.export.torch_program import program as program
    from regrow.export.wasm_module import WasmExport as WasmExport
    from regrow.export.wasm_module import wasm as wasm


def __getattr__(name: str) -> Any:
    """Import the function of a format on first use: the command line reads `FORMATS` without torch."""
    if name in FORMATS and FORMATS[name].writer.startswith(__name__):
        return resolve_name(FORMATS[name].writer)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
