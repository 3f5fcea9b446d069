"""Damaged and malicious files raise one clear error."""

import json
import pickle
import struct
import tracemalloc
import zlib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as save_safetensors

from benchmarks.pack import pruned
from regrow import files
from regrow.files.model_file import FormatError, save_model
from regrow.files.packed import seal

MEBIBYTE = 1 << 20
START = 12


@cache
def packed(dtype: str = "fp32") -> bytes:
    """A small packed file."""
    torch.manual_seed(1)
    state = {
        "conv.weight": torch.where(torch.rand(6, 4, 3, 3) < 0.2, torch.randn(6, 4, 3, 3), 0.0),
        "fc.weight": torch.where(torch.rand(5, 6) < 0.8, torch.randn(5, 6), 0.0),
        "conv.bias": torch.randn(6),
        "fc.bias": torch.randn(5),
        "steps": torch.tensor(1234),
    }
    with TemporaryDirectory() as folder:
        files.save(state, Path(folder, "x.regrow"), dtype=dtype)
        return Path(folder, "x.regrow").read_bytes()


def opened(data: bytes) -> tuple[list[Any], list[Any], bytes]:
    """The words, the index and the codes of a packed file."""
    length = struct.unpack("<Q", data[:8])[0]
    outer = json.loads(data[8 : 8 + length])
    coder = zlib.decompressobj(-15)
    index = json.loads(coder.decompress(data[8 + length + START :]))
    return json.loads(outer["__metadata__"]["regrow"])[1:], index, coder.unused_data


def deflated(data: bytes) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return coder.compress(data) + coder.flush()


def write(path: Path, words: Any, index: Any, codes: bytes) -> None:
    """A packed file with a right checksum, whatever it says."""
    path.write_bytes(seal(words, deflated(json.dumps(index).encode()) + codes))


