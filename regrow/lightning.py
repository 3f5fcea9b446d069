"""Lightning: prune what a Trainer trains, and log and checkpoint the pruner."""

from __future__ import annotations

from math import inf
from typing import Any

from regrow.core.pruner import Pruner
from regrow.methods.registry import attach
from regrow.text import install_hint
from regrow.train.events import TrackerRun

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(f"regrow.lightning needs Lightning: {install_hint('hosts')}") from error


class PrunerCallback(Callback):
    """Prunes the module that a Trainer trains, logs sparsity and δ, and saves and restores the pruner.

    The method is attached when the optimizer exists. A number as `sparsity` becomes a cubic ramp over the first 75 % of
    the Trainer's steps; the other options are those of the method. Without a method, the pruner is the one that
    `configure_optimizers` left in `module.pruner` (or another `attribute`). `tracker` also gets the logged numbers.

    >>> Trainer(callbacks=[PrunerCallback("dpf", sparsity=0.9)])
    """

    def __init__(
        self,
        method: str | type[Pruner] | None = None,
        *,
        attribute: str = "pruner",
        tracker: TrackerRun | None = None,
        **options: Any,
    ) -> None:
        if method is None and options:
            raise TypeError(f"options need a method, such as PrunerCallback('dpf', ...), got {', '.join(options)}")
        self.attribute, self.tracker = attribute, tracker
        self.pruner: Pruner | None = None
        self._method, self._options = method, options
        self._checkpoint: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach, and continue where the checkpoint was taken."""
        if self._method is not None:
            self.pruner = self._attached(self._method, trainer, pl_module)
        pruner = self._pruner(pl_module)
        if self._checkpoint is not None:
            # Lightning loads the model before the pruner is attached, which prunes it as at the first step.
            pl_module.load_state_dict(self._checkpoint["state_dict"])
            pruner.load_state_dict(self._checkpoint["pruner"])
            self._checkpoint = None

    def _attached(self, method: str | type[Pruner], trainer: Trainer, module: LightningModule) -> Pruner:
        if self.pruner is not None:
            self.pruner.detach()  # of an earlier call of fit()
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"PrunerCallback({method!r}) needs one optimizer, {type(module).__name__} has "
                f"{len(trainer.optimizers)}: attach a pruner to one of them in configure_optimizers"
            )
        steps = trainer.estimated_stepping_batches
        if not 0 < steps < inf:
            raise ValueError(f"PrunerCallback needs a training of known length, got {steps} steps: set max_steps")
        return attach(method, module, trainer.optimizers[0], int(steps), self._options, likely=trainer.max_steps < 0)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any, **more: Any) -> None:
        """Log as often as Lightning logs."""
        if trainer.logger is not None and trainer.global_step % trainer.log_every_n_steps == 0:
            stats = self._pruner(pl_module).stats()
            numbers = {"sparsity": stats.sparsity, "delta": stats.delta}
            pl_module.log_dict(numbers)
            if self.tracker is not None and trainer.is_global_zero:
                self.tracker.log(numbers, step=trainer.global_step)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the pruner beside model and optimizer."""
        checkpoint["pruner"] = self._pruner(pl_module).state_dict()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the checkpoint until there is a pruner."""
        if "pruner" not in checkpoint:
            raise ValueError("this checkpoint has no pruner: it was saved without PrunerCallback in callbacks=[...]")
        self._checkpoint = checkpoint

    def _pruner(self, module: LightningModule) -> Pruner:
        pruner = getattr(module, self.attribute, None) if self._method is None else self.pruner
        if not isinstance(pruner, Pruner):
            raise AttributeError(
                f"{type(module).__name__}.{self.attribute} must be a pruner, it is {pruner!r}: in configure_optimizers "
                f"write self.{self.attribute} = regrow.DPF(self, optimizer, ...), or pass PrunerCallback('dpf', ...)"
            )
        return pruner
