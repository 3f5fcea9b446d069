"""A shrunk network has the outputs of the pruned one."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regrow import DPF, Cubic, data, models, shrink, shrink_report
from tests.engine.architectures import Residual, networks, prune_filters, prune_weights, train_like


def difference(a: nn.Module, b: nn.Module, x: Tensor) -> float:
    """The largest difference of two models' outputs, relative to outputs larger than one."""
    with torch.no_grad():
        expected, got = a(x), b(x)
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=1))


def layer(model: nn.Module, name: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Inputs and outputs of a layer, before and after shrinking."""
    found = next(layer for layer in shrink_report(model).layers if layer.name == name)
    return found.inputs, found.outputs


def block(channels: int, *, kernel: int = 3) -> Residual:
    body = nn.Sequential(
        nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(channels),
    )
    return Residual(body, nn.Identity())


def residual_network(channels: int = 12, *, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 5))
    layers = (stem, nn.BatchNorm2d(channels), nn.ReLU(), block(channels), block(channels), *head)
    model = train_like(nn.Sequential(*layers)).eval()
    assert isinstance(model, nn.Sequential)
    return model


IMAGES = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore:.*pads it with 0")  # average pooling with padding
@settings(max_examples=120, deadline=None)
@given(
    model=networks(),
    sparsity=st.sampled_from((0.0, 0.3, 0.5, 0.8, 1.0)),
    round_to=st.sampled_from((1, 1, 4)),
    seed=st.integers(0, 99),
)
def test_a_network_with_pruned_filters_has_the_same_outputs_after_shrinking(model, sparsity, round_to, seed):
    prune_filters(model, sparsity, seed=seed)
    small = shrink(model, IMAGES.double(), round_to=round_to)
    assert not shrink_report(small).failed
    assert difference(model, small, IMAGES.double()) < 1e-9


@pytest.mark.filterwarnings("ignore:.*pads it with 0")  # average pooling with padding
@settings(max_examples=60, deadline=None)
@given(model=networks(), sparsity=st.sampled_from((0.7, 0.9, 0.97)), seed=st.integers(0, 99))
def test_a_network_with_pruned_weights_has_the_same_outputs_after_shrinking(model, sparsity, seed):
    prune_weights(model, sparsity, seed=seed)
    small = shrink(model, IMAGES.double())
    assert not shrink_report(small).failed
    assert difference(model, small, IMAGES.double()) < 1e-9


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*pads it with 0")  # average pooling with padding
@settings(max_examples=3000, deadline=None)
@given(model=networks(), sparsity=st.floats(0, 1), seed=st.integers(0, 999), filters=st.booleans())
def test_shrinking_stays_exact_over_thousands_of_networks(model, sparsity, seed, filters):
    (prune_filters if filters else prune_weights)(model, sparsity, seed=seed)
    small = shrink(model, IMAGES.double())
    assert not shrink_report(small).failed
    assert difference(model, small, IMAGES.double()) < 1e-9


SMALL_NETWORKS = ("resnet8", "resnet20", "resnet56", "wrn28-2", "vgg16", "densenet40", "small", "resnet18", "resnet50")


@pytest.mark.parametrize(
    "name",
    [
        *SMALL_NETWORKS,
        *(pytest.param(name, marks=pytest.mark.slow) for name in models.names() if name not in SMALL_NETWORKS),
    ],
)
@pytest.mark.parametrize("sparsity", [0.3, 0.8])
def test_every_network_shrinks_to_the_same_outputs(name, sparsity):
    torch.manual_seed(0)
    model = prune_filters(train_like(models.build(name)).eval(), sparsity)
    x = torch.randn(2, 3, 32, 32)
    small = shrink(model, x)
    report = shrink_report(small)
    assert not report.failed
    assert not report.unsupported
    assert difference(model, small, x) <= 1e-5
    assert report.parameters[1] < (0.75 if sparsity == 0.3 else 0.35) * report.parameters[0]


def test_an_unstructured_sparse_network_loses_its_dead_channels():
    torch.manual_seed(0)
    model = prune_weights(train_like(models.build("resnet20")).eval(), 0.997)
    x = torch.randn(2, 3, 32, 32)
    small = shrink(model, x)
    assert difference(model, small, x) <= 1e-5
    assert shrink_report(small).parameters[1] < 0.6 * shrink_report(small).parameters[0]


def test_filters_that_no_layer_reads_are_removed_even_if_they_are_not_zero():
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).eval()
    with torch.no_grad():
        model[4].weight[:, 1:] = 0  # so nothing reads four features of the second layer,
        model[2].weight[0, :4] = 0  # and with them nothing reads four of the first
    small = shrink(model, torch.randn(3, 4))
    assert layer(small, "2") == ((6, 2), (5, 1))
    assert layer(small, "0") == ((4, 4), (6, 2))
    assert difference(model, small, torch.randn(3, 4)) < 1e-5


def test_a_residual_branch_that_vanishes_is_removed():
    model = residual_network()
    nn.init.zeros_(model[4].body[3].weight)
    small = shrink(model, IMAGES)
    assert not [name for name in small.state_dict() if name.startswith("4.")]
    assert layer(small, "4.body.0") == ((12, 0), (12, 0))
    assert difference(model, small, IMAGES) < 1e-5


def test_a_stream_channel_that_no_branch_writes_is_removed_everywhere():
    model = residual_network()
    with torch.no_grad():
        for conv in (model[0], model[3].body[3], model[4].body[3]):
            conv.weight[:5] = 0
    small = shrink(model, IMAGES)
    # One of the five stays and carries their constants through the padded convolutions.
    assert layer(small, "0") == ((3, 3), (12, 8))
    assert layer(small, "7") == ((12, 8), (5, 5))
    assert difference(model, small, IMAGES) < 1e-5


def test_constants_are_folded_into_the_bias_without_padding():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, bias=False))
    train_like(model).eval()
    nn.init.zeros_(model[0].weight[:6].data)
    small = shrink(model, IMAGES)
    assert layer(small, "0") == ((3, 3), (8, 2))
    assert small.get_submodule("3").bias is not None
    assert difference(model, small, IMAGES) < 1e-6


def test_pruned_filters_of_a_branch_are_not_computed_where_the_stream_is_alive():
    model = residual_network(48)
    nn.init.zeros_(model[3].body[3].weight[10:].data)
    spread, whole = shrink(model, IMAGES), shrink(model, IMAGES, gather=False)
    assert layer(spread, "3.body.3") == ((48, 48), (48, 11))
    assert layer(whole, "3.body.3") == ((48, 48), (48, 48))
    assert difference(model, spread, IMAGES) < 1e-5
    assert difference(model, whole, IMAGES) < 1e-5


@pytest.mark.parametrize("name", ["resnet20", "wrn28-2", "densenet40"])
def test_rounding_keeps_counts_that_are_multiples(name):
    torch.manual_seed(0)
    model = prune_filters(train_like(models.build(name)).eval(), 0.6)
    x = torch.randn(1, 3, 32, 32)
    small = shrink(model, x, round_to=8)
    assert difference(model, small, x) <= 1e-5
    for found in shrink_report(small).layers[:-1]:
        assert found.outputs[1] % 8 == 0 or found.outputs[1] == found.outputs[0]


def test_a_shrunk_network_takes_other_batches_and_resolutions():
    model = prune_filters(residual_network(), 0.5)
    small = shrink(model, IMAGES)
    for shape in ((1, 3, 9, 9), (5, 3, 17, 12)):
        assert difference(model, small, torch.randn(shape)) < 1e-5


def test_shrinking_leaves_the_model_as_it_was():
    model = prune_filters(residual_network(), 0.5).train()
    before = copy.deepcopy(model.state_dict())
    shrink(model, IMAGES)
    assert model.training
    assert model[3].body[2].inplace
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_shrunk_network_is_copied_pickled_and_reloaded_like_any_other():
    model = prune_filters(residual_network(), 0.5)
    small = shrink(model, IMAGES)
    assert difference(small, copy.deepcopy(small), IMAGES) == 0
    pickled = pickle.loads(pickle.dumps(small))
    assert difference(small, pickled, IMAGES) == 0
    assert shrink_report(pickled) == shrink_report(small)
    again = train_like(copy.deepcopy(small))
    assert difference(small, again, IMAGES) > 0
    again.load_state_dict(small.state_dict())
    assert difference(small, again, IMAGES) == 0


def test_a_shrunk_network_can_be_trained_further():
    small = shrink(prune_filters(residual_network(), 0.5), IMAGES).train()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(small(IMAGES), torch.tensor([0, 1]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_a_shrunk_network_can_be_exported():
    model = prune_filters(residual_network(48), 0.7)
    small = shrink(model, IMAGES)
    exported = torch.export.export(small, (IMAGES,)).module()
    assert difference(model, exported, IMAGES) < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_a_shrunk_network_runs_in_onnx_runtime(tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = prune_filters(residual_network(48), 0.7)
    file = tmp_path / "small.onnx"
    torch.onnx.export(shrink(model, IMAGES), (IMAGES,), file, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: IMAGES.numpy()})
    with torch.no_grad():
        torch.testing.assert_close(torch.from_numpy(got), model(IMAGES), atol=1e-4, rtol=1e-4)


class UNet(nn.Module):
    """Goes down and up again, with a concatenation across."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.deep = nn.Sequential(nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(24, 16, 2, stride=2)
        self.join, self.out = nn.Conv2d(32, 16, 3, padding=1), nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        y = self.up(self.deep(F.max_pool2d(x, 2)))
        y = F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)
        return self.out(torch.relu(self.join(torch.cat([x, y], dim=1))))


