"""Lets Hugging Face's Trainer log what a pruner does and carry it in its checkpoints; training needs no callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regrow.core.pruner import Pruner

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError('regrow.hf needs transformers and accelerate: pip install "regrow[hosts]"') from error


def watch(trainer: Trainer, pruner: Pruner) -> None:
    """Log sparsity and δ with all else that `trainer` logs, and keep the pruner in the checkpoints that it makes.

    >>> pruner = regrow.DPF(trainer.model, trainer.create_optimizer(), sparsity=0.9)
    >>> regrow.hf.watch(trainer, pruner)
    """
    # First in the list: those that print and send what is logged come after it.
    trainer.callback_handler.callbacks.insert(0, PrunerCallback(pruner))


class PrunerCallback(TrainerCallback):
    """What `watch` gives to the Trainer."""

    def __init__(self, pruner: Pruner) -> None:
        self.pruner = pruner

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Go on where the checkpoint was taken: model and optimizer have been loaded by now."""
        if state.global_step > 0:
            path = self._path(args, state)
            if not path.is_file():
                raise FileNotFoundError(
                    f"{path} is missing: resume from a checkpoint in output_dir, saved with watch()"
                )
            self.pruner.load_state_dict(torch.load(path, weights_only=True))

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save the pruner beside model and optimizer."""
        if state.is_world_process_zero:
            torch.save(self.pruner.state_dict(), self._path(args, state))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **events: Any) -> None:
        """Add to what the Trainer logs, and to its history."""
        stats = self.pruner.stats()
        for log in (events["logs"], state.log_history[-1]):
            log.update(sparsity=stats.sparsity, delta=stats.delta)

    @staticmethod
    def _path(args: TrainingArguments, state: TrainerState) -> Path:
        return Path(args.output_dir, f"checkpoint-{state.global_step}", "pruner.pt")
