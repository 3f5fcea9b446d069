"""Builds the drawing demo, one HTML file with two networks: `python docs/demo/build.py SPARSE_RUN DENSE_RUN OUT`.

The runs are those of the recipe mnist, and of the same recipe with `--method dense`.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import regrow
import regrow.export
from regrow.data import info
from regrow.export.wasm_module import template_text
from regrow.text import html_page, script_data

HERE = Path(__file__).parent

# From deep blue (negative) over the dark of pruned weights to orange (positive), 16 colors.
_NEGATIVE, _ZERO, _POSITIVE = (116, 190, 255), (22, 30, 40), (255, 170, 92)


def build(sparse: Path, dense: Path) -> str:
    """Return the page."""
    runs = {"dense": dense, "sparse": sparse}
    networks = {name: regrow.load(run).eval() for name, run in runs.items()}
    results = {name: json.loads((run / "result.json").read_text()) for name, run in runs.items()}
    data: dict[str, Any] = {name: _facts(network, results[name]["macs_kept"]) for name, network in networks.items()}
    data["note"] = _note(results)
    before, left = (data[name]["nonzeros"] for name in ("dense", "sparse"))
    return html_page(
        (HERE / "draw.html").read_text(),
        {
            "removed": f"{100 * (1 - left / before):.0f}",
            "counts": f"{before - left:,} of its {before:,}",
            "model.js": template_text("model.js"),
            "strokes.js": (HERE / "strokes.js").read_text(),
            "modules": script_data({name: _module(network) for name, network in networks.items()}),
            "data": script_data(data),
        },
    )


def _note(results: dict[str, dict[str, Any]]) -> str:
    top1 = {name: result["top1"] for name, result in results.items()}
    return (
        f"Both networks are ResNet-8, trained for {results['sparse']['epoch']} epochs on 8,000 images of MNIST by the "
        f"recipe mnist of regrow; on 2,000 other images the dense one is right in {top1['dense']:.2f} % and the sparse "
        f"one (DPF, {100 * results['sparse']['sparsity']:.0f} % of the weights pruned) in {top1['sparse']:.2f} %. Both "
        "run in the same engine on one thread, with weights stored in 16 bits. Times are measured on your device, when "
        "the page is opened. Nothing you draw leaves it: this page is one file and makes no requests."
    )


def _module(network: torch.nn.Module) -> bytes:
    facts = info("mnist")
    with tempfile.TemporaryDirectory() as folder:
        example = torch.zeros(1, facts.channels, facts.size, facts.size)
        exported = regrow.export.wasm(network, example, folder, weights="fp16", mean=facts.mean, std=facts.std)
        return exported.module.read_bytes()


def _facts(network: torch.nn.Module, macs: int) -> dict[str, Any]:
    weights = {name.removesuffix(".weight"): w for name, w in network.named_parameters() if w.dim() > 1}
    return {
        "nonzeros": sum(int(torch.count_nonzero(weight)) for weight in weights.values()),
        "macs": macs,
        "layers": [_layer(name, weight.detach().numpy()) for name, weight in weights.items()],
    }


def _layer(name: str, weight: NDArray[np.float32]) -> dict[str, Any]:
    """A layer's name, shape and picture: filters below each other, input channels beside each other."""
    outputs, inputs, *window = weight.shape
    rows, cols = window or (1, 1)
    plane = weight.reshape(outputs, inputs, rows, cols).transpose(0, 2, 1, 3).reshape(outputs * rows, inputs * cols)
    if plane.shape[0] > 4 * plane.shape[1]:  # a first layer has one input channel: put its filters beside each other
        columns = 4
        blocks = plane.reshape(columns, -1, plane.shape[1])
        plane = blocks.transpose(1, 0, 2).reshape(-1, columns * plane.shape[1])
    return {
        "name": name.replace("downsample.0", "shortcut"),
        "shape": " × ".join(map(str, weight.shape)),
        "sparsity": float(np.mean(weight == 0)),
        "width": plane.shape[1],
        "height": plane.shape[0],
        "picture": "data:image/png;base64," + base64.b64encode(_png(plane)).decode(),
    }


def _png(plane: NDArray[np.float32]) -> bytes:
    """A PNG with a palette of 15 colors, four bits for each weight."""
    strength = np.sqrt(np.abs(plane) / (np.quantile(np.abs(plane[plane != 0]), 0.98) if plane.any() else 1))
    level = np.where(plane == 0, 0, np.clip(np.ceil(7 * strength), 1, 7)).astype(int)
    index = np.where(plane < 0, 7 - level, 7 + level).astype(np.uint8)
    index = np.pad(index, ((0, 0), (0, index.shape[1] % 2)), constant_values=7)
    packed = index[:, 0::2] << 4 | index[:, 1::2]
    lines = b"".join(b"\0" + line.tobytes() for line in packed)
    palette = [_mix(_ZERO, _NEGATIVE if i < 7 else _POSITIVE, abs(i - 7) / 7) for i in range(15)]
    header = struct.pack(">2I5B", plane.shape[1], plane.shape[0], 4, 3, 0, 0, 0)
    colors = bytes(value for color in palette for value in color)
    chunks = ((b"IHDR", header), (b"PLTE", colors), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def _mix(a: tuple[int, ...], b: tuple[int, ...], fraction: float) -> tuple[int, ...]:
    # The faintest weight is still told apart from a pruned one.
    amount = 0.25 + 0.75 * fraction if fraction else 0.0
    return tuple(round(x + (y - x) * amount) for x, y in zip(a, b, strict=True))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    Path(sys.argv[3]).write_text(build(Path(sys.argv[1]), Path(sys.argv[2])))
