"""Export models for other runtimes and devices: `onnx()`, `program()`, `c()` and `wasm()`.

To add a format, write a module with one function and add a line to `FORMATS`. The function is then an attribute of this
package, and `regrow export` has the format's name, suffix and options. Give the module another name than the function,
which it would hide. Importing this package does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from regrow.export.c_source import CExport as CExport
    from regrow.export.c_source import c as c
    from regrow.export.onnx_file import onnx as onnx
    from regrow.export.torch_program import program as program
    from regrow.export.wasm_module import WasmExport as WasmExport
    from regrow.export.wasm_module import wasm as wasm


@dataclass(frozen=True)
class Option:
    """An option of a format on the command line; `type` is a type that tyro can parse."""

    type: Any
    default: Any
    help: str


@dataclass(frozen=True)
class Format:
    """A file format: its suffix, the function that writes it ("module:name"), and a phrase for the help text.

    The function is called as `writer(model, example_input, path, **options)`, without `example_input` if the format
    does not need one. If it returns something, `regrow export` prints that. With `is_folder`, the path is a folder.
    """

    suffix: str
    writer: str
    help: str
    options: Mapping[str, Option] = field(default_factory=dict)
    needs_example: bool = True
    is_folder: bool = False

    def write(self, model: nn.Module, example_input: Tensor, path: Path, **options: Any) -> Any:
        """Write `model` to `path`."""
        inputs = (example_input,) if self.needs_example else ()
        return resolve_name(self.writer)(model, *inputs, path, **options)


_DTYPE = Option(Literal["fp32", "fp16", "bf16", "int8"], "fp32", "Precision of the weights.")
_SPARSE = Option(bool, False, "Store sparse weights as sparse initializers: a smaller file, not a faster model.")
_WEIGHTS = Option(Literal["fp32", "fp16", "int8"], "fp32", "Precision of the weights.")
_LANES = Option(Literal[4, 8, 16], 4, "Floats in a vector register: 4 for NEON and SSE, 8 for AVX2, 16 for AVX-512.")
_MEAN = Option(tuple[float, ...], (), "Mean of each channel, for pixels in [0, 1]. Default: that of the run.")
_STD = Option(tuple[float, ...], (), "Standard deviation of each channel. Default: that of the run.")

FORMATS = {
    "packed": Format(".regrow", "regrow.files.packed:save", "a small file for regrow.load", {"dtype": _DTYPE}, False),
    "onnx": Format(".onnx", "regrow.export.onnx_file:onnx", "for other runtimes", {"sparse": _SPARSE}),
    "program": Format(".pt2", "regrow.export.torch_program:program", "for torch.export.load"),
    "c": Format(".c", "regrow.export.c_source:c", "a C99 file for devices", {"weights": _WEIGHTS, "lanes": _LANES}),
    "wasm": Format(
        "-web",
        "regrow.export.wasm_module:wasm",
        "a folder with a WebAssembly module for browsers and Node.js",
        {"weights": _WEIGHTS, "mean": _MEAN, "std": _STD},
        is_folder=True,
    ),
}


def __getattr__(name: str) -> Any:
    """Import the function of a format on first use, because it imports torch."""
    if name in FORMATS and FORMATS[name].writer.startswith(__name__):
        return resolve_name(FORMATS[name].writer)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
