"""Exported networks, run in ONNX Runtime."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from benchmarks.pack import pruned
from regrow import export


def run(path: Path, *inputs: torch.Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})[0]


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return pruned("small", 0.95)


@pytest.fixture(scope="module")
def exported(network, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "dense.onnx"
    export.onnx(network, torch.randn(1, 3, 32, 32), path)
    return path


def test_onnx_runtime_agrees_with_torch_on_every_batch_size(network, exported):
    onnx.checker.check_model(exported, full_check=True)
    for size in (1, 2, 7):
        images = torch.randn(size, 3, 32, 32)
        assert np.abs(run(exported, images) - network(images).detach().numpy()).max() < 1e-4


def test_sparse_initializers_give_the_same_outputs_from_a_much_smaller_file(network, exported, tmp_path):
    images = torch.randn(3, 3, 32, 32)
    export.onnx(network, images, tmp_path / "sparse.onnx", sparse=True)

    onnx.checker.check_model(tmp_path / "sparse.onnx")
    assert np.array_equal(run(exported, images), run(tmp_path / "sparse.onnx", images))
    assert (tmp_path / "sparse.onnx").stat().st_size < 0.35 * exported.stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet20", "wrn28-2", "vgg16", "densenet40", "resnet50"])
def test_every_kind_of_built_in_network_can_be_exported_sparse(name, tmp_path):
    model = pruned(name, 0.9)
    export.onnx(model, torch.randn(2, 3, 32, 32), tmp_path / "x.onnx", sparse=True)

    images = torch.randn(5, 3, 32, 32)
    expected = model(images).detach().numpy()
    assert np.abs(run(tmp_path / "x.onnx", images) - expected).max() < 1e-4 * max(1, np.abs(expected).max())


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.dropout = nn.Dropout(0.5)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.linear(torch.cat([left, right], dim=1)))


def test_export_is_in_evaluation_mode_and_does_not_change_the_model(tmp_path):
    model = TwoInputs().train()
    left, right = torch.randn(2, 2, 3)
    export.onnx(model, (left, right), tmp_path / "x.onnx")

    assert model.training
    assert model.dropout.training
    expected = model.eval()(left, right).detach().numpy()
    assert np.allclose(run(tmp_path / "x.onnx", left, right), expected, atol=1e-5)


class Unlike(nn.Module):
    """Computes something else after its export, to simulate a wrong exporter."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + (0.0 if torch.compiler.is_exporting() else 0.01)


def test_a_file_that_differs_from_torch_is_not_written(tmp_path):
    with pytest.raises(RuntimeError, match=r"ONNX Runtime differs from torch by 0.01 with a batch of 2"):
        export.onnx(Unlike(), torch.randn(2, 3), tmp_path / "x.onnx")

    assert not list(tmp_path.iterdir())


class Bounded(nn.Module):
    """Has a constant zero without dimensions, changes its input in place, and every weight is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 8)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1).sum() + self.linear(x).clamp(0.0, 0.2)


@pytest.mark.parametrize("check", [True, False])
def test_only_weights_become_sparse(check, tmp_path):
    export.onnx(Bounded(), torch.randn(2, 6), tmp_path / "x.onnx", sparse=True, check=check)

    onnx.checker.check_model(tmp_path / "x.onnx")
    sparse = onnx.load(tmp_path / "x.onnx").graph.sparse_initializer
    assert [initializer.values.name for initializer in sparse] == ["linear.weight"]


def test_an_invalid_file_is_not_written(tmp_path, monkeypatch):
    def refuse(_: bytes) -> None:
        raise onnx.checker.ValidationError("no ONNX")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(onnx.checker.ValidationError):
        export.onnx(nn.Linear(3, 3), torch.randn(2, 3), tmp_path / "x.onnx", check=False)

    assert not list(tmp_path.iterdir())


class Cache:
    """A cache, which decoders return beside their output: neither a tensor nor a container of tensors."""


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)

    def forward(self, x):
        return (x * 2, Cache()) if self.config.use_cache else x * 2


def test_the_error_of_a_model_that_returns_a_cache_says_in_one_line_how_to_disable_it(tmp_path):
    model, x = Decoder().eval(), torch.randn(2, 3)
    with pytest.raises(
        RuntimeError, match=r"cannot export the model: .*: set model\.config\.use_cache = False"
    ) as caught:
        export.onnx(model, x, tmp_path / "a.onnx")
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)
    model.config.use_cache = False
    export.onnx(model, x, tmp_path / "a.onnx")