def test_a_network_that_goes_down_and_up_again_shrinks():
    torch.manual_seed(0)
    model = prune_filters(train_like(UNet()).eval(), 0.6)
    nn.init.zeros_(model.up.weight[:, :9].data)
    small = shrink(model, IMAGES)
    assert not shrink_report(small).unsupported
    assert layer(small, "up")[1][1] in (7, 8)  # one may carry the constants of the others
    assert shrink_report(small).parameters[1] < 0.35 * shrink_report(small).parameters[0]
    assert difference(model, small, torch.randn(1, 3, 14, 10)) < 1e-5


def test_a_network_trained_by_dpf_has_the_same_predictions_after_shrinking():
    torch.manual_seed(0)
    train, test = data.load("digits", "train"), data.load("digits", "test")
    images, labels = train.images.float() / 255, train.labels
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten()),
        nn.Linear(32 * 16, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    DPF(model, optimizer, sparsity=Cubic(0.6, end=60), unit="filter", every=4)
    for batch in torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).repeat(5).split(64):
        optimizer.zero_grad()
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    model.eval()
    x = test.images.float() / 255
    small = shrink(model, x[:2])
    with torch.no_grad():
        before, after = model(x), small(x)
    assert (before.argmax(1) == test.labels).float().mean() > 0.9
    assert torch.equal(before.argmax(1), after.argmax(1))
    assert (before - after).abs().max() <= 1e-5 * before.abs().max()
    assert shrink_report(small).parameters[1] < 0.6 * shrink_report(small).parameters[0]


