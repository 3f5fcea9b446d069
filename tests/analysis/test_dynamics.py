"""Recorded mask changes agree with brute force, resume exactly, and agree with the masks of a real pruner."""

import copy
import dataclasses
import io
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import regrow
from regrow.analysis import Dynamics
from regrow.models import build

SHAPES = {"a.weight": (3, 2, 2), "b.weight": (4, 5)}
ELEMENTS = 32
Masks = dict[str, Tensor]


def masks_from(bits: int) -> Masks:
    flat = torch.tensor([bool(bits >> i & 1) for i in range(ELEMENTS)])
    first, second = flat.split([12, 20])
    return {"a.weight": first.view(3, 2, 2), "b.weight": second.view(4, 5)}


def kept(bits: int) -> int:
    return bits.bit_count()


BITS = st.integers(0, 2**ELEMENTS - 1)
# A training run: the first mask, and for every epoch the masks of its refreshes and the mask at its end.
TRAININGS = st.tuples(BITS, st.lists(st.tuples(st.lists(BITS, max_size=4), BITS), min_size=1, max_size=6))


@settings(deadline=None)
@given(before=BITS, after=BITS)
def test_flips_and_overlap_are_those_of_the_sets_of_kept_elements(before: int, after: int) -> None:
    change = Dynamics(masks_from(before)).observe(masks_from(after))
    assert change.flips == kept(before ^ after)
    assert change.flip_ratio == kept(before ^ after) / ELEMENTS
    assert change.iou == (kept(before & after) / kept(before | after) if before | after else 1.0)
    assert change.sparsity == 1 - kept(after) / ELEMENTS


@settings(deadline=None)
@given(training=TRAININGS)
def test_the_last_change_curve_counts_the_elements_that_move_after_each_epoch(
    training: tuple[int, list[tuple[list[int], int]]],
) -> None:
    start, epochs = training
    dynamics, now = Dynamics(masks_from(start)), start
    moved_in = []
    for refreshes, end in epochs:
        moved = 0
        for bits in refreshes:
            dynamics.observe(masks_from(bits))
            moved, now = moved | (now ^ bits), bits
        dynamics.epoch_end(masks_from(end))
        moved, now = moved | (now ^ end), end
        moved_in.append(moved)
    for after, fraction in enumerate(dynamics.still_changing()):
        moved_later = 0
        for moved in moved_in[after:]:
            moved_later |= moved
        assert fraction == kept(moved_later) / ELEMENTS
    assert len(dynamics.still_changing()) == len(epochs) + 1


@settings(deadline=None)
@given(training=TRAININGS)
def test_epochs_are_compared_at_their_ends_and_refreshes_are_averaged(
    training: tuple[int, list[tuple[list[int], int]]],
) -> None:
    start, epochs = training
    dynamics, previous_end = Dynamics(masks_from(start)), start
    for number, (refreshes, end) in enumerate(epochs, 1):
        changes = [dynamics.observe(masks_from(bits)) for bits in refreshes]
        record = dynamics.epoch_end(masks_from(end))
        assert record.epoch == number
        assert record.change == Dynamics(masks_from(previous_end)).observe(masks_from(end))
        assert record.refreshes == len(changes)
        if changes:
            assert record.refresh_flip_ratio == sum(c.flip_ratio for c in changes) / len(changes)
            assert record.refresh_iou == sum(c.iou for c in changes) / len(changes)
        for name, mask in masks_from(end).items():
            assert record.layers[name] == pytest.approx((~mask).float().mean().item())
        previous_end = end


@settings(deadline=None)
@given(training=TRAININGS, data=st.data())
def test_a_resumed_record_equals_the_uninterrupted_one(
    training: tuple[int, list[tuple[list[int], int]]], data: st.DataObject
) -> None:
    start, epochs = training
    events = [
        event for refreshes, end in epochs for event in (*(("observe", b) for b in refreshes), ("epoch_end", end))
    ]
    stop = data.draw(st.integers(0, len(events)))
    whole, first = Dynamics(masks_from(start)), Dynamics(masks_from(start))
    for method, bits in events[:stop]:
        assert getattr(whole, method)(masks_from(bits)) == getattr(first, method)(masks_from(bits))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = Dynamics(masks_from(0))
    second.load_state_dict(torch.load(file, weights_only=True))
    for method, bits in events[stop:]:
        assert getattr(whole, method)(masks_from(bits)) == getattr(second, method)(masks_from(bits))
    assert whole.still_changing() == second.still_changing()


