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


def dense_runtimes(
    model: nn.Module, x: Tensor, as_onnx: Callable[[], Path], *, threads: int = 1
) -> tuple[dict[str, Run], dict[str, str]]:
    """Every runtime that has run the model on `threads` threads, and of the others why not.

    `as_onnx` writes the model (see `to_plain_onnx`) or has written it. torch's own two runtimes follow
    `torch.set_num_threads`.
    """
    make: dict[str, Callable[[], Run]] = {
        "inductor": lambda: inductor(model, x),
        "onnxruntime": lambda: onnx_runtime(as_onnx(), x, threads),
        "openvino": lambda: openvino(as_onnx(), x, threads),
    }
    found: dict[str, Run] = {"torch": eager(model, x)}
    left_out: dict[str, str] = {}
    for name, start in make.items():
        if name in PACKAGES and find_spec(PACKAGES[name]) is None:
            left_out[name] = "not installed"
            continue
        try:
            run = start()
            run()  # inductor compiles in the first run
        except Exception as error:  # of whatever type, it is this runtime's end and not that of the others
            left_out[name] = could_not_run(error)
        else:
            found[name] = run
    return found, left_out


def could_not_run(error: Exception) -> str:
    """Why a runtime is left out, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"could not run: {lines[0]}"


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