class Normalized(nn.Module):
    """Mixes all channels in a way that pruning must respect."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Conv2d(8, 6, 3)
        self.three = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.norm(self.one(x))))


def test_a_layer_that_cannot_be_followed_stays_and_is_named():
    model = prune_filters(train_like(Normalized()).eval(), 0.5)
    with pytest.warns(UserWarning, match=r"one: read by 'norm' \(GroupNorm is not known\)"):
        small = shrink(model, IMAGES)
    assert layer(small, "one") == ((3, 3), (8, 8))
    assert layer(small, "two")[1][1] < 6
    assert list(shrink_report(small).unsupported) == ["one"]
    assert difference(model, small, IMAGES) < 1e-5


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.conv(torch.relu(self.conv(x)))))


def test_a_layer_that_is_used_twice_stays():
    model = prune_filters(Twice().eval(), 0.5, seed=3)
    with pytest.warns(UserWarning, match="used more than once"):
        small = shrink(model, IMAGES)
    assert difference(model, small, IMAGES) < 1e-6


class Branching(nn.Module):
    """Decides by value, which no graph can capture."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.mean() > 0 else x


def test_a_part_that_cannot_be_traced_stays_whole_while_the_rest_shrinks():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3), Branching(), nn.Conv2d(6, 2, 1))
    prune_filters(train_like(model).eval(), 0.5)
    with pytest.warns(UserWarning, match=r"3\.conv: cannot be traced"):
        small = shrink(model, IMAGES)
    assert layer(small, "0")[1][1] < 8
    for sign in (1, -1):
        assert difference(model, small, sign * IMAGES.abs()) < 1e-5


