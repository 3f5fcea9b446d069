"""Feedback: gradients at C(w), updates on w, for any compressor."""

import copy
import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

import regrow
from regrow import compressors
from tests.methods.networks import Training, steps

TRAINING = Training(convs=(4, 8), hidden=(8,), momentum=0.9, decay=0.001, seed=3)
COMPRESSORS = {
    "sign": compressors.Sign(),
    "binary": compressors.Sign(scaled=False),
    "4 bits": compressors.Uniform(4),
    "1:2": compressors.NM(1, 2),
    "rank 2": compressors.LowRank(2),
    "any function": torch.round,
}


def by_hand(compress, length):
    """Keep w beside the model, which only lends its structure and its buffers."""
    model = TRAINING.model()
    w = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    targets = [name for name, p in w.items() if p.ndim > 1][:-1]
    optimizer = torch.optim.SGD(w.values(), lr=0.1, momentum=0.9, weight_decay=0.001)
    for t in range(length):
        generator = torch.Generator().manual_seed(t)
        x, y = torch.randn(8, 2, 4, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        shown = {
            name: (compress(p.detach()) if name in targets else p.detach().clone()).contiguous()
            for name, p in w.items()
        }
        shown = {name: p.requires_grad_() for name, p in shown.items()}
        loss = nn.functional.cross_entropy(functional_call(model, shown, (x,)), y)
        for p, gradient in zip(w.values(), torch.autograd.grad(loss, list(shown.values())), strict=True):
            p.grad = gradient
        optimizer.step()
    return {name: p.detach() for name, p in w.items()}, targets


@pytest.mark.parametrize("kind", list(COMPRESSORS))
def test_the_gradient_is_taken_at_the_compressed_weights_and_applied_to_the_others(kind):
    compress = COMPRESSORS[kind]
    w, targets = by_hand(compress, 6)
    model = TRAINING.model()
    optimizer = TRAINING.optimizer(model)
    pruner = regrow.Feedback(model, optimizer, compressor=compress)
    list(steps(model, optimizer, 6))
    assert list(pruner.targets) == targets
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, compress(w[name]) if name in targets else w[name])
    with pruner.dense():
        assert all(torch.equal(p, w[name]) for name, p in model.named_parameters())
    lost = sum((w[name] - compress(w[name])).double().square().sum().item() for name in targets)
    whole = sum(w[name].double().square().sum().item() for name in targets)
    assert pruner.stats().delta == pytest.approx(lost / whole, rel=1e-6)


def test_pruning_is_the_special_case_of_a_mask():
    def largest_half(weight):
        return weight * (weight.abs() >= weight.abs().flatten().sort().values[weight.numel() // 2])

    pruned, compressed = TRAINING.model(), TRAINING.model()
    first, second = TRAINING.optimizer(pruned), TRAINING.optimizer(compressed)
    dpf = regrow.DPF(pruned, first, sparsity=0.5, scope="layer", every=1)
    feedback = regrow.Feedback(compressed, second, compressor=largest_half)
    for _ in zip(steps(pruned, first, 6), steps(compressed, second, 6), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(pruned.parameters(), compressed.parameters(), strict=True))
        assert all(torch.equal(mask, feedback.masks[name]) for name, mask in dpf.masks.items())
        assert feedback.stats().delta == pytest.approx(dpf.stats().delta)
    assert feedback.sparsity == dpf.sparsity


def test_a_resumed_run_ends_where_the_uninterrupted_one_does():
    whole = TRAINING.model()
    optimizer = TRAINING.optimizer(whole)
    pruner = regrow.Feedback(whole, optimizer, compressor=compressors.Uniform(3))
    for t in steps(whole, optimizer, 8):
        if t == 5:
            file = io.BytesIO()
            torch.save([part.state_dict() for part in (whole, optimizer, pruner)], file)
    file.seek(0)
    resumed = Training(**{**TRAINING.__dict__, "seed": 99}).model()
    again = TRAINING.optimizer(resumed)
    parts = resumed, again, regrow.Feedback(resumed, again, compressor=compressors.Uniform(3))
    states = torch.load(file, weights_only=True)
    for part, state in zip(parts, states, strict=True):
        part.load_state_dict(state)
    list(steps(resumed, again, 8, start=5))
    assert all(
        torch.equal(a, b) for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True)
    )


def test_swapping_an_average_in_and_back_keeps_the_dense_weights():
    model = TRAINING.model()
    optimizer = TRAINING.optimizer(model)
    pruner = regrow.Feedback(model, optimizer, compressor=compressors.Sign())
    list(steps(model, optimizer, 2))
    behind, shown = copy.deepcopy(pruner.weights), copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    model.load_state_dict(shown)
    pruner.stats()
    assert all(torch.equal(weight, behind[name]) for name, weight in pruner.weights.items())
    with torch.no_grad():
        model[0].weight.fill_(0.25)
    pruner.stats()
    assert bool((pruner.weights["0.weight"] == 0.25).all())


matrices = st.tuples(st.integers(1, 6), st.sampled_from([4, 8]), st.integers(0, 999)).map(
    lambda shape: torch.randn(*shape[:2], 3, generator=torch.Generator().manual_seed(shape[2]))
)


@settings(max_examples=50, deadline=None)
@given(w=matrices, bits=st.integers(2, 8), rank=st.integers(1, 4))
def test_compressors_do_what_their_names_say(w, bits, rank):
    assert set(compressors.Sign(scaled=False)(w).unique().tolist()) <= {-1.0, 1.0}
    assert compressors.Sign()(w).abs().allclose(w.abs().mean())
    quantized = compressors.Uniform(bits)(w)
    assert len(quantized.unique()) <= 2**bits - 1
    assert (quantized - w).abs().max() <= w.abs().max() / (2 ** (bits - 1) - 1) / 2 * 1.0001
    kept = compressors.NM(1, 4)(w) != 0
    assert bool((kept.movedim(1, -1).reshape(-1, 4).sum(1) == 1).all())
    assert torch.linalg.matrix_rank(compressors.LowRank(rank)(w).flatten(1), rtol=1e-4) <= rank
    for compress in (
        compressors.Sign(),
        compressors.Uniform(bits),
        compressors.NM(2, 4),
        compressors.LowRank(rank),
    ):
        assert (compress(w) - w).norm() <= w.norm()  # none is worse than no weights at all


def test_a_tensor_of_zeros_stays_zero():
    assert not compressors.Uniform(4)(torch.zeros(3, 4)).any()
    assert compressors.Sign(scaled=False)(torch.zeros(3)).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "compressor"),
    [
        ("sign", compressors.Sign()),
        ("binary", compressors.Sign(scaled=False)),
        ("4 bits", compressors.Uniform(4)),
        ("1:2", compressors.NM(1, 2)),
        ("rank 2", compressors.LowRank(2)),
    ],
)
def test_ready_compressors_have_names(name, compressor):
    model = TRAINING.model()
    assert regrow.Feedback(model, TRAINING.optimizer(model), compressor=name).compressor == compressor


