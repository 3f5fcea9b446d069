"""Lottery tickets with rewinding (Frankle & Carbin 2019; Frankle et al. 2019): a mask from repeated training.

Train, prune 20 % of the remaining weights by magnitude over all layers, restore the others to their values at step
`rewind`, and repeat until the sparsity is reached. Different from the authors' code: the dense training passes through
step `rewind` instead of stopping there, and the last level drops only as many weights as the requested sparsity needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from regrow.analysis.costs import account
from regrow.checks import check_fraction, check_steps
from regrow.core.bits import pack, unpack
from regrow.core.budget import Budget, Scope
from regrow.core.distributed import SINGLE_PROCESS, is_sharded
from regrow.core.hooks import StepHooks
from regrow.core.options import MethodInfo
from regrow.core.schedule import Schedule, check_sparsity
from regrow.core.state import Masks
from regrow.core.targets import Names, TargetSpec, find_targets
from regrow.core.weights import Memory
from regrow.files.model_file import FormatError
from regrow.files.state_file import from_bytes, to_bytes
from regrow.system import write_atomically

Result = TypeVar("Result")
Train = Callable[[nn.Module, Masks, int], Any]


@dataclass(frozen=True)
class Level:
    """One training of the procedure: its masks, and what `train` returned."""

    masks: Masks
    result: Any

    @property
    def sparsity(self) -> float:
        """Fraction of the targeted weights that is pruned."""
        return self.masks.sparsity


def level_sparsities(sparsity: float, drop_fraction: float) -> list[float]:
    """Return the sparsities of the levels, from 0 to `sparsity`; each prunes `drop_fraction` of what is left."""
    levels = [0.0]
    while levels[-1] < sparsity:
        following = 1 - (1 - levels[-1]) * (1 - drop_fraction)
        levels.append(following if sparsity - following > 1e-9 else sparsity)  # rounding adds no extra level
    return levels


class LotteryTicket:
    """Finds and trains a sparse part of `model`; with a `folder`, an interrupted search resumes at its level.

    >>> def train(model, masks, start):          # from optimizer step `start` of the schedule to its end
    ...     optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    ...     regrow.Fixed(model, optimizer, masks)
    ...     ...                                  # an ordinary training loop
    ...     return accuracy
    >>> levels = regrow.LotteryTicket(model, 0.9, rewind=2_000).run(train)
    """

    info = MethodInfo(
        paper="Frankle & Carbin 2019; Frankle et al. 2019",
        when="after each of many trainings",
        score="magnitude of what is left",
        cost="a whole training, and one selection over n",
    )
    memory = Memory.FORGET

    def __init__(
        self,
        model: nn.Module,
        sparsity: float,
        *,
        rewind: int = 0,
        drop_fraction: float = 0.2,
        scope: Scope = "global",
        targets: TargetSpec = None,
        exclude: Names = (),
        include_last: bool = False,
        folder: str | Path | None = None,
    ) -> None:
        check_sparsity(sparsity)
        check_fraction("drop_fraction", drop_fraction, inside=True)
        check_steps("rewind", rewind, least=0)
        self.model, self.rewind, self.budget = model, rewind, Budget(scope)
        found = find_targets(model, targets, include_last=include_last, exclude=exclude)
        self.targets = {target.name: target.param for target in found}
        if sharded := [name for name, parameter in self.targets.items() if is_sharded(parameter)]:
            raise TypeError(f"{sharded[0]} is sharded, but LotteryTicket needs whole weights: use DDP instead")
        self.sparsities = level_sparsities(sparsity, drop_fraction)
        self.folder = None if folder is None else Path(folder)

    def run(self, train: Train) -> list[Level]:
        """Call `train(model, masks, start)` once per level and return the levels; the model is the last one's.

        `train` trains the model in place, from optimizer step `start` of its schedule to the end, with its own
        optimizer, and keeps the masks fixed. Its result consists of numbers, text, tensors, lists and dicts.
        """
        settings = {
            "sparsities": self.sparsities,
            "rewind": self.rewind,
            "scope": self.budget.scope,
            "targets": list(self.targets),
        }
        start = self._load("start") or self._save("start", {**settings, "model": _state(self.model)})
        for key, mine in settings.items():
            begun = start.get(key, mine)  # older folders do not store newer options
            if begun != mine:
                raise ValueError(f"{self.folder} was begun with {key}={begun}, this search has {key}={mine}")
        self.model.load_state_dict(start["model"])
        levels: list[Level] = []
        rewound = start["model"]
        for index, sparsity in enumerate(self.sparsities):
            name = f"level-{index:02d}"
            done = self._load(name)
            if done is not None:
                self.model.load_state_dict(done["model"])
            elif index == 0:
                done = self._save(name, self._train_dense(train))
            else:
                done = self._save(name, self._train_sparse(train, rewound, levels[-1].masks, sparsity))
            rewound = done.get("rewound", rewound)
            masks = {target: unpack(done["masks"][target], p.shape, target) for target, p in self.targets.items()}
            levels.append(Level(Masks(masks), done["result"]))
        return levels

    def _train_dense(self, train: Train) -> dict[str, Any]:
        masks = Masks({name: torch.ones_like(p, dtype=torch.bool) for name, p in self.targets.items()})
        with self._watching() as seen:
            result = train(self.model, masks, 0)
        if self.rewind not in seen:
            raise ValueError(f"rewind={self.rewind} was never reached: train made {max(seen)} optimizer steps")
        return {**self._record(masks, result), "rewound": seen[self.rewind]}

    def _train_sparse(self, train: Train, rewound: dict[str, Tensor], old: Masks, sparsity: float) -> dict[str, Any]:
        weights = {name: parameter.detach() for name, parameter in self.targets.items()}
        left = {name: old[name].to(weight.device) for name, weight in weights.items()}
        masks = Masks(dict(self.budget.keep_top(weights, sparsity, among=left)))
        self.model.load_state_dict(rewound)
        with torch.no_grad():
            for name, parameter in self.targets.items():
                parameter.masked_fill_(~masks[name], 0)
        return self._record(masks, train(self.model, masks, self.rewind))

    @contextmanager
    def _watching(self) -> Iterator[dict[int, Any]]:
        """Count the optimizer steps that the model takes, as a pruner does, and keep its state at step `rewind`."""
        seen: dict[int, Any] = {0: _state(self.model) if self.rewind == 0 else None}
        parameters = {id(parameter) for parameter in self.targets.values()}
        watched: dict[Optimizer, StepHooks] = {}

        def count(counts: bool) -> None:
            if counts:
                step = max(seen) + 1
                seen[step] = _state(self.model) if step == self.rewind else None

        def watch(optimizer: Optimizer, *_: Any) -> None:
            """Hook into an optimizer of the model before its first step; `train` creates it."""
            mine = any(id(parameter) in parameters for group in optimizer.param_groups for parameter in group["params"])
            if mine and optimizer not in watched:
                watched[optimizer] = StepHooks(
                    optimizer, SINGLE_PROCESS, lambda _: None, count, lambda closure: closure()
                )

        hook = register_optimizer_step_pre_hook(watch)
        try:
            yield seen
        finally:
            hook.remove()
            for steps in watched.values():
                steps.remove()

    def _record(self, masks: Masks, result: Any) -> dict[str, Any]:
        packed = {name: pack(mask) for name, mask in masks.items()}
        return {"masks": packed, "result": result, "model": _state(self.model)}

    def _load(self, name: str) -> dict[str, Any] | None:
        path = self.folder and self.folder / f"{name}.safetensors"
        if path is None or not path.exists():
            return None
        try:
            return from_bytes(path.read_bytes())
        except FormatError as error:
            again = "to start again, delete the folder" if name == "start" else "to train this level again, delete it"
            raise ValueError(f"{path} is damaged ({error}): {again}") from error

    def _save(self, name: str, record: dict[str, Any]) -> dict[str, Any]:
        if self.folder is not None:
            try:
                content = to_bytes(record)
            except TypeError as error:
                raise TypeError(
                    "train must return numbers, text, tensors, or lists and dicts of them, so that its result can be "
                    f"read back without running code; got {type(record['result']).__name__}"
                ) from error
            write_atomically(self.folder / f"{name}.safetensors", content)
        return record


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def from_scratch(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    train: Callable[[nn.Module, Masks, int], Result],
    *,
    steps: int,
    initial: Mapping[str, Tensor] | None = None,
) -> Result:
    """Train `model` with `masks` fixed from the start, to see whether they are a lottery ticket (Section 6).

    Returns the result of `train(model, masks, steps)`, which attaches `Fixed(model, optimizer, masks)`. `initial` is
    the `state_dict()` at the start of the training that found the masks; without it the model trains from its current
    weights, for example a new initialization. `steps` is the length of that training ("same epochs"), or the result of
    `steps_of_equal_flops` ("same FLOPs").
    """
    check_steps("steps", steps)
    if initial is not None:
        model.load_state_dict(initial)
    return train(model, Masks(masks).clone(), steps)


def steps_of_equal_flops(
    model: nn.Module, masks: Mapping[str, Tensor], input_shape: tuple[int, ...], *, schedule: Schedule, steps: int
) -> int:
    """Return for how many steps the final mask can train with the MACs of `steps` steps along the ramp."""
    full, final = account(model, input_shape).macs, account(model, input_shape, masks).macs_kept
    return round(steps * average_cost(schedule, steps, full, final) / final)


def average_cost(schedule: Schedule, steps: int, full: float, final: float) -> float:
    """Return the MACs of an average step, if the dense model takes `full` and the masked one `final`.

    The cost falls from one to the other in proportion to the sparsity of `schedule`, as if every layer approached its
    final density at the same rate.
    """
    last = schedule(steps)
    if not last:
        return final
    pruned = sum(min(schedule(t) / last, 1) for t in range(steps)) / steps
    return full - (full - final) * pruned
