"""Export to ONNX files with any batch size, compared with torch before they are written."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from regrow.core.modules import TOLERANCE, any_batch, disagreement, exact_outputs, exportable, unwrap
from regrow.core.pruner import warn_if_unfinished
from regrow.system import write_atomically
from regrow.text import install_hint

_INDEX_BYTES = 8


def onnx(
    model: nn.Module,
    example_input: Tensor | tuple[Tensor, ...],
    path: str | Path,
    *,
    sparse: bool = False,
    check: bool = True,
) -> None:
    """Write `model` in evaluation mode as an ONNX file that accepts any batch size (the first dimension).

    The file is written only if it is valid ONNX. With `check`, it must also agree with torch (see `TOLERANCE`) in ONNX
    Runtime, at three batch sizes. With `sparse`, weights with enough zeros (two thirds for fp32) become sparse
    initializers: 12 bytes per non-zero instead of 4 per element. ONNX Runtime makes them dense when it loads the
    file, so this saves space, not time; a runtime that supports only dense initializers refuses the file.
    """
    warn_if_unfinished(model)
    network, inputs = exportable(model, example_input)
    network, inputs = network.cpu(), tuple(value.cpu() for value in inputs)
    try:
        proto = _export(network, inputs)
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # its exceptions have no common class
        raise RuntimeError(f"torch.onnx cannot export the model: {_reason(error)}.{_hint(model)}") from error
    if sparse:
        _make_sparse(proto)
    data: bytes = proto.SerializeToString()
    (checker,) = _needed("onnx.checker")
    checker.check_model(data)
    if check:
        _compare(network, inputs, data)
    write_atomically(path, data)


def _reason(error: BaseException) -> str:
    """Return the first line of the original error, which torch wraps in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first[:300]}".rstrip(". ")


def _hint(model: nn.Module) -> str:
    """Return advice for decoders of transformers, whose outputs hold a cache that ONNX has no type for."""
    config = getattr(unwrap(model), "config", None)
    return " Its outputs hold a cache: set model.config.use_cache = False." if getattr(config, "use_cache", 0) else ""


def _export(network: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
    _needed("onnx", "onnxscript")
    with _quietly(), torch.no_grad():
        program = torch.onnx.export(
            network,
            inputs,
            dynamo=True,
            dynamic_shapes=any_batch(inputs),
            verbose=False,
        )
    if program is None:
        raise RuntimeError("torch.onnx.export returned nothing.")
    return program.model_proto


def _make_sparse(proto: Any) -> None:
    """Store each weight as sparse or dense, whichever is smaller; keep other initializers dense."""
    package, helper = _needed("onnx", "onnx.numpy_helper")
    dense = []
    for initializer in proto.graph.initializer:
        array = helper.to_array(initializer)
        positions = np.flatnonzero(array)
        is_weight = array.ndim >= 2 and np.issubdtype(array.dtype, np.floating)
        if not is_weight or array.nbytes <= len(positions) * (array.itemsize + _INDEX_BYTES):
            dense.append(initializer)
            continue
        values = helper.from_array(array.reshape(-1)[positions], initializer.name)
        indices = helper.from_array(positions.astype(np.int64))
        sparse = package.SparseTensorProto(dims=array.shape, values=values, indices=indices)
        proto.graph.sparse_initializer.append(sparse)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(dense)


def _compare(network: nn.Module, inputs: tuple[Tensor, ...], data: bytes) -> None:
    """Compare torch and ONNX Runtime on the example, on its first element, and on a batch that is larger by one."""
    (runtime,) = _needed("onnxruntime")
    try:
        session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common class
        kinds = {str(value.dtype) for value in network.parameters() if value.is_floating_point()} - {"torch.float32"}
        hint = f" It lacks some operations in {', '.join(sorted(kinds))}: export model.float()." if kinds else ""
        reason = str(error).partition("\n")[0]
        raise RuntimeError(f"ONNX Runtime cannot run the model ({reason}): the file was not written.{hint}") from error
    names = [value.name for value in session.get_inputs()]
    for size in (len(inputs[0]), 1, len(inputs[0]) + 1):
        batch = [torch.cat([value, value])[:size] for value in inputs]
        results = session.run(None, {name: value.numpy() for name, value in zip(names, batch, strict=True)})
        exact = cache(partial(exact_outputs, network, tuple(value.clone() for value in batch)))
        with torch.no_grad():
            expected = network(*batch)  # last, because it may change its input in place
        for number, (result, output) in enumerate(zip(results, pytree.tree_leaves(expected), strict=True)):
            _agree(torch.from_numpy(result), output, partial(_part, exact, number), size)


def _part(outputs: Callable[[], dict[int, Any]], number: int) -> Any:
    return outputs().get(number)


def _agree(result: Tensor, expected: Tensor, exact: Callable[[], Any], size: int) -> None:
    if (found := disagreement(result, expected, exact, TOLERANCE)) is not None:
        raise RuntimeError(
            f"ONNX Runtime differs from torch by {found[0]:.2g} with a batch of {size}, where {found[1]:.2g} is "
            "allowed: the file was not written. Pass check=False to write it without this check."
        )


def _needed(*modules: str) -> list[Any]:
    try:
        return [import_module(name) for name in modules]
    except ImportError as error:
        raise ImportError(f"ONNX files need {error.name}: {install_hint('export')}") from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide messages of torch's exporter about itself, such as deprecations and the missing torchvision."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
