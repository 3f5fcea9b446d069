"""Any training loop: optimizers, closures, scalers, compiled and copied models, writes from outside."""

import copy

import pytest
import torch
from torch import nn

import regrow
from tests.core.nets import batches, sgd, small_cnn, step, train

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=2e-3),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=2e-3, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=2e-3, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
}


def step_by_hand(model, dense, masks, make, data):
    """Train a dense copy with gradients taken at its pruned twin."""
    optimizer = make(list(dense.parameters()))
    for x, y in data:
        for (name, p), w in zip(model.named_parameters(), dense.parameters(), strict=True):
            p.data = torch.where(masks[name], w, 0.0).detach() if name in masks else w.detach().clone()
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for p, w in zip(model.parameters(), dense.parameters(), strict=True):
            w.grad = p.grad
        optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_optimizer_trains_the_dense_weights_with_gradients_at_the_pruned_ones(kind):
    model = small_cnn()
    by_hand, dense = small_cnn(), small_cnn()
    optimizer = OPTIMIZERS[kind](model.parameters())
    pruner = regrow.DPF(model, optimizer, sparsity=0.6, every=1000)
    train(model, optimizer, batches(20))
    step_by_hand(by_hand, dense, pruner.masks, OPTIMIZERS[kind], batches(20))
    with pruner.dense():
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), dense.parameters(), strict=True))


def test_several_parameter_groups_and_a_scheduler():
    model = small_cnn()
    groups = [{"params": model[0].parameters(), "lr": 0.01}, {"params": list(model.parameters())[2:]}]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for x, y in batches(20):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        schedule.step()
    assert pruner.step == 20
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-6)


@pytest.mark.parametrize("positional", [True, False])
def test_a_closure_is_evaluated_at_the_pruned_weights(positional):
    model, plain = small_cnn(), small_cnn()
    optimizer, other = sgd(model), sgd(plain)
    pruner = regrow.DPF(model, optimizer, sparsity=0.6, every=4)
    twin = regrow.DPF(plain, other, sparsity=0.6, every=4)
    seen = []
    for x, y in batches(10):

        def closure(x=x, y=y):
            seen.append(int((model[0].weight == 0).sum()))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        zeros = int((model[0].weight == 0).sum())
        loss = optimizer.step(closure) if positional else optimizer.step(closure=closure)
        assert seen[-1] == zeros > 0
        other.zero_grad()
        expected = nn.functional.cross_entropy(plain(x), y)
        expected.backward()
        other.step()
        assert loss.item() == expected.item()
    assert pruner.step == twin.step == 10
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


@pytest.mark.parametrize("line_search", [None, "strong_wolfe"])
def test_lbfgs_evaluates_every_closure_at_the_pruned_weights(line_search):
    model = small_cnn(norm=False).double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn=line_search)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=2)
    x, y = next(iter(batches(1, size=64)))
    seen = []

    def closure():
        assert all(
            int(p[~pruner.masks[n]].count_nonzero()) == 0 for n, p in model.named_parameters() if n in pruner.masks
        )
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.double()), y)
        loss.backward()
        seen.append(loss.item())
        return loss

    for _ in range(6):
        optimizer.step(closure)
    assert len(seen) > 12
    assert seen[-1] < 0.5 * seen[0]


def test_gradient_accumulation_and_clipping_count_steps_not_backwards():
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5)
    for i, (x, y) in enumerate(batches(12)):
        nn.functional.cross_entropy(model(x), y).backward()
        if i % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    assert pruner.step == 3


def test_bf16_autocast_and_bf16_weights():
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=2)
    for x, y in batches(6):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert pruner.sparsity == pytest.approx(0.5, abs=1e-3)
    half = small_cnn(norm=False).bfloat16()
    optimizer = sgd(half)
    pruner = regrow.DPF(half, optimizer, sparsity=0.5, every=2)
    train(half, optimizer, ((x.bfloat16(), y) for x, y in batches(6)))
    assert pruner.sparsity == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_gradscaler_skips_does_not_count(fused):
    model = small_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=fused)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for i, (x, y) in enumerate(batches(6)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss * (float("inf") if i % 2 else 1.0)).backward()
        before = model[3].weight.clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, model[3].weight) == bool(i % 2)
    assert pruner.step == 3


