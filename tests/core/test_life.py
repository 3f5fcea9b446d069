"""A pruner's life: what it tells, freezing, detaching, saving, resuming."""

import copy
import functools
import io
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import regrow
from regrow.core.pruner import Pruner
from tests.core.nets import batches, sgd, small_cnn, train


@pytest.fixture
def trained():
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.8, end=40), every=4)
    train(model, optimizer, batches(30))
    return model, optimizer, pruner


def test_stats_are_those_of_the_present_masks_and_weights(trained):
    model, _, pruner = trained
    stats = pruner.stats()
    weights = {name: p for name, p in model.named_parameters() if name in pruner.masks}
    zeros = {name: float((p == 0).float().mean()) for name, p in weights.items()}
    assert stats.step == 30
    assert stats.requested == pruner.schedule(28)
    assert stats.layers == pytest.approx(zeros)
    assert stats.sparsity == pruner.sparsity == pytest.approx(stats.requested, abs=1e-3)
    with pruner.dense():
        whole = {name: p.detach().clone() for name, p in weights.items()}
    error = sum(float(((whole[name] - p.detach()) ** 2).sum()) for name, p in weights.items())
    assert stats.delta == pytest.approx(error / sum(float((w**2).sum()) for w in whole.values()), rel=1e-5)
    assert stats.flips > 0
    assert stats.collapsed == ()


def test_the_repr_of_a_pruner_has_its_step_and_its_target_sparsity(trained):
    pruner = trained[2]
    target = f"target sparsity {pruner.requested:.1%}, {len(pruner.targets)} tensors"
    assert repr(pruner) == f"<DPF at step 30: {target}, {pruner.spared!r} stays dense, every={pruner.every}>"


def test_flips_count_the_mask_elements_that_changed(trained):
    model, optimizer, pruner = trained
    before = pruner.masks.clone()
    train(model, optimizer, batches(3, seed=9))
    changed = sum(int((before[name] != mask).sum()) for name, mask in pruner.masks.items())
    assert pruner.stats().flips == changed > 0


def test_the_state_dicts_of_model_and_optimizer_keep_their_ordinary_keys(trained):
    model, optimizer, _ = trained
    plain = small_cnn()
    assert list(model.state_dict()) == list(plain.state_dict())
    assert set(optimizer.state_dict()["state"][0]) == {"momentum_buffer"}


def test_the_parameters_keep_their_storage(trained):
    model, optimizer, _ = trained
    addresses = [p.data_ptr() for p in model.parameters()]
    train(model, optimizer, batches(10))
    assert [p.data_ptr() for p in model.parameters()] == addresses


def test_dense_shows_the_dense_weights_for_a_while(trained):
    model, _, pruner = trained
    pruned = copy.deepcopy(model.state_dict())
    with pruner.dense():
        assert int((model[0].weight == 0).sum()) == 0
    assert all(torch.equal(pruned[name], tensor) for name, tensor in model.state_dict().items())


def test_freezing_fixes_the_mask_and_drops_the_pruned_weights(trained):
    model, optimizer, pruner = trained
    pruner.freeze()
    masks = pruner.masks.clone()
    train(model, optimizer, batches(40))
    assert all(torch.equal(masks[name], mask) for name, mask in pruner.masks.items())
    assert all(int(p[~masks[name]].count_nonzero()) == 0 for name, p in model.named_parameters() if name in masks)
    assert pruner.stats().delta == 0


def test_detaching_leaves_the_pruned_model_and_an_ordinary_optimizer(trained):
    model, optimizer, pruner = trained
    pruned = copy.deepcopy(model.state_dict())
    pruner.detach()
    assert all(torch.equal(pruned[name], tensor) for name, tensor in model.state_dict().items())
    train(model, optimizer, batches(3))
    assert int((model[0].weight == 0).sum()) == 0
    assert pruner.step == 30
    regrow.DPF(model, optimizer, sparsity=0.5)


