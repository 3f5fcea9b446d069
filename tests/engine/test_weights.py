"""The order in which the kernels read the weights of a layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from regrow.engine.frontend.graph import Value
from regrow.engine.ops.linear import Linear
from regrow.engine.plan.memory import ALIGNMENT, Constants
from regrow.engine.plan.weights import (
    AT_ONCE,
    DENSE_FROM,
    ConvNonZeros,
    Format,
    SparseWeights,
    linear_weights,
    sparse_weights,
)

PITCH = 7


def some_weights(seed: int, outputs: int, inputs: int, density: float) -> ConvNonZeros:
    generator = np.random.default_rng(seed)
    channel, source, within = np.nonzero(generator.random((outputs, inputs, 3)) < density)
    value = generator.integers(1, 100, len(channel)).astype(np.float32)
    return ConvNonZeros(channel, source, within, value, outputs, inputs, PITCH)


def stored(weights: ConvNonZeros, kind: Format) -> ConvNonZeros:
    types = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8}
    return replace(weights, value=weights.value.astype(types[kind]))


def read(walked: SparseWeights, kind: Format, group_size: int, blocks: int) -> Counter[tuple[int, int, float]]:
    """What the kernel reads: (output channel, offset from the first input channel, value), zeros left out."""
    found: Counter[tuple[int, int, float]] = Counter()
    words = walked.entries.view("<u4") if kind == "fp32" else None
    values = walked.entries["value"].view(np.float16) if kind == "fp16" else walked.entries["value"]
    for number in range(blocks * walked.groups):
        block, group = divmod(number, walked.groups)
        first, end = (int(start) * group_size for start in walked.starts[number : number + 2])
        step = AT_ONCE * group_size
        fours = first + (end - first) // step * step if kind == "fp32" else first
        for member in range(group_size):
            pairs = [(walked.entries["offset"][i], values[i]) for i in range(fours, end)[member::group_size]]
            for four in range(first, fours, step):
                assert words is not None
                at = 2 * (four + AT_ONCE * member)
                pairs += zip(words[at : at + 4], words.view("<f4")[at + 4 : at + 8], strict=True)
            channel = int(walked.order[block, group * group_size + member])
            found.update((channel, int(walked.bases[block] + o), float(v)) for o, v in pairs if v != 0)
    return found


@given(
    seed=st.integers(0, 1000),
    outputs=st.integers(1, 9),
    inputs=st.integers(1, 9),
    density=st.floats(0, 1),
    group_size=st.sampled_from([1, 2, 4]),
    blocks=st.integers(1, 3),
    parts=st.integers(1, 3),
    kind=st.sampled_from(["fp32", "fp16", "int8"]),
)
def test_every_weight_is_read_once(
    seed: int, outputs: int, inputs: int, density: float, group_size: int, blocks: int, parts: int, kind: Format
) -> None:
    weights = some_weights(seed, outputs, inputs, density)
    blocks = min(blocks, inputs)
    walked = sparse_weights(stored(weights, kind), kind, 1, group_size=group_size, blocks=blocks, parts=parts)
    expected = Counter(
        zip(
            weights.channel.tolist(),
            (weights.source * PITCH + weights.within).tolist(),
            weights.value.tolist(),
            strict=True,
        )
    )
    found = read(walked, kind, group_size, blocks)
    # A group that is padded with its last channel computes it twice.
    assert found.keys() == expected.keys()
    assert group_size > 1 or found == expected


@pytest.mark.parametrize("count", range(9))
def test_any_number_of_weights_is_stored_without_padding(count: int) -> None:
    channel, value = np.zeros(count, np.int64), np.ones(count, np.float32)
    walked = sparse_weights(
        ConvNonZeros(channel, np.arange(count), channel, value, 1, 9, PITCH), "fp32", 1, group_size=1, blocks=1
    )
    assert walked.starts.tolist() == [0, count]
    assert len(walked.entries) == count


def read_matrix(weights: NDArray, starts: NDArray[np.int32] | None, shape: tuple[int, int]) -> NDArray[np.float32]:
    """What the kernel reads."""
    outputs, inputs = shape
    if starts is None:
        return weights.transpose(0, 2, 1).reshape(-1, inputs)[:outputs]
    found = np.zeros(shape, np.float32)
    for output, (first, end) in enumerate(pairwise(starts)):
        own = weights[first:end]
        found[output, own["offset"] // 4] = own["value"]
    return found


@given(
    seed=st.integers(0, 1000),
    outputs=st.integers(1, 20),
    inputs=st.integers(1, 9),
    density=st.floats(0, 1),
    lanes=st.sampled_from([4, 8, 16]),
)
def test_a_linear_layer_is_stored_with_its_zeros_if_they_are_few(
    seed: int, outputs: int, inputs: int, density: float, lanes: int
) -> None:
    generator = np.random.default_rng(seed)
    weight = generator.standard_normal((outputs, inputs)) * (generator.random((outputs, inputs)) < density)
    node = Linear("y", Value("y", (outputs,)), Value("x", (inputs,)), torch.from_numpy(weight), torch.zeros(outputs))
    weights, starts = linear_weights(node, "fp32", lanes)
    assert (starts is None) == (np.count_nonzero(weight) >= DENSE_FROM * weight.size)
    np.testing.assert_array_equal(read_matrix(weights, starts, weight.shape), weight.astype(np.float32))


@given(st.lists(st.lists(st.integers(0, 1), max_size=40), max_size=12))
def test_equal_constants_are_stored_once(pieces: list[list[int]]) -> None:
    constants = Constants()
    arrays = [np.array(piece, np.int32) for piece in pieces]
    offsets = [constants.put(array) for array in arrays]
    joined = constants.joined()
    for array, offset in zip(arrays, offsets, strict=True):
        assert joined[offset : offset + array.nbytes].tobytes() == array.tobytes()
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    different = {array.tobytes() for array in arrays}
    assert joined.nbytes == max(ALIGNMENT, sum(-(-len(data) // ALIGNMENT) * ALIGNMENT for data in different))
    assert joined.ctypes.data % ALIGNMENT == 0
