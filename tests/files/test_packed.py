"""Packed files restore the saved model, and their size is close to the entropy limit."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmarks.pack import pruned
from regrow import files, models
from regrow.files.model_file import load_model, save_model, skeleton
from regrow.files.streams import digest_of, known_of
from regrow.models import Architecture

DTYPES = ("fp32", "fp16", "bf16", "int8")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
INTEGERS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(INTEGERS[tensor.dtype]) if tensor.dtype in INTEGERS else tensor


@st.composite
def float_tensors(draw: st.DrawFn, dimensions: tuple[int, int] = (0, 4)) -> Tensor:
    """Any floats at any density: by bit pattern, so that infinities, NaNs and subnormals occur."""
    dtype = draw(st.sampled_from(FLOATS))
    shape = draw(st.lists(st.integers(0, 9), min_size=dimensions[0], max_size=dimensions[1]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    kind = INTEGERS[dtype]
    limits = torch.iinfo(kind)
    patterns = torch.randint(limits.min, limits.max, shape, generator=generator, dtype=torch.int64).to(kind)
    normal = torch.randn(shape, generator=generator).to(dtype)
    tensor = patterns.view(dtype) if draw(st.booleans()) else normal
    density = draw(st.sampled_from((0.0, 0.02, 0.3, 0.5, 0.9, 1.0)))
    return torch.where(torch.rand(shape, generator=generator) < density, tensor, torch.zeros((), dtype=dtype))


@given(tensors=st.lists(float_tensors(), max_size=5))
@settings(max_examples=200, deadline=None)
def test_fp32_gives_every_tensor_back_bit_by_bit(tensors, tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "x.regrow"
    state = {f"t{i}": tensor for i, tensor in enumerate(tensors)}

    files.save(state, path)
    loaded = files.load(path)

    assert list(loaded) == list(state)
    for name, tensor in state.items():
        expected = tensor + 0.0 if tensor.dim() > 1 else tensor
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(bits(loaded[name]), bits(expected))


def test_minus_zero_is_pruned_in_a_weight_and_kept_in_a_vector(tmp_path):
    files.save({"weight": torch.full((2, 3), -0.0), "bias": torch.tensor([-0.0, 1.0])}, tmp_path / "x.regrow")
    loaded = files.load(tmp_path / "x.regrow")

    assert not loaded["weight"].signbit().any()
    assert loaded["bias"].signbit().tolist() == [True, False]
    assert files.describe(tmp_path / "x.regrow").tensors[0].nonzeros == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_other_than_weights_are_exact_in_every_precision(dtype, tmp_path):
    state = {
        "bias": torch.randn(7),
        "scalar": torch.tensor(3.3),
        "steps": torch.tensor(2**40 + 1),
        "mask": torch.rand(5, 5) < 0.5,
        "double": torch.randn(3, 3, dtype=torch.float64),
        "bytes": torch.arange(256, dtype=torch.uint8).reshape(16, 16),
        "empty": torch.zeros(0, 4),
    }
    files.save(state, tmp_path / "x.regrow", dtype=dtype)
    loaded = files.load(tmp_path / "x.regrow")

    assert all(loaded[name].dtype == value.dtype and torch.equal(loaded[name], value) for name, value in state.items())


@pytest.mark.parametrize(("dtype", "torch_dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_sixteen_bits_round_weights_to_nearest(dtype, torch_dtype, tmp_path):
    model = pruned("resnet8", 0.9)
    files.save(model, tmp_path / "x.regrow", dtype=dtype)
    loaded = files.load(tmp_path / "x.regrow").state_dict()

    for name, value in model.state_dict().items():
        expected = value.to(torch_dtype).float() if value.dim() > 1 else value
        assert torch.equal(loaded[name], expected)


@given(weight=float_tensors((2, 4)))
@settings(max_examples=200, deadline=None)
def test_int8_moves_a_weight_by_at_most_a_252nd_of_the_largest_in_its_channel(weight, tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "x.regrow"
    weight = weight.nan_to_num(0.0, 0.0, 0.0)

    files.save({"weight": weight}, path, dtype="int8")
    loaded = files.load(path)["weight"]

    assert loaded.dtype == weight.dtype
    exact, stored = weight.double().flatten(1), loaded.double().flatten(1)
    if exact.numel():
        peak = exact.abs().amax(dim=1, keepdim=True)
        info = torch.finfo(weight.dtype)
        rounding = info.eps * (peak + info.tiny) + 2.0**-126  # below `tiny` numbers lie eps * tiny apart
        assert ((exact - stored).abs() <= peak / 252 + rounding).all()
        assert (stored[exact == 0] == 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_int8_keeps_the_largest_number_of_a_type_finite(dtype, tmp_path):
    largest = torch.finfo(dtype).max
    files.save({"weight": torch.tensor([[largest, -largest, 0.0]], dtype=dtype)}, tmp_path / "x.regrow", dtype="int8")

    loaded = files.load(tmp_path / "x.regrow")["weight"].double()
    assert torch.allclose(loaded, torch.tensor([[largest, -largest, 0.0]], dtype=torch.float64), rtol=1 / 252)


@pytest.mark.parametrize("name", ["resnet8", "wrn10-1", "vgg16", "densenet22", "small", "resnet18"])
def test_a_built_in_network_comes_back_ready_to_run(name, tmp_path):
    model = pruned(name, 0.9, classes=7)
    images = torch.randn(2, 3, 32, 32)

    files.save(model, tmp_path / "x.regrow")
    loaded = files.load(tmp_path / "x.regrow")

    assert type(loaded) is type(model)
    assert loaded.architecture == model.architecture
    assert not loaded.training
    assert all(parameter.requires_grad and parameter.device.type == "cpu" for parameter in loaded.parameters())
    assert torch.equal(loaded(images), model(images))


def test_a_network_deeper_than_any_file_may_claim_comes_back(tmp_path):
    model = pruned("resnet260", 0.9, width=1)
    files.save(model, tmp_path / "x.regrow")

    assert files.load(tmp_path / "x.regrow").architecture == model.architecture


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_a_built_in_network_in_another_type_comes_back_in_that_type(dtype, tmp_path):
    model = pruned("resnet8", 0.9).to(dtype)
    files.save(model, tmp_path / "x.regrow")
    loaded = files.load(tmp_path / "x.regrow")

    assert loaded.architecture == model.architecture
    for name, value in model.state_dict().items():
        assert loaded.state_dict()[name].dtype == value.dtype
        assert torch.equal(loaded.state_dict()[name], value)


def test_a_file_does_not_depend_on_the_default_type(tmp_path):
    files.save(pruned("resnet8", 0.9), tmp_path / "x.regrow")
    torch.set_default_dtype(torch.float64)
    try:
        loaded = files.load(tmp_path / "x.regrow")
        files.save(loaded, tmp_path / "y.regrow")
    finally:
        torch.set_default_dtype(torch.float32)

    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert (tmp_path / "x.regrow").read_bytes() == (tmp_path / "y.regrow").read_bytes()


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("resnet8", "145cdc86"),
        ("resnet50", "7916eeb9"),
        ("wrn10-1", "bc20248c"),
        ("vgg16", "7ab9842f"),
        ("densenet22", "e41de8a3"),
        ("small", "8983aa60"),
    ],
)
def test_files_of_built_in_networks_rely_on_tensors_that_have_not_changed(name, stored):
    # Files do not list what the network says. Changing names, shapes or their order in `regrow.models` makes
    # them unreadable, and has to raise the version of the format and to say so in the changelog.
    assert digest_of(known_of(skeleton(Architecture(name, {}), 0))) == stored


def test_a_users_network_comes_back_as_its_state_dict(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(4))
    model(torch.randn(2, 3, 8, 8))
    files.save(model.to(memory_format=torch.channels_last), tmp_path / "x.regrow")

    state = files.load(tmp_path / "x.regrow")

    model.load_state_dict(state)
    assert isinstance(state, dict)


def test_wrapping_a_model_does_not_change_its_file(tmp_path):
    model = pruned("resnet8", 0.9)
    for i, wrapped in enumerate((model, nn.DataParallel(model), torch.compile(model))):
        files.save(wrapped, tmp_path / f"{i}.regrow")

    assert (tmp_path / "0.regrow").read_bytes() == (tmp_path / "1.regrow").read_bytes()
    assert (tmp_path / "0.regrow").read_bytes() == (tmp_path / "2.regrow").read_bytes()


def test_a_run_folder_can_be_packed_and_loaded(tmp_path):
    model = pruned("resnet8", 0.9)
    save_model(model, tmp_path / "run" / "model.safetensors")

    files.save(tmp_path / "run", tmp_path / "x.regrow")

    expected = model.state_dict()
    for loaded in (
        files.load(tmp_path / "x.regrow"),
        files.load(tmp_path / "run"),
        load_model(tmp_path / "run"),
    ):
        assert loaded.architecture == model.architecture
        assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())


def test_a_plain_file_holds_tied_and_strided_tensors_and_opens_in_safetensors(tmp_path):
    shared = torch.randn(4, 6)
    save_model({"a": shared, "b": shared, "c": shared.T}, tmp_path / "x.safetensors")

    from safetensors.torch import load_file

    state = load_file(tmp_path / "x.safetensors")
    assert torch.equal(state["a"], shared)
    assert torch.equal(state["b"], shared)
    assert torch.equal(state["c"], shared.T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sparsity", "most"), [(0.8, 0.02), (0.9, 0.03), (0.95, 0.04), (0.98, 0.05)])
def test_resnet20_is_within_five_per_cent_of_the_entropy_limit_in_every_precision(sparsity, most, dtype, tmp_path):
    files.save(pruned("resnet20", sparsity), tmp_path / "x.regrow", dtype=dtype)

    assert 0 < files.describe(tmp_path / "x.regrow").overhead < most


def test_resnet50_is_within_one_per_cent_of_the_entropy_limit_in_every_precision(tmp_path):
    model = pruned("resnet50", 0.98, classes=1000, size=224)
    dense_bytes = sum(value.nbytes for value in model.state_dict().values())

    for dtype in DTYPES:
        files.save(model, tmp_path / "x.regrow", dtype=dtype)
        described = files.describe(tmp_path / "x.regrow")
        assert 0 < described.overhead < 0.01
        assert described.dense_bytes == dense_bytes


def test_the_entropy_limit_is_the_formula(tmp_path):
    weight = torch.zeros(8, 128)
    weight.view(-1)[::16] = 1.5
    weight.view(-1)[::64] = 3.0
    files.save({"weight": weight}, tmp_path / "x.regrow")

    described = files.describe(tmp_path / "x.regrow")

    p = torch.tensor([1 / 16, 15 / 16], dtype=torch.float64)
    q = torch.tensor([1 / 4, 3 / 4], dtype=torch.float64)
    mask, exponent = -(p * p.log2()).sum(), -(q * q.log2()).sum()
    assert described.tensors[0].nonzeros == 64
    assert described.limit_bytes * 8 == pytest.approx(1024 * mask.item() + 64 * (1 + 23 + exponent.item()))
    assert described.file_bytes == (tmp_path / "x.regrow").stat().st_size


def test_the_overhead_of_a_file_with_only_zeros_is_infinite(tmp_path):
    files.save({"weight": torch.zeros(8, 8)}, tmp_path / "x.regrow")

    described = files.describe(tmp_path / "x.regrow")
    assert described.limit_bytes == 0
    assert described.overhead == float("inf")


@pytest.mark.parametrize(
    ("weight", "dtype", "message"),
    [
        (
            torch.full((2, 2), 1e6),
            "fp16",
            r"'layer.weight' has weights up to 1e\+06, beyond the range of fp16",
        ),
        (torch.full((2, 2), torch.inf), "int8", "'layer.weight' has weights that are not finite"),
        (torch.ones(2, 2), "fp8", "dtype must be one of fp32, fp16, bf16, int8, got 'fp8'"),
        (torch.ones(2, 2, dtype=torch.complex64), "fp32", "'layer.weight' is of torch.complex64"),
        (
            torch.ones(2, 2).to_sparse(),
            "fp32",
            "'layer.weight' cannot be stored: it must be a dense, unquantized tensor, got torch.sparse_coo",
        ),
    ],
)
def test_a_model_that_cannot_be_packed_is_refused_and_the_old_file_stays(weight, dtype, message, tmp_path):
    (tmp_path / "x.regrow").write_text("precious")

    with pytest.raises((ValueError, TypeError), match=message):
        files.save({"layer.weight": weight}, tmp_path / "x.regrow", dtype=dtype)

    assert (tmp_path / "x.regrow").read_text() == "precious"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.regrow"]


def test_the_error_for_a_changed_built_in_network_says_how_to_save_it(tmp_path):
    model = models.build("resnet8")
    model.fc = nn.Linear(64, 5)

    with pytest.raises(ValueError, match=r"fc.weight is \(5, 64\) instead of \(10, 64\).* Save model.state_dict"):
        files.save(model, tmp_path / "x.regrow")

    files.save(model.state_dict(), tmp_path / "x.regrow")
    assert files.load(tmp_path / "x.regrow")["fc.weight"].shape == (5, 64)


def test_the_error_for_a_missing_file_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent.regrow does not exist. Give a model file"):
        files.load(tmp_path / "absent.regrow")
    with pytest.raises(FileNotFoundError, match=r"has no model.safetensors"):
        files.load(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="kills a process")
def test_a_save_that_is_killed_leaves_a_whole_file(tmp_path):
    path = tmp_path / "x.regrow"
    script = (
        "import sys, torch; from regrow import files\n"
        "while True:\n"
        "    for value in (1.0, 2.0):\n"
        "        files.save({'w': torch.full((300, 300), value)}, sys.argv[1])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=Path(__file__).parents[2])
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGKILL)
    process.wait()

    loaded = files.load(path)["w"]
    assert loaded.unique().tolist() in ([1.0], [2.0])