def test_a_model_that_cannot_be_traced_is_returned_as_it_was():
    model = Branching().eval()
    with pytest.warns(UserWarning, match="did not change the model: its forward cannot be traced"):
        same = shrink(model, torch.randn(1, 6, 4, 4))
    assert difference(model, same, torch.randn(1, 6, 4, 4)) == 0
    assert shrink_report(same).parameters == (42, 42)


class Deceptive(nn.Module):
    """Does something else for a symbolic tensor than for a real one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if isinstance(x, Tensor) else x


def test_a_model_that_is_traced_wrongly_is_returned_unchanged():
    model = Deceptive().eval()
    with pytest.warns(UserWarning, match="the shrunk model's outputs differ"):
        same = shrink(model, IMAGES)
    assert difference(model, same, IMAGES) == 0


class SharedInPlace(nn.Module):
    """Reads a tensor again that was changed in place without taking the result."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        F.relu_(x)
        y = self.two(x)
        y.add_(x).mul_(0.5)
        return self.out(y)


def test_in_place_changes_affect_all_later_readers():
    model = prune_filters(train_like(SharedInPlace()).eval(), 0.5)
    small = shrink(model, IMAGES)
    assert not shrink_report(small).failed
    assert difference(model, small, IMAGES) < 1e-6


def test_the_number_of_channels_stays_where_the_model_computes_with_it():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.one(x)
            return self.two(torch.relu(x) / x.shape[1])

    model = prune_filters(train_like(Scaled()).eval(), 0.5)
    with pytest.warns(UserWarning, match="computes with the number of channels"):
        small = shrink(model, torch.randn(3, 4))
    assert difference(model, small, torch.randn(3, 4)) < 1e-6


def test_the_report_lists_every_layer():
    model = residual_network()
    nn.init.zeros_(model[4].body[3].weight)
    nn.init.zeros_(model[3].body[0].weight[:5].data)
    text = str(shrink_report(shrink(model, IMAGES)))
    assert "parameters (" in text.splitlines()[0]
    assert "3.body.0  12 x 12 -> 12 x 8  stayed: 1 (carries the constants" in text
    assert "4.body.3  12 x 12 removed" in text


@pytest.mark.parametrize("round_to", [0, -8, 2.0])
def test_an_impossible_rounding_is_refused(round_to):
    with pytest.raises(ValueError, match=r"round_to must be a whole number of channels, at least 1, got"):
        shrink(residual_network(), IMAGES, round_to=round_to)


def test_an_unsuitable_example_raises_the_models_own_error():
    with pytest.raises(RuntimeError, match="expected input"):
        shrink(residual_network(), torch.randn(1, 4, 9, 9))


def test_there_is_no_report_of_a_model_that_was_not_shrunk():
    with pytest.raises(ValueError, match=r"this Sequential was not made by regrow\.shrink"):
        shrink_report(residual_network())
