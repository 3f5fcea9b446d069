"""Export to a WebAssembly module with a script, types and a page to try it, without toolchain or server."""

from __future__ import annotations

import importlib.util
import math
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from regrow.core.modules import TOLERANCE, disagreement, distance
from regrow.engine.frontend.fuse import join_shortcuts
from regrow.engine.frontend.graph import Graph
from regrow.engine.frontend.torch_export import UnsupportedOperationError
from regrow.engine.plan.lower import lower
from regrow.engine.plan.schedule import schedule
from regrow.engine.plan.split import in_bands
from regrow.engine.plan.weights import Format
from regrow.engine.runtime.model import TorchRunner
from regrow.export.c_source import checked_graph
from regrow.export.wasm_plan import LANES, module_data
from regrow.export.wasm_template import fill, info_of, read_template
from regrow.system import write_atomically
from regrow.text import html_page, script_data

_GENERATOR = '<meta name="generator" content="regrow">'
"""Marks a page as written by an export, so that a page of the user is not overwritten."""


@dataclass(frozen=True)
class WasmExport:
    """The files that `wasm` wrote, their size, and the error relative to the model.

    `size` is the size of `model.wasm` and `memory` what it uses when it runs, in bytes. `error` is relative to the
    largest output on the example; with fp16 and int8 it is the effect of rounding the weights. `checked` names the
    runtime in which the module was run to measure it ("node" or "wasmtime"), or is None if neither is installed; the
    error is then that of the rounded weights in torch.
    """

    module: Path
    script: Path
    types: Path
    page: Path
    size: int
    memory: int
    error: float
    checked: str | None

    def __str__(self) -> str:
        checked = f"checked in {self.checked}" if self.checked else "not run: neither Node.js nor wasmtime is installed"
        return "\n".join(
            [
                f"{self.module}, {self.script.name}, {self.types.name} and {self.page.name}, a page to try it",
                f"file    {self.size:>11,} bytes",
                f"memory  {self.memory:>11,} bytes, which never grow",
                f"error   {self.error:>11.1e} of the largest output on the example ({checked})",
            ]
        )