def test_distributed_checkpoint_s_pretended_step_does_not_count_but_a_step_at_lr_0_does():
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = small_cnn()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1)
    with pruner.dense():
        before = model[3].weight.clone()
    get_optimizer_state_dict(model, optimizer)
    assert pruner.step == 0
    with pruner.dense():
        assert torch.equal(before, model[3].weight)
    optimizer.param_groups[0]["lr"] = 0.0
    train(model, optimizer, batches(2))
    assert pruner.step == 2


def test_a_compiled_model_sees_every_new_mask():
    eager, model = small_cnn(), small_cnn()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer, other = sgd(model), sgd(eager)
    pruner = regrow.DPF(compiled, optimizer, sparsity=regrow.Cubic(0.8, end=10), every=2)
    regrow.DPF(eager, other, sparsity=regrow.Cubic(0.8, end=10), every=2)
    torch._dynamo.utils.counters.clear()
    losses = train(compiled, optimizer, batches(16))
    assert losses == pytest.approx(train(eager, other, batches(16)), rel=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert list(pruner.masks) == ["0.weight", "3.weight", "6.weight"]


def test_a_deep_copy_is_an_ordinary_model():
    model = small_cnn()
    optimizer = sgd(model)
    regrow.DPF(model, optimizer, sparsity=0.5)
    twin = copy.deepcopy(model)
    train(model, optimizer, batches(3))
    other = sgd(twin)
    train(twin, other, batches(3))
    assert int((twin[3].weight == 0).sum()) == 0


def test_activation_checkpointing_recomputes_at_the_pruned_weights():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_cnn(norm=False)

        def forward(self, x):
            return torch.utils.checkpoint.checkpoint_sequential(self.net, 3, x, use_reentrant=False)

    model, plain = Checkpointed(), small_cnn(norm=False)
    optimizer, other = sgd(model), sgd(plain)
    regrow.DPF(model, optimizer, sparsity=0.5, every=2)
    regrow.DPF(plain, other, sparsity=0.5, every=2)
    assert train(model, optimizer, batches(6)) == train(plain, other, batches(6))


def test_the_pruner_tracks_which_weights_the_model_holds_after_an_exception_inside_step():
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=2)
    train(model, optimizer, batches(3))
    good = optimizer.param_groups[0]["momentum"]
    optimizer.param_groups[0]["momentum"] = "broken"
    with pytest.raises(TypeError):
        train(model, optimizer, batches(1))
    optimizer.param_groups[0]["momentum"] = good
    assert pruner.step == 3
    assert int((model[3].weight == 0).sum()) == 0
    pruner.restore()
    assert pruner.stats().sparsity == pytest.approx(0.5, abs=1e-3)
    assert float((model[3].weight == 0).float().mean()) == pytest.approx(pruner.stats().layers["3.weight"])
    train(model, optimizer, batches(3))
    assert pruner.step == 6

    def closure():
        raise KeyError("no batch")

    with pytest.raises(KeyError):
        optimizer.step(closure)
    assert int(model[3].weight[~pruner.masks["3.weight"]].count_nonzero()) == 0
    assert pruner.step == 6


def test_nan_in_the_weights_stops_at_the_next_mask_with_the_name_of_the_parameter():
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=2)
    train(model, optimizer, batches(2))
    model[3].weight.grad[0, 0, 0, 0] = float("nan")
    optimizer.step()
    with pytest.raises(ValueError, match=r"3\.weight contains NaN.*diverged"):
        optimizer.step()
    assert int(model[0].weight[~pruner.masks["0.weight"]].count_nonzero()) == 0


