"""Static, AC/DC, GraNet, DSD, SR-STE and DNS: worked examples, and literal transcriptions to the last bit."""

import hashlib
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

import regrow
from tests.core.reference import stable_masks
from tests.methods import reference
from tests.methods.networks import Training, steps

TRAINING = Training(convs=(4, 8), hidden=(8,), momentum=0.9, decay=0.001, seed=3)
TOTAL = 20


def batch(t):
    generator = torch.Generator().manual_seed(t)
    return torch.randn(8, 2, 4, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def line(*weights):
    """Return a layer of a few weights, and an optimizer that subtracts the gradient."""
    layer = nn.Linear(len(weights), 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weights]))
    return layer, torch.optim.SGD(layer.parameters(), lr=1.0)


def step(layer, optimizer, *gradient):
    layer.weight.grad = torch.tensor([gradient])
    optimizer.step()


def kept(pruner):
    return pruner.masks["weight"].int().flatten().tolist()


def same(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


class ByHand:
    """A plain training loop that leaves room for what a method does to the weights after each step."""

    def __init__(self):
        self.model = TRAINING.model()
        self.optimizer = TRAINING.optimizer(self.model)
        names = [name for name, p in self.model.named_parameters() if p.ndim > 1][:-1]
        self.weights = {name: self.model.get_parameter(name) for name in names}
        self.masks = {name: torch.ones_like(w, dtype=torch.bool) for name, w in self.weights.items()}

    @torch.no_grad()
    def zero_pruned(self):
        for name, weight in self.weights.items():
            weight[~self.masks[name]] = 0

    @torch.no_grad()
    def prune_to(self, sparsity):
        """Keep the largest over all layers."""
        total = sum(w.numel() for w in self.weights.values())
        found = stable_masks([w.detach() for w in self.weights.values()], round(total * sparsity))
        self.masks = dict(zip(self.weights, found, strict=True))

    def step(self, t):
        x, y = batch(t - 1)
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(x), y).backward()
        self.gradients = {name: w.grad.clone() for name, w in self.weights.items()}
        self.optimizer.step()
        self.zero_pruned()

    def buffer(self, parameter):
        return self.optimizer.state[parameter]["momentum_buffer"]


def attached(method, **options):
    model = TRAINING.model()
    optimizer = TRAINING.optimizer(model)
    return model, optimizer, getattr(regrow, method)(model, optimizer, **options)


# Static


def test_static_draws_the_masks_of_the_slow_transcription_and_trains_with_them():
    model, optimizer, pruner = attached("Static", sparsity=0.7, seed=5)
    by_hand = ByHand()
    sizes = [w.numel() for w in by_hand.weights.values()]
    densities = [float(sum(w.shape)) for w in by_hand.weights.values()]  # size times ERK's density
    counts = reference.split(sum(sizes) - round(sum(sizes) * 0.7), densities, sizes)
    for (name, mask), count in zip(by_hand.masks.items(), counts, strict=True):
        chosen = reference.largest(reference.draw(5, name, 0, mask.numel()), set(range(mask.numel())), count)
        by_hand.masks[name] = torch.tensor([i in chosen for i in range(mask.numel())]).view(mask.shape)
    by_hand.zero_pruned()
    for t in steps(model, optimizer, 6):
        by_hand.step(t)
        assert same(model, by_hand.model)
    assert all(torch.equal(mask, by_hand.masks[name]) for name, mask in pruner.masks.items())
    assert pruner.flips == round(sum(sizes) * 0.7)


@pytest.mark.parametrize(("scope", "other"), [("erk", "RigL"), ("er", "SET"), ("layer", "SET")])
def test_static_is_where_methods_that_move_connections_start(scope, other):
    *_, static = attached("Static", sparsity=0.8, scope=scope, seed=9)
    *_, moving = attached(other, sparsity=0.8, scope=scope, seed=9, every=2, total_steps=10)
    assert static.masks.keys() == moving.masks.keys()
    assert all(torch.equal(mask, moving.masks[name]) for name, mask in static.masks.items())
    *_, another = attached("Static", sparsity=0.8, scope=scope, seed=10)
    assert any(not torch.equal(mask, another.masks[name]) for name, mask in static.masks.items())


