"""The training loop: step, epoch, phase and evaluation. Its whole state can be saved and restored between two steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.analysis import Dynamics
from regrow.core.bits import unpack
from regrow.core.distributed import is_sharded, local_part
from regrow.core.modules import evaluating
from regrow.core.pruner import Pruner
from regrow.core.schedule import TOO_SHORT
from regrow.core.state import Masks
from regrow.data import DataError
from regrow.methods.fixed import Fixed
from regrow.runs.recipe import Recipe, RecipeError
from regrow.train import build
from regrow.train.build import LearningRate
from regrow.train.distributed import Ranks, broadcast_buffers, full_tensor, parallelize
from regrow.train.own import check_fit, seed_all

# Losses are read in blocks, because reading each one would stall a GPU.
_LOSSES_AT_ONCE = 50
# Number of classes from which top-5 accuracy is reported.
_MANY_CLASSES = 50


class StateError(ValueError):
    """A state does not belong to this training."""


class DivergedError(RuntimeError):
    """The loss or the weights are no longer finite."""


@dataclass
class EpochTotals:
    """Sums over the current epoch so far."""

    loss: float = 0.0
    images: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Phase:
    """A part of training with one optimizer and one pruner, from step `start` to step `end`."""

    name: str
    start: int
    end: int
    rate: LearningRate
    optimizer: Optimizer
    pruner: Pruner


class Trainer:
    """Trains a recipe. `run` can stop after any step; a trainer built from the saved state continues bit for bit.

    `sets` replaces the images of `recipe.data`. `imports` are the callables that the user allows to import. All `ranks`
    call all methods in the same order.
    """

    def __init__(
        self,
        recipe: Recipe,
        state: Mapping[str, Any] | None = None,
        *,
        sets: build.Sets | None = None,
        ranks: Ranks = Ranks(),  # noqa: B008 - it is immutable
        imports: Collection[str] = (),
    ) -> None:
        self.recipe, self._ranks, self._imports = recipe, ranks, imports
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        self.device = build.make_device(recipe)
        if sets is None and ":" in recipe.data:
            sets = build.make_sets(recipe, ranks, imports)  # the size is only known from the data
        # The network first: a misspelled name is reported before minutes of decoding images.
        self.model = build.make_model(recipe, sets.info if sets else None, imports)
        self.sets = sets or build.make_sets(recipe, ranks)
        if recipe.imports:
            check_fit(recipe, self.model, self.sets.train)
        if state is None:
            build.load_initial(recipe, self.model)
        network = parallelize(self.model, ranks, recipe.parallel, self.sets.inputs(2))
        self._network: nn.Module = cast(nn.Module, torch.compile(network)) if recipe.compile else network
        self._losses: list[tuple[int, Tensor, int]] = []
        self.step, self.totals = 0, EpochTotals()
        if state is not None:
            self._restore(state)
            return
        self.phase = self._training()
        self.dynamics = Dynamics(self.phase.pruner.full_masks())

    @property
    def total(self) -> int:
        """Optimizer steps of training and fine-tuning together."""
        return self.sets.steps * (self.recipe.epochs + self.recipe.finetune_epochs)

    @property
    def epoch(self) -> int:
        """Number of complete epochs."""
        return self.step // self.sets.steps

    def run(self, after_step: Callable[[], None], after_epoch: Callable[[dict[str, Any]], None]) -> None:
        """Train to the end. The callbacks may raise to stop; a later call of `run` continues.

        `after_epoch` gets the epoch's record: see `_end_epoch`.
        """
        while True:
            if self.totals.images and self.step % self.sets.steps == 0:
                record = self._end_epoch(after_step)
                self.totals = EpochTotals()
                after_epoch(record)
            if self.step == self.total:
                return
            if self.step == self.phase.end:
                self.phase.pruner.detach()
                self.phase = self._finetuning(self.phase.pruner.full_masks())
            epoch, batch = divmod(self.step, self.sets.steps)
            self._train(epoch, batch, after_step)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next steps depend on, as tensors, numbers and strings."""
        self._settle_losses()
        self.check_finite()
        return {
            "step": self.step,
            "tally": asdict(self.totals),
            "phase": self.phase.name,
            "model": self.model.state_dict(),
            "optimizer": self.phase.optimizer.state_dict(),
            "pruner": self.phase.pruner.state_dict(),
            "dynamics": self.dynamics.state_dict(),
        }

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Load a state. One of another recipe, or a crafted one, may fail in any way."""
        try:
            self.model.load_state_dict(state["model"])
            self.phase = self._saved_phase(state)
            self.dynamics = Dynamics(self.phase.pruner.full_masks())
            self.dynamics.load_state_dict(state["dynamics"])
            self.step, self.totals = int(state["step"]), EpochTotals(**state["tally"])
        except Exception as error:
            raise StateError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
        if not self.phase.start <= self.step <= self.phase.end:
            raise StateError(f"step {self.step} is not in the phase {self.phase.name!r}")

    def _saved_phase(self, state: Mapping[str, Any]) -> Phase:
        training = state["phase"] == "train"
        phase = self._training() if training else self._finetuning(saved_masks(state["pruner"]))
        # Again, because a method may prune the weights when it is attached.
        self.model.load_state_dict(state["model"])
        phase.optimizer.load_state_dict(state["optimizer"])
        phase.pruner.load_state_dict(state["pruner"])
        return phase

    def _training(self) -> Phase:
        recipe, total = self.recipe, self.sets.steps * self.recipe.epochs
        if not recipe.epochs and not recipe.finetune_epochs:
            raise RecipeError("epochs = 0 needs finetune_epochs of at least 1, got 0: there would be nothing to train")
        optimizer = build.make_optimizer(recipe, self.model, kind=recipe.optimizer, lr=recipe.lr)
        pruner = build.make_pruner(recipe, self.model, optimizer, self.sets.steps)
        if not total and not pruner.requested:
            raise RecipeError(
                f"epochs = 0 needs a method that prunes when it is attached, such as oneshot, got {recipe.method}"
            )
        return Phase("train", 0, total, build.training_rate(recipe, total), optimizer, pruner)

    def _finetuning(self, masks: Masks) -> Phase:
        """Return the fine-tuning phase: a fixed mask and a new optimizer (Section 5, "+FT")."""
        recipe, total = self.recipe, self.sets.steps * self.recipe.finetune_epochs
        optimizer = build.make_optimizer(recipe, self.model, kind=recipe.finetune_optimizer, lr=recipe.finetune_lr)
        pruner = Fixed(self.model, optimizer, masks)
        start = self.sets.steps * recipe.epochs
        return Phase("finetune", start, start + total, build.finetuning_rate(recipe, total), optimizer, pruner)

    def _train(self, epoch: int, batch: int, after_step: Callable[[], None]) -> None:
        self._network.train()
        started = time.perf_counter()
        for images, labels in self.sets.train.epoch(epoch, batch):
            self._train_batch(images, labels)
            self.totals.seconds += time.perf_counter() - started
            after_step()
            started = time.perf_counter()

    def _train_batch(self, images: Tensor, labels: Tensor) -> None:
        optimizer, rate = self.phase.optimizer, self.phase.rate(self.step - self.phase.start)
        for group in optimizer.param_groups:
            group["lr"] = rate
        if ":" in self.recipe.model:  # it may have dropout
            seed_all(self.recipe.seed, self.step, self._ranks.rank)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.bf16):
            loss = F.cross_entropy(self._network(images), labels, label_smoothing=self.recipe.label_smoothing)
        count = self.sets.train.images(self.step % self.sets.steps) or len(labels)
        self._losses.append((self.step + 1, loss.detach(), len(labels)))
        if self.device.type == "cpu" or len(self._losses) == _LOSSES_AT_ONCE:
            self._settle_losses()
        # Weighted, because the parts of a batch may differ by an image and DDP averages over the ranks.
        (loss * (len(labels) * self._ranks.size / count)).backward()
        pruner = self.phase.pruner
        updates = pruner.updates
        try:
            optimizer.step()
        except ValueError:
            self.check_finite()
            raise
        optimizer.zero_grad()
        self.step += 1
        self.totals.images += count
        if pruner.updates != updates:
            self.dynamics.observe(pruner.full_masks())

    def _end_epoch(self, after_batch: Callable[[], None]) -> dict[str, Any]:
        """Evaluate and return the record of the epoch; only the last two entries depend on the clock."""
        self._settle_losses()
        self.check_finite()
        if self.recipe.parallel == "fsdp":
            broadcast_buffers(self.model, self._ranks)
        scores = evaluate(
            self._network, self.sets.test, bf16=self.recipe.bf16, after_batch=after_batch, ranks=self._ranks
        )
        stats, moved = self.phase.pruner.stats(), self.dynamics.epoch_end(self.phase.pruner.full_masks())
        return {
            "epoch": self.epoch,
            "step": self.step,
            "phase": self.phase.name,
            "lr": self.phase.rate(self.step - 1 - self.phase.start),
            "loss": self.totals.loss / self.totals.images,
            **scores,
            "sparsity": stats.sparsity,
            "requested": stats.requested,
            "delta": stats.delta,
            "flips": moved.change.flip_ratio,
            "iou": moved.change.iou,
            "refreshes": moved.refreshes,
            "refresh_flips": moved.refresh_flip_ratio,
            "refresh_iou": moved.refresh_iou,
            "layers": dict(stats.layers),
            "seconds": self.totals.seconds,
            "images_per_second": self.totals.images / self.totals.seconds,
        }

    def _settle_losses(self) -> None:
        """Add the losses since the last call to the totals, summed over all ranks."""
        sums = self._ranks.sum([float(loss) * images for _, loss, images in self._losses])
        for (step, _, images), value in zip(self._losses, sums, strict=True):
            if not math.isfinite(value):
                raise DivergedError(f"the loss is {value / images} at step {step} ({self._where()})")
            self.totals.loss += value
        self._losses.clear()

    def check_finite(self) -> None:
        """Raise `DivergedError` unless all weights (pruned and dense) and statistics are finite."""
        weights = {**self.model.state_dict(), **self.phase.pruner.weights}
        bad = [index for index, weight in enumerate(weights.values()) if not torch.isfinite(local_part(weight)).all()]
        [worst] = self._ranks.max(bad[0] if bad else -1)
        if worst >= 0:
            name = list(weights)[int(worst)]
            raise DivergedError(f"{name} is no longer finite at step {self.step} ({self._where()})")

    def full_model(self) -> nn.Module:
        """Return the model; a sharded one is gathered into a copy."""
        if self.recipe.parallel != "fsdp":
            return self.model
        model = build.make_model(self.recipe, self.sets.info, self._imports)
        model.load_state_dict({name: full_tensor(value) for name, value in self.model.state_dict().items()})
        return model

    def _where(self) -> str:
        rate = self.phase.rate(self.step - self.phase.start)
        return f"epoch {self.epoch + 1}, learning rate {rate:g}"


def saved_masks(state: Mapping[str, Any]) -> Masks:
    """Return the masks in a pruner's state, gathered if they are sharded."""
    saved, shapes = state["masks"].items(), state["shapes"]
    return Masks(
        {
            name: full_tensor(mask).to(torch.bool) if is_sharded(mask) else unpack(mask, torch.Size(shapes[name]), name)
            for name, mask in saved
        }
    )


