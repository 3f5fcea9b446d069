"""Models can be exported as they are during training: wrapped, and in training mode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import regrow
from regrow import files
from regrow.export import c, onnx, program
from regrow.files.model_file import save_model
from tests.engine.architectures import prune_filters

Write = Callable[[nn.Module, Tensor, Path], object]
Result = Callable[[Path, Tensor], Tensor]


def network() -> nn.Module:
    """A pruned network in training mode, whose first layer changes its input in place."""
    torch.manual_seed(0)
    layers = (nn.ReLU(inplace=True), nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    return prune_filters(nn.Sequential(*layers), 0.5).train()


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Return the outputs of the model in evaluation mode, and put it back into training mode."""
    with torch.no_grad():
        found: Tensor = model.eval()(x.clone())
    model.train()
    return found


def shrunk(model: nn.Module, x: Tensor, path: Path) -> None:
    small = regrow.shrink(model, x)
    before, after = regrow.shrink_report(small).parameters
    assert after < before
    program(small, x, path)


def compiled(model: nn.Module, x: Tensor, path: Path) -> None:
    torch.save(regrow.compile(model, x, tune=False)(x), path)


def from_onnx(path: Path, x: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert isinstance(result, np.ndarray)
    return torch.from_numpy(result)


def from_program(path: Path, x: Tensor) -> Tensor:
    result: Tensor = torch.export.load(path).module()(x.clone())
    return result.detach()


def from_state(path: Path, x: Tensor) -> Tensor:
    model, state = network(), files.load(path)
    assert isinstance(state, dict)
    model.load_state_dict(state)
    return outputs(model, x)


ENTRIES: dict[str, tuple[Write, Result | None]] = {
    "pack": (lambda model, _, path: files.save(model, path), from_state),
    "safetensors": (lambda model, _, path: save_model(model, path), from_state),
    "onnx": (onnx, from_onnx),
    "program": (program, from_program),
    "shrink": (shrunk, from_program),
    "compile": (compiled, lambda path, _: torch.load(path)),
    "c": (lambda model, x, path: c(model, x, path.with_suffix(".c")), None),  # test_c.py runs the file
}
WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "not wrapped": lambda model: model,
    "torch.compile": torch.compile,
    "DataParallel": nn.DataParallel,
    "both": lambda model: torch.compile(nn.DataParallel(model)),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_a_wrapped_model_has_the_outputs_of_the_model_and_is_not_changed(
    entry: str, wrapper: str, tmp_path: Path
) -> None:
    model, x = network(), torch.randn(1, 3, 8, 8)
    kept, state = x.clone(), {name: value.clone() for name, value in model.state_dict().items()}
    write, result = ENTRIES[entry]
    write(WRAPPERS[wrapper](model), x, tmp_path / "file")
    assert torch.equal(x, kept)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    if result is not None:
        torch.testing.assert_close(result(tmp_path / "file", x), outputs(model, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("write", [onnx, program])
@pytest.mark.parametrize("size", [1, 3])
def test_exports_accept_any_batch_size(write: Write, size: int, tmp_path: Path) -> None:
    model = network()
    write(model, torch.randn(size, 3, 8, 8, requires_grad=True), tmp_path / "file")
    run = from_onnx if write is onnx else from_program
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, 8, 8)
        torch.testing.assert_close(run(tmp_path / "file", x), outputs(model, x), rtol=1e-4, atol=1e-5)
