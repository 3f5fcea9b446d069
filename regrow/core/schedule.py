"""Sparsity as a function of the optimizer step, and how often masks are updated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from regrow.checks import check_steps

Schedule = Callable[[int], float]

Sparsity = float | Schedule | Mapping[str, float | Schedule]
"""A number or a schedule for all targets, or one for each pattern of their names; the first that matches decides."""

Level = float | Mapping[str, float]
"""A sparsity without a schedule: one number for all targets, or one for each pattern."""

SHORTEST_RAMP = 120 * 391
"""Optimizer steps of the shortest ramp in the paper (WideResNet on CIFAR-10): periods are scaled below it."""


@dataclass(frozen=True)
class Constant:
    """The same sparsity from the first step to the last."""

    final: float

    def __post_init__(self) -> None:
        check_sparsity(self.final)

    def __call__(self, t: int) -> float:
        """Return the sparsity at step `t`."""
        return self.final


@dataclass(frozen=True)
class Cubic:
    """The gradual ramp of Zhu & Gupta that the paper uses (Appendix A.2): s_t = s_f + (s_i − s_f)(1 − (t − t_0)/n)³.

    It starts at step `start` with `initial`, arrives at `final` at step `end` and stays there. `every` is the
    number of steps between changes: pass `len(loader)` to change it once per epoch, as the paper does.

    >>> Cubic(0.9, end=100)(50)
    0.7875
    """

    final: float
    end: int
    start: int = 0
    initial: float = 0.0
    every: int = 1

    def __post_init__(self) -> None:
        check_sparsity(self.final)
        check_sparsity(self.initial, "initial")
        check_steps("every", self.every)
        if isinstance(self.end, int | float) and 0 < self.end < 1:
            raise ValueError(
                f"end is an optimizer step, got {self.end}: pass int({self.end} * steps) for that fraction of training"
            )
        check_steps("start", self.start, least=0)
        check_steps("end", self.end, least=0)
        if not self.start < self.end:
            raise ValueError(
                f"a ramp needs 0 <= start < end (in optimizer steps), got start={self.start}, end={self.end}"
            )

    def __call__(self, t: int) -> float:
        """Return the sparsity at step `t`."""
        if t >= self.end:
            return self.final
        elapsed = max(t - self.start, 0) // self.every * self.every
        return self.final + (self.initial - self.final) * (1 - elapsed / (self.end - self.start)) ** 3


SCHEDULES: dict[str, Callable[..., Schedule]] = {"constant": lambda final, **_: Constant(final), "cubic": Cubic}
"""Schedules by name, as recipes write them: called with the final sparsity, and with `end` and `every` in steps."""


@dataclass(frozen=True)
class PerPattern:
    """A schedule for each pattern of names.

    >>> PerPattern({"layer4.*": Constant(0.95), "*": Constant(0.8)})(0)
    {'layer4.*': 0.95, '*': 0.8}
    """

    schedules: Mapping[str, Schedule]

    def __call__(self, t: int) -> dict[str, float]:
        """Return the sparsity of each pattern at step `t`."""
        return {pattern: schedule(t) for pattern, schedule in self.schedules.items()}


def as_schedule(sparsity: Sparsity) -> Schedule | PerPattern:
    """Convert a number to a constant schedule; return a schedule unchanged after checking its first value."""
    if isinstance(sparsity, Mapping):
        return PerPattern(
            {pattern: _one_schedule(each, f"sparsity[{pattern!r}]") for pattern, each in sparsity.items()}
        )
    return _one_schedule(sparsity, "sparsity")


def _one_schedule(sparsity: float | Schedule, name: str) -> Schedule:
    if callable(sparsity):
        where = "" if name == "sparsity" else f" of {name}"
        check_sparsity(sparsity(0), f"the schedule's value{where} at step 0")
        return sparsity
    check_sparsity(sparsity, name)
    return Constant(sparsity)


def ramped(sparsity: Level, ramp: Callable[[float], Schedule]) -> Sparsity:
    """Return `ramp` of a number, or of each number of a mapping; schedules in it stay."""
    if isinstance(sparsity, Mapping):
        return {pattern: each if callable(each) else ramp(each) for pattern, each in sparsity.items()}
    return ramp(sparsity)


def scaled_period(period: int, *, ramp_end: int | None, total_steps: int | None = None) -> int:
    """Return the steps between mask updates that suit the length of a training: `every="auto"`.

    A training whose ramp is as long as the paper's keeps the method's own `period`; a shorter one has
    proportionally shorter periods, so that it makes about as many updates. Without a ramp, 75 % of `total_steps`
    is used as its end; if neither is known, the method keeps its own period.

    >>> scaled_period(16, ramp_end=225 * 391), scaled_period(16, ramp_end=23_460), scaled_period(16, ramp_end=100)
    (16, 8, 1)
    """
    if ramp_end is None and total_steps is None:
        return period
    # In quarters of a step, so that 75 % of the total is a whole number and nothing is rounded twice.
    quarters = 4 * ramp_end if ramp_end is not None else 3 * (total_steps or 0)
    return max(1, period * min(quarters, 4 * SHORTEST_RAMP) // (4 * SHORTEST_RAMP))


def mask_period(
    every: int | Literal["auto"], period: int, schedules: Iterable[Schedule], total_steps: int | None
) -> int:
    """Return the steps between mask updates; "auto" scales the method's `period` to the length of the training."""
    if every == "auto":
        ends = [end for schedule in schedules if (end := getattr(schedule, "end", None)) is not None]
        return scaled_period(period, ramp_end=max(ends, default=None), total_steps=total_steps)
    check_steps("every", every)
    return every


TOO_SHORT = "End the ramp earlier, choose a smaller every, or train longer."
"""Advice for a schedule that does not reach its final sparsity."""


def shortfall(schedules: Mapping[str, Schedule], *, last: int, steps: int, every: int) -> str:
    """Return why the last mask update, after step `last`, is too early for a final sparsity; empty if it is not."""
    for pattern, schedule in schedules.items():
        final, end = getattr(schedule, "final", None), getattr(schedule, "end", None)
        if final is not None and end is not None and schedule(last) < final:
            of = f" of {pattern!r}" if len(schedules) > 1 else ""
            return (
                f"the sparsity of {final:.1%}{of} is not reached: its ramp ends at step {end}, and the last mask "
                f"update of this training ({steps:,} steps, every={every}) is after step {last}, with "
                f"{schedule(last):.1%}. {TOO_SHORT}"
            )
    return ""


def check_sparsity(value: object, name: str = "sparsity") -> None:
    """Raise unless `value` is a number in [0, 1)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number in [0, 1) or a schedule, got {value!r}")
    number = float(value)
    if not 0 <= number < 1:
        hint = f" Did you mean {number / 100:g}?" if 1 < number < 100 else ""
        raise ValueError(f"{name} must be in [0, 1), got {number:g}.{hint}")
