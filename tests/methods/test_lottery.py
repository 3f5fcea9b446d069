"""The lottery ticket procedure over real trainings, and found masks trained from scratch."""

import itertools
import math

import pytest
import torch
from torch import nn

import regrow
from regrow.analysis import account
from regrow.methods.lottery import from_scratch, level_sparsities, steps_of_equal_flops
from tests.core.reference import stable_masks
from tests.methods.networks import Training, steps

TRAINING = Training(convs=(5, 6), hidden=(7,), momentum=0.9, decay=0.001, seed=3)
LENGTH = 6


def train(model, masks, start):
    optimizer = TRAINING.optimizer(model)
    regrow.Fixed(model, optimizer, masks)
    list(steps(model, optimizer, LENGTH, start=start))
    return {"steps": LENGTH - start}


def by_hand(sparsity: float, rewind: int, drop: float) -> tuple[dict, list[dict]]:
    """The procedure as it is described, with its own sort and its own masking."""
    model = TRAINING.model()
    names = [name for name, p in model.named_parameters() if p.ndim > 1][:-1]
    masks = {name: torch.ones_like(model.get_parameter(name), dtype=torch.bool) for name in names}
    total, found, left = sum(mask.numel() for mask in masks.values()), [masks], 1.0
    optimizer = TRAINING.optimizer(model)
    rewound = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for t in steps(model, optimizer, LENGTH):
        if t == rewind:
            rewound = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    while 1 - left < sparsity:
        left = max(left * (1 - drop), 1 - sparsity)
        trained = [model.get_parameter(name).detach() * masks[name] for name in names]
        masks = dict(zip(names, stable_masks(trained, round(total * (1 - left))), strict=True))
        found.append(masks)
        model.load_state_dict(rewound)
        optimizer = TRAINING.optimizer(model)
        zero_pruned(model, masks)
        for _ in steps(model, optimizer, LENGTH, start=rewind):
            zero_pruned(model, masks)
    return model.state_dict(), found


def zero_pruned(model, masks):
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)


@pytest.mark.parametrize(("sparsity", "rewind", "drop"), [(0.6, 2, 0.2), (0.75, 0, 0.5), (0.0, 0, 0.2), (0.9, 6, 0.4)])
def test_the_search_equals_the_procedure_done_by_hand(sparsity, rewind, drop):
    model = TRAINING.model()
    levels = regrow.LotteryTicket(model, sparsity, rewind=rewind, drop_fraction=drop).run(train)
    weights, masks = by_hand(sparsity, rewind, drop)
    assert len(levels) == len(masks) == 1 + math.ceil(round(math.log(1 - sparsity) / math.log(1 - drop), 9))
    for level, expected in zip(levels, masks, strict=True):
        assert all(torch.equal(level.masks[name], mask) for name, mask in expected.items())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert levels[-1].masks.total - levels[-1].masks.kept == round(sparsity * levels[-1].masks.total)
    assert [level.result["steps"] for level in levels] == [LENGTH] + [LENGTH - rewind] * (len(levels) - 1)


def test_an_interrupted_search_resumes_at_its_level_and_ends_the_same(tmp_path):
    whole = TRAINING.model()
    expected = regrow.LotteryTicket(whole, 0.6, rewind=2).run(train)
    calls = []

    def interrupted(model, masks, start):
        calls.append(masks.sparsity)
        result = train(model, masks, start)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return result

    model = TRAINING.model()
    with pytest.raises(KeyboardInterrupt):
        regrow.LotteryTicket(model, 0.6, rewind=2, folder=tmp_path / "search").run(interrupted)
    other = Training(**{**TRAINING.__dict__, "seed": 99}).model()
    levels = regrow.LotteryTicket(other, 0.6, rewind=2, folder=tmp_path / "search").run(interrupted)
    assert len(calls) == len(expected) + 1
    assert [level.sparsity for level in levels] == [level.sparsity for level in expected]
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), other.state_dict().values(), strict=True))
    again = regrow.LotteryTicket(TRAINING.model(), 0.6, rewind=2, folder=tmp_path / "search").run(interrupted)
    assert len(calls) == len(expected) + 1
    assert again[-1].masks.kept == expected[-1].masks.kept


def test_unsupported_arguments_raise_errors(tmp_path):
    model = TRAINING.model()
    with pytest.raises(ValueError, match="rewind=7 was never reached: train made 6 optimizer steps"):
        regrow.LotteryTicket(model, 0.5, rewind=7).run(train)
    with pytest.raises(ValueError, match=r"drop_fraction must be a fraction in \(0, 1\), got 20"):
        regrow.LotteryTicket(model, 0.5, drop_fraction=20)
    with pytest.raises(TypeError, match=r"rewind must be a whole number of optimizer steps, at least 0, got 0\.5"):
        regrow.LotteryTicket(model, 0.5, rewind=0.5)
    with pytest.raises(ValueError, match=r"sparsity must be in \[0, 1\), got 90. Did you mean 0.9"):
        regrow.LotteryTicket(model, 90)
    with pytest.raises(TypeError, match=r"train must return numbers, .* got Linear"):
        regrow.LotteryTicket(model, 0.5, folder=tmp_path).run(lambda *_: nn.Linear(1, 1))
    with pytest.raises(ValueError, match="was begun with rewind=0, this search has rewind=1"):
        regrow.LotteryTicket(model, 0.5, folder=tmp_path, rewind=1).run(train)


