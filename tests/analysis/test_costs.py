"""Counts agree with the paper's published arithmetic, and with brute force on any layer."""

import json
import math
import re
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regrow.analysis import Account, account
from regrow.models import build


def above_threshold(model: nn.Module, sparsity: str, *, linear: bool = False) -> dict[str, Tensor]:
    """Masks that prune every convolution (and linear layer) to `sparsity`, a decimal, as the paper's counts imply.

    Of n weights those strictly above the one of rank floor(s n) are kept: one fewer than n - floor(s n).
    """
    masks = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() == 4 or (linear and parameter.dim() == 2):
            n = parameter.numel()
            masks[name] = (torch.arange(n) > math.floor(Fraction(sparsity) * n)).view(parameter.shape)
    return masks


def account_of(name: str, *, classes: int = 10, size: int = 32) -> Account:
    with torch.device("meta"):
        return account(build(name, classes=classes, size=size), (3, size, size))


def pruned_account_of(name: str, sparsity: str, *, classes: int = 10, size: int = 32, linear: bool = False) -> Account:
    with torch.device("meta"):
        model = build(name, classes=classes, size=size)
    return account(model, (3, size, size), above_threshold(model, sparsity, linear=linear))


class TestThePapersNumbers:
    def test_resnet20_has_40_81_million_conv_macs(self) -> None:
        assert account_of("resnet20").conv_macs == 40_812_544

    @pytest.mark.parametrize(
        ("sparsity", "printed"),
        [("0.5", 20.99), ("0.6", 16.91), ("0.7", 12.83), ("0.8", 8.75), ("0.9", 4.67), ("0.95", 2.63)],
    )
    def test_layerwise_pruned_resnet20_has_the_macs_of_the_papers_table(self, sparsity: str, printed: float) -> None:
        assert round(pruned_account_of("resnet20", sparsity).macs_kept / 1e6, 2) == printed

    @pytest.mark.parametrize(
        ("name", "exact", "printed"),
        [("wrn28-2", 215.78, 216), ("wrn28-4", 848.40, 848), ("wrn28-8", 3365.64, 3366)],
    )
    def test_wide_resnets_have_the_macs_of_the_papers_figures(self, name: str, exact: float, printed: int) -> None:
        macs = account_of(name).macs / 1e6
        assert round(macs, 2) == exact
        assert round(macs) == printed

    def test_wide_resnet_28_2_in_the_conv_only_convention(self) -> None:
        counted = account_of("wrn28-2")
        assert round(counted.conv_macs / 1e6, 2) == 214.35
        assert round(counted.parameters / 1e6, 2) == 1.47

    @pytest.mark.parametrize(
        ("target", "linear", "remaining", "reached"),
        [("0.8", False, 6.79, 73.5), ("0.8", True, 5.15, 79.9), ("0.9", False, 4.45, 82.6)],
    )
    def test_resnet50_has_the_remaining_parameters_of_the_imagenet_table(
        self, target: str, linear: bool, remaining: float, reached: float
    ) -> None:
        counted = pruned_account_of("resnet50", target, classes=1000, size=64, linear=linear)
        assert counted.parameters == 25_557_032
        assert counted.targeted == 23_454_912 + (2_048_000 if linear else 0)
        assert counted.target_ratio == pytest.approx(float(target), abs=1e-5)
        assert round(counted.nonzeros / 1e6, 2) == remaining
        # The paper rounds the reached sparsity up: 73.42, 79.83 and 82.60 % are printed as 73.5, 79.9 and 82.6 %.
        assert math.ceil(counted.reached_ratio * 1000) / 10 == reached

    def test_the_last_layer_has_the_fraction_of_the_macs_that_the_paper_gives(self) -> None:
        resnet = account_of("resnet50", classes=1000, size=224)
        wide = account_of("wrn28-2")
        assert round(100 * resnet.layers[-1].macs / resnet.macs, 2) == 0.05
        assert round(100 * wide.layers[-1].macs / wide.macs, 4) == 0.0006


