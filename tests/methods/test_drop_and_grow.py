"""Drop and grow: RigL, SET, sparse momentum, DSR and DeepR against slow transcriptions, and what they never do."""

import statistics
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regrow
from regrow.methods.dsr import _authors_targets
from regrow.models import build
from tests.methods import reference
from tests.methods.networks import Training, steps, trainings

TRAINING = Training(convs=(5, 6), hidden=(7,), momentum=0.9, decay=0.001, seed=3)
TOTAL = 12
METHODS = {
    "RigL": lambda m, o, **k: regrow.RigL(m, o, every=2, total_steps=TOTAL, **k),
    "SET": lambda m, o, **k: regrow.SET(m, o, every=2, total_steps=TOTAL, **k),
    "SparseMomentum": lambda m, o, **k: regrow.SparseMomentum(m, o, every=2, total_steps=TOTAL, **k),
    "DSR": lambda m, o, **k: regrow.DSR(m, o, every=1, total_steps=TOTAL, threshold=0.02, **k),
    "DeepR": lambda m, o, **k: regrow.DeepR(m, o, total_steps=TOTAL, **k),
}


class Watch:
    """Sees what the optimizer made of the weights before the pruner does, and keeps the masks from before."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model, self.optimizer = model, optimizer
        optimizer.register_step_pre_hook(lambda *_: self.look("before"))
        optimizer.register_step_post_hook(lambda *_: self.look("updated"))

    def look(self, when: str) -> None:
        setattr(self, when, {name: p.detach().clone() for name, p in self.model.named_parameters()})
        if when == "before":
            self.gradients = {name: p.grad.clone() for name, p in self.model.named_parameters()}
        if when == "updated":
            states = {name: self.optimizer.state[p] for name, p in self.model.named_parameters()}
            self.momentum = {
                n: s["momentum_buffer"].clone() for n, s in states.items() if s.get("momentum_buffer") is not None
            }

    def weights(self, masks: regrow.Masks) -> dict[str, list[float]]:
        return {name: (self.updated[name] * mask).flatten().tolist() for name, mask in masks.items()}


def flat(tensors, names):
    return {name: tensors[name].flatten().tolist() for name in names}


def indices(masks):
    return {name: set(mask.flatten().nonzero().flatten().tolist()) for name, mask in masks.items()}


def attach(name, training=TRAINING, **options):
    model = training.model()
    optimizer = training.optimizer(model)
    watch = Watch(model, optimizer)
    return model, optimizer, watch, METHODS[name](model, optimizer, **options)


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("method", list(METHODS))
def test_masks_equal_those_of_the_slow_transcription(method, sparsity):
    model, optimizer, watch, pruner = attach(method, sparsity=sparsity, seed=7)
    masks, threshold, moved = pruner.masks.clone(), 0.02, 0
    for t in steps(model, optimizer, TOTAL):
        if pruner.updates_at(t):
            active, weights = indices(masks), watch.weights(masks)
            if method == "RigL":
                expected = reference.rigl(t, TOTAL, 0.3, active, weights, flat(watch.gradients, masks))
            elif method == "SET":
                expected = reference.set_(t, 0.3, 7, active, weights)
            elif method == "SparseMomentum":
                expected = reference.sparse_momentum(t, TOTAL, 0.5, active, weights, flat(watch.momentum, masks))
            elif method == "DSR":
                expected, threshold = reference.dsr(t, threshold, pruner.drop_count, 7, active, weights)
                assert threshold == pruner.threshold
            else:
                expected = reference.deepr(t, 7, active, flat(watch.before, masks), weights)
            assert indices(pruner.masks) == expected, t
            moved += pruner.flips
        else:
            assert indices(pruner.masks) == indices(masks)
        masks = pruner.masks.clone()
    assert moved > 0


@settings(max_examples=40, deadline=None)
@given(
    method=st.sampled_from(list(METHODS)),
    training=trainings(0.9),
    sparsity=st.floats(0.0, 0.95),
    scope=st.sampled_from(["global", "layer", "er", "erk"]),
    seed=st.integers(0, 2**40),
)
@pytest.mark.filterwarnings("ignore:all of .* is pruned")
def test_the_number_of_connections_never_changes_and_new_ones_start_at_zero(method, training, sparsity, scope, seed):
    model, optimizer, _, pruner = attach(method, training, sparsity=sparsity, scope=scope, seed=seed)
    count, masks = pruner.masks.kept, pruner.masks.clone()
    if scope != "layer":
        assert masks.total - count == round(masks.total * sparsity)
    else:
        assert all(m.numel() - int(m.sum()) == round(m.numel() * sparsity) for m in masks.values())
    for _ in steps(model, optimizer, 8):
        assert pruner.masks.kept == count
        for name, mask in pruner.masks.items():
            weight = dict(model.named_parameters())[name]
            assert not weight[~mask].any()
            assert not weight[mask & ~masks[name]].any()
        masks = pruner.masks.clone()


PROPERTY = settings(max_examples=12, deadline=None)


@PROPERTY
@given(training=trainings(0.9), sparsity=st.floats(0.05, 0.9))
def test_set_moves_as_many_connections_as_it_drops(training, sparsity):
    """Were one of the dropped allowed to grow back, fewer would have changed."""
    model, optimizer, watch, pruner = attach("SET", training, sparsity=sparsity)
    masks = pruner.masks.clone()
    for t in steps(model, optimizer, 6):
        for name, old in masks.items():
            weight, free = watch.updated[name] * old, int((~old).sum())
            fraction = min(0.3, free / max(int(old.sum()), 1)) if pruner.updates_at(t) else 0
            dropped = sum(int(fraction * int(side.sum())) for side in (old & (weight >= 0), old & (weight < 0)))
            new = pruner.masks[name]
            assert int((old & ~new).sum()) == int((new & ~old).sum()) == dropped
        masks = pruner.masks.clone()


@PROPERTY
@given(training=trainings(0.9), sparsity=st.floats(0.05, 0.9))
def test_dsr_leaves_nothing_below_the_threshold_but_new_connections(training, sparsity):
    model, optimizer, watch, pruner = attach("DSR", training, sparsity=sparsity)
    masks = pruner.masks.clone()
    for t in steps(model, optimizer, 6):
        for name, old in masks.items():
            stayed = old & pruner.masks[name]
            if pruner.updates_at(t) and int(stayed.sum()) > 1:
                least = pruner.threshold / 2  # after dropping, the threshold doubles at most
                assert not bool((watch.updated[name][stayed].abs() < least).any())
        masks = pruner.masks.clone()


@pytest.mark.filterwarnings("ignore:all of .* is pruned")
@PROPERTY
@given(training=trainings(0.9), sparsity=st.floats(0.5, 0.9))
def test_deep_rewiring_keeps_no_connection_that_has_crossed_zero(training, sparsity):
    model, optimizer, watch, pruner = attach("DeepR", training, sparsity=sparsity)
    masks = pruner.masks.clone()
    for _ in steps(model, optimizer, 6):
        for name, old in masks.items():
            stayed, weight = old & pruner.masks[name], dict(model.named_parameters())[name].detach()
            if 2 * int(old.sum()) <= old.numel():  # there is room for everyone who has to move
                assert not bool((watch.before[name][stayed].sign() * weight[stayed].sign() < 0).any())
        masks = pruner.masks.clone()


@pytest.mark.parametrize("optimizer_class", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adamax])
@pytest.mark.parametrize("method", ["RigL", "SET", "DeepR", "DSR"])
def test_the_optimizer_state_of_new_connections_is_zero(method, optimizer_class):
    """RigL and SET reset it; at DSR's and DeepR's authors inactive weights receive no gradient in the first place."""
    model = TRAINING.model()
    extra = {"momentum": 0.9} if optimizer_class is torch.optim.SGD else {}
    extra |= {"amsgrad": True} if optimizer_class is torch.optim.Adam else {}
    optimizer = optimizer_class(model.parameters(), lr=0.05, **extra)
    pruner = METHODS[method](model, optimizer, sparsity=0.6)
    masks, grown = pruner.masks.clone(), 0
    for _ in steps(model, optimizer, 8):
        for name, mask in pruner.masks.items():
            new = mask & ~masks[name]
            state = optimizer.state[pruner.targets[name].param]
            gathered = [value for value in state.values() if value.shape == mask.shape]
            assert gathered
            assert not any(value[new].any() for value in gathered)
            grown += int(new.sum())
        masks = pruner.masks.clone()
    assert grown > 0


def test_the_first_step_of_a_connection_that_dsr_grows_is_that_of_its_own_gradient():
    model, optimizer, watch, pruner = attach("DSR", sparsity=0.6)
    masks, new, seen = pruner.masks.clone(), {}, 0
    for _ in steps(model, optimizer, 8):
        for name, grown in new.items():
            stayed = grown & pruner.masks[name]
            weight = pruner.weights[name]
            assert torch.allclose(weight[stayed], -0.1 * watch.gradients[name][stayed], atol=1e-7)
            seen += int(stayed.sum())
        new = {name: mask & ~masks[name] for name, mask in pruner.masks.items()}
        masks = pruner.masks.clone()
    assert seen > 0


@pytest.mark.parametrize(
    ("method", "last"), [("RigL", 8), ("SET", 10), ("SparseMomentum", 10), ("DSR", 8), ("DeepR", 11)]
)
def test_rewiring_stops_when_the_authors_stop(method, last):
    *_, pruner = attach(method, sparsity=0.8)
    due = [t for t in range(40) if pruner.updates_at(t)]
    assert due[-1] == last
    if method == "DSR":
        assert due == [0, 1, 2, 4, 8]  # the period 1 doubles at steps 1.5, 4.8 and 8.4 of 12


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (regrow.DSR, {"every": 100, "total_steps": 315}),  # 100, 200, 400, 800 miss every stretch
        (regrow.RigL, {"every": 100, "total_steps": 130}),  # ends at step 97.5
        (regrow.SET, {"every": 50, "total_steps": 50}),  # not at the end
        (regrow.SparseMomentum, {"every": 50, "total_steps": 50}),
        (regrow.DPF, {"every": 16, "total_steps": 15}),
        (regrow.DPF, {"every": 90, "total_steps": 90, "settle": 0.1}),  # rests from step 81 on
    ],
)
def test_a_pruner_without_a_mask_update_in_a_known_length_warns(method, options):
    model = TRAINING.model()
    name, every, total = method.__name__, options["every"], options["total_steps"]
    known = total if "settle" not in options else 81
    message = rf"{name} makes no mask update in this training \(steps: {known}, every={every}\)"
    with pytest.warns(UserWarning, match=message):
        pruner = method(model, TRAINING.optimizer(model), sparsity=0.5, **options)
    assert not any(pruner.updates_at(t) for t in range(1, known + 1))
    pruner.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method(model, TRAINING.optimizer(model), sparsity=0.5, **(options | {"every": max(1, every // 20)}))


@pytest.mark.parametrize("form", [{"foreach": True}, {"fused": True}])
def test_rigl_grows_by_the_gradient_even_if_the_optimizer_overwrites_it(form):
    model = TRAINING.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, **form)
    watch = Watch(model, optimizer)
    pruner = regrow.RigL(model, optimizer, sparsity=0.5, every=2, total_steps=TOTAL)
    masks = pruner.masks.clone()
    for t in steps(model, optimizer, 6):
        if pruner.updates_at(t):
            gradients = flat(watch.gradients, masks)
            expected = reference.rigl(t, TOTAL, 0.3, indices(masks), watch.weights(masks), gradients)
            assert indices(pruner.masks) == expected
        masks = pruner.masks.clone()


def test_sparse_momentum_moves_at_most_the_requested_fraction():
    model = TRAINING.model()
    optimizer = TRAINING.optimizer(model)
    pruner = regrow.SparseMomentum(model, optimizer, sparsity=0.5, every=2, total_steps=TOTAL, drop_fraction=0.0)
    before = pruner.masks.clone()
    list(steps(model, optimizer, TOTAL))
    assert all(torch.equal(mask, before[name]) for name, mask in pruner.masks.items())


def test_deep_rewiring_pulls_as_strongly_when_a_fused_step_unscales_the_gradients():
    pulled = []
    for scaled in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(20, 5, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=True)
        regrow.DeepR(model, optimizer, sparsity=0.5, total_steps=10, l1=0.25, include_last=True)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        scaler.scale(0 * model(torch.ones(1, 20)).sum()).backward()
        scaler.step(optimizer)
        pulled.append(model.weight.detach().clone())
    assert torch.allclose(*pulled, atol=1e-6)


def test_frozen_deep_rewiring_has_no_l1_term():
    model = nn.Linear(20, 5, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    pruner = regrow.DeepR(model, optimizer, sparsity=0.5, total_steps=10, l1=0.25, include_last=True)
    pruner.freeze()
    before = model.weight.detach().clone()
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    assert torch.equal(model.weight, before)


def test_deep_rewiring_with_weight_decay_gives_a_warning():
    model = TRAINING.model()
    with pytest.warns(UserWarning, match=r"DeepR has its L1 term in place of weight decay, .* decays by 0\.001"):
        regrow.DeepR(model, TRAINING.optimizer(model), sparsity=0.5, total_steps=10)


@pytest.mark.parametrize("lr", [1.0, 0.1])
def test_deep_rewiring_adds_the_noise_of_the_temperature_to_the_gradient_of_active_weights(lr):
    """As the variant that DSR was compared with does: what reaches a weight is scaled by the learning rate."""
    model = nn.Linear(200, 50, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    nn.init.constant_(model.weight, 1.0)
    pruner = regrow.DeepR(model, optimizer, sparsity=0.5, total_steps=10, l1=0.25, include_last=True)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    active = model.weight[pruner.masks["weight"]].detach()
    assert active.mean().item() == pytest.approx(1 - 0.25 * lr, abs=1e-5)  # lr · l1 toward zero
    assert active.std().item() == pytest.approx(lr * (2 * 0.01 * 1e-5 * 1e-10**0.1) ** 0.5, rel=0.05)
    noise = torch.tensor(reference.deepr_noise(1, 10, 0, "weight", model.weight.numel())).view_as(model.weight)
    expected = 1 - lr * (0.25 + noise[pruner.masks["weight"]])
    assert torch.allclose(active, expected.float(), atol=2e-7)
    assert statistics.fmean((active - active.mean()).sign().tolist()) == pytest.approx(0, abs=0.05)


def test_sparse_momentum_reads_the_scaled_momentum_of_adam():
    model = TRAINING.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    pruner = regrow.SparseMomentum(model, optimizer, sparsity=0.5, every=1, total_steps=10)
    list(steps(model, optimizer, 2))
    for name, target in pruner.targets.items():
        state = optimizer.state[target.param]
        assert torch.equal(pruner.momentum(name), state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8))


def test_default_targets_are_those_of_the_authors():
    model = regrow_resnet()
    names = [name for name, p in model.named_parameters() if p.ndim > 1]
    dense = {name for name in names if "shortcut" in name}
    assert dense
    pruners = {name: attach_to(regrow_resnet(), name) for name in METHODS}
    assert set(pruners["SparseMomentum"].targets) == set(names)
    assert set(pruners["DSR"].targets) == set(names) - dense - {names[0], names[-1]}
    assert set(pruners["RigL"].targets) == set(names) - {names[-1]}


def test_dsr_can_keep_as_many_parameters_of_resnet50_as_its_authors():
    """They keep the last layer sparse there: 7.38 M and 5.10 M parameters are left (the paper: 7.30 M and 5.10 M)."""
    model = build("resnet50", classes=1000)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    sparse = sum(sizes[name] for name in _authors_targets(model, include_last=True))
    left = [(sum(sizes.values()) - sparsity * sparse) / 1e6 for sparsity in (0.8, 0.9)]
    assert left == pytest.approx([7.38, 5.10], abs=0.005)


def test_the_steps_at_which_dsr_doubles_its_period_can_be_chosen():
    model = TRAINING.model()
    optimizer = TRAINING.optimizer(model)
    pruner = regrow.DSR(model, optimizer, sparsity=0.5, every=10, total_steps=800, doublings=(0.25, 0.5, 0.75))
    due = [t for t in range(1, 801) if pruner.updates_at(t)]
    assert due == [*range(10, 200, 10), *range(200, 400, 20), *range(400, 600, 40), *range(640, 760, 80)]
    assert due[-1] == 720
    pruner.detach()
    with pytest.raises(ValueError, match=r"each of doublings must be a fraction in \[0, 1\], got 25"):
        regrow.DSR(model, optimizer, sparsity=0.5, total_steps=800, doublings=(25, 50))


def test_the_projections_of_attention_are_not_shortcuts():
    names = ["embed", "q_proj", "k_proj", "out_proj"]
    model = nn.ModuleDict({name: nn.Linear(8, 8) for name in names} | {"head": nn.Linear(8, 2)})
    assert list(attach_to(model, "DSR").targets) == [f"{name}.weight" for name in names[1:]]
    convolutions = nn.ModuleDict({name: nn.Conv2d(8, 8, 1) for name in names})
    assert list(attach_to(convolutions, "DSR").targets) == ["embed.weight"]


def regrow_resnet():
    return build("wrn10-1")


def attach_to(model, method):
    return METHODS[method](model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), sparsity=0.9)


def test_missing_or_wrong_arguments_are_errors_before_anything_changes():
    model = TRAINING.model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = TRAINING.optimizer(model)
    with pytest.raises(ValueError, match=r"RigL needs total_steps=.*epochs \* len\(loader\)"):
        regrow.RigL(model, optimizer, sparsity=0.9)
    with pytest.raises(ValueError, match="this SGD has none: use SGD with momentum"):
        regrow.SparseMomentum(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9, every=1, total_steps=9)
    with pytest.raises(ValueError, match=r"drop_fraction must be a fraction in \[0, 1\], got 30"):
        regrow.RigL(model, optimizer, sparsity=0.9, total_steps=10, drop_fraction=30)
    with pytest.raises(ValueError, match="total_steps must be a whole number of optimizer steps, at least 1, got 0"):
        regrow.DSR(model, optimizer, sparsity=0.9, total_steps=0)
    for method, options, error, message in (
        (
            regrow.RigL,
            {"total_steps": 100.5},
            TypeError,
            "total_steps must be a whole number .* got 100.5",
        ),
        (regrow.DSR, {"drop_count": -5}, ValueError, "drop_count must be .* at least 0, got -5"),
        (regrow.DSR, {"drop_count": 0.3}, TypeError, "drop_count must be a whole number of connections .* got 0.3"),
        (regrow.DSR, {"threshold": -1}, ValueError, "threshold must be a finite number above 0, got -1"),
        (regrow.DeepR, {"temperature": (0, 0)}, ValueError, "each temperature must be a finite number above 0, got 0"),
        (regrow.DeepR, {"temperature": 1e-5}, TypeError, "temperature must be a pair, .* got 1e-05"),
        (regrow.DeepR, {"eta": "0.01"}, TypeError, "eta must be a finite number, 0 or more, got '0.01'"),
    ):
        with pytest.raises(error, match=message):
            method(model, optimizer, **({"sparsity": 0.9, "total_steps": 10} | options))
    with pytest.raises(ValueError, match=r"scope must be one of 'global', .*got 'erdos'"):
        regrow.RigL(model, optimizer, sparsity=0.9, total_steps=10, scope="erdos")
    for method in (regrow.RigL, regrow.SNIP):
        with pytest.raises(
            TypeError, match=f"{method.__name__} is sparse from the start: sparsity must be a number, got C"
        ):
            method(
                model,
                optimizer,
                sparsity=regrow.Cubic(0.9, end=5),
                **({"total_steps": 9} if method is regrow.RigL else {}),
            )
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
