"""Lets Lightning log what a pruner does and carry it in its checkpoints; training itself needs no callback."""

from __future__ import annotations

from typing import Any

from regrow.core.pruner import Pruner

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError('regrow.lightning needs Lightning: pip install "regrow[hosts]"') from error


class PrunerCallback(Callback):
    """Logs sparsity and δ, and saves and restores the pruner that `configure_optimizers` left in `module.pruner`.

    >>> Trainer(callbacks=[PrunerCallback()])
    """

    def __init__(self, attribute: str = "pruner") -> None:
        self.attribute = attribute
        self._checkpoint: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on where the checkpoint was taken."""
        pruner = self._pruner(pl_module)
        if self._checkpoint is not None:
            # Lightning loads the model before the optimizer exists, and attaching a pruner to it prunes it anew.
            pl_module.load_state_dict(self._checkpoint["state_dict"])
            pruner.load_state_dict(self._checkpoint["pruner"])
            self._checkpoint = None

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any, **more: Any) -> None:
        """Log as often as Lightning logs."""
        if trainer.logger is not None and trainer.global_step % trainer.log_every_n_steps == 0:
            stats = self._pruner(pl_module).stats()
            pl_module.log_dict({"sparsity": stats.sparsity, "delta": stats.delta})

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the pruner beside model and optimizer."""
        checkpoint["pruner"] = self._pruner(pl_module).state_dict()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the checkpoint until there is a pruner."""
        if "pruner" not in checkpoint:
            raise ValueError("this checkpoint has no pruner: it was saved without PrunerCallback in callbacks=[...]")
        self._checkpoint = checkpoint

    def _pruner(self, module: LightningModule) -> Pruner:
        pruner = getattr(module, self.attribute, None)
        if not isinstance(pruner, Pruner):
            raise AttributeError(
                f"{type(module).__name__}.{self.attribute} must be a pruner, it is {pruner!r}: in configure_optimizers "
                f"write self.{self.attribute} = regrow.DPF(self, optimizer, ...)"
            )
        return pruner