LAYERS = st.one_of(
    st.builds(
        lambda groups, i, o, k, stride, dilation: (
            nn.Conv2d(groups * i, groups * o, k, stride, groups=groups, dilation=dilation, bias=False),
            (groups * i, 11, 9),
        ),
        *(st.integers(1, 3) for _ in range(6)),
    ),
    st.builds(
        lambda n, k, stride: (nn.Conv1d(n, n, k, stride, groups=n, bias=False), (n, 12)),
        *(st.integers(1, 4) for _ in range(3)),
    ),
    st.builds(
        lambda groups, i, o, k, stride: (
            nn.ConvTranspose2d(groups * i, groups * o, k, stride, groups=groups, bias=False),
            (groups * i, 4, 5),
        ),
        *(st.integers(1, 3) for _ in range(5)),
    ),
    st.builds(lambda i, o: (nn.Conv3d(i, o, 2, bias=False), (i, 3, 4, 5)), st.integers(1, 3), st.integers(1, 3)),
    st.builds(
        lambda i, o, length: (nn.Linear(i, o, bias=False), (length, i)),
        *(st.integers(1, 6) for _ in range(3)),
    ),
)


@settings(max_examples=80, deadline=None)
@given(layer_and_shape=LAYERS, density=st.floats(0, 1), seed=st.integers(0, 2**16))
def test_macs_kept_are_the_products_that_a_sparse_layer_really_adds(
    layer_and_shape: tuple[nn.Module, tuple[int, ...]], density: float, seed: int
) -> None:
    layer, shape = layer_and_shape
    mask = torch.rand(layer.weight.shape, generator=torch.Generator().manual_seed(seed)) < density
    layer.weight.data = mask.float()
    # With ones for inputs and kept weights, and no padding, every product adds one to the sum of the outputs.
    products = int(layer(torch.ones(1, *shape)).double().sum().round())
    by_zeros, by_masks = account(layer, shape), account(layer, shape, {"weight": mask})
    assert by_zeros.macs_kept == by_masks.macs_kept == products
    assert by_zeros.nonzeros == by_masks.nonzeros == int(mask.sum())