def test_fixed_masks_serve_a_new_optimizer(trained):
    model, _, pruner = trained
    pruner.detach()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)
    fixed = regrow.Fixed(model, optimizer, pruner.masks)
    train(model, optimizer, batches(20))
    assert fixed.sparsity == pruner.sparsity
    for name, p in model.named_parameters():
        if name in fixed.masks:
            assert torch.equal(p != 0, fixed.masks[name])


def test_fixed_masks_must_fit():
    model = small_cnn()
    with pytest.raises(ValueError, match=r"mask of 0\.weight has shape \(2, 2\), the weight has \(8, 1, 3, 3\)"):
        regrow.Fixed(model, sgd(model), {"0.weight": torch.ones(2, 2, dtype=torch.bool)})
    with pytest.raises(ValueError, match=r"need names of parameters, such as 0\.weight; got 0$"):
        regrow.Fixed(model, sgd(model), {"0": torch.ones(8, 1, 3, 3, dtype=torch.bool)})
    with pytest.raises(TypeError, match=r"mask of 0\.weight must be a boolean tensor.*torch\.float32"):
        regrow.Fixed(model, sgd(model), {"0.weight": torch.ones(8, 1, 3, 3)})
    with pytest.raises(ValueError, match=r"no weight matches target '1\.wieght'"):
        regrow.Fixed(model, sgd(model), {"1.wieght": torch.ones(8, dtype=torch.bool)})
    assert int((model[0].weight == 0).sum()) == 0


def test_apply_to_masks_an_average_that_is_no_longer_sparse(trained):
    model, optimizer, pruner = trained
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    for _ in range(3):
        train(model, optimizer, batches(8))
        average.update_parameters(model)
    assert float((average.module[3].weight == 0).float().mean()) < pruner.stats().layers["3.weight"]
    pruner.apply_to(average)
    assert float((average.module[3].weight == 0).float().mean()) == pytest.approx(pruner.stats().layers["3.weight"])
    with pytest.raises(ValueError, match=r"0\.weight of shape \(8, 1, 3, 3\), it has \(5, 3\)"):
        pruner.apply_to(nn.Sequential(nn.Linear(3, 5)))


def test_a_collapsed_layer_is_warned_about_once_and_listed():
    model = small_cnn()
    with torch.no_grad():
        model[0].weight.mul_(1e-6)
    optimizer = sgd(model, lr=1e-6)
    with pytest.warns(UserWarning, match=r"all of 0\.weight is pruned at step 0.*floor=1") as warned:
        pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1)
    assert warned[0].filename == __file__
    train(model, optimizer, batches(3))  # warnings are errors here: a second one would fail the test
    assert pruner.stats().collapsed == ("0.weight",)
    guarded = small_cnn()
    with torch.no_grad():
        guarded[0].weight.mul_(1e-6)
    assert regrow.DPF(guarded, sgd(guarded), sparsity=0.5, floor=2).stats().collapsed == ()


RESUME = """
import sys, torch, regrow
from tests.core.nets import *
torch.set_num_threads(1)
make = {"sgd": sgd, "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=2e-3)}[sys.argv[2]]
states = torch.load(sys.argv[1], weights_only=True)
ends = []
for step, state in enumerate(states):
    model = small_cnn(seed=step); optimizer = make(model)
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=12), every=4)
    model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
    pruner.load_state_dict(state["pruner"])
    train(model, optimizer, batches(16), start=step)
    ends.append({"model": model.state_dict(), "pruner": pruner.state_dict()})
torch.save(ends, sys.argv[1])
"""


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_run_saved_at_any_step_and_resumed_in_a_new_process_ends_where_the_uninterrupted_one_does(tmp_path, kind):
    model = small_cnn()
    optimizer = {"sgd": sgd, "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=2e-3)}[kind](model)
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=12), every=4)
    states = []
    for batch in [None, *batches(16)]:
        train(model, optimizer, [] if batch is None else [batch])
        owners = {"model": model, "optimizer": optimizer, "pruner": pruner}
        states.append(copy.deepcopy({name: owner.state_dict() for name, owner in owners.items()}))
    torch.save(states, tmp_path / "states")
    command = [sys.executable, "-c", RESUME, str(tmp_path / "states"), kind]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    for step, end in enumerate(torch.load(tmp_path / "states", weights_only=True)):
        assert all(torch.equal(end["model"][name], tensor) for name, tensor in model.state_dict().items()), step
        mine = pruner.state_dict()
        assert all(torch.equal(end["pruner"]["masks"][name], bits) for name, bits in mine["masks"].items()), step
        assert all(torch.equal(end["pruner"]["error"][name], e) for name, e in mine["error"].items()), step