def make_trainer(
    recipe: Recipe,
    state: Mapping[str, Any] | None = None,
    *,
    sets: build.Sets | None = None,
    ranks: Ranks = Ranks(),  # noqa: B008 - it is immutable
    imports: Collection[str] = (),
) -> Trainer:
    """Return the trainer; a `ValueError` of its parts becomes a `RecipeError`."""
    try:
        return Trainer(recipe, state, sets=sets, ranks=ranks, imports=imports)
    except (DataError, RecipeError, StateError):
        raise
    except ValueError as error:
        fixes = "Lower --ramp-end or --every, or raise --epochs."
        raise RecipeError(str(error).replace(TOO_SHORT, fixes)) from error


@torch.no_grad()
def evaluate(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    bf16: bool = False,
    after_batch: Callable[[], None] = lambda: None,
    ranks: Ranks = Ranks(),  # noqa: B008 - it is immutable
) -> dict[str, float | None]:
    """Evaluate `network` on `batches`, of which each rank has a part; `after_batch` may raise to stop.

    Returns entries of a record: the mean loss, None if it is not finite, because JSON has no NaN; the accuracy in
    percent; and the top-5 accuracy if there are many classes.
    """
    loss, right, among_five, images = 0.0, 0, 0, 0
    many = False
    with evaluating(network):
        for inputs, labels in batches:
            with torch.autocast(inputs.device.type, torch.bfloat16, enabled=bf16):
                logits = network(inputs)
            loss += float(F.cross_entropy(logits.float(), labels, reduction="sum"))
            many = logits.shape[1] >= _MANY_CLASSES
            right += _hits(logits, labels, 1)
            among_five += _hits(logits, labels, 5) if many else 0
            images += len(labels)
            after_batch()
    loss, first, five, count = ranks.sum([loss, right, among_five, images])
    scores: dict[str, float | None] = {
        "test_loss": loss / count if math.isfinite(loss) else None,
        "top1": 100 * first / count,
    }
    return {**scores, "top5": 100 * five / count} if many else scores


def _hits(logits: Tensor, labels: Tensor, among: int) -> int:
    return int(torch.count_nonzero(logits.topk(among, 1).indices == labels[:, None]))
