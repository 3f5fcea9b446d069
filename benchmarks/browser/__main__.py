"""Speed of sparse networks in a browser: `regrow export --to wasm` and onnxruntime-web in headless Chromium.

    npm install --prefix benchmarks/browser
    python -m benchmarks.browser [--rounds 1500]

ResNet-20 with the synthetic masks of benchmarks.engine, one image, one thread; contenders take turns in short bursts,
and the minimum time counts. onnxruntime-web runs the dense network: its time does not depend on zeros.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import torch

import regrow.export
from benchmarks.browser.chromium import Chromium
from benchmarks.engine import images, pruned
from benchmarks.runner import Row, report
from regrow.timing import to_plain_onnx

HERE = Path(__file__).parent
NETWORK = "resnet20"
BARS = {0.9: 8.0, 0.95: 14.0, 0.98: 24.0}
FORMATS = ("fp32", "fp16", "int8")


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder to a cross-origin isolated page, which has a high-resolution clock."""

    extensions_map: ClassVar = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1500)
    arguments = parser.parse_args()
    runtime = HERE / "node_modules" / "onnxruntime-web" / "dist"
    if not runtime.is_dir():
        raise SystemExit("onnxruntime-web is missing: npm install --prefix benchmarks/browser")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "ort").symlink_to(runtime)
        sizes = prepare(folder)
        least, version = measure(folder, arguments.rounds)
    title = f"{NETWORK} in a browser ({version}), one image, one thread"
    report(title, [*speeds(least), *sizes], name="browser")


def label(sparsity: float) -> str:
    """The name of a module."""
    return f"s{100 * sparsity:.0f}"


def speeds(least: dict[str, float]) -> list[Row]:
    """Return times in milliseconds, and those of onnxruntime-web, which do not depend on zeros."""
    rival = least["onnxruntime-web"]
    return [
        {
            "part": "speed",
            "sparsity": sparsity,
            "onnxruntime-web, dense, ms": rival,
            "regrow ms": least[label(sparsity)],
            "times faster": rival / least[label(sparsity)],
            "bar": bar or "",
        }
        for sparsity, bar in {0.0: None, **BARS}.items()
    ]


def prepare(folder: Path) -> list[Row]:
    """Write the files that the page loads; return the sizes of the modules."""
    x = images(NETWORK, 1)
    (folder / "x.bin").write_bytes(x.numpy().tobytes())
    shutil.copy(HERE / "bench.html", folder)
    to_plain_onnx(pruned(NETWORK, 0), x, folder / "dense.onnx")
    rows: list[Row] = []
    for sparsity in (0.0, *BARS):
        for weights in FORMATS:
            export = regrow.export.wasm(pruned(NETWORK, sparsity), x, folder / "web", weights=weights)
            sizes = {"KB": export.size / 1000, "brotli KB": brotli(export.module) / 1000}
            rows.append({"part": "size", "sparsity": sparsity, "weights": weights, **sizes, "error": export.error})
            if weights == "fp32":
                shutil.copy(export.module, folder / f"{label(sparsity)}.wasm")
                shutil.copy(export.script, folder)
    return rows


def brotli(path: Path) -> int:
    """The size of a file as servers send it, by Node.js."""
    program = "console.log(require('zlib').brotliCompressSync(require('fs').readFileSync(process.argv[1])).length)"
    return int(subprocess.run(["node", "-e", program, str(path)], capture_output=True, check=True).stdout)


def measure(folder: Path, rounds: int) -> tuple[dict[str, float], str]:
    """Return the minimum milliseconds of each contender, and the browser's version."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    labels = [label(sparsity) for sparsity in (0.0, *BARS)]
    with Chromium() as browser:
        browser.open(f"http://127.0.0.1:{server.server_port}/bench.html")
        browser.wait_for("window.ready")
        call = f"measure({json.dumps(labels)}, {json.dumps([1, *images(NETWORK, 1).shape[1:]])}, {rounds})"
        measured: dict[str, Any] = browser.evaluate(call)
        version = browser.evaluate("navigator.userAgent.match(/Chrome.[0-9]+/)[0].replace('/', ' ')")
        if browser.errors:
            raise SystemExit("\n".join(browser.errors))
    server.shutdown()
    dense = [torch.tensor(measured["outputs"][name]) for name in ("s0", "onnxruntime-web")]
    torch.testing.assert_close(*dense, rtol=1e-3, atol=1e-4)
    return measured["least"], version


if __name__ == "__main__":
    main()
