"""The runtimes that a model can be measured in, each as a function that runs one batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

Run = Callable[[], object]

PACKAGES = {"onnxruntime": "onnxruntime", "openvino": "openvino"}
"""Runtimes that are packages of their own, and what to install for them."""


def dense_runtimes(model: nn.Module, x: Tensor, path: Path, *, threads: int = 1) -> tuple[dict[str, Run], list[str]]:
    """Every runtime that is installed, on `threads` threads, and the names of those that are not.

    `path` is the model as ONNX, from `to_plain_onnx`. torch's own two runtimes follow `torch.set_num_threads`.
    """
    found: dict[str, Run] = {"torch": eager(model, x), "inductor": inductor(model, x)}
    make = {"onnxruntime": onnx_runtime, "openvino": openvino}
    for name, package in PACKAGES.items():
        if find_spec(package) is not None:
            found[name] = make[name](path, x, threads)
    return found, [name for name in PACKAGES if name not in found]


def to_plain_onnx(model: nn.Module, x: Tensor, path: Path) -> Path:
    """Write `model` for the batch size of `x`, in the older dialect that every runtime reads, DeepSparse included."""
    with warnings.catch_warnings(), redirect_stdout(None):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), str(path), opset_version=13, dynamo=False)
    return path


def eager(model: Callable[[Tensor], object], x: Tensor) -> Run:
    """PyTorch as it is."""

    def run() -> object:
        with torch.inference_mode():
            return model(x)

    return run


def inductor(model: nn.Module, x: Tensor) -> Run:
    """`torch.compile` with frozen weights."""
    torch._dynamo.reset()
    return eager(torch.compile(model, options={"freezing": True}), x)


def onnx_runtime(path: Path, x: Tensor, threads: int) -> Run:
    """ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feed)


def openvino(path: Path, x: Tensor, threads: int) -> Run:
    """OpenVINO in 32-bit arithmetic, like the others."""
    import openvino

    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    core = openvino.Core()
    request = core.compile_model(core.read_model(path), "CPU", options).create_infer_request()
    feed = {0: x.numpy()}
    return lambda: request.infer(feed)
