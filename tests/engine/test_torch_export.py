"""Models that torch.export captures, and errors for those that it cannot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import regrow
from regrow.engine.frontend.torch_export import UnsupportedOperationError, _arguments
from regrow.engine.ops.base import lowerings
from regrow.export import c, onnx
from regrow.timing import bench
from tests.engine.architectures import prune_filters, train_like

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A convolution, a linear layer, and what a test does with them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(192, 4)
        self.drop = nn.Dropout()


class AfterDropout(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.conv(self.drop(x).relu_()) + x  # which is the input of the dropout, and has changed


class OfACopy(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.conv(x.clone().relu_()) + x


class OfAView(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).flatten(1).relu_())


class ReadsBehindAView(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.fc(x.flatten(1).relu_()) + self.fc(self.conv(x).flatten(1))


class AlwaysDrops(Net):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.conv(x))


class OneNumber(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean()


class InADict(Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": self.conv(x)}


@pytest.mark.parametrize("kind", [AfterDropout, OfACopy, OfAView])
@pytest.mark.parametrize("images", [0, 2])
def test_operations_in_place_change_all_that_they_change_in_torch(kind: type[Net], images: int, tmp_path: Path) -> None:
    model = kind().eval()
    compiled = regrow.compile(model, X[:images], tune=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X), rtol=1e-5, atol=1e-5)
    assert c(model, X, tmp_path / "net.c").error < 1e-5


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ReadsBehindAView, r"conv2d.*changed in place through another view"),
        (AlwaysDrops, r"aten\.dropout.*training=self\.training"),
        (OneNumber, r"aten\.mean.*got all dimensions"),
        (InADict, "InADict returns it in a dict"),
    ],
)
def test_models_that_cannot_be_captured_are_refused_everywhere(kind: type[Net], message: str, tmp_path: Path) -> None:
    model = kind().eval()
    with pytest.raises(UnsupportedOperationError, match=message):
        regrow.compile(model, X, tune=False)
    with pytest.raises(UnsupportedOperationError, match=message):
        c(model, X, tmp_path / "net.c")
    assert list(tmp_path.iterdir()) == []


def masked() -> nn.Module:
    model = OfAView()
    prune.l1_unstructured(model.conv, "weight", 0.5)
    return model


def normed() -> nn.Module:
    model = OfAView()
    parametrizations.weight_norm(model.conv)
    return model


def diverged() -> nn.Module:
    model = OfAView()
    nn.init.constant_(model.conv.bias, float("nan"))
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (masked, r"conv is masked in every forward pass.*prune\.remove\(module, 'weight'\)"),
        (normed, r"conv computes its weight in every forward pass.*remove_parametrizations\(module, 'weight'\)"),
        (diverged, "own output on example_input is not finite"),
        (lambda: nn.Conv2d(3, 4, 3, device="meta"), "weight is on the meta device"),
    ],
)
def test_unusable_weights_raise_an_error_with_a_remedy(model, message: str, tmp_path: Path) -> None:
    for attempt in (regrow.compile, lambda model, x: c(model, x, tmp_path / "net.c")):
        with pytest.raises(ValueError, match=message):
            attempt(model(), X)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:`torch.jit.*deprecated:DeprecationWarning")
def test_a_scripted_module_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"TorchScript module.*pass the module it was made from"):
        regrow.compile(torch.jit.script(nn.Conv2d(3, 4, 3)), X)


def test_autocast_has_no_effect() -> None:
    model = OfAView().eval()
    with torch.autocast("cpu"):
        compiled = regrow.compile(model, X, tune=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X), rtol=1e-5, atol=1e-5)


def test_arrays_in_any_order_and_read_only_are_accepted() -> None:
    model = OfAView().eval()
    compiled, array = regrow.compile(model, X, tune=False), X.numpy()
    frozen = array.copy()
    frozen.flags.writeable = False
    for given in (array[:, :, ::-1], np.broadcast_to(array[:1], array.shape), array.astype(">f4"), frozen):
        with torch.no_grad():
            expected = model(torch.from_numpy(np.array(given, np.float32))).numpy()
        np.testing.assert_allclose(compiled(given), expected, rtol=1e-5, atol=1e-5)


def test_shrunk_networks_with_an_index_are_compiled(tmp_path: Path) -> None:
    model, x = prune_filters(train_like(regrow.models.build("resnet20")).eval(), 0.6), torch.randn(2, 3, 32, 32)
    small = regrow.shrink(model, x)
    assert any(node.target is torch.index_select for node in small.graph.nodes)
    compiled = regrow.compile(small, x, tune=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    assert compiled.profile(repeat=1).macs <= regrow.compile(model, x, tune=False).profile(repeat=1).macs
    assert c(small, x, tmp_path / "net.c").error < 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_other_precisions_are_exported_in_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    assert c(OfAView().to(dtype), X, tmp_path / "net.c").error < 1e-5


def test_a_name_that_c_cannot_include_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot include a file called"):
        c(OfAView(), X, tmp_path / 'a"b.c')
    assert list(tmp_path.iterdir()) == []


def test_onnx_takes_outputs_in_any_structure(tmp_path: Path) -> None:
    onnx(InADict().eval(), X, tmp_path / "net.onnx")
    with pytest.raises(TypeError, match=r"example_input must be a tensor .* got \(1, 3, 8, 8\)"):
        onnx(OfAView().eval(), (1, 3, 8, 8), tmp_path / "other.onnx")  # type: ignore[arg-type]


def test_a_comparison_leaves_a_model_in_training_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regrow.timing.dense_runtimes", only_torch)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).double().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    bench(model, X.double(), seconds=0.01)
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def only_torch(model: nn.Module, x: Tensor, *_, **__):
    assert not model.training
    assert x.dtype is torch.float32
    return {"torch": lambda: model(x)}, {}


@pytest.mark.parametrize("dropout", [nn.Dropout, nn.Dropout2d], ids=lambda kind: kind.__name__)
def test_dropout_that_works_in_place_has_no_effect(dropout: type[nn.Module], tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), dropout(0.5, inplace=True), nn.ReLU()).eval()  # type: ignore[call-arg]
    with torch.no_grad():
        torch.testing.assert_close(regrow.compile(model, X, tune=False)(X), model(X), rtol=1e-5, atol=1e-6)
    c(model, X, tmp_path / "net.c")


def test_every_operation_that_works_in_place_finds_its_tensor_by_the_name_of_the_other_one() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for name in lowerings():
        if in_place := getattr(torch.ops.aten, f"{name}_", None):
            overload = getattr(in_place, in_place.overloads()[0])
            other = getattr(torch.ops.aten, name)
            expected = getattr(other, other.overloads()[0])._schema.arguments[0].name
            assert _arguments(graph.call_function(overload, (x,)))[expected] is x, name


def test_all_operations_that_are_missing_are_named() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cos(torch.cumsum(torch.sin(x), 1))

    with pytest.raises(
        UnsupportedOperationError, match=r"cannot compile 'aten\.sin\..*aten\.cos\.default, aten\.cumsum"
    ):
        regrow.compile(Model(), X, tune=False)
