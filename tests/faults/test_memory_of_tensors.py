"""Tensors without memory behind them, and views that torch computes later: an error or the right output, no crash."""

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import regrow

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
NO_VALUES = "expected a tensor with values in memory"


def convolution():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).eval()


@pytest.fixture(scope="module", params=["native", "torch"])
def compiled(request, tmp_path_factory):
    if request.param == "native":
        return regrow.compile(convolution(), X, tune=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", "no-such-compiler")
        patch.setenv("REGROW_CACHE", str(tmp_path_factory.mktemp("empty")))
        with pytest.warns(RuntimeWarning, match="needs a C compiler"):
            return regrow.compile(convolution(), X, tune=False)


def with_storage_of(x, size):
    x.untyped_storage().resize_(size)
    return x


@pytest.mark.parametrize("size", [0, 8, X.nbytes - 1])
def test_a_batch_whose_storage_is_freed_or_cut_is_refused(compiled, size):
    for x in (X.clone(), X.half(), X.clone().requires_grad_().detach()):
        with pytest.raises(ValueError, match=NO_VALUES):
            compiled(with_storage_of(x, size if x.dtype is torch.float32 else size // 2))


def test_a_strided_batch_whose_storage_is_freed_or_cut_is_refused(compiled):
    for size in (0, X.nbytes - 1):
        with pytest.raises(ValueError, match=NO_VALUES):
            compiled(with_storage_of(X.clone(memory_format=torch.channels_last), size))
    with pytest.raises(ValueError, match=NO_VALUES):
        compiled(with_storage_of(torch.zeros(4, 3, 8, 8)[2:].detach(), X.nbytes))


def test_fake_tensors_are_refused(compiled):
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with pytest.raises(ValueError, match=f"{NO_VALUES}, got a FakeTensor"):
        compiled(mode.from_tensor(X))
    for x in (X, mode.from_tensor(X)):
        with mode, pytest.raises(ValueError, match=NO_VALUES):
            compiled(x)


@pytest.mark.parametrize("transform", ["functionalize", "vmap", "grad"])
def test_functions_of_torch_func_are_refused(compiled, transform):
    call = {
        "functionalize": lambda: torch.func.functionalize(compiled)(X),
        "vmap": lambda: torch.func.vmap(compiled)(X[None]),
        "grad": lambda: torch.func.grad(lambda x: compiled(x).sum())(X),
    }[transform]
    with pytest.raises(ValueError, match=r"cannot be traced or called inside .* torch\.func"):
        call()


def test_negative_views_give_the_output_of_their_values(compiled):
    with torch.no_grad():
        expected = convolution()(-X)
    for view in (torch._neg_view(X), torch.complex(X, X).conj().imag):
        assert view.is_neg()
        torch.testing.assert_close(compiled(view), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_batches_that_are_not_dense_real_numbers_are_refused(compiled):
    for x in (torch.complex(X, X), torch.complex(X, X).conj(), X.to_sparse(), X.to_mkldnn()):
        with pytest.raises(
            TypeError, match=r"expected a dense tensor of real numbers, got torch\.(complex64|float32) in"
        ):
            compiled(x)
    with pytest.raises(TypeError, match="expected real numbers, got an array of complex128"):
        compiled(X.numpy().astype(np.complex128))


def test_an_example_without_values_is_refused():
    for example in (FakeTensorMode().from_tensor(X), with_storage_of(X.clone(), 0)):
        with pytest.raises(ValueError, match="example_input has no values in memory"):
            regrow.compile(convolution(), example, tune=False)


@pytest.mark.parametrize("use", [regrow.compile, regrow.shrink], ids=["compile", "shrink"])
def test_weights_without_values_are_refused(use):
    freed = convolution()
    with_storage_of(freed[0].weight, 0)
    with FakeTensorMode():
        fake = nn.Sequential(nn.Conv2d(3, 4, 3))
    for model in (freed, fake):
        with pytest.raises(ValueError, match=r"0\.weight has no values in memory"):
            use(model, X)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
def test_an_example_of_indices_is_refused_by_its_type(dtype):
    with pytest.raises(TypeError, match=f"example_input must be floating point, got {dtype}.*tokens"):
        regrow.compile(nn.Embedding(4, 4), torch.ones(2, 3, dtype=dtype), tune=False)


def test_the_module_that_looks_indices_up_is_named_with_another_way() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(TypeError, match=r"such as tokens, which 0 \(Embedding\) looks up\. .*regrow\.export\.onnx"):
        regrow.compile(model, torch.zeros(1, 3, dtype=torch.long))