def test_a_frozen_pruner_resumes_frozen(trained):
    model, _, pruner = trained
    pruner.freeze()
    model_state, state = copy.deepcopy(model.state_dict()), pruner.state_dict()
    other = small_cnn(5)
    other.load_state_dict(model_state)
    again = regrow.DPF(other, sgd(other), sparsity=regrow.Cubic(0.8, end=40), every=4)
    again.load_state_dict(state)
    train(other, again.optimizer, batches(8))
    assert again.stats().delta == 0
    assert again.sparsity == pruner.sparsity


def test_loading_a_state_that_does_not_fit_says_which_tensor_and_changes_nothing(trained):
    _, _, pruner = trained
    state = pruner.state_dict()
    other = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(3, 3))
    mine = regrow.DPF(other, sgd(other), sparsity=regrow.Cubic(0.8, end=40), every=4)
    with pytest.raises(ValueError, match=r"0\.weight has shape \[4, 1, 3, 3\], in the saved state \[8, 1, 3, 3\]"):
        mine.load_state_dict(state)
    with pytest.raises(ValueError, match="every=4, this pruner has every=5"):
        _dpf(every=5).load_state_dict(state)
    with pytest.raises(ValueError, match="schedule='Cubic"):
        _dpf(sparsity=0.5).load_state_dict(state)
    fresh = _dpf()
    with pytest.raises(ValueError, match=r"0\.weight has weights where the saved mask has none: load the model's"):
        fresh.load_state_dict(state)
    assert fresh.step == 0
    broken = copy.deepcopy(state)
    broken["masks"]["0.weight"] = broken["masks"]["0.weight"][:-1]
    with pytest.raises(ValueError, match=r"packed mask of 0\.weight has 8 values.*needs 9"):
        pruner.load_state_dict(broken)
    broken = copy.deepcopy(state)
    broken["error"]["3.weight"] = broken["error"]["3.weight"][:-1]
    with pytest.raises(ValueError, match=r"saved error of 3\.weight"):
        pruner.load_state_dict(broken)


def _dpf(**options):
    model = small_cnn()
    return regrow.DPF(model, sgd(model), **({"sparsity": regrow.Cubic(0.8, end=40), "every": 4} | options))


def test_the_state_is_small_and_loads_without_executing_code(trained):
    _, _, pruner = trained
    stream = io.BytesIO()
    torch.save(pruner.state_dict(), stream)
    stream.seek(0)
    state = torch.load(stream, weights_only=True)
    assert sum(bits.numel() for bits in state["masks"].values()) <= pruner.masks.total // 8 + len(pruner.masks)
    assert sum(values.numel() for values in state["error"].values()) == pruner.masks.total - pruner.masks.kept


def test_masks_are_a_validated_mapping(trained):
    _, _, pruner = trained
    masks = pruner.masks
    assert set(masks) == {"0.weight", "3.weight", "6.weight"}
    assert masks.kept == sum(int(mask.sum()) for mask in masks.values())
    assert repr(masks) == f"Masks(3 tensors, {masks.kept:,} of {masks.total:,} kept)"
    with pytest.raises(TypeError, match=r"torch\.uint8"):
        regrow.Masks({"a": torch.ones(2, dtype=torch.uint8)})


