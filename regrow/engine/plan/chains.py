"""Finds convolutions that run band by band together, so that large images don't leave the cache between them.

A chain is a convolution of any kind and the 1 x 1 convolutions after it: these need no pixels but those that were just
written. In a ResNet that is the 3 x 3 convolution of a bottleneck, the wide layer after it, and the narrow one of the
next bottleneck. The wide image then is read and written once, not three times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from regrow.engine.frontend.graph import Conv
from regrow.engine.plan.steps import Buffer, ConvStep, Step

WORTH_IT = 4 << 20
"""Bytes that a chain reads and writes from which it is far from fitting the second-level cache."""

BAND = 1 << 20
"""Bytes of these for one band, at most."""


def chained(steps: Iterable[Step], lanes: int) -> tuple[Step, ...]:
    """The steps, with those marked that run band by band."""
    result: list[Step] = []
    for chain in _chains(steps):
        band = _band(chain, lanes)
        for number, step in enumerate(chain):
            if band and isinstance(step, ConvStep):
                step = replace(step, band=band, followers=0 if number else len(chain) - 1)
            result.append(step)
    return tuple(result)


def _chains(steps: Iterable[Step]) -> Iterator[list[Step]]:
    chain: list[Step] = []
    for step in steps:
        if chain and not _follows(step, chain[0]):
            yield chain
            chain = []
        chain.append(step)
    if chain:
        yield chain


def _follows(step: Step, first: Step) -> bool:
    """True if `step` needs no rows of what the chain writes but those that it computes itself."""
    if not isinstance(step, ConvStep) or not isinstance(first, ConvStep) or not isinstance(step.node, Conv):
        return False
    planes, others = step.writes[0].planes, first.writes[0].planes
    same = planes is not None and others is not None and planes.grid == others.grid
    return same and step.node.kernel == (1, 1) and step.node.padding == (0, 0)


def _band(chain: list[Step], lanes: int) -> int:
    """How many rows make a band; 0 if the chain is better run step by step."""
    planes = chain[0].writes[0].planes
    if len(chain) == 1 or planes is None:
        return 0
    touched: set[Buffer] = {buffer.whole for step in chain for buffer in (*step.reads, *step.writes)}
    size = sum(4 * lanes * b.channels * b.planes.pitch for b in touched if b.planes is not None)
    if size < WORTH_IT:
        return 0
    return max(1, planes.grid.rows * BAND // size)
