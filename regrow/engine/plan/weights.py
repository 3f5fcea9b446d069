"""Orders a layer's non-zero weights the way the kernels walk them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from regrow.engine.frontend.graph import Conv, Linear
from regrow.engine.plan.layout import Planes

Format = Literal["fp32", "fp16", "int8"]
"""How weights are stored: as they are, in half precision, or as multiples of a channel's largest / 127 in one byte."""

ENTRIES: dict[Format, np.dtype[np.void]] = {
    "fp32": np.dtype([("offset", "<u4"), ("value", "<f4")]),
    "fp16": np.dtype([("offset", "<u2"), ("value", "<f2")]),
    "int8": np.dtype([("offset", "<u2"), ("value", "i1")]),
}
"""`struct entry` of kernels.c: the offset in bytes for fp32, in vectors (or features) for the small formats."""

AT_ONCE = 4
"""How many weights in fp32 the kernels read together: `struct four`."""

AROUND = 4
"""What it takes to start and finish an output channel, in weights."""

FARTHEST = {"fp32": 2**32 - 1, "fp16": 2**16 - 1, "int8": 2**16 - 1}
"""The largest offset."""

DENSE_FROM = 0.3
"""The density from which a linear layer is stored with its zeros: half the bytes, and no gathering."""


def channel_scales(weight: torch.Tensor) -> torch.Tensor:
    """What one step of an int8 weight is worth, for each output channel."""
    largest = weight.abs().flatten(1).amax(1)
    return torch.where(largest > 0, largest / 127, torch.ones_like(largest))


def rounded(weight: torch.Tensor, kind: Format) -> torch.Tensor:
    """The weights that a format can express."""
    if kind == "fp32":
        return weight
    if kind == "fp16":
        return weight.half().to(weight.dtype)
    scales = channel_scales(weight).reshape(-1, *(1 for _ in weight.shape[1:]))
    return torch.round(weight / scales) * scales


def stored_values(weight: torch.Tensor, kind: Format) -> NDArray[Any]:
    """The numbers that are written for the weights."""
    if kind == "int8":
        scales = channel_scales(weight).reshape(-1, *(1 for _ in weight.shape[1:]))
        return torch.round(weight / scales).to(torch.int8).numpy()
    return weight.detach().numpy().astype(np.float32 if kind == "fp32" else np.float16)


@dataclass(frozen=True)
class NonZeros:
    """A weight's non-zeros by output channel: from which input channel each reads, where in it, and its value."""

    channel: NDArray[np.int64]
    source: NDArray[np.int64]
    within: NDArray[np.int64]
    value: NDArray[Any]
    outputs: int
    inputs: int
    pitch: int


def non_zeros(node: Conv, x: Planes, kind: Format = "fp32") -> NonZeros:
    """A convolution's weights as the kernels see them: vectors from the corner of the window."""
    weight = stored_values(node.weight, kind)
    channel, source, row, col = np.nonzero(weight)
    value = weight[channel, source, row, col]
    group = channel // (weight.shape[0] // node.groups)
    source = group * weight.shape[1] + source
    within = row * node.dilation[0] * x.row_pitch + col * node.dilation[1]
    return NonZeros(channel, source, within, value, weight.shape[0], node.x.channels, x.pitch)


@dataclass(frozen=True)
class Walk:
    """The arrays of `struct conv` that say what is multiplied in which order."""

    entries: NDArray[np.void]
    starts: NDArray[np.int32]
    bases: NDArray[np.int32]
    order: NDArray[np.int32]
    parts: NDArray[np.int32]
    groups: int