# AC/DC and DSD


def test_acdc_prunes_restores_from_zero_and_prunes_again():
    layer, optimizer = line(4.0, 1.0, 3.0, 2.0)
    pruner = regrow.ACDC(layer, optimizer, sparsity=0.5, total_steps=8, switches=(0.25, 0.5, 0.75), targets=["weight"])
    step(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    assert (kept(pruner), pruner.sparsity) == ([1, 1, 1, 1], 0)
    step(layer, optimizer, 0.0, -2.5, 0.0, 0.0)  # 4, 3.5, 3, 2 when the sparse phase begins
    assert (kept(pruner), layer.weight.tolist()) == ([1, 1, 0, 0], [[4.0, 3.5, 0.0, 0.0]])
    step(layer, optimizer, 3.5, 0.0, -9.0, -9.0)  # neither size nor gradient matter now
    assert (kept(pruner), layer.weight.tolist()) == ([1, 1, 0, 0], [[0.5, 3.5, 0.0, 0.0]])
    step(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    assert (kept(pruner), pruner.stats().requested, layer.weight[0, 2].item()) == ([1, 1, 1, 1], 0, 0.0)
    step(layer, optimizer, 0.0, 0.0, -1.0, 0.25)
    assert layer.weight.tolist() == [[0.5, 3.5, 1.0, -0.25]]
    step(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    assert (kept(pruner), pruner.stats().requested) == ([0, 1, 1, 0], 0.5)


def test_dsd_trains_dense_sparse_and_dense_again():
    layer, optimizer = line(4.0, 1.0, 3.0, 2.0)
    pruner = regrow.DSD(layer, optimizer, sparsity=0.5, total_steps=4, targets=["weight"])
    step(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    assert (kept(pruner), pruner.sparsity) == ([1, 1, 1, 1], 0)
    step(layer, optimizer, 0.0, -2.5, 0.0, 0.0)  # 4, 3.5, 3, 2 when the sparse phase begins
    assert (kept(pruner), layer.weight.tolist()) == ([1, 1, 0, 0], [[4.0, 3.5, 0.0, 0.0]])
    step(layer, optimizer, 1.0, 0.0, -9.0, -9.0)  # the last sparse step: after it, all weights are trained
    assert (kept(pruner), layer.weight.tolist()) == ([1, 1, 1, 1], [[3.0, 3.5, 0.0, 0.0]])
    step(layer, optimizer, 0.0, 0.0, -1.0, 0.25)
    assert layer.weight.tolist() == [[3.0, 3.5, 1.0, -0.25]]
    assert pruner.stats().requested == 0


def test_static_keeps_its_mask_whatever_the_gradients_are():
    layer, optimizer = line(4.0, 1.0, 3.0, 2.0)
    pruner = regrow.Static(layer, optimizer, sparsity=0.5, scope="layer", targets=["weight"])
    first = kept(pruner)
    assert sum(first) == 2
    start = [weight * keep for weight, keep in zip((4.0, 1.0, 3.0, 2.0), first, strict=True)]
    assert layer.weight.tolist() == [start]
    for gradient in ((-9.0, -9.0, -9.0, -9.0), (9.0, 1.0, 5.0, 0.0)):
        step(layer, optimizer, *gradient)
        start = [(weight - each) * keep for weight, each, keep in zip(start, gradient, first, strict=True)]
        assert (kept(pruner), layer.weight.tolist()) == (first, [start])


@pytest.mark.parametrize(("method", "resets"), [("ACDC", [6]), ("DSD", [3, 6])])
def test_a_phase_resets_the_momentum_of_every_parameter_with_adam_too(method, resets):
    model = TRAINING.model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    switches = (0.3, 0.6, 0.9) if method == "ACDC" else (0.3, 0.6)
    getattr(regrow, method)(model, optimizer, sparsity=0.5, total_steps=10, switches=switches)
    zero = []
    for t in steps(model, optimizer, 8):
        averages = [optimizer.state[each]["exp_avg"] for each in model.parameters()]
        if not any(each.any() for each in averages):
            zero.append(t)
        assert all(optimizer.state[each]["exp_avg_sq"].any() for each in model.parameters())
    assert zero == resets


def test_the_phases_of_acdc_are_the_authors_for_imagenet_and_can_be_set_to_those_for_cifar():
    layer, optimizer = line(*range(10))
    pruner = regrow.ACDC(layer, optimizer, sparsity=0.5, total_steps=100, targets=["weight"])
    sparse = [epoch for epoch in range(100) if pruner.sparse_after(epoch)]
    expected = [e for start in range(10, 71, 10) for e in range(start, start + 5)] + list(range(85, 100))
    assert sparse == expected
    pruner.detach()
    cifar = [(5 + 10 * i) / 100 for i in range(9)]
    pruner = regrow.ACDC(layer, optimizer, sparsity=0.5, total_steps=200, switches=cifar, targets=["weight"])
    sparse = [epoch for epoch in range(200) if pruner.sparse_after(epoch)]
    assert sparse == [e for start in (10, 50, 90, 130) for e in range(start, start + 20)] + list(range(170, 200))


@pytest.mark.parametrize(
    ("method", "prunes", "restores"),
    [("ACDC", [2, 4, 6, 8, 10, 12, 14, 17], [3, 5, 7, 9, 11, 13, 15]), ("DSD", [10], [15])],
)
def test_phases_equal_those_by_hand_bit_for_bit(method, prunes, restores):
    model, optimizer, pruner = attached(method, sparsity=0.8, total_steps=TOTAL)
    by_hand = ByHand()
    for t in steps(model, optimizer, TOTAL):
        by_hand.step(t)
        if t in prunes:
            by_hand.prune_to(0.8)
            by_hand.zero_pruned()
        if t in restores:
            by_hand.masks = {name: torch.ones_like(mask) for name, mask in by_hand.masks.items()}
        if t in restores or (method == "DSD" and t in prunes):
            for parameter in by_hand.model.parameters():
                by_hand.buffer(parameter).zero_()
        assert same(model, by_hand.model), t
        assert all(torch.equal(mask, by_hand.masks[name]) for name, mask in pruner.masks.items())
    assert pruner.sparsity == pytest.approx(0.8 if method == "ACDC" else 0, abs=0.001)


@pytest.mark.parametrize("total", range(1, 16))
def test_the_shortest_training_of_acdc_ends_sparse_and_of_dsd_dense(total):
    model, optimizer, acdc = attached("ACDC", sparsity=0.8, total_steps=total)
    list(steps(model, optimizer, total))
    assert acdc.stats().requested == 0.8
    model, optimizer, dsd = attached("DSD", sparsity=0.8, total_steps=total)
    list(steps(model, optimizer, total))
    assert (dsd.stats().requested, dsd.sparsity) == (0, 0)


# GraNet


def granet(by_hand, t, final, initial, end):
    """Transcribe one update: prune all layers together, then drop and grow in each."""
    ramp = final + (initial - final) * (1 - min(t, end) / end) ** 3
    fraction = 0.005 + 0.495 * (1 + math.cos(math.pi * t / TOTAL)) / 2
    weights = {name: w.detach().flatten().tolist() for name, w in by_hand.weights.items()}
    active = [(name, i) for name, m in by_hand.masks.items() for i in m.flatten().nonzero().flatten().tolist()]
    total = sum(map(len, weights.values()))
    active.sort(key=lambda place: abs(weights[place[0]][place[1]]))  # stable: ties go in order
    left = set(active[round(total * ramp) - (total - len(active)) :])
    for name, parameter in by_hand.weights.items():
        mine = {i for layer, i in left if layer == name}
        count = math.ceil(fraction * len(mine))
        stay = mine - reference.smallest(weights[name], mine, count)
        free = set(range(len(weights[name]))) - stay
        new = stay | reference.largest(by_hand.gradients[name].flatten().tolist(), free, count)
        by_hand.masks[name] = torch.tensor([i in new for i in range(len(weights[name]))]).view(parameter.shape)
        for i in new - mine:
            parameter.data.view(-1)[i] = 0
            by_hand.buffer(parameter).view(-1)[i] = 0
    by_hand.zero_pruned()


@pytest.mark.parametrize(("initial", "every"), [(0.5, 3), (0.0, 3), (0.5, 1000)])
def test_granet_equals_the_slow_transcription_bit_for_bit(initial, every):
    model, optimizer, pruner = attached(
        "GraNet", sparsity=0.8, initial_sparsity=initial, every=every, total_steps=TOTAL, seed=2
    )
    by_hand = ByHand()
    total = sum(w.numel() for w in by_hand.weights.values())
    assert pruner.masks.total - pruner.masks.kept == round(total * initial)
    by_hand.masks = {name: mask.clone() for name, mask in pruner.masks.items()}
    by_hand.zero_pruned()
    updates = sorted({*range(every, TOTAL, every), 10})
    grown = 0
    for t in steps(model, optimizer, TOTAL):
        by_hand.step(t)
        old = {name: mask.clone() for name, mask in by_hand.masks.items()}
        if t in updates:
            granet(by_hand, t, 0.8, initial, 10)
        grown += sum(int((mask & ~old[name]).sum()) for name, mask in by_hand.masks.items())
        assert all(torch.equal(mask, by_hand.masks[name]) for name, mask in pruner.masks.items()), t
        assert same(model, by_hand.model), t
    assert grown > 0
    assert total - pruner.masks.kept == round(total * 0.8)


def test_granet_starts_as_a_static_mask_of_half_the_weights_does():
    *_, granet_ = attached("GraNet", sparsity=0.9, total_steps=10, seed=4)
    *_, static = attached("Static", sparsity=0.5, seed=4)
    assert all(torch.equal(mask, static.masks[name]) for name, mask in granet_.masks.items())


def test_granet_prunes_then_drops_and_grows_where_the_gradient_is_largest():
    layer, optimizer = line(6.0, 5.0, 4.0, 3.0, 2.0, 1.0)
    pruner = regrow.GraNet(
        layer,
        optimizer,
        sparsity=0.5,
        initial_sparsity=0,
        every=1,
        total_steps=4,
        ramp_end=0.25,
        drop_fraction=0.4,
        targets=["weight"],
    )
    assert kept(pruner) == [1, 1, 1, 1, 1, 1]
    step(layer, optimizer, 0.5, 0.0, 0.0, 0.0, 0.25, -0.25)  # 5.5, 5, 4, 3, 1.75, 1.25
    # The ramp leaves 5.5, 5 and 4; ceil(0.343 · 3) = 2 of them go, and the largest gradients are those of 2 and 1.
    assert kept(pruner) == [1, 0, 0, 0, 1, 1]
    assert layer.weight.tolist() == [[5.5, 0.0, 0.0, 0.0, 0.0, 0.0]]
    assert pruner.stats().requested == 0.5


def test_granet_keeps_a_connection_that_is_dropped_and_grows_back_as_it_was():
    layer, _ = line(3.0, 2.0, 1.0, 0.5)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.5)
    pruner = regrow.GraNet(
        layer, optimizer, sparsity=0.5, initial_sparsity=0.0, every=1, total_steps=4, ramp_end=0.25, targets=["weight"]
    )
    step(layer, optimizer, 4.25, 0.0, 0.0, 0.125)  # -1.25 and 2 are left; -1.25 goes and has the largest gradient
    assert kept(pruner) == [1, 1, 0, 0]
    assert layer.weight.tolist() == [[-1.25, 2.0, 0.0, 0.0]]
    assert optimizer.state[layer.weight]["momentum_buffer"][0, 0] == 4.25


# SR-STE


class StraightThrough(torch.autograd.Function):
    """N:M in the forward pass, the paper's refined gradient in the backward pass."""

    @staticmethod
    def forward(ctx, weight, n, m, strength):
        groups = weight.movedim(1, -1).unflatten(-1, (-1, m))
        order = groups.abs().argsort(dim=-1, stable=True)
        mask = torch.ones_like(groups).scatter(-1, order[..., : m - n], 0).flatten(-2).movedim(-1, 1)
        ctx.save_for_backward(weight, mask)
        ctx.strength = strength
        return (weight * mask).contiguous()

    @staticmethod
    def backward(ctx, gradient):
        weight, mask = ctx.saved_tensors
        return gradient + ctx.strength * (1 - mask) * weight, None, None, None


@pytest.mark.parametrize(("unit", "strength"), [("1:2", 2e-4), ("1:2", 0.5), ("2:4", 0.1), ("1:4", 0.0)])
def test_srste_equals_autograd_through_the_refined_gradient_bit_for_bit(unit, strength):
    n, m = map(int, unit.split(":"))
    model, optimizer, pruner = attached("SRSTE", unit=unit, lambda_w=strength)
    plain = TRAINING.model()
    w = {name: p.detach().clone().requires_grad_() for name, p in plain.named_parameters()}
    dense = torch.optim.SGD(w.values(), lr=0.1, momentum=0.9, weight_decay=0.001)
    divisible = [name for name, p in w.items() if p.ndim > 1 and p.shape[1] % m == 0][:-1]
    assert list(pruner.targets) == divisible
    for t in steps(model, optimizer, 10):
        x, y = batch(t - 1)
        shown = {name: StraightThrough.apply(p, n, m, strength) if name in divisible else p for name, p in w.items()}
        dense.zero_grad()
        nn.functional.cross_entropy(functional_call(plain, shown, (x,)), y).backward()
        dense.step()
        for name, parameter in model.named_parameters():
            expected = StraightThrough.apply(w[name], n, m, strength) if name in divisible else w[name]
            assert torch.equal(parameter, expected), (t, name)
    with pruner.dense():
        assert all(torch.equal(p, w[name]) for name, p in model.named_parameters())
    assert pruner.sparsity == 1 - n / m


def test_srste_without_its_pull_is_dpf_with_groups():
    model, optimizer, pruner = attached("SRSTE", lambda_w=0.0)
    other, second, dpf = attached("DPF", sparsity=0.5, unit="2:4", every=1)
    for _ in zip(steps(model, optimizer, 6), steps(other, second, 6), strict=True):
        assert same(model, other)
    assert pruner.stats() == dpf.stats()


def test_srste_decays_only_pruned_weights():
    layer, optimizer = line(4.0, 1.0, -2.0, 3.0)
    pruner = regrow.SRSTE(layer, optimizer, lambda_w=0.25, targets=["weight"])
    assert layer.weight.tolist() == [[4.0, 0.0, 0.0, 3.0]]
    step(layer, optimizer, 0.5, 0.0, 0.5, 0.0)
    with pruner.dense():  # 4 - 0.5, 1 - 0.25, -2 - 0.5 + 0.5, 3
        assert layer.weight.tolist() == [[3.5, 0.75, -2.0, 3.0]]
    pruner.freeze()
    step(layer, optimizer, 0.0, 0.0, 0.0, 0.0)
    assert layer.weight.tolist() == [[3.5, 0.0, 0.0, 3.0]]


def test_srste_pulls_as_strongly_when_a_fused_step_unscales_the_gradients():
    pulled = []
    for scaled in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(20, 8, bias=False)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, fused=True)
        pruner = regrow.SRSTE(layer, optimizer, lambda_w=0.25, include_last=True)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        scaler.scale(0 * layer(torch.ones(1, 20)).sum()).backward()
        scaler.step(optimizer)
        with pruner.dense():
            pulled.append(layer.weight.detach().clone())
    assert torch.allclose(*pulled, atol=1e-6)


# DNS


def surgery(w, masks, sparsity, margin):
    """Find τ between the last quotient that is pruned and the first that is kept, then compare with a and b."""
    quotients = sorted(
        (abs(value) / ((1 - margin) if active else (1 + margin)))
        for name, mask in masks.items()
        for value, active in zip(w[name].flatten().double().tolist(), mask.flatten().tolist(), strict=True)
    )
    count = round(len(quotients) * sparsity)
    tau = (quotients[count - 1] + quotients[count]) / 2 if count else 0.0
    a, b = (1 - margin) * tau, (1 + margin) * tau
    return {name: torch.where(mask, w[name].abs() >= a, w[name].abs() > b) for name, mask in masks.items()}


@pytest.mark.parametrize(("margin", "gamma", "every"), [(0.1, 1e-4, 1), (0.3, 0.5, 1), (0.0, 0.0, 2)])
def test_dns_equals_two_thresholds_by_hand(margin, gamma, every):
    ramp = regrow.Cubic(0.8, end=12)
    model, optimizer, pruner = attached("DNS", sparsity=ramp, margin=margin, gamma=gamma, every=every, seed=6)
    plain = TRAINING.model()
    w = {name: p.detach().clone().requires_grad_() for name, p in plain.named_parameters()}
    dense = torch.optim.SGD(w.values(), lr=0.1, momentum=0.9, weight_decay=0.001)
    masks = {name: torch.ones_like(w[name], dtype=torch.bool) for name in pruner.targets}
    updates = 0
    for t in steps(model, optimizer, TOTAL):
        x, y = batch(t - 1)
        shown = {n: torch.where(masks[n], p, 0.0).contiguous() if n in masks else p.clone() for n, p in w.items()}
        shown = {name: p.detach().requires_grad_() for name, p in shown.items()}
        loss = nn.functional.cross_entropy(functional_call(plain, shown, (x,)), y)
        for p, gradient in zip(w.values(), torch.autograd.grad(loss, list(shown.values())), strict=True):
            p.grad = gradient
        dense.step()
        if t % every == 0 and drawn(6, t) < 1 / (1 + gamma * t):
            masks = surgery({name: w[name].detach() for name in masks}, masks, ramp(t), margin)
            updates += 1
        assert all(torch.equal(mask, masks[name]) for name, mask in pruner.masks.items()), t
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, torch.where(masks[name], w[name], 0.0) if name in masks else w[name]), t
    assert updates == TOTAL // every if gamma < 0.01 else 0 < updates < TOTAL


def drawn(seed, t):
    """Draw the number of step `t` as SplitMix64 does."""
    key = hashlib.blake2b(f"{seed}/surgery/{t}".encode(), digest_size=8).digest()
    return reference.splitmix(int.from_bytes(key, "little"), 1)[0]


def test_dns_without_a_margin_is_dpf():
    model, optimizer, pruner = attached("DNS", sparsity=0.7, margin=0.0, gamma=0.0)
    other, second, dpf = attached("DPF", sparsity=0.7, every=1)
    for _ in zip(steps(model, optimizer, 8), steps(other, second, 8), strict=True):
        assert same(model, other)
    assert pruner.stats() == dpf.stats()


def test_dns_prunes_below_one_threshold_and_splices_above_the_other():
    layer, optimizer = line(10.0, 8.0, 6.0, 4.0)
    pruner = regrow.DNS(layer, optimizer, sparsity=0.5, margin=0.25, gamma=0.0, targets=["weight"])
    assert kept(pruner) == [1, 1, 0, 0]
    step(layer, optimizer, 0.0, 0.0, -3.0, 0.0)  # 9 is more than 8, but not in the ratio 1.25 : 0.75
    assert kept(pruner) == [1, 1, 0, 0]
    step(layer, optimizer, 0.0, 0.0, -5.0, 0.0)  # 14 / 1.25 = 11.2 is more than 8 / 0.75 = 10.67
    assert kept(pruner) == [1, 0, 1, 0]
    assert layer.weight.tolist() == [[10.0, 0.0, 14.0, 0.0]]
    step(layer, optimizer, 0.0, -3.0, 0.0, 0.0)  # 11 / 1.25 = 8.8 is less than 10 / 0.75
    assert kept(pruner) == [1, 0, 1, 0]


def test_dns_flickers_less_than_dpf():
    flips = {}
    for method, options in {"DNS": {"gamma": 0.0}, "DPF": {"every": 1}}.items():
        model, optimizer, pruner = attached(method, sparsity=0.7, **options)
        flips[method] = sum(pruner.flips for _ in steps(model, optimizer, 40))
    assert 0 < flips["DNS"] < flips["DPF"]


def test_updates_of_dns_become_rare_as_the_paper_says():
    layer, optimizer = line(1.0, 2.0)
    pruner = regrow.DNS(layer, optimizer, sparsity=0.5, gamma=0.01, targets=["weight"])
    expected = sum(1 / (1 + 0.01 * t) for t in range(2000))
    assert pruner.updates_at(0)
    assert sum(pruner.updates_at(t) for t in range(2000)) == pytest.approx(expected, rel=0.15)


# What is wrong


@pytest.mark.parametrize(
    ("method", "options", "error", "message"),
    [
        (
            "Static",
            {"sparsity": regrow.Cubic(0.9, end=5)},
            TypeError,
            "Static is sparse from the start: sparsity must be",
        ),
        ("ACDC", {"sparsity": 0.9}, ValueError, r"ACDC needs total_steps=.*epochs \* len\(loader\)"),
        (
            "ACDC",
            {"sparsity": regrow.Cubic(0.9, end=5), "total_steps": 9},
            TypeError,
            "ACDC has phases in place of a ramp",
        ),
        (
            "ACDC",
            {"sparsity": 0.9, "total_steps": 9, "switches": (0.1, 0.2)},
            ValueError,
            "an odd number of fractions, got 2",
        ),
        (
            "ACDC",
            {"sparsity": 0.9, "total_steps": 9, "switches": (10,)},
            ValueError,
            r"each of the switches must be a fraction",
        ),
        (
            "ACDC",
            {"sparsity": 0.9, "total_steps": 9, "switches": (0.5, 0.4, 0.8)},
            ValueError,
            "in ascending order, got",
        ),
        ("DSD", {"sparsity": 0.9, "total_steps": 9, "switches": (0.1,)}, ValueError, "must be two fractions, got 1"),
        ("GraNet", {"sparsity": 0.9}, ValueError, r"GraNet needs total_steps=.*epochs \* len\(loader\)"),
        ("GraNet", {"sparsity": regrow.Cubic(0.9, end=5), "total_steps": 9}, TypeError, "GraNet has its own ramp"),
        (
            "GraNet",
            {"sparsity": 0.4, "total_steps": 9},
            ValueError,
            "initial_sparsity must be at most the sparsity 0.4, got 0.5",
        ),
        ("GraNet", {"sparsity": 0.9, "total_steps": 9, "initial_sparsity": 50}, ValueError, "Did you mean 0.5"),
        (
            "GraNet",
            {"sparsity": 0.9, "total_steps": 9, "drop_fraction": 50},
            ValueError,
            "drop_fraction must be a fraction",
        ),
        ("SRSTE", {"unit": "weight"}, ValueError, "unit must be like '2:4', got 'weight'"),
        ("SRSTE", {"lambda_w": -1.0}, ValueError, "lambda_w must be a finite number, 0 or more, got -1"),
        ("DNS", {"sparsity": 0.9, "margin": 1.0}, ValueError, "margin must be below 1"),
        ("DNS", {"sparsity": 0.9, "gamma": -1.0}, ValueError, "gamma must be a finite number, 0 or more, got -1"),
    ],
)
def test_missing_or_wrong_arguments_are_errors_before_anything_changes(method, options, error, message):
    model = TRAINING.model()
    with pytest.raises(error, match=message):
        getattr(regrow, method)(model, TRAINING.optimizer(model), **options)
    assert same(model, TRAINING.model())


@pytest.mark.parametrize(
    ("method", "options", "changed"),
    [
        ("Static", {"sparsity": 0.5}, {"seed": 1}),
        ("ACDC", {"sparsity": 0.5, "total_steps": 20}, {"switches": (0.5,)}),
        ("DSD", {"sparsity": 0.5, "total_steps": 20}, {"total_steps": 30}),
        ("GraNet", {"sparsity": 0.8, "total_steps": 20}, {"drop_fraction": 0.2}),
        ("SRSTE", {}, {"lambda_w": 1e-3}),
        ("DNS", {"sparsity": 0.5}, {"margin": 0.2}),
    ],
)
def test_a_run_resumes_only_with_the_options_it_had(method, options, changed):
    [name] = changed
    *_, pruner = attached(method, **options)
    *_, other = attached(method, **(options | changed))
    with pytest.raises(ValueError, match=f"saved with {name}="):
        other.load_state_dict(pruner.state_dict())