@pytest.mark.filterwarnings("ignore:DeepR has its L1 term")
@pytest.mark.parametrize(
    "method", ["DPF", "Incremental", "RigL", "SET", "SFP", "GraNet", "DNS", "DeepR", "DSR", "SparseMomentum"]
)
def test_nan_in_the_last_layer_leaves_the_masks_of_the_first_ones_as_they_were(method):
    model = small_cnn()
    optimizer = sgd(model)
    growing = ("RigL", "SET", "DeepR", "DSR", "SparseMomentum")
    options = {"total_steps": 100} if method in growing else {"scope": "layer"} if method != "SFP" else {}
    if method == "GraNet":
        options = {"total_steps": 100, "initial_sparsity": 0.3}
    sparsity = 0.5 if options.keys() & {"total", "total_steps"} else regrow.Cubic(0.5, end=10, initial=0.1)
    if method != "DeepR":  # it updates its masks after every step
        options["every"] = 2
    pruner = getattr(regrow, method)(model, optimizer, sparsity=sparsity, **options)
    train(model, optimizer, batches(3))
    before, told = pruner.masks.clone(), (pruner.requested, pruner.flips)
    optimizer.zero_grad()
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    model[6].weight.grad[0] = torch.nan
    with pytest.raises(ValueError, match=r"6\.weight contains NaN"):
        optimizer.step()
    assert all(torch.equal(mask, before[name]) for name, mask in pruner.masks.items())
    assert (pruner.requested, pruner.flips) == told


def test_pruned_weights_loaded_after_attaching_are_used_without_a_warning():
    model = small_cnn()
    optimizer = sgd(model)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1000)
    with pruner.dense():
        pruned_part = model[3].weight[~pruner.masks["3.weight"]].clone()
    state = {name: tensor * 2 for name, tensor in model.state_dict().items()}
    model.load_state_dict(state)
    optimizer.param_groups[0]["lr"] = 0.0
    train(model, optimizer, batches(1))
    with pruner.dense():
        assert torch.equal(model[3].weight[~pruner.masks["3.weight"]], pruned_part)
    assert torch.equal(model[3].weight, state["3.weight"])


def test_dense_weights_loaded_after_attaching_are_adopted_with_a_warning():
    model, other = small_cnn(), small_cnn(seed=7)
    optimizer = sgd(model, lr=0.0)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1)
    model.load_state_dict(other.state_dict())
    with pytest.warns(UserWarning, match="new weights since the last step") as warned:
        train(model, optimizer, batches(1))
    assert all(warning.filename == train.__code__.co_filename for warning in warned)  # where step() is called
    with pruner.dense():
        assert torch.equal(model[3].weight, other[3].weight)
    expected = regrow.DPF(other, sgd(other), sparsity=0.5)
    assert torch.equal(model[3].weight, other[3].weight)
    assert torch.equal(pruner.masks["3.weight"], expected.masks["3.weight"])


def test_writes_through_data_are_found_and_taken_over():
    model, other = small_cnn(), small_cnn(seed=7)
    optimizer = sgd(model, lr=0.0)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1000)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        p.data.copy_(q.data)
    with pytest.warns(UserWarning, match=r"written through \.data.*torch\.no_grad\(\)"):
        train(model, optimizer, batches(1))
    with pruner.dense():
        assert torch.equal(model[3].weight, other[3].weight)


@pytest.mark.parametrize("layer", [0, 3, 6])
def test_a_write_through_data_to_any_layer_is_found_at_once(layer):
    model = small_cnn()
    optimizer = sgd(model, lr=0.0)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1000)
    written = torch.randn_like(model[layer].weight)
    model[layer].weight.data.copy_(written)
    with pytest.warns(UserWarning, match=rf"{layer}\.weight was written through \.data"):
        train(model, optimizer, batches(1))
    with pruner.dense():
        assert torch.equal(model[layer].weight, written)


