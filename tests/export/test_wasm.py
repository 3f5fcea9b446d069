"""Exported WebAssembly modules have the outputs of the model, stay small, and raise clear errors."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.browser import chromium
from benchmarks.browser.chromium import Chromium
from regrow import DPF, Cubic
from regrow.engine import UnsupportedOperationError
from regrow.engine.plan.weights import Format
from regrow.export import wasm_module, wasm_template
from regrow.export.wasm_module import WasmExport, wasm
from regrow.export.wasm_template import info_of
from regrow.models import build
from tests.engine.networks import sparsify
from tests.export.test_c import everything

NEEDS_NODE = pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
NEEDS_CHROMIUM = pytest.mark.skipif(chromium.find() is None, reason="needs Chromium (Debian's package chromium)")
NEEDS_ZIG = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs the package ziglang")


def sparse(name: str, density: float, **options: int) -> nn.Module:
    """A network with random zeros."""
    torch.manual_seed(0)
    model = build(name, **options).eval()
    sparsify(model, density, torch.Generator().manual_seed(1))
    return model


def in_node(program: str, *arguments: Path) -> Any:
    """Run a program that can call `load` of an exported model.js, and return the value that it passes to `done`."""
    script = f'import {{ load }} from "{arguments[0] / "model.js"}";\nimport {{ readFile }} from "node:fs/promises";\n'
    script += "const done = (value) => console.log(JSON.stringify(value));\n"
    script += "const said = (promise) => promise.then(() => 'nothing', (error) => error.message);\n" + program
    command = ["node", "--input-type=module", "-e", script, *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[WasmExport, nn.Module]:
    """A small network and its files."""
    model = sparse("small", 0.2, channels=1, size=8)
    return wasm(model, torch.randn(1, 1, 8, 8), tmp_path_factory.mktemp("web")), model


def test_the_template_is_built_from_the_current_kernels() -> None:
    assert wasm_template.read_template()


@pytest.mark.slow
@NEEDS_ZIG
def test_the_template_is_the_same_when_it_is_built_again() -> None:
    assert hashlib.sha256(wasm_template.build()).digest() == hashlib.sha256(wasm_template.read_template()).digest()


def test_an_old_template_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasm_template, "source_digest", lambda: "other kernels")
    with pytest.raises(RuntimeError, match="make template"):
        wasm_template.read_template()


NETWORKS = {
    "shortcuts": (lambda: sparse("resnet8", 0.1, channels=3, size=32), (3, 32, 32)),
    "one channel, odd size": (lambda: sparse("resnet8", 0.05, channels=1, size=28), (1, 28, 28)),
    "dense": (lambda: sparse("small", 1.0, channels=1, size=8), (1, 8, 8)),
    "joined channels": (lambda: sparse("densenet10", 0.2, channels=3, size=16, growth=4), (3, 16, 16)),
    "every operation": (lambda: everything()[0], (3, 47, 41)),
}


@NEEDS_NODE
@pytest.mark.parametrize("weights", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_module_computes_the_same_as_the_model(name: str, weights: Format, tmp_path: Path) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    model = make().eval()
    export = wasm(model, torch.randn(1, *shape), tmp_path, weights=weights)
    assert export.checked == "node"
    assert export.error <= {"fp32": 1e-5, "fp16": 2e-3, "int8": 5e-2}[weights]
    assert export.size == export.module.stat().st_size


@pytest.mark.skipif(importlib.util.find_spec("wasmtime") is None, reason="needs the package wasmtime")
def test_without_node_wasmtime_checks_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    export = wasm(sparse("small", 0.2, channels=1, size=8), torch.randn(1, 1, 8, 8), tmp_path)
    assert export.checked == "wasmtime"
    assert export.error <= 1e-5


def test_without_any_runtime_the_module_is_written_unchecked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wasm_module, "_run", lambda *_: (None, None))
    export = wasm(sparse("small", 0.2, channels=1, size=8), torch.randn(1, 1, 8, 8), tmp_path, weights="int8")
    assert export.checked is None
    assert 0 < export.error < 5e-2


@NEEDS_NODE
def test_a_module_that_computes_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = wasm_module.fill

    def damaged(template: bytes, data: Any, **options: Any) -> bytes:
        constants = bytearray(data.constants)
        at = constants.rindex(bytes([0, 0, 128, 63])) if bytes([0, 0, 128, 63]) in constants else len(constants) // 2
        constants[at : at + 4] = bytes([0, 0, 0, 64])
        packed = bytearray(data.packed)
        packed[-300:] = bytes(300)
        changed = type(data)(**{**vars(data), "constants": bytes(constants), "packed": bytes(packed)})
        return real(template, changed, **options)

    monkeypatch.setattr(wasm_module, "fill", damaged)
    with pytest.raises(RuntimeError):
        wasm(sparse("small", 0.2, channels=1, size=8), torch.randn(1, 1, 8, 8), tmp_path / "web")
    assert not (tmp_path / "web").exists()


@NEEDS_NODE
@pytest.mark.parametrize(("weights", "most"), [("fp32", 80_000), ("fp16", 52_000), ("int8", 45_000)])
def test_resnet20_at_95_percent_is_small(weights: Format, most: int, tmp_path: Path) -> None:
    export = wasm(sparse("resnet20", 0.05), torch.randn(1, 3, 32, 32), tmp_path, weights=weights)
    program = 'import { brotliCompressSync } from "node:zlib";'
    program += 'done(brotliCompressSync(await readFile(process.argv[1] + "/model.wasm")).length)'
    assert export.size <= 190_000
    assert in_node(program, tmp_path) <= most


@NEEDS_NODE
def test_the_module_imports_nothing_and_its_memory_cannot_grow(exported: tuple[WasmExport, nn.Module]) -> None:
    export, _ = exported
    program = """
    const module = await WebAssembly.compile(await readFile(process.argv[1] + "/model.wasm"));
    const { memory } = (await WebAssembly.instantiate(module)).exports;
    let grows = true;
    try { memory.grow(1); } catch { grows = false; }
    done([WebAssembly.Module.imports(module).length, memory.buffer.byteLength, grows]);
    """
    assert in_node(program, export.module.parent) == [0, export.memory, False]


@NEEDS_NODE
def test_every_kind_of_source_is_loaded(exported: tuple[WasmExport, nn.Module]) -> None:
    export, model = exported
    program = """
    const path = process.argv[1] + "/model.wasm", bytes = await readFile(path);
    const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
    const response = new Response(buffer.slice(0), { headers: { "Content-Type": "application/wasm" } });
    const compiled = await WebAssembly.compile(bytes);
    const sources = [undefined, path, new URL("file://" + path), bytes, buffer, response, compiled];
    const x = Float32Array.from({ length: 64 }, (_, i) => Math.sin(i));
    const outputs = [];
    for (const source of sources) outputs.push(Array.from((await load(source)).run(x)));
    done(outputs);
    """
    outputs = in_node(program, export.module.parent)
    x = torch.sin(torch.arange(64, dtype=torch.float64)).float().reshape(1, 1, 8, 8)
    with torch.no_grad():
        expected = model(x)[0]
    assert len(outputs) == 7
    for output in outputs:
        torch.testing.assert_close(torch.tensor(output), expected, rtol=1e-4, atol=1e-5)


@NEEDS_NODE
def test_a_result_is_not_changed_by_the_next_run(exported: tuple[WasmExport, nn.Module]) -> None:
    program = """
    const model = await load(), first = model.run(new Float32Array(64)), kept = first.slice();
    model.run(new Float32Array(64).fill(3));
    const same = (values) => values.every((value, i) => value === kept[i]);
    done([same(first), same(model.run(Array(64).fill(0)))]);
    """
    assert in_node(program, exported[0].module.parent) == [True, True]


@NEEDS_NODE
def test_a_damaged_or_truncated_module_gives_a_clear_error(exported: tuple[WasmExport, nn.Module]) -> None:
    program = """
    const bytes = new Uint8Array(await readFile(process.argv[1] + "/model.wasm")), messages = [];
    const places = [9, 200, 5000, 20000, ...Array.from({ length: 200 }, (_, i) => bytes.length - 1 - i)];
    for (const at of places) {
      const damaged = bytes.slice();
      damaged[at] ^= 1 << at % 8;
      messages.push(await said(load(damaged)));
    }
    for (const length of [0, 7, 1000, bytes.length - 1]) messages.push(await said(load(bytes.slice(0, length))));
    messages.push(await said(load(new TextEncoder().encode("<!doctype html>"))));
    messages.push(await said(load(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0]))));
    done(messages);
    """
    messages = in_node(program, exported[0].module.parent)
    assert len(messages) == 4 + 200 + 4 + 2
    for message in messages:
        assert message.startswith("not a model by regrow, or damaged: the checksum of its ")


@NEEDS_NODE
def test_a_compiled_module_of_another_kind_is_refused(exported: tuple[WasmExport, nn.Module]) -> None:
    program = "done(await said(load(new WebAssembly.Module(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])))))"
    message = in_node(program, exported[0].module.parent)
    assert message == 'not a model by regrow: the module has no section "regrow"'


@NEEDS_NODE
def test_wrong_inputs_and_missing_files_give_a_clear_error(exported: tuple[WasmExport, nn.Module]) -> None:
    program = """
    const model = await load(), messages = [];
    for (const x of [new Float32Array(63), [], undefined, 5]) {
      try { model.run(x); } catch (error) { messages.push(`${error.name}: ${error.message}`); }
    }
    messages.push(await said(load("missing.wasm")));
    messages.push(await said(load(new Response("", { status: 404, statusText: "Not Found" }))));
    done(messages);
    """
    messages = in_node(program, exported[0].module.parent)
    assert messages[0] == "RangeError: run takes 64 numbers (1 x 8 x 8), got 63"
    assert [message.rsplit(" ", 1)[1] for message in messages[1:4]] == ["0", "undefined", "5"]
    assert "missing.wasm" in messages[4]
    assert "404 Not Found" in messages[5]


def test_the_module_contains_its_description(tmp_path: Path) -> None:
    names = [f"<b>{digit}</b></script>" for digit in range(10)]
    model, x = sparse("small", 0.2, channels=1, size=8), torch.randn(1, 1, 8, 8)
    export = wasm(model, x, tmp_path, weights="fp16", mean=[0.5], std=[0.25], classes=names)
    info = info_of(export.module.read_bytes())
    assert (info["input"], info["output"], info["weights"]) == ([1, 8, 8], [10], "fp16")
    assert (info["mean"], info["std"], info["classes"]) == ([0.5], [0.25], names)


def test_the_page_is_self_contained_and_its_policy_allows_no_requests(exported: tuple[WasmExport, nn.Module]) -> None:
    page = exported[0].page.read_text()
    assert "default-src 'none'" in page
    assert "unsafe-inline" not in page
    assert not re.findall(r'(?:src|href)="', page)
    assert page.count("'sha256-") == 2
    assert "/* mod" not in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "int4"}, "weights must be one of fp32, fp16, int8, got 'int4'"),
        ({"mean": [0.1, 0.2]}, "mean must have a value for each of 1 channels, got 2"),
        ({"mean": [0.1]}, "mean and std belong together"),
        ({"mean": [0.1], "std": [0.0]}, "std positive, got"),
        ({"mean": [float("nan")], "std": [1.0]}, "mean must be finite"),
        ({"classes": ["cat"]}, "classes must name all 10 outputs, got 1"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        wasm(sparse("small", 0.2, channels=1, size=8), torch.randn(1, 1, 8, 8), tmp_path, **options)


def test_weights_beyond_the_range_of_fp16_are_refused(tmp_path: Path) -> None:
    model: nn.Module = sparse("small", 0.2, channels=1, size=8)
    model.get_parameter("fc.weight").data[0, 0] = 1e6
    with pytest.raises(ValueError, match="beyond the range of fp16"):
        wasm(model, torch.randn(1, 1, 8, 8), tmp_path, weights="fp16")


def test_files_of_a_folder_that_is_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "web").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        wasm(sparse("small", 0.2, channels=1, size=8), torch.randn(1, 1, 8, 8), tmp_path / "web")


def test_a_page_written_by_the_user_is_not_overwritten(tmp_path: Path) -> None:
    model, x = sparse("small", 0.2, channels=1, size=8), torch.randn(1, 1, 8, 8)
    wasm(model, x, tmp_path)
    wasm(model, x, tmp_path, weights="fp16")  # an earlier export is replaced
    (tmp_path / "index.html").write_text("my page")
    with pytest.raises(ValueError, match=r"index\.html was not written by regrow"):
        wasm(model, x, tmp_path)
    assert (tmp_path / "index.html").read_text() == "my page"


def test_an_unsupported_operation_is_named_with_an_alternative(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    with pytest.raises(UnsupportedOperationError, match=r"(?s)layer_norm.*LayerNorm.*regrow\.export\.onnx"):
        wasm(model, torch.randn(1, 8), tmp_path)


def test_an_unfinished_model_gives_a_warning(tmp_path: Path) -> None:
    model = sparse("small", 1.0, channels=1, size=8)
    pruner = DPF(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=Cubic(0.9, end=100))
    with pytest.warns(UserWarning, match="has not reached its final sparsity"):
        wasm(model, torch.randn(1, 1, 8, 8), tmp_path)
    assert pruner.step == 0


@pytest.mark.slow
@NEEDS_CHROMIUM
@pytest.mark.parametrize("kind", ["image", "features"])
def test_the_page_works_in_a_browser(kind: str, tmp_path: Path) -> None:
    if kind == "image":
        wasm(sparse("small", 0.2, channels=1, size=8), torch.randn(1, 1, 8, 8), tmp_path)
    else:
        wasm(nn.Sequential(nn.Linear(20, 3)), torch.randn(1, 20), tmp_path)
    with Chromium() as browser:
        browser.open((tmp_path / "index.html").as_uri())
        browser.wait_for("document.body.dataset.ready")
        browser.click("#noise")
        shown = "[canvas, choose].map((each) => each.getClientRects().length > 0)"
        find = "const canvas = document.getElementById('input'), choose = document.getElementById('choose');"
        assert browser.evaluate(f"(() => {{ {find} return {shown}; }})()") == [kind == "image"] * 2
        assert browser.evaluate("parseFloat(document.querySelector('#facts dd').textContent)") > 0
        assert browser.errors == []


class Strict(SimpleHTTPRequestHandler):
    """Serves a folder with the content security policy of the documentation, or with one that forbids WebAssembly."""

    def end_headers(self) -> None:
        evaluate = "" if self.path.endswith("?none") else "'wasm-unsafe-eval'"
        policy = f"default-src 'none'; script-src 'self' {evaluate}; connect-src 'self'"
        self.send_header("Content-Security-Policy", policy)
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_a_page_and_its_worker_run_the_module_under_a_strict_policy(tmp_path: Path) -> None:
    wasm(sparse("small", 0.2, channels=1, size=8), torch.randn(1, 1, 8, 8), tmp_path)
    run = (
        'import { load } from "./model.js";\nload("model.wasm").then((model) => model.run(new Float32Array(64)).length)'
    )
    (tmp_path / "worker.js").write_text(f"{run}.then((n) => postMessage(n), (error) => postMessage(error.message));")
    start = 'new Worker("worker.js", { type: "module" }).onmessage = ({ data }) => (window.worker = data);'
    (tmp_path / "page.js").write_text(
        f"{run}.then((n) => (window.page = n), (e) => (window.page = e.message));\n{start}"
    )
    (tmp_path / "page.html").write_text(
        '<!doctype html><link rel="icon" href="data:,"><script type="module" src="page.js"></script>'
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Strict, directory=str(tmp_path)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with Chromium() as browser:
        browser.open(f"http://127.0.0.1:{server.server_port}/page.html")
        browser.wait_for("window.page && window.worker")
        assert browser.evaluate("[window.page, window.worker]") == [10, 10]
        browser.open(f"http://127.0.0.1:{server.server_port}/page.html?none")
        browser.wait_for("window.page")
        message = browser.evaluate("window.page")
        assert message.startswith("this JavaScript engine cannot compile the model: ")
        assert "Content Security Policy" in message
    server.shutdown()
    server.server_close()