class Ramp:
    """A schedule that shows nothing but where it lies in memory."""

    def __call__(self, t):
        return 0.5


@dataclass
class Scaled:
    """A schedule that shows another function."""

    schedule: object
    factor: float = 1.0

    def __call__(self, t):
        return self.factor * self.schedule(t)


def halfway(t, end=100, *, final=0.5):
    return final


@pytest.mark.parametrize(
    "make",
    [Ramp, lambda: functools.partial(halfway, final=0.4), lambda: Scaled(halfway), lambda: Ramp().__call__],
    ids=["object", "partial", "dataclass of a function", "method"],
)
def test_a_schedule_of_any_kind_can_be_resumed(make):
    state = _dpf(sparsity=make()).state_dict()
    assert "0x" not in state["schedule"]
    again = _dpf(sparsity=make())
    again.load_state_dict(state)
    assert again.requested == state["requested"]


@pytest.mark.parametrize(
    "other",
    [functools.partial(halfway, final=0.4), functools.partial(halfway, 200), Ramp(), halfway, Scaled(halfway, 0.5)],
    ids=["partial", "other arguments", "object", "function", "dataclass"],
)
def test_another_schedule_of_the_same_kind_is_noticed(other):
    state = _dpf(sparsity=functools.partial(halfway, end=50)).state_dict()
    with pytest.raises(ValueError, match=r"saved with schedule='functools\.partial"):
        _dpf(sparsity=other).load_state_dict(state)


@pytest.mark.parametrize(
    ("saved", "here", "message"),
    [
        (
            {"weight_decay_at": "pruned"},
            {},
            "saved with weight_decay_at='pruned', this pruner has weight_decay_at='dense'",
        ),
        (
            {"settle": 0.1, "total_steps": 100},
            {"settle": 0.1, "total_steps": 200},
            "saved with total_steps=100, this pruner has total_steps=200",
        ),
    ],
)
def test_options_that_change_training_are_compared(saved, here, message):
    with pytest.raises(ValueError, match=message):
        _dpf(**here).load_state_dict(_dpf(**saved).state_dict())


def test_a_training_that_does_not_settle_may_become_longer():
    _dpf(total_steps=200).load_state_dict(_dpf(total_steps=100).state_dict())


def test_a_state_saved_before_an_option_existed_still_loads(trained):
    _, _, pruner = trained
    state = pruner.state_dict()
    del state["weight_decay_at"], state["total_steps"]
    pruner.load_state_dict(state)
    with pytest.raises(ValueError, match=r"not the state of a pruner: it has no 'method', only \['0.weight'"):
        pruner.load_state_dict({"0.weight": torch.ones(1)})


def test_a_pruner_without_targets_is_refused():
    model = small_cnn()
    with pytest.raises(ValueError, match=r"targets=\[\] selects no parameter"):
        Pruner(model, sgd(model), sparsity=0.5, targets=[])


@pytest.mark.parametrize("held", [True, False])
def test_frozen_weights_are_left_alone_unless_they_are_chosen(held):
    model = small_cnn()
    names = list(regrow.DPF(model, sgd(model), sparsity=0.5).masks)
    model = small_cnn()
    model.get_parameter(names[0]).requires_grad_(False)
    parameters = [p for p in model.parameters() if held or p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with pytest.warns(UserWarning, match=rf"{names[0]} \(1 in all\) is frozen.*targets="):
        pruner = regrow.DPF(model, optimizer, sparsity=0.5)
    assert list(pruner.masks) == names[1:]
    pruner.detach()
    if held:
        assert list(regrow.DPF(model, optimizer, sparsity=0.5, targets=names).masks) == names


def test_a_criterion_for_filters_is_refused_where_there_are_none():
    model = small_cnn()
    with pytest.raises(ValueError, match="criterion='l1' ranks filters: it needs unit='filter', not unit='weight'"):
        regrow.DPF(model, sgd(model), sparsity=0.5, criterion="l1")