def test_a_write_through_data_is_found_in_a_deep_network_too():
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(70)))
    optimizer = sgd(model, lr=0.0)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1000)
    written = torch.randn(8, 8)

    def write_and_step(_):
        model[41].weight.data.copy_(written)
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()

    with pytest.warns(UserWarning, match=r"41\.weight was written through \.data"):
        list(map(write_and_step, range(3)))  # 70 layers take three turns
    with pruner.dense():
        assert torch.equal(model[41].weight, written)


def test_writing_a_single_weight_through_data_at_every_step_is_detected():
    model = small_cnn()
    optimizer = sgd(model, lr=0.0)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1000)
    place = tuple(pruner.masks["6.weight"].nonzero()[-1])

    def written():
        for batch in batches(model[6].weight.numel() // 64):
            model[6].weight.data[place] = 9.0
            yield batch

    with pytest.warns(UserWarning, match=r"6\.weight was written through \.data"):
        train(model, optimizer, written())
    with pruner.dense():
        assert model[6].weight[place] == 9.0


def test_a_model_moved_to_another_memory_format_keeps_its_dense_weights():
    model, plain = small_cnn(), small_cnn()
    optimizer, other = sgd(model), sgd(plain)
    pruner = regrow.DPF(model, optimizer, sparsity=0.5, every=1000)
    twin = regrow.DPF(plain, other, sparsity=0.5, every=1000)
    model.to(memory_format=torch.channels_last)
    optimizer.param_groups[0]["lr"] = other.param_groups[0]["lr"] = 0.0
    train(model, optimizer, batches(1))
    train(plain, other, batches(1))
    assert model[3].weight.is_contiguous(memory_format=torch.channels_last)
    with pruner.dense(), twin.dense():
        assert torch.equal(model[3].weight, plain[3].weight)


def test_weight_decay_can_be_taken_at_the_pruned_weights():
    weight = torch.tensor([[0.1, 1.0, 2.0, 3.0]])
    for decay, expected in [("dense", [0.1 - 0.01, 1 - 0.1, 2 - 0.2, 3 - 0.3]), ("pruned", [0.1, 1.0, 1.8, 2.7])]:
        layer = nn.Linear(4, 1, bias=False)
        layer.weight.data.copy_(weight)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, weight_decay=0.1)
        pruner = regrow.DPF(layer, optimizer, sparsity=0.5, include_last=True, weight_decay_at=decay)
        layer.weight.grad = torch.zeros(1, 4)
        optimizer.step()
        with pruner.dense():
            assert layer.weight.tolist()[0] == pytest.approx(expected)
        assert optimizer.param_groups[0]["weight_decay"] == 0.1
    fresh = small_cnn()
    with pytest.raises(ValueError, match=r"AdamW decouples it or has none"):
        regrow.DPF(fresh, torch.optim.AdamW(fresh.parameters()), sparsity=0.5, weight_decay_at="pruned")