class Nested(torch.optim.SGD):
    """An optimizer whose step calls its parent's."""

    @torch.no_grad()
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("kind", ["nested steps", "an overflow", "a pretended step", "closures"])
def test_the_search_rewinds_to_a_step_that_counts(kind):
    rewound = {}

    def train(model, masks, start):
        make = Nested if kind == "nested steps" else torch.optim.SGD
        rate, fused = 0.0 if kind == "a pretended step" else 0.1, kind == "an overflow"
        optimizer = make(model.parameters(), lr=rate, momentum=0.9, fused=fused)
        if start:
            rewound.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
            return
        if kind == "a pretended step":  # as distributed checkpoint does, to make the optimizer's state
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.1
        if kind == "an overflow":  # as GradScaler tells fused optimizers
            optimizer.found_inf = torch.ones(())
            optimizer.step()
            del optimizer.found_inf
        if kind == "closures":
            plain = optimizer.step
            optimizer.step = lambda: plain(lambda: torch.zeros(()))
        for t in steps(model, optimizer, LENGTH):
            if t == 2:
                expected.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
        optimizers.append(optimizer)

    expected, optimizers = {}, []
    regrow.LotteryTicket(TRAINING.model(), 0.2, rewind=2).run(train)
    assert not optimizers[0]._optimizer_step_pre_hooks  # a guest that has left
    masked = {name for name in expected if name.endswith("weight") and expected[name].ndim > 1}
    assert all(torch.equal(rewound[name], tensor) for name, tensor in expected.items() if name not in masked)
    for name in masked:
        assert torch.equal(rewound[name], expected[name] * (rewound[name] != 0))


def test_another_search_in_the_same_folder_and_a_damaged_file_are_named(tmp_path):
    regrow.LotteryTicket(TRAINING.model(), 0.5, folder=tmp_path).run(train)
    with pytest.raises(ValueError, match=r"was begun with targets=\['0.weight', .*, this search has targets=\["):
        regrow.LotteryTicket(TRAINING.model(), 0.5, folder=tmp_path, include_last=True).run(train)
    (tmp_path / "level-01.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"level-01.safetensors is damaged .*: to train this level again, delete it"):
        regrow.LotteryTicket(TRAINING.model(), 0.5, folder=tmp_path).run(train)
    (tmp_path / "start.safetensors").write_bytes((tmp_path / "start.safetensors").read_bytes()[:100])
    with pytest.raises(ValueError, match=r"start.safetensors is damaged .*: to start again, delete the folder"):
        regrow.LotteryTicket(TRAINING.model(), 0.5, folder=tmp_path).run(train)


def test_a_found_mask_trains_from_scratch_from_the_original_weights():
    model = TRAINING.model()
    original = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = TRAINING.optimizer(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.7, every=2)
    list(steps(model, optimizer, LENGTH))
    begun = {}

    def train_for(model, masks, length):
        optimizer = TRAINING.optimizer(model)
        fixed = regrow.Fixed(model, optimizer, masks)
        begun.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
        list(steps(model, optimizer, length))
        return fixed.sparsity, length

    fresh = Training(**{**TRAINING.__dict__, "seed": 99}).model()
    assert from_scratch(fresh, pruner.masks, train_for, steps=4, initial=original) == (pruner.sparsity, 4)
    for name, mask in pruner.masks.items():
        assert torch.equal(begun[name], original[name] * mask)
    with pytest.raises(ValueError, match="steps must be a whole number of optimizer steps, at least 1, got 0"):
        from_scratch(fresh, pruner.masks, train_for, steps=0)


def test_with_equal_flops_a_model_that_is_sparse_from_the_start_trains_for_more_steps():
    model = TRAINING.model()
    masks = regrow.OneShot(model, TRAINING.optimizer(model), sparsity=0.9, scope="layer").masks
    ramp = regrow.Cubic(0.9, end=50)
    count = steps_of_equal_flops(model, masks, (2, 4, 4), schedule=ramp, steps=100)
    whole, final = account(model, (2, 4, 4)).macs, account(model, (2, 4, 4), masks).macs_kept
    costs = [whole - (whole - final) * ramp(t) / 0.9 for t in range(100)]
    assert count == round(sum(costs) / final) > 100
    assert steps_of_equal_flops(model, masks, (2, 4, 4), schedule=regrow.Constant(0.9), steps=100) == 100
    assert steps_of_equal_flops(model, masks, (2, 4, 4), schedule=regrow.Constant(0.0), steps=100) == 100


@pytest.mark.parametrize("levels", [1, 2, 5, 9])
@pytest.mark.parametrize("drop", [0.1, 0.2, 0.5])
def test_a_sparsity_that_is_reached_exactly_needs_no_additional_level(levels, drop):
    sparsity = 1 - (1 - drop) ** levels
    found = level_sparsities(sparsity, drop)
    assert len(found) == 1 + levels
    assert found[-1] == sparsity


@pytest.mark.parametrize("scope", ["global", "layer", "er", "erk", "redistributed"])
def test_a_weight_that_a_level_prunes_stays_pruned_in_later_levels(scope):
    def shake(model, masks, start):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)

    generator = torch.Generator().manual_seed(0)
    levels = regrow.LotteryTicket(TRAINING.model(), 0.3, drop_fraction=0.01, scope=scope).run(shake)
    for before, after in itertools.pairwise(levels):
        assert not any(bool((mask & ~before.masks[name]).any()) for name, mask in after.masks.items())