def test_a_saved_state_does_not_change_while_training_continues() -> None:
    dynamics = Dynamics(masks_from(0))
    dynamics.epoch_end(masks_from(1))
    state = dynamics.state_dict()
    kept_state = copy.deepcopy(state)
    dynamics.epoch_end(masks_from(6))
    assert torch.equal(state["last_change"], kept_state["last_change"])
    assert torch.equal(state["mask"], kept_state["mask"])
    resumed = Dynamics(masks_from(0))
    resumed.load_state_dict(state)
    resumed.epoch_end(masks_from(6))
    assert torch.equal(state["last_change"], kept_state["last_change"])


def test_masks_may_be_updated_in_place() -> None:
    masks = masks_from(0)
    dynamics = Dynamics(masks)
    masks["a.weight"].fill_(True)
    assert dynamics.observe(masks).flips == 12
    single = {"w": torch.tensor([True, False])}
    dynamics = Dynamics(single)
    single["w"].logical_not_()
    assert dynamics.observe(single).flips == 2


def test_elements_are_the_same_in_any_memory_format_and_any_order_of_names() -> None:
    mask = torch.rand(4, 3, 2, 2) < 0.5
    other = {"w": mask, "v": mask[:1]}
    dynamics = Dynamics(other)
    assert dynamics.observe({"v": mask[:1], "w": mask.to(memory_format=torch.channels_last)}).flips == 0


def test_a_saved_state_is_loaded_for_masks_in_another_order() -> None:
    one, other = masks_from(5), masks_from(6)
    dynamics = Dynamics(one)
    dynamics.observe(other)
    backwards = Dynamics(dict(reversed(one.items())))
    backwards.load_state_dict(dynamics.state_dict())
    assert backwards.observe(one) == dynamics.observe(one)
    assert backwards.epoch_end(other) == dynamics.epoch_end(other)
    assert backwards.state_dict()["shapes"] == dynamics.state_dict()["shapes"]
    assert list(backwards.state_dict()["shapes"]) == list(one)


def test_records_are_plain_numbers() -> None:
    dynamics = Dynamics(masks_from(0))
    dynamics.observe(masks_from(5))
    record = dataclasses.asdict(dynamics.epoch_end(masks_from(7)))
    assert json.loads(json.dumps(record)) == record
    assert json.loads(json.dumps(dynamics.still_changing())) == [3 / ELEMENTS, 0.0]


def test_wrong_masks_are_named() -> None:
    dynamics = Dynamics(masks_from(0))
    with pytest.raises(ValueError, match=r"masks a.weight, b.weight; got different names or shapes: a.weight"):
        dynamics.observe({"a.weight": masks_from(0)["a.weight"]})
    with pytest.raises(TypeError, match=r"the mask of a.weight must be boolean .*got torch.float32"):
        dynamics.observe({name: mask.float() for name, mask in masks_from(0).items()})
    with pytest.raises(ValueError, match="no masks to watch"):
        Dynamics({})
    with pytest.raises(ValueError, match=r"differ in b.weight"):
        dynamics.load_state_dict(Dynamics({"a.weight": torch.ones(3, 2, 2, dtype=torch.bool)}).state_dict())


def test_dynamics_follow_the_masks_of_a_pruner() -> None:
    torch.manual_seed(0)
    model = build("small", channels=1, size=8, width=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    pruner = regrow.DPF(model, optimizer, sparsity=regrow.Cubic(0.9, end=24), every=2)
    dynamics = Dynamics(pruner.masks)
    images, labels = torch.randn(32, 1, 8, 8), torch.randint(10, (32,))
    records = []
    for _ in range(4):
        for _ in range(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            if pruner.step % pruner.every == 0:
                change = dynamics.observe(pruner.masks)
                assert change.flips == pruner.flips
                assert change.sparsity == pytest.approx(pruner.sparsity)
        records.append(dynamics.epoch_end(pruner.masks))
    assert [record.refreshes for record in records] == [4, 4, 4, 4]
    assert records[-1].layers == pytest.approx(pruner.stats().layers)
    curve = dynamics.still_changing()
    assert curve == sorted(curve, reverse=True)
    assert curve[0] >= 0.9  # everything that was pruned changed at least once
    assert curve[-1] == 0