@pytest.mark.parametrize("closures", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "adam", "maximize", "several groups"])
def test_decay_at_the_pruned_weights_equals_the_regularizer_as_part_of_the_loss(kind, closures):
    make = {
        "sgd": lambda p, decay: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=decay),
        "adam": lambda p, decay: torch.optim.Adam(p, lr=2e-3, weight_decay=decay),
        "maximize": lambda p, decay: torch.optim.Adam(p, lr=2e-3, weight_decay=decay, maximize=True),
        "several groups": lambda p, decay: torch.optim.SGD(
            [{"params": p[:4]}, {"params": p[4:], "weight_decay": decay / 2}], lr=0.05, weight_decay=decay
        ),
    }[kind]
    sign = -1 if kind == "maximize" else 1
    model, other = small_cnn(), small_cnn()
    optimizer, plain = make(list(model.parameters()), 0.1), make(list(other.parameters()), 0.1)
    regrow.DPF(model, optimizer, sparsity=0.6, every=3, weight_decay_at="pruned")
    regrow.DPF(other, plain, sparsity=0.6, every=3)
    strengths = [group["weight_decay"] for group in plain.param_groups]
    for group in plain.param_groups:
        group["weight_decay"] = 0.0
    for x, y in batches(10):
        step(model, optimizer, (x, y), closure=closures, sign=sign)
        plain.zero_grad()
        (sign * nn.functional.cross_entropy(other(x), y)).backward()
        for group, strength in zip(plain.param_groups, strengths, strict=True):
            for p in group["params"]:
                p.grad += sign * strength * p.detach()
        plain.step()
        assert [group["weight_decay"] for group in optimizer.param_groups] == strengths
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sparsity": 90}, ValueError, r"Did you mean 0\.9"),
        ({"sparsity": 1.0}, ValueError, r"in \[0, 1\)"),
        ({"sparsity": 0.5, "every": 0}, ValueError, "every must be a whole number of optimizer steps, at least 1"),
        ({"sparsity": 0.5, "every": 1.5}, TypeError, "whole number"),
        ({"sparsity": 0.5, "scope": "local"}, ValueError, "'local'"),
        ({"sparsity": 0.5, "unit": "column"}, ValueError, "'column'"),
        ({"sparsity": 0.5, "criterion": "l3"}, ValueError, "criterion must be one of .*'l3'"),
        ({"sparsity": 0.5, "floor": -1}, ValueError, "floor must be a whole number of units per layer, at least 0"),
        ({"sparsity": 0.5, "floor": 1.5}, TypeError, "floor must be a whole number .* got 1.5"),
        (
            {"sparsity": 0.5, "settle": 0.1, "total_steps": 0},
            ValueError,
            "total_steps must be a whole number .* at least 1, got 0",
        ),
        ({"sparsity": 0.5, "settle": 0.1, "total_steps": -5}, ValueError, "total_steps must be .* got -5"),
        ({"sparsity": 0.5, "settle": 0.1, "total_steps": "100"}, TypeError, "total_steps must be .* got '100'"),
        ({"sparsity": 0.5, "total_steps": 0}, ValueError, "total_steps must be .* got 0"),
        ({"sparsity": 0.5, "settle": "0.1"}, TypeError, r"settle must be a fraction in \[0, 1\], got '0.1'"),
        ({"sparsity": 0.5, "weight_decay_at": "none"}, ValueError, "weight_decay_at must be"),
        ({"sparsity": 0.9, "floor": 10_000}, ValueError, "lower the floor or the sparsity"),
    ],
)
def test_bad_input_is_refused_before_anything_is_changed(options, error, message):
    model = small_cnn()
    before = copy.deepcopy(model.state_dict())
    optimizer = sgd(model)
    with pytest.raises(error, match=message):
        regrow.DPF(model, optimizer, **options)
    assert not optimizer._optimizer_step_pre_hooks
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_unsupported_options_are_errors_that_name_an_alternative():
    model = small_cnn()
    optimizer = sgd(model)
    regrow.DPF(model, optimizer, sparsity=0.5)
    with pytest.raises(ValueError, match=r"0\.weight is already pruned by a DPF: detach\(\)"):
        regrow.DPF(model, optimizer, sparsity=0.5)

    class Wrapper:
        """Like Accelerate's: holds an optimizer, forwards no hooks."""

        def __init__(self, optimizer):
            self.optimizer = optimizer

    other = small_cnn()
    assert regrow.DPF(other, Wrapper(sgd(other)), sparsity=0.5).sparsity > 0
    with pytest.raises(TypeError, match="object is not a torch"):
        regrow.DPF(small_cnn(), object(), sparsity=0.5)
    from torch.distributed.optim import _apply_optimizer_in_backward

    fused = small_cnn()
    _apply_optimizer_in_backward(torch.optim.SGD, fused.parameters(), {"lr": 0.1})
    with pytest.raises(ValueError, match="stepped inside backward"):
        regrow.DPF(fused, sgd(fused), sparsity=0.5)
