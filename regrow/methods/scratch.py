"""Is a found mask a lottery ticket? Train it from scratch, for as many steps or as many FLOPs (Section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from torch import Tensor, nn

from regrow.analysis import account
from regrow.checks import check_steps
from regrow.core.masks import Masks
from regrow.core.schedule import Schedule

Result = TypeVar("Result")


def from_scratch(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    train: Callable[[nn.Module, Masks, int], Result],
    *,
    steps: int,
    initial: Mapping[str, Tensor] | None = None,
) -> Result:
    """Train `model` with `masks` fixed from the beginning; return what `train(model, masks, steps)` returns.

    `initial` is the `state_dict()` with which the masks' own training began; without it the model trains from the
    weights that it has, for example a fresh initialisation. `steps` is the length of that training ("same epochs"),
    or what `steps_of_equal_flops` makes of it ("same FLOPs"). `train` attaches `Fixed(model, optimizer, masks)`.
    """
    check_steps("steps", steps)
    if initial is not None:
        model.load_state_dict(initial)
    return train(model, Masks(masks).clone(), steps)


def steps_of_equal_flops(
    model: nn.Module, masks: Mapping[str, Tensor], input_shape: tuple[int, ...], *, schedule: Schedule, steps: int
) -> int:
    """Return for how many steps the final mask trains on the MACs that `steps` steps of the ramp have cost."""
    whole, final = account(model, input_shape).macs, account(model, input_shape, masks).macs_kept
    return round(steps * average_cost(schedule, steps, whole, final) / final)


def average_cost(schedule: Schedule, steps: int, whole: float, final: float) -> float:
    """Return the MACs of an average step, of which the dense model takes `whole` and the masked one `final`.

    The cost falls from one to the other in proportion to the sparsity that `schedule` asks for, as if every layer came
    closer to its final density at the same pace.
    """
    last = schedule(steps)
    if not last:
        return final
    pruned = sum(min(schedule(t) / last, 1) for t in range(steps)) / steps
    return whole - (whole - final) * pruned