def wasm(
    model: nn.Module,
    example_input: Tensor,
    folder: str | Path,
    *,
    weights: Format = "fp32",
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    classes: Sequence[str] = (),
) -> WasmExport:
    """Write `model` as `model.wasm`, `model.js`, `model.d.ts` and `index.html` in `folder`.

    The module needs WebAssembly SIMD, which all current browsers, Node.js and Deno have. It imports nothing, its memory
    never grows, and weights that are zero cost nothing. One input at a time:

        import { load } from "./model.js";
        const model = await load("model.wasm");
        const y = model.run(float32Array);

    `weights` "fp16" and "int8" (one scale per output channel) make the file smaller; the network always computes
    in float32, at the same speed. `mean` and `std` are those that normalize pixels in [0, 1]; the page uses them and
    the names of the `classes`. A page of your own in `folder` is not overwritten. If Node.js or the package
    `wasmtime` is installed, the module is run on the first example and compared with torch.

    >>> regrow.export.wasm(model, torch.randn(1, 3, 32, 32), "web")    # doctest: +SKIP
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder must be a directory, but {str(folder)!r} is a file")
    page = folder / "index.html"
    if page.exists() and _GENERATOR not in page.read_text(errors="replace"):
        raise ValueError(f"{page} was not written by regrow, and is not overwritten; choose another folder")
    try:
        example, expected, graph = checked_graph(model, example_input, weights)
    except UnsupportedOperationError as error:
        raise UnsupportedOperationError(f"{error} onnxruntime-web can run the file of regrow.export.onnx.") from error
    info = _info(graph, weights, mean, std, classes)
    module = _module(graph, weights, info)
    rounded = TorchRunner(graph)(example)
    checked, y = _run(module, example, expected.shape)
    if y is not None and disagreement(y, rounded, lambda: None, TOLERANCE) is not None:
        raise RuntimeError(
            f"the WebAssembly module differs from torch by {distance(y, rounded):.1e} on example_input (relative to "
            f"the largest output); at most {TOLERANCE:.0e} is accepted. Please report this model."
        )
    folder.mkdir(parents=True, exist_ok=True)
    script, types = template_text("model.js"), template_text("model.d.ts")
    files = {"model.wasm": module, "model.js": script.encode(), "model.d.ts": types.encode()}
    files["index.html"] = html_page(
        template_text("index.html"), {"model.js": script, "module": script_data(module)}
    ).encode()
    for name, content in files.items():
        write_atomically(folder / name, content)
    return WasmExport(
        module=folder / "model.wasm",
        script=folder / "model.js",
        types=folder / "model.d.ts",
        page=folder / "index.html",
        size=len(module),
        memory=info_of(module)["memory"],
        error=distance(rounded if y is None else y, expected),
        checked=checked,
    )


def template_text(name: str) -> str:
    """Return one of the files in `templates`."""
    return resources.files("regrow.export").joinpath("templates", name).read_text(encoding="utf-8")


def _info(
    graph: Graph, weights: Format, mean: Sequence[float], std: Sequence[float], classes: Sequence[str]
) -> dict[str, Any]:
    info: dict[str, Any] = {"input": list(graph.input.shape), "output": list(graph.output.shape), "weights": weights}
    channels = graph.input.shape[0]
    for name, values in (("mean", mean), ("std", std)):
        if len(values) not in (0, channels):
            raise ValueError(f"{name} must have a value for each of {channels} channels, got {len(values)}")
    if len(mean) != len(std):
        raise ValueError("mean and std belong together: pass both or neither")
    if len(mean):
        info |= {"mean": [float(value) for value in mean], "std": [float(value) for value in std]}
        if not (all(map(math.isfinite, info["mean"])) and all(0 < value < math.inf for value in info["std"])):
            raise ValueError(f"mean must be finite and std positive, got {info['mean']} and {info['std']}")
    if len(classes):
        if len(classes) != graph.output.numel:
            raise ValueError(f"classes must name all {graph.output.numel} outputs, got {len(classes)}")
        info["classes"] = list(classes)
    return info


def _module(graph: Graph, weights: Format, info: dict[str, Any]) -> bytes:
    # int8 weights have one scale for each output channel; joined shortcuts would share it.
    steps = in_bands(schedule(graph if weights == "int8" else join_shortcuts(graph), LANES))
    data = module_data(lower(steps), weights)
    return fill(read_template(), data, inputs=graph.input.numel, outputs=graph.output.numel, info=info)


def _run(module: bytes, x: Tensor, shape: torch.Size) -> tuple[str | None, Tensor | None]:
    """Run the module on one input in a runtime that is installed; return its name and the output."""
    values = x.flatten().numpy().astype("<f4").tobytes()
    if node := shutil.which("node"):
        checked, output = "node", _run_in_node(node, module, values)
    elif importlib.util.find_spec("wasmtime"):
        checked, output = "wasmtime", _run_in_wasmtime(module, values)
    else:
        return None, None
    return checked, torch.from_numpy(np.frombuffer(output, "<f4").copy()).reshape(shape)


_NODE = """
const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const bytes = Uint8Array.from(Buffer.concat(chunks)), size = new DataView(bytes.buffer).getUint32(0, true);
const model = await load(bytes.subarray(4, 4 + size));
process.stdout.write(Buffer.from(model.run(new Float32Array(bytes.slice(4 + size).buffer)).buffer));
"""


def _run_in_node(node: str, module: bytes, values: bytes) -> bytes:
    program = [node, "--input-type=module", "-e", template_text("model.js") + _NODE]
    data = len(module).to_bytes(4, "little") + module + values
    done = subprocess.run(program, input=data, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"node cannot run the module: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _run_in_wasmtime(module: bytes, values: bytes) -> bytes:
    import wasmtime

    store = wasmtime.Store()
    exports = wasmtime.Instance(store, wasmtime.Module(store.engine, module), []).exports(store)
    memory, x, y = exports["memory"], exports["x"].value(store), exports["y"].value(store)
    memory.write(store, values, x)
    exports["run"](store)
    outputs = int(np.prod(info_of(module)["output"]))
    return bytes(memory.read(store, y, y + 4 * outputs))
