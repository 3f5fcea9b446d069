"""The non-zero weights of a layer in the order in which the kernels read them, as fp32, fp16 or int8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from regrow.engine.codegen.structs import AT_ONCE, ENTRIES
from regrow.engine.frontend.graph import WeightedNode
from regrow.engine.plan.layout import PlaneLayout

Format = Literal["fp32", "fp16", "int8"]
"""How weights are stored: as float32, as float16, or as int8 with one scale per output channel (its largest / 127)."""

BITS: dict[Format, int] = {"fp32": 32, "fp16": 16, "int8": 8}
"""WEIGHT_BITS of the kernels."""

CHANNEL_COST = 4
"""Fixed cost of an output channel, counted in weights; used to balance threads."""

FARTHEST = {"fp32": 2**32 - 1, "fp16": 2**16 - 1, "int8": 2**16 - 1}
"""Largest offset that each format can express."""

DENSE_FROM = 0.3
"""Density from which a linear layer is stored with its zeros: half the bytes, and no gather."""


def channel_scales(weight: torch.Tensor) -> torch.Tensor:
    """Return the value of one int8 step for each output channel."""
    largest = weight.abs().flatten(1).amax(1)
    return torch.where(largest > 0, largest / 127, torch.ones_like(largest))


def rounded(weight: torch.Tensor, kind: Format) -> torch.Tensor:
    """Round weights to the values that a format can express."""
    if kind == "fp32":
        return weight
    if kind == "fp16":
        return weight.half().to(weight.dtype)
    scales = channel_scales(weight).reshape(-1, *(1 for _ in weight.shape[1:]))
    return torch.round(weight / scales) * scales


def stored_values(weight: torch.Tensor, kind: Format) -> NDArray[Any]:
    """Return the numbers that are stored for the weights."""
    if kind == "int8":
        scales = channel_scales(weight).reshape(-1, *(1 for _ in weight.shape[1:]))
        return torch.round(weight / scales).to(torch.int8).numpy()
    return weight.detach().numpy().astype(np.float32 if kind == "fp32" else np.float16)


def _entries(count: int, kind: Format) -> NDArray[np.void]:
    """Return an array of `struct entry`."""
    return np.zeros(count, np.dtype(ENTRIES[BITS[kind]]))


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    """Return half-precision values as the integers that `struct entry` holds."""
    return values.view(np.uint16) if values.dtype == np.float16 else values


@dataclass(frozen=True)
class ConvNonZeros:
    """Non-zero weights by output channel: the input channel that each reads, the position in it, and the value.

    Positions are in vectors from the corner of the window; `pitch` is the distance between input channels.
    """

    channel: NDArray[np.int64]
    source: NDArray[np.int64]
    within: NDArray[np.int64]
    value: NDArray[Any]
    outputs: int
    inputs: int
    pitch: int


def non_zeros(
    given: torch.Tensor, groups: int, dilation: tuple[int, int], x: PlaneLayout, kind: Format = "fp32"
) -> ConvNonZeros:
    """Return the non-zero weights of a convolution whose input has layout `x`."""
    weight = stored_values(given, kind)
    channel, source, row, col = np.nonzero(weight)
    value = weight[channel, source, row, col]
    group = channel // (weight.shape[0] // groups)
    source = group * weight.shape[1] + source
    within = row * dilation[0] * x.row_pitch + col * dilation[1]
    return ConvNonZeros(channel, source, within, value, weight.shape[0], groups * weight.shape[1], x.pitch)


@dataclass(frozen=True)
class SparseWeights:
    """The arrays of `struct conv` with its weights, in the order in which the kernel reads them."""

    entries: NDArray[np.void]
    starts: NDArray[np.int32]
    bases: NDArray[np.int32]
    order: NDArray[np.int32]
    parts: NDArray[np.int32]
    groups: int


def sparse_weights(
    weights: ConvNonZeros, kind: Format, unit: int, *, group_size: int, blocks: int, parts: int = 1
) -> SparseWeights:
    """Order weights for groups of `group_size` output channels and `blocks` blocks of input channels.

    Groups of one keep the order of the channels. In larger groups, each block puts channels with similar numbers of
    weights side by side; shorter ones are padded with zeros. Every second group is stored backwards, because the pixels
    that the group before it read last are still in the cache. Offsets are in vectors from the start of the block,
    times `unit`. In fp32, the weights of a group are stored in fours as far as possible.

    Example: three channels with 1, 3 and 2 weights, `group_size=2`, one block. Sorted by length the order is 1, 2, 0;
    the last group is padded with its last channel. Group 0 takes channels 1 and 2, three steps of two weights (one of
    them a zero); group 1 takes channel 0 twice, one step. So `order` is [1, 2, 0, 0] and `starts` [0, 3, 4].
    """
    block_of = weights.source * blocks // max(1, weights.inputs)
    bases = -(-np.arange(blocks) * weights.inputs // blocks) * weights.pitch
    run = block_of * weights.outputs + weights.channel
    counts = np.bincount(run, minlength=blocks * weights.outputs).reshape(blocks, weights.outputs)
    part_of = _divide(counts.sum(0), parts)
    order, first_groups = _orders(counts, part_of, group_size, parts)
    groups = int(first_groups[-1])

    sizes = np.take_along_axis(counts, order, 1)
    lengths = sizes.reshape(blocks, groups, group_size).max(2)
    starts = np.concatenate([[0], np.cumsum(lengths)])

    # The weights of a channel in a block are a run. A weight's position follows from the slot of its run (group and
    # member), and from its rank in the run.
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.T.reshape(-1))])
    block, slot = np.divmod(np.arange(order.size), groups * group_size)
    size = sizes.reshape(-1)
    rank = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
    # Weights are sorted by channel and input channel, so runs follow each other.
    start = first[order.reshape(-1) * blocks + block]
    group = slot // group_size
    source = np.repeat(start, size) + np.where(np.repeat(group % 2 == 1, size), np.repeat(size, size) - 1 - rank, rank)
    position = (np.repeat(starts[block * groups + group], size) + rank) * group_size + np.repeat(
        slot % group_size, size
    )
    entries = _entries(int(starts[-1]) * group_size, kind)
    offset = weights.source * weights.pitch + weights.within - bases[block_of]
    entries["offset"][position] = offset[source] * unit
    entries["value"][position] = _bits(weights.value[source])

    if kind == "fp32":
        _put_in_fours(entries, starts[:-1], lengths.reshape(-1) // AT_ONCE, group_size)
    return SparseWeights(
        entries, starts.astype(np.int32), bases.astype(np.int32), order.astype(np.int32), first_groups, groups
    )


def linear_weights(node: WeightedNode, kind: Format, lanes: int) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
    """Return the weights of a linear layer, output by output, and where those of each output start.

    If few of them are zero, return all, for vectors of outputs, and None.
    """
    weight = stored_values(node.weight, kind)
    outputs, inputs = weight.shape
    if np.count_nonzero(weight) >= DENSE_FROM * weight.size:
        vectors = np.zeros((-(-outputs // lanes), inputs, lanes), weight.dtype)
        vectors.transpose(0, 2, 1)[np.divmod(np.arange(outputs), lanes)] = weight
        return vectors, None
    if inputs > FARTHEST[kind]:
        raise ValueError(f"{node.name}: {inputs} inputs are too many for 16-bit offsets")
    row, column = np.nonzero(weight)
    entries = _entries(len(row), kind)
    entries["offset"] = column * (4 if kind == "fp32" else 1)
    entries["value"] = _bits(weight[row, column])
    return entries, np.searchsorted(row, np.arange(outputs + 1)).astype(np.int32)


def _put_in_fours(
    entries: NDArray[np.void], starts: NDArray[np.int64], fours: NDArray[np.int64], group_size: int
) -> None:
    """Store `fours[g]` times four weights of every member of group g as four offsets, then four values."""
    number = np.arange(int(fours.sum())) - np.repeat(np.cumsum(fours) - fours, fours)
    first = (np.repeat(starts, fours) + AT_ONCE * number) * group_size
    place = first[:, None] + np.arange(AT_ONCE * group_size)
    words = entries.view("<u4").reshape(-1, 2)
    words[place] = words[place].reshape(-1, AT_ONCE, group_size, 2).transpose(0, 2, 3, 1).reshape(*place.shape, 2)


def _divide(counts: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """Assign channels to threads, in their order, so that all have about the same work."""
    work = counts + CHANNEL_COST
    middle = np.cumsum(work) - work / 2
    part_of: NDArray[np.int64] = np.floor(middle * parts / work.sum()).astype(np.int64)
    return part_of


def _orders(
    counts: NDArray[np.int64], part_of: NDArray[np.int64], group_size: int, parts: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return, for each block, the channels in kernel order, thread by thread.

    The last group of a thread is padded with its last channel, which is then computed and written twice.
    """
    sizes = np.bincount(part_of, minlength=parts)
    first_groups = np.concatenate([[0], np.cumsum(-(-sizes // group_size))])
    order = np.zeros((len(counts), first_groups[-1] * group_size), np.int64)
    for block, block_counts in enumerate(counts):
        for part in range(parts):
            own = np.flatnonzero(part_of == part)
            if group_size > 1:
                own = own[np.argsort(-block_counts[own], kind="stable")]
            start, end = first_groups[part] * group_size, first_groups[part + 1] * group_size
            order[block, start:end] = np.pad(own, (0, end - start - len(own)), mode="edge") if len(own) else 0
    return order, first_groups.astype(np.int32)