class Functional(nn.Module):
    """A model whose operations hooks on modules would miss."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(4, 2, 3))
        self.matrix = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.conv1d(x, self.kernel))
        x = F.batch_norm(x, torch.zeros(4), torch.ones(4)).relu_()
        return F.linear(x.transpose(1, 2).to(torch.float64), self.matrix.double())


def test_functional_calls_and_cast_weights_count_like_modules() -> None:
    counted = account(Functional(), (2, 10))
    macs = {layer.name: (layer.kind, layer.macs) for layer in counted.layers}
    assert macs == {"kernel": ("conv", 4 * 2 * 3 * 8), "matrix": ("linear", 5 * 4 * 8)}
    assert counted.relu_macs == 2 * 4 * 8
    assert counted.norm_macs == 2 * 4 * 8


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.recurrent = nn.GRU(8, 4, batch_first=True)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.encoder(self.embedding(tokens))
        self.recurrent(x)
        return self.head(x)


def test_the_macs_of_attention_recurrence_and_tied_weights_are_counted() -> None:
    counted = account(Tokens(), torch.zeros(1, 3, dtype=torch.long))
    macs = {layer.name: layer.macs for layer in counted.layers}
    length = 3
    assert macs == {
        "embedding.weight": length * 20 * 8,
        "encoder.self_attn.in_proj_weight": length * 24 * 8,
        "encoder.self_attn.out_proj.weight": length * 8 * 8,
        "encoder.linear1.weight": length * 16 * 8,
        "encoder.linear2.weight": length * 16 * 8,
        "recurrent.weight_ih_l0": length * 12 * 8,
        "recurrent.weight_hh_l0": length * 12 * 4,
    }
    assert counted.product_macs == 2 * length * length * 8
    assert counted.parameters == sum(p.numel() for p in Tokens().parameters())


def test_parameters_that_share_one_storage_are_distinguished() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    flat = torch.randn(4 * 3 + 3 * 2)
    model[0].weight.data = flat[:12].view(3, 4)
    model[1].weight.data = flat[12:].view(2, 3)
    assert [layer.macs for layer in account(model, (4,)).layers] == [12, 6]


def test_a_product_with_a_learned_input_counts_for_the_weight() -> None:
    class Queries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries = nn.Parameter(torch.randn(5, 4))
            self.project = nn.Linear(4, 3, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.project(self.queries) + x.sum()

    macs = {layer.name: layer.macs for layer in account(Queries(), (1,)).layers}
    assert macs == {"queries": 0, "project.weight": 5 * 4 * 3}


def test_account_does_not_change_the_model() -> None:
    model = build("resnet8", channels=1, size=8)
    model.train()
    model.layer1.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    random_state, mkldnn = torch.get_rng_state(), torch.backends.mkldnn.enabled
    account(model, (1, 8, 8))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.backends.mkldnn.enabled == mkldnn


def test_account_does_not_change_a_model_that_cannot_run_on_the_input() -> None:
    model = build("resnet8")
    with pytest.raises(ValueError, match="3 channels"):
        account(model, (1, 8, 8))
    assert model.training
    assert torch.backends.mkldnn.enabled


def test_zeros_at_random_places_are_counted_and_zero_biases_are_not() -> None:
    model = build("small", channels=1, size=8)
    with torch.no_grad():
        model.conv2.weight.view(-1)[::2] = 0
    counted = account(model, (1, 8, 8))
    assert counted.parameters - counted.nonzeros == model.conv2.weight.numel() // 2
    assert [layer.name for layer in counted.layers if layer.targeted] == ["conv2.weight"]
    assert counted.target_ratio == 0.5


def test_a_kept_weight_counts_even_while_it_is_zero() -> None:
    model = nn.Linear(4, 4, bias=False)
    nn.init.zeros_(model.weight)
    assert account(model, (4,), {"weight": torch.ones(4, 4, dtype=torch.bool)}).macs_kept == 16
    assert account(model, (4,)).macs_kept == 0


def test_a_compiled_model_is_counted_under_its_own_names() -> None:
    model = build("small", channels=1, size=8)
    assert account(torch.compile(model), (1, 8, 8)) == account(model, (1, 8, 8))


def test_a_wrapped_model_is_counted_under_its_own_names() -> None:
    model = build("small", channels=1, size=8)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    assert account(averaged, (1, 8, 8)) == account(model, (1, 8, 8))


def test_wrong_masks_are_refused_before_the_model_runs() -> None:
    model = build("small", channels=1, size=8)
    with pytest.raises(ValueError, match=r"masks names 'conv9.weight'.*Did you mean 'conv"):
        account(model, (1, 8, 8), {"conv9.weight": torch.ones(1)})
    with pytest.raises(ValueError, match=r"mask of 'conv1.weight' has shape \(3,\), its weight \(16, 1, 3, 3\)"):
        account(model, (1, 8, 8), {"conv1.weight": torch.ones(3)})


def test_totals_are_plain_numbers() -> None:
    totals = pruned_account_of("resnet20", "0.9").totals()
    assert json.loads(json.dumps(totals)) == totals
    assert totals["macs"] == 41_403_008


def test_the_table_has_a_line_per_layer_and_the_totals() -> None:
    counted = pruned_account_of("resnet8", "0.9")
    lines = counted.table().splitlines()
    assert lines[0].split() == ["layer", "shape", "weights", "non-zeros", "density", "MACs", "MACs", "kept"]
    assert lines[2].split() == ["conv1", "16x3x3x3", "432", "43", "10.0", "%", "442,368", "44,032"]
    assert sum(line.startswith("layer") for line in lines[2:]) == 8
    total = next(line for line in lines if line.startswith("total"))
    assert total.split()[1:3] == [f"{counted.parameters:,}", f"{counted.nonzeros:,}"]
    assert total.split()[-2:] == [f"{counted.macs:,}", f"{counted.macs_kept:,}"]
    assert len({len(line) for line in lines[2:] if line.endswith(tuple("0123456789"))}) == 1
    assert "90.0 % of the 76,720 targeted weights" in lines[-2]


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((1, 3, 32, 32), r"; did you mean \(3, 32, 32\)\?$"),
        ((8, 3, 32, 32), r"; did you mean \(3, 32, 32\)\?$"),
        ((1, 32, 32), r"batch dimension\.$"),
    ],
)
def test_a_shape_that_the_model_cannot_run_on_is_named_with_a_correct_one(shape, hint):
    message = rf"cannot run on an input of shape {re.escape(str(shape))} \(.*\)\. .* without the batch dimension"
    with pytest.raises(ValueError, match=message) as refused:
        account(build("resnet8"), shape)
    assert re.search(hint, str(refused.value))


def test_the_sparsity_of_an_account_is_that_of_the_whole_model_whatever_the_batch():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1, bias=False))  # 24 parameters
    with torch.no_grad():
        model[0].weight[:3] = 0
    one, many = (account(model, torch.randn(count, 4)) for count in (1, 7))
    assert one.sparsity == many.sparsity == 12 / 24
    assert one.macs == many.macs == 20