def walk(weights: NonZeros, kind: Format, unit: int, *, together: int, blocks: int, parts: int = 1) -> Walk:
    """Arrange weights for `together` output channels at a time and `blocks` blocks of input channels.

    Single channels keep their order. Of several, in every block those with about the same number of weights come
    together: they then end at about the same time (the shorter ones are filled up with zeros). Every second group is
    walked backwards, because the pixels that the one before it read last are still close. Offsets are counted in
    `unit`s of a vector from where the block starts. In fp32 as many of a group's weights as possible are put in fours.
    """
    block_of = weights.source * blocks // max(1, weights.inputs)
    bases = -(-np.arange(blocks) * weights.inputs // blocks) * weights.pitch
    run = block_of * weights.outputs + weights.channel
    counts = np.bincount(run, minlength=blocks * weights.outputs).reshape(blocks, weights.outputs)
    part_of = _divide(counts.sum(0), parts)
    order, first_groups = _orders(counts, part_of, together, parts)
    groups = int(first_groups[-1])

    sizes = np.take_along_axis(counts, order, 1)
    lengths = sizes.reshape(blocks, groups, together).max(2)
    starts = np.concatenate([[0], np.cumsum(lengths)])

    # A weight's place: its run's slot (group and member), and its rank in the run.
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts.T.reshape(-1))])
    block, slot = np.divmod(np.arange(order.size), groups * together)
    size = sizes.reshape(-1)
    rank = np.arange(int(size.sum())) - np.repeat(np.cumsum(size) - size, size)
    # Weights are sorted by channel and input channel: a run lies where those before it end.
    start = first[order.reshape(-1) * blocks + block]
    group = slot // together
    source = np.repeat(start, size) + np.where(np.repeat(group % 2 == 1, size), np.repeat(size, size) - 1 - rank, rank)
    position = (np.repeat(starts[block * groups + group], size) + rank) * together + np.repeat(slot % together, size)
    entries = np.zeros(int(starts[-1]) * together, ENTRIES[kind])
    offset = weights.source * weights.pitch + weights.within - bases[block_of]
    entries["offset"][position] = offset[source] * unit
    entries["value"][position] = weights.value[source]

    if kind == "fp32":
        _put_in_fours(entries, starts[:-1], lengths.reshape(-1) // AT_ONCE, together)
    return Walk(entries, starts.astype(np.int32), bases.astype(np.int32), order.astype(np.int32), first_groups, groups)


@dataclass(frozen=True)
class Matrix:
    """The weights of `struct linear`: output by output, without zeros, or all of them for a vector of outputs each."""

    weights: NDArray[Any]
    starts: NDArray[np.int32] | None


def matrix(node: Linear, kind: Format, lanes: int) -> Matrix:
    """A linear layer's weights, with their zeros if these are few."""
    weight = stored_values(node.weight, kind)
    outputs, inputs = weight.shape
    if np.count_nonzero(weight) >= DENSE_FROM * weight.size:
        vectors = np.zeros((-(-outputs // lanes), inputs, lanes), weight.dtype)
        vectors.transpose(0, 2, 1)[np.divmod(np.arange(outputs), lanes)] = weight
        return Matrix(vectors, None)
    if inputs > FARTHEST[kind]:
        raise ValueError(f"{node.name}: {inputs} inputs are too many for 16-bit offsets")
    row, column = np.nonzero(weight)
    entries = np.zeros(len(row), ENTRIES[kind])
    entries["offset"] = column * (4 if kind == "fp32" else 1)
    entries["value"] = weight[row, column]
    return Matrix(entries, np.searchsorted(row, np.arange(outputs + 1)).astype(np.int32))


def _put_in_fours(
    entries: NDArray[np.void], starts: NDArray[np.int64], fours: NDArray[np.int64], together: int
) -> None:
    """From the start of each group on, write so many times four weights of every member offsets first, then values."""
    number = np.arange(int(fours.sum())) - np.repeat(np.cumsum(fours) - fours, fours)
    first = (np.repeat(starts, fours) + AT_ONCE * number) * together
    place = first[:, None] + np.arange(AT_ONCE * together)
    words = entries.view("<u4").reshape(-1, 2)
    words[place] = words[place].reshape(-1, AT_ONCE, together, 2).transpose(0, 2, 3, 1).reshape(*place.shape, 2)


def _divide(counts: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """Divide the channels among threads, in their order, so that all get about the same work."""
    work = counts + AROUND
    middle = np.cumsum(work) - work / 2
    part_of: NDArray[np.int64] = np.floor(middle * parts / work.sum()).astype(np.int64)
    return part_of


def _orders(
    counts: NDArray[np.int64], part_of: NDArray[np.int64], together: int, parts: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """For each block the channels in walking order, part after part.

    A part's last group is filled up with its last channel: computed twice, it is written twice.
    """
    sizes = np.bincount(part_of, minlength=parts)
    first_groups = np.concatenate([[0], np.cumsum(-(-sizes // together))])
    order = np.zeros((len(counts), first_groups[-1] * together), np.int64)
    for block, block_counts in enumerate(counts):
        for part in range(parts):
            own = np.flatnonzero(part_of == part)
            if together > 1:
                own = own[np.argsort(-block_counts[own], kind="stable")]
            start, end = first_groups[part] * together, first_groups[part + 1] * together
            order[block, start:end] = np.pad(own, (0, end - start - len(own)), mode="edge") if len(own) else 0
    return order, first_groups.astype(np.int32)
