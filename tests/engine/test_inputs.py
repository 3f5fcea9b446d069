"""Inputs from users: models and tensors of every kind, other defaults of torch, caches in any state."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import regrow
from regrow.engine.codegen import build as kernels
from regrow.engine.codegen.build import NoCompilerError, find_compiler, load_library
from regrow.engine.frontend.torch_export import UnsupportedOperationError
from regrow.engine.plan import tune
from regrow.system import write_cached

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def convolution() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).eval()


@pytest.fixture(params=[torch.float64, torch.bfloat16, "meta"], ids=str)
def other_defaults(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "meta":
        with torch.device("meta"):
            yield
        return
    torch.set_default_dtype(request.param)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("other_defaults")
def test_defaults_of_torch_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "_read", lambda *_: None)  # so that tiles are measured here and now
    with torch.device("cpu"):
        model = convolution().float()
        expected = model(X).detach()
    for tuned in (False, True):
        compiled = regrow.compile(model, X, tune=tuned)
        assert compiled.profile(repeat=2).macs
        torch.testing.assert_close(compiled(X), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_models_of_other_precisions_run_in_float32(dtype: torch.dtype) -> None:
    model = convolution().to(dtype)
    compiled = regrow.compile(model, X, tune=False)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    torch.testing.assert_close(compiled(X), convolution().to(dtype).float()(X).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [nn.ReLU(inplace=True), nn.Hardswish(inplace=True)], ids=["relu", "hardswish"])
def test_a_first_layer_that_works_in_place_leaves_the_example_alone(first: nn.Module) -> None:
    model, x = nn.Sequential(first, nn.Conv2d(3, 4, 3)).eval(), X.clone()
    compiled = regrow.compile(model, x, tune=False)
    assert torch.equal(x, X)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x.clone()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_max_pooling_keeps_nan(kernel: int) -> None:
    model = nn.MaxPool2d(kernel).eval()
    compiled = regrow.compile(model, X, tune=False)
    for row in range(kernel):
        for col in range(kernel):
            x = X.clone()
            x[0, 0, row, col] = torch.nan
            assert torch.equal(compiled(x).isnan(), model(x).isnan())


def test_wrong_types_are_named() -> None:
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got function"):
        regrow.compile(lambda x: x, X)  # type: ignore[arg-type]
    compiled = regrow.compile(convolution(), X, tune=False)
    with pytest.raises(TypeError, match="torch tensor or a numpy array, got list"):
        compiled([1, 2])  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"cannot be pickled; call regrow\.compile in the new process"):
        pickle.dumps(compiled)
    assert compiled(np.zeros((0, 3, 8, 8), np.float32)).shape == (0, 4, 8, 8)


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Rounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.div(x, 2.0, rounding_mode="floor")


class Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(x, min=self.low)


@pytest.mark.parametrize(
    ("model", "message"),
    [(Two(), "missing a required argument: 'y'"), (Rounded(), "rounding_mode"), (Bounded(), "bounds are tensors")],
    ids=["inputs", "rounding", "bounds"],
)
def test_unsupported_models_raise_an_error_with_the_reason(model: nn.Module, message: str) -> None:
    with pytest.raises(UnsupportedOperationError, match=message):
        regrow.compile(model, X)


def test_images_that_32_bits_cannot_address_are_refused() -> None:
    model = nn.Sequential(nn.Conv2d(1, 512, 1), nn.Conv2d(512, 1, 1)).eval()
    with pytest.raises(UnsupportedOperationError, match=r"0: an image of 512 x 1024 x 1024 takes 2\.\d GB"):
        regrow.compile(model, torch.zeros(1, 1, 1024, 1024), tune=False)


def test_a_compiler_may_have_arguments_or_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = find_compiler()
    monkeypatch.setenv("CC", f"{plain[0]} -pipe")
    assert find_compiler() == (plain[0], "-pipe")
    folder = tmp_path / "my tools"
    folder.mkdir()
    (folder / "gcc").symlink_to(plain[0])
    monkeypatch.setenv("CC", str(folder / "gcc"))
    assert find_compiler() == (str(folder / "gcc"),)
    monkeypatch.setenv("CC", "gcc 'unfinished")
    with pytest.raises(NoCompilerError, match="unfinished"):
        find_compiler()
    monkeypatch.setenv("CC", "no-such-compiler -pipe")
    with pytest.raises(NoCompilerError, match=r"\$CC is 'no-such-compiler -pipe', which was not found"):
        find_compiler()


def test_an_unwritable_cache_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match=r"cannot be used as a cache \(Not a directory\).*Set REGROW_CACHE"):
        assert not write_cached(tmp_path / "file" / "cache" / "tiles.json", b"{}")
    monkeypatch.setattr(kernels, "SHAPES", kernels.SHAPES[:1])
    with pytest.warns(RuntimeWarning, match="cannot be used as a cache"):
        assert load_library().peak() > 0


@pytest.mark.slow
def test_models_run_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path / "file" / "cache"))
    model = convolution()
    with pytest.warns(RuntimeWarning, match="cannot be used as a cache"):
        compiled = regrow.compile(model, X)
    assert compiled.native
    torch.testing.assert_close(compiled(X), model(X).detach(), rtol=1e-5, atol=1e-6)


def test_a_damaged_library_is_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path / "first"))
    monkeypatch.setattr(kernels, "SHAPES", kernels.SHAPES[:1])
    load_library()
    (built,) = (tmp_path / "first" / "kernels").iterdir()
    content = built.read_bytes()
    # In another cache folder, because a loaded library cannot be loaded again.
    damaged = tmp_path / "second" / "kernels" / built.name
    damaged.parent.mkdir(mode=0o755, parents=True)
    damaged.write_bytes(content[: len(content) // 2])
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path / "second"))
    assert load_library().lanes
    assert damaged.read_bytes() == content


def test_cached_kernels_need_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "SHAPES", kernels.SHAPES[:1])
    built = load_library()
    monkeypatch.setenv("CC", "no-such-compiler")
    assert load_library().key == built.key
    with pytest.raises(NoCompilerError, match="no-such-compiler"):
        load_library(lanes=4)


@pytest.mark.filterwarnings("ignore:the engine's kernels cannot be loaded from the cache")
def test_a_cache_on_a_noexec_file_system_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGROW_CACHE", str(tmp_path))
    load = kernels.ctypes.CDLL

    def refuse(path: str) -> object:
        if Path(path).resolve().is_relative_to(tmp_path):
            raise OSError(f"{path}: failed to map segment from shared object")
        return load(path)

    monkeypatch.setattr(kernels, "SHAPES", ((1, 1, 1, 1),))  # which is built sooner than all
    monkeypatch.setattr(kernels.ctypes, "CDLL", refuse)
    with pytest.warns(RuntimeWarning, match="cannot be loaded from the cache and are built again.*failed to map"):
        assert load_library().lanes
    monkeypatch.setattr(kernels.ctypes, "CDLL", lambda path: refuse(f"{tmp_path}/{path}"))
    kernels._load.cache_clear()
    with pytest.raises(NoCompilerError, match="the system cannot load the library that"):
        load_library()
