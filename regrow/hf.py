"""Hugging Face: prune in a Trainer, log and checkpoint the pruner, and keep pretrained models in packed files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from regrow.core.modules import unwrap
from regrow.core.pruner import Pruner
from regrow.files.model_file import FormatError
from regrow.files.packed import Dtype, load, save
from regrow.files.state_file import from_bytes, to_bytes
from regrow.methods.registry import attach
from regrow.system import write_atomically
from regrow.text import install_hint
from regrow.train.events import TrackerRun

try:
    import transformers
    from transformers import (
        AutoConfig,
        PreTrainedModel,
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
except ImportError as error:
    raise ImportError(f"regrow.hf needs transformers and accelerate: {install_hint('hosts')}") from error

PACKED = "model.regrow"
"""File name of the weights in a folder of `save_pretrained`."""


def watch(trainer: Trainer, pruner: Pruner) -> None:
    """Log sparsity and δ with all else that `trainer` logs, and keep the pruner in the checkpoints that it makes.

    >>> pruner = regrow.DPF(trainer.model, trainer.create_optimizer(), sparsity=0.9)
    >>> regrow.hf.watch(trainer, pruner)
    """
    # Insert first, so that callbacks that print or send the log include our numbers.
    trainer.callback_handler.callbacks.insert(0, PrunerCallback(pruner))


class PrunerCallback(TrainerCallback):
    """Prunes the model that a Trainer trains, logs sparsity and δ, and saves and restores the pruner.

    The method is attached when the optimizer exists. A number as `sparsity` becomes a cubic ramp over the first 75 % of
    the Trainer's steps; the other options are those of the method. `tracker` also gets the logged numbers: the
    Trainer's own integrations run before the callbacks that a user passes.

    >>> Trainer(model, arguments, train_dataset=dataset, callbacks=[PrunerCallback("dpf", sparsity=0.9)])
    """

    def __init__(
        self, method: str | type[Pruner] | Pruner, *, tracker: TrackerRun | None = None, **options: Any
    ) -> None:
        if isinstance(method, Pruner) and options:
            raise TypeError(f"options go with the name of a method, got {', '.join(options)} and a pruner")
        self.pruner = method if isinstance(method, Pruner) else None
        self.tracker = tracker
        self._method, self._options = method, options

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **events: Any
    ) -> None:
        """Attach, and continue where the checkpoint was taken: model and optimizer have been loaded by now."""
        saved = self._saved(args, state) if state.global_step > 0 else None
        if not isinstance(self._method, Pruner):
            model = unwrap(events["model"])
            if self.pruner is not None:
                self.pruner.detach()  # of an earlier call of train()
            before = {name: value.clone() for name, value in model.state_dict().items()} if saved else {}
            self.pruner = attach(self._method, model, events["optimizer"], state.max_steps, self._options)
            if saved:  # attaching has pruned the weights as at the first step
                model.load_state_dict(before)
        if saved and self.pruner is not None:
            self.pruner.load_state_dict(saved)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save the pruner beside model and optimizer."""
        if state.is_world_process_zero and self.pruner is not None:
            write_atomically(self._path(args, state), to_bytes(self.pruner.state_dict()))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **events: Any) -> None:
        """Add to what the Trainer logs, and to its history."""
        if self.pruner is None:
            return
        stats = self.pruner.stats()
        numbers = {"sparsity": stats.sparsity, "delta": stats.delta}
        for log in (events["logs"], state.log_history[-1]):
            log.update(numbers)
        if self.tracker is not None and state.is_world_process_zero:
            self.tracker.log(numbers, step=state.global_step)

    def _saved(self, args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
        path = self._path(args, state)
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is missing: resume from a checkpoint in output_dir that was saved with the pruner's callback"
            )
        try:
            return from_bytes(path.read_bytes())
        except FormatError as error:
            raise FormatError(f"{path} is damaged ({error}): resume from another checkpoint") from error

    @staticmethod
    def _path(args: TrainingArguments, state: TrainerState) -> Path:
        return Path(args.output_dir, f"checkpoint-{state.global_step}", "pruner.safetensors")


def save_pretrained(model: PreTrainedModel, folder: str | Path, *, dtype: Dtype = "fp32") -> None:
    """Write the configuration and the packed weights of `model` to `folder`; `from_pretrained` reads them.

    Weights that share memory are stored once. `dtype` is that of `regrow.save`.
    """
    model, folder = unwrap(model), Path(folder)
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"save_pretrained takes a PreTrainedModel, got {type(model).__name__}: use regrow.save")
    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    state = model.state_dict()
    first = {_memory(value): name for name, value in reversed(state.items())}
    save({name: value for name, value in state.items() if first[_memory(value)] == name}, folder / PACKED, dtype=dtype)


def from_pretrained(folder: str | Path) -> PreTrainedModel:
    """Return the model that `save_pretrained` wrote to `folder`, in evaluation mode.

    Only classes of transformers are built; code in the folder is never run.
    """
    folder = Path(folder)
    if not (folder / PACKED).is_file():
        raise FileNotFoundError(f"{folder} has no {PACKED}. Write one with regrow.hf.save_pretrained.")
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    name = next(iter(config.architectures or ()), None)
    cls = getattr(transformers, str(name), None)
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):
        raise FormatError(f"{folder}: its architecture {name!r} is not a model of transformers.")
    model = cls(config)
    state = load(folder / PACKED)
    if not isinstance(state, dict):
        raise FormatError(f"{folder / PACKED} holds a {type(state).__name__}, not the weights of {name}.")
    _fill(model, state, folder)
    return model.eval()


def _fill(model: PreTrainedModel, state: dict[str, Tensor], folder: Path) -> None:
    """Load `state`; only weights that share memory with a stored one may be missing."""
    expected = model.state_dict()
    stored = {_memory(value) for name, value in expected.items() if name in state}
    missing = [name for name, value in expected.items() if name not in state and _memory(value) not in stored]
    wrong = [name for name, value in state.items() if name not in expected or value.shape != expected[name].shape]
    if missing or wrong:
        what = f"{missing[0]} is missing" if missing else f"{wrong[0]} does not fit"
        raise FormatError(f"{folder / PACKED} does not fit its configuration: {what}.")
    model.load_state_dict(state, strict=False)


def _memory(value: Tensor) -> tuple[Any, ...]:
    # Empty tensors have no address.
    return (value.data_ptr() or id(value), tuple(value.shape), value.stride())