def refusal(path: Path, memory: int = 16 * MEBIBYTE) -> str:
    """What `load` says about a file that it must refuse, without taking memory for it."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as refused:
            files.load(path)
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()
    assert str(path) in str(refused.value)
    return str(refused.value)


def test_a_file_cut_at_any_length_is_refused(tmp_path):
    whole = packed()
    path = tmp_path / "cut.regrow"

    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"cut\.regrow"):
            files.load(path)


@given(position=st.integers(0), bit=st.integers(0, 7))
@settings(max_examples=400, deadline=None)
def test_a_flipped_bit_never_changes_a_tensor(position, bit, tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "x.regrow"
    path.write_bytes(packed())
    expected = files.load(path)
    data = bytearray(packed())
    data[position % len(data)] ^= 1 << bit
    path.write_bytes(data)

    try:
        loaded = files.load(path)
    except FormatError:
        return
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


numbers = st.one_of(st.integers(-3, 300), st.sampled_from([2**31, 2**40, 2**63, 10**30, -(2**63)]))
values = st.recursive(
    st.one_of(
        numbers,
        st.none(),
        st.booleans(),
        st.floats(),
        st.text(max_size=3),
        st.sampled_from(["float16", "float32 as int8"]),
    ),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


def shapes(index: list[Any]) -> list[list[int]]:
    return [shape for _, _, shape in index[0]]


@given(data=st.data(), dtype=st.sampled_from(["fp32", "fp16", "int8"]))
@settings(max_examples=300, deadline=None)
def test_a_forged_index_is_refused_or_gives_the_shapes_in_it(data, dtype, tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "x.regrow"
    words, index, codes = opened(packed(dtype))
    place = index
    field = data.draw(st.integers(0, len(place) - 1))
    while isinstance(place[field], list) and place[field] and data.draw(st.booleans()):
        place = place[field]
        field = data.draw(st.integers(0, len(place) - 1))
    place[field] = data.draw(numbers if type(place[field]) is int else values)
    write(path, words, index, codes)

    try:
        loaded = files.load(path)
    except FormatError:
        return
    assert [list(tensor.shape) for tensor in loaded.values()] == shapes(index)


@given(codes=st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_bytes_in_place_of_the_codes_are_refused_or_decoded_to_the_shapes(codes, tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "x.regrow"
    words, index, _ = opened(packed())
    write(path, words, index, codes)

    try:
        loaded = files.load(path)
    except FormatError:
        return
    assert [list(tensor.shape) for tensor in loaded.values()] == shapes(index)


def test_a_small_file_that_claims_a_terabyte_is_refused_before_allocation(tmp_path):
    path = tmp_path / "x.regrow"
    index = [[["w", "float32", [10**6, 10**6]]], [0], [0], [0], [0]]
    write(path, ["fp32"], index, deflated(b"") + deflated(b""))

    assert "its tensors would take 4,000,000,000,000 bytes" in refusal(path)


def test_an_empty_tensor_of_impossible_sizes_is_refused(tmp_path):
    path = tmp_path / "x.regrow"
    index = [[["w", "int64", [0, 2**47, 2**47]]], [0], [0], [0], [0]]
    write(path, ["fp32"], index, deflated(b"") + deflated(b""))

    assert "no tensor has the shape" in refusal(path)


@pytest.mark.parametrize("save", [files.save, save_model])
def test_the_bound_on_memory_can_be_chosen(save, tmp_path):
    save({"w": torch.zeros(1000, 999), "b": torch.zeros(1000)}, tmp_path / "x.regrow")

    assert files.load(tmp_path / "x.regrow", max_bytes=4_000_000)["w"].shape == (1000, 999)
    with pytest.raises(FormatError, match="pass max_bytes=4000000"):
        files.load(tmp_path / "x.regrow", max_bytes=3_999_999)


@cache
def bomb() -> bytes:
    return deflated(b" " * (256 << 20))


@pytest.mark.parametrize("place", ["index", "codes"])
def test_a_deflate_bomb_is_refused_before_it_is_inflated(place, tmp_path):
    path = tmp_path / "x.regrow"
    words, index, _ = opened(packed())
    before = b"" if place == "index" else deflated(json.dumps(index).encode())
    path.write_bytes(seal(words, before + bomb()))

    assert f"its {place} cannot be read: a deflate stream is longer than" in refusal(path, 64 * MEBIBYTE)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet999999998", {}, "more layers than"),
        ("resnet8", {"width": 2**62}, "cannot be built"),
        ("resnet8", {"width": "wide"}, "cannot be built"),
        ("resnet8", {"wings": 2}, "no option 'wings'"),
        ("os.system", {}, "unknown network"),
        ("resnet14", {}, "is missing"),
        ("resnet8", {"width": 8}, "instead of"),
    ],
)
@pytest.mark.parametrize("kind", ["packed", "plain"])
def test_an_architecture_that_does_not_match_the_tensors_is_refused(name, options, message, kind, tmp_path):
    model = pruned("resnet8", 0.9)
    architecture = {"name": name, "options": options}
    path = tmp_path / "x.regrow"
    if kind == "packed":
        files.save(model.state_dict(), path)
        words, index, codes = opened(path.read_bytes())
        write(path, [*words, name, options], index, codes)
    else:
        state = {key: value.numpy() for key, value in model.state_dict().items()}
        path.write_bytes(save_safetensors(state, {"architecture": json.dumps(architecture)}))

    assert message in refusal(path)


def test_a_short_file_that_names_a_very_deep_network_is_refused_before_it_is_built(tmp_path):
    path = tmp_path / "x.regrow"
    write(path, ["fp32", "resnet100004", {}], ["00000000", [0] * 200_000], b"")

    assert "resnet100004 has more layers than" in refusal(path)


@pytest.mark.parametrize("architecture", ["", "[]", "{}", '{"name": 1, "options": {}}', "[" * 100_000])
def test_a_plain_file_with_a_broken_architecture_is_refused(architecture, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(save_safetensors({"w": np.zeros(3)}, {"architecture": architecture}))

    refusal(path)


@pytest.mark.parametrize(("said", "version"), [('{"version": 1, "dtype": "fp32"}', 1), ('[3, "fp32"]', 3)])
def test_the_error_for_another_version_says_what_to_do(said, version, tmp_path):
    path = tmp_path / "x.regrow"
    path.write_bytes(save_safetensors({"regrow.packed": np.zeros(3, np.uint8)}, {"regrow": said}))

    assert f"has version {version} of the packed format; this regrow reads version 2. Load it with" in refusal(path)


@pytest.mark.parametrize("name", ["regrow.index", "regrow.packed"])
def test_a_file_without_its_bytes_is_refused(name, tmp_path):
    path = tmp_path / "x.regrow"
    path.write_bytes(save_safetensors({name: np.zeros(3, np.int8)}, {"regrow": '[2, "fp32"]'}))

    assert "must hold the byte tensor regrow.packed of a packed file, and nothing else" in refusal(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "its header is [] instead of a dtype (fp32, fp16, bf16, int8) and maybe a network"),
        ([["fp32"]], "its header is [['fp32']] instead of a dtype"),
        (["fp8", "resnet8", {}], "its header is ['fp8', 'resnet8', {}] instead of a dtype"),
        (["fp32", "resnet8"], "its header is ['fp32', 'resnet8'] instead of a dtype"),
        (["fp32"], "it neither lists its tensors nor names a network that defines them"),
        (["fp32", 8, {}], "its architecture is not of the form"),
        (["fp32", "resnet8", {"width": 8}], "names has other tensors than it was saved with"),
    ],
)
def test_a_header_that_does_not_match_the_file_is_refused(words, message, tmp_path):
    path = tmp_path / "x.regrow"
    files.save(pruned("resnet8", 0.9), path)
    _, index, codes = opened(path.read_bytes())
    write(path, words, index, codes)

    assert message in refusal(path)


def test_a_packed_file_without_its_header_is_refused_as_a_plain_file(tmp_path):
    path = tmp_path / "x.regrow"
    damaged = packed().replace(b'"regrow":"[', b'"retrow":"[')
    for data in (damaged, damaged.replace(b"regrow.packed", b"regrow_packed")):
        path.write_bytes(data)
        assert "it is a packed file, maybe a damaged one" in refusal(path)


def test_a_tensor_named_twice_is_refused(tmp_path):
    files.save({"a": torch.ones(3), "b": torch.ones(3)}, tmp_path / "x.regrow")
    words, index, codes = opened((tmp_path / "x.regrow").read_bytes())
    index[0][1][0] = "a"
    write(tmp_path / "x.regrow", words, index, codes)

    assert "names a tensor twice" in refusal(tmp_path / "x.regrow")


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("trap-was-sprung"),))


def test_a_pickle_is_refused_and_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, write_pickle in (
        ("a.regrow", lambda f: pickle.dump(_Trap(), f)),
        ("b.pt", lambda f: torch.save(_Trap(), f)),
    ):
        with (tmp_path / name).open("wb") as file:
            write_pickle(file)
        assert "not a safetensors file" in refusal(tmp_path / name)

    assert not (tmp_path / "trap-was-sprung").exists()


def test_the_error_for_a_file_of_torch_save_says_what_to_do(tmp_path):
    torch.save({"weight": torch.zeros(3)}, tmp_path / "model.pt")
    assert "torch.load(path, weights_only=True)" in refusal(tmp_path / "model.pt")
    (tmp_path / "noise.pt").write_bytes(b"noise")
    assert "torch.load" not in refusal(tmp_path / "noise.pt")


def test_a_damaged_run_folder_is_refused_by_the_name_of_its_file(tmp_path):
    save_model(pruned("resnet8", 0.9), tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-1])

    with pytest.raises(FormatError, match=r"model\.safetensors is not a safetensors file, or a damaged one"):
        files.load(tmp_path)