def test_unsupported_arguments_raise_errors():
    model = TRAINING.model()
    optimizer = TRAINING.optimizer(model)
    with pytest.raises(ValueError, match=r"must return a tensor of shape \(4, 2, 3, 3\), got \(\)"):
        regrow.Feedback(model, optimizer, compressor=torch.mean)
    with pytest.raises(ValueError, match="groups of 4 need input channels in multiples of 4, got 2"):
        regrow.Feedback(model, optimizer, compressor=compressors.NM(1, 4))
    with pytest.raises(ValueError, match="'4 bits', '2:4' or 'rank 8', got 'ternary'"):
        regrow.Feedback(model, optimizer, compressor="ternary")
    for make, message in (
        (lambda: compressors.Uniform(1), "bits"),
        (lambda: compressors.NM(4, 4), "0 < N < M"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    pruner = regrow.Feedback(model, optimizer, compressor=compressors.Sign())
    with pytest.raises(TypeError, match="no mask to freeze"):
        pruner.freeze()
    state = pruner.state_dict()
    pruner.detach()
    other = regrow.Feedback(model, optimizer, compressor=compressors.Uniform(4))
    with pytest.raises(ValueError, match=r"saved with compression='Sign\(scaled=True\)'"):
        other.load_state_dict(state)


def test_binary_weights_are_not_clipped_and_a_loop_can_do_it_as_binaryconnect_does():
    w = {}
    for clipped in (False, True):
        model = TRAINING.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=5.0)
        pruner = regrow.Feedback(model, optimizer, compressor="binary")
        for _ in steps(model, optimizer, 3):
            if clipped:
                with pruner.dense(), torch.no_grad():
                    for target in pruner.targets.values():
                        target.param.clamp_(-1, 1)
        assert all(bool((target.param.abs() == 1).all()) for target in pruner.targets.values())
        w[clipped] = max(float(weight.abs().max()) for weight in pruner.weights.values())
    assert w[False] > 1
    assert w[True] == 1


class Rounded:
    def __call__(self, w):
        return w.round(decimals=1)


def test_a_compressor_that_is_an_object_can_be_resumed():
    def attach(compressor):
        model = TRAINING.model()
        return regrow.Feedback(model, TRAINING.optimizer(model), compressor=compressor)

    attach(Rounded()).load_state_dict(attach(Rounded()).state_dict())
    with pytest.raises(ValueError, match=r"saved with compression='Rounded', .* has compression='Uniform\(bits=4\)'"):
        attach(compressors.Uniform(4)).load_state_dict(attach(Rounded()).state_dict())
