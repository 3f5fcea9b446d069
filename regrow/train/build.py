"""Build the parts of a training from a recipe: data, network, optimizer, learning rate, pruner."""

from __future__ import annotations

import re
import tomllib
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Adam, Optimizer

from regrow import data, models
from regrow.core.modules import named_parameters
from regrow.core.options import EPOCH
from regrow.core.pruner import Pruner
from regrow.core.schedule import SCHEDULES, Sparsity, ramped, scaled_period
from regrow.core.state import Masks
from regrow.core.targets import find_targets
from regrow.data import Batches, ImageSet
from regrow.data.registry import DatasetInfo
from regrow.files.model_file import FormatError, difference
from regrow.files.packed import load
from regrow.files.torch_file import load_torch_file
from regrow.methods.registry import METHODS, find_method, method_options
from regrow.runs.recipe import PASSED_ON, Recipe, RecipeError
from regrow.text import did_you_mean
from regrow.train.distributed import Ranks
from regrow.train.own import OwnBatches, own_data, own_info, own_model

EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Sets:
    """Training and test images of a run."""

    train: Batches | OwnBatches
    test: Batches | OwnBatches
    info: DatasetInfo
    example: Tensor | None = None
    """A batch of one input; None for images of the size in `info`."""

    @property
    def steps(self) -> int:
        """Optimizer steps per epoch."""
        return len(self.train)

    @property
    def input(self) -> Sequence[int] | Tensor:
        """The input for `regrow.account`: the shape of an image, or an example."""
        return (self.info.channels, self.info.size, self.info.size) if self.example is None else self.example

    def inputs(self, count: int) -> Tensor:
        """Return a batch of `count` equal inputs."""
        if self.example is not None:
            return self.example.repeat(count, *[1] * (self.example.dim() - 1))
        return torch.zeros(count, self.info.channels, self.info.size, self.info.size)


def make_sets(
    recipe: Recipe,
    ranks: Ranks = Ranks(),  # noqa: B008 - it is immutable
    imports: Collection[str] = (),
) -> Sets:
    """Load the images; each rank sees its part. With `holdout`, the test set is not opened.

    User data comes from the callable that `recipe.data` names, which must be one of `imports`.
    """
    device = make_device(recipe)
    own = own_data(recipe, imports) if ":" in recipe.data else None
    if own is not None and not isinstance(own[0], ImageSet):
        return _own_sets(recipe, ranks, own, device)
    part: dict[str, Any] = {"rank": ranks.rank, "world": ranks.size, "channels_last": recipe.channels_last}
    if own is None:
        images = data.load(recipe.data, "train", limit=recipe.limit)
    else:
        images = own[0] if recipe.limit is None else own[0].limit(recipe.limit)
    if recipe.holdout:
        images, test = images.split(recipe.holdout)
    else:
        test = data.load(recipe.data, "test") if own is None else own[1]
    return Sets(
        train=Batches(images.to(device), recipe.batch, seed=recipe.seed, **part),
        test=Batches.evaluation(test.to(device), _evaluation_batch(len(test), ranks.size), **part),
        info=images.info,
    )


def _own_sets(recipe: Recipe, ranks: Ranks, parts: tuple[Any, Any], device: torch.device) -> Sets:
    train, test = parts
    common: dict[str, Any] = {"device": device, "rank": ranks.rank, "world": ranks.size}
    size = getattr(train, "batch_size", None) or recipe.batch
    batches = OwnBatches(recipe.data, train, size, seed=recipe.seed, **common)
    size = getattr(test, "batch_size", None) or _evaluation_batch(len(test), ranks.size)
    example = batches.example()
    return Sets(
        train=batches,
        test=OwnBatches(recipe.data, test, size, shuffle=False, **common),
        info=own_info(recipe.data, train, test, example),
        example=example,
    )


def _evaluation_batch(images: int, processes: int) -> int:
    """Return the largest batch size for which the last batch, too, has an image for every process."""
    return next(size for size in range(EVALUATION_BATCH, 0, -1) if not 0 < images % size < processes)


def make_device(recipe: Recipe) -> torch.device:
    """Return the device; raise if it is not available on this machine."""
    missing = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
    if missing.get(recipe.device):
        raise RecipeError(f"device {recipe.device!r} is not available on this machine: use --device cpu")
    return torch.device("cuda", torch.cuda.current_device()) if recipe.device == "cuda" else torch.device(recipe.device)


def make_model(recipe: Recipe, info: DatasetInfo | None = None, imports: Collection[str] = ()) -> nn.Module:
    """Build the network for the recipe's data set (or the one in `info`), with the initial weights of `seed`.

    A user's network comes from the callable that `recipe.model` names, which must be one of `imports`.
    """
    options = {name: getattr(recipe, name) for name in ("width", "stem_stride", "growth")}
    given = {name: value for name, value in options.items() if value is not None}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        if ":" in recipe.model:
            model = own_model(recipe.model, imports, **given)
        else:
            model = _named_model(recipe.model, info or data.info(recipe.data), given)
    model.to(make_device(recipe))
    if recipe.channels_last:
        layout: dict[str, Any] = {"memory_format": torch.channels_last}  # torch 2.13 does not declare it
        model.to(**layout)
    return model


def _named_model(name: str, info: DatasetInfo, options: Mapping[str, int]) -> models.Network:
    if not (info.classes and info.size):  # user data
        missing = "a number of classes (give the data set an attribute `classes`)" if info.size else "square images"
        raise RecipeError(f"model {name!r} needs {missing}, which {info.name!r} does not have: pass your own --model")
    return models.build(name, classes=info.classes, channels=info.channels, size=info.size, **options)


def load_initial(recipe: Recipe, model: nn.Module) -> None:
    """Load the weights that `recipe.init` names into `model`."""
    if recipe.init is None:
        return
    state = _weights_in(recipe.init, "init")
    if differs := difference(model, state):
        raise RecipeError(f"init: {recipe.init} is not from this network: {differs}")
    model.load_state_dict(state)


def make_optimizer(recipe: Recipe, model: nn.Module, *, kind: str, lr: float) -> Optimizer:
    """Return the fused optimizer, which makes one pass over the weights; sharded weights need `foreach`."""
    variant: dict[str, Any] = {"foreach" if recipe.parallel == "fsdp" else "fused": True}
    parameters = model.parameters() if recipe.norm_decay else _groups(model)
    if kind == "adam":
        return Adam(parameters, lr=lr, weight_decay=recipe.weight_decay, **variant)
    return SGD(
        parameters,
        lr=lr,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
        **variant,
    )


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in two groups; the group of batch norm has no weight decay."""
    norms = {id(p) for module in model.modules() if isinstance(module, _BatchNorm) for p in module.parameters()}
    return [
        {"params": [p for p in model.parameters() if id(p) not in norms]},
        {"params": [p for p in model.parameters() if id(p) in norms], "weight_decay": 0.0},
    ]


@dataclass(frozen=True)
class LearningRate:
    """`peak` after a linear warm-up of `warmup` steps, multiplied by `factor` at each of the steps in `drops`.

    It is a function of the step, so a resumed run has no scheduler to restore.
    """

    peak: float
    drops: tuple[int, ...]
    factor: float
    warmup: int = 0
    warmup_from: float = 0.0

    def __call__(self, t: int) -> float:
        """Return the learning rate of the step from iterate t to t+1."""
        if t < self.warmup:
            return self.peak * (self.warmup_from + (1 - self.warmup_from) * (t + 1) / self.warmup)
        return self.peak * self.factor ** sum(t >= drop for drop in self.drops)


def training_rate(recipe: Recipe, total: int) -> LearningRate:
    """Return the learning rate of a training of `total` steps."""
    return LearningRate(
        peak=recipe.lr,
        drops=tuple(round(fraction * total) for fraction in recipe.lr_drops),
        factor=recipe.lr_drop_factor,
        warmup=round(recipe.warmup * total),
        warmup_from=recipe.warmup_from,
    )


def finetuning_rate(recipe: Recipe, total: int) -> LearningRate:
    """Return the learning rate of a fine-tuning of `total` steps."""
    drops = tuple(round(fraction * total) for fraction in recipe.finetune_lr_drops)
    return LearningRate(peak=recipe.finetune_lr, drops=drops, factor=recipe.lr_drop_factor)


# A string that needs no quotes: in TOML only true, false, inf and nan look like it.
_WORD = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)


def make_pruner(recipe: Recipe, model: nn.Module, optimizer: Optimizer, steps: int) -> Pruner:
    """Attach the recipe's method; an epoch has `steps` optimizer steps.

    A `TypeError` of the method becomes a `RecipeError`, because its options come from the recipe.
    """
    method = chosen_method(recipe)
    try:
        return _attached(recipe, method, model, optimizer, steps)
    except TypeError as error:
        given = f" (with options {', '.join(recipe.options)})" if recipe.options else ""
        raise RecipeError(f"{recipe.method}: {error}{given}") from error


def chosen_method(recipe: Recipe) -> type[Pruner]:
    """Return the recipe's method; an unknown name is a `RecipeError`."""
    try:
        return find_method(recipe.method)
    except (TypeError, ValueError) as error:
        raise RecipeError(str(error)) from None


def _attached(recipe: Recipe, method: Any, model: nn.Module, optimizer: Optimizer, steps: int) -> Pruner:
    if method.takes_masks:
        _options(recipe, method, dict.fromkeys(("targets", "exclude", "include_last")))
        fixed: Pruner = method(model, optimizer, _given_masks(recipe, model))
        return fixed
    if recipe.masks is not None:
        raise RecipeError(f"masks are only for method fixed, got {recipe.masks!r} for {recipe.method}")
    if recipe.finetune_epochs and not method.has_mask:
        raise RecipeError(
            f"{recipe.method} has no mask to keep, so fine-tuning would undo the compression: "
            f"train longer instead of --finetune-epochs {recipe.finetune_epochs}"
        )
    known = method_options(method)
    options = {**_time(recipe, method, known, steps), **_options(recipe, method, known)}
    for name, default in known.items():
        if default is ... and name not in options:
            raise RecipeError(f"{recipe.method} needs --options {name}=VALUE: see regrow methods {recipe.method}")
    if "settle" in known and not options.get("settle"):
        options.pop("total_steps", None)  # only settling needs it; without, a training may become longer
    pruner: Pruner = method(model, optimizer, **options)
    pruner.auto_every = recipe.every == "auto"
    if "total_steps" not in options:  # methods that know the length of training check it themselves
        if problem := pruner.shortfall(recipe.epochs * steps):
            raise ValueError(problem)
        pruner.warn_if_idle(recipe.epochs * steps)
    if method.every_divides_epoch and steps % pruner.every:
        raise RecipeError(
            f"{recipe.method} is sparse only right after a mask update, and it is evaluated after each epoch: every "
            f"must divide the {steps} steps of an epoch, got {pruner.every}"
        )
    return pruner


def make_schedule(recipe: Recipe, steps: int) -> Sparsity:
    """Return the sparsity schedule in optimizer steps, `steps` per epoch (Appendix A.2)."""
    end = round(recipe.ramp_fraction * recipe.epochs * steps)
    if not end:
        return recipe.level
    make = partial(SCHEDULES[recipe.schedule], end=end, every=steps if recipe.ramp_by == "epoch" else 1)
    return ramped(recipe.level, make)


def _time(recipe: Recipe, method: type[Pruner], known: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return sparsity and times in optimizer steps, as far as they are options of the method."""
    total = recipe.epochs * steps
    facts: dict[str, Any] = {
        # A method that prunes once, at a given step, does not follow a ramp.
        "sparsity": make_schedule(recipe, steps) if method.takes_schedule and "at" not in known else recipe.level,
        "at": total,
        "total_steps": total,
        "seed": recipe.seed,
    }
    if recipe.ramp_end is not None:
        facts["ramp_end"] = recipe.ramp_end
    if recipe.every in ("auto", "paper") and known.get("every") == "auto":
        facts["every"] = _period(recipe, method, steps)
    return {name: value for name, value in facts.items() if name in known}


def _period(recipe: Recipe, method: type[Pruner], steps: int) -> int | Literal["auto"]:
    """Return the steps between mask updates that the recipe's `every` stands for, with epochs of `steps` steps."""
    period = steps if method.period == EPOCH else method.period
    if recipe.every == "paper" or not method.scales_period:
        return period
    if method.has_own_schedule and method.period != EPOCH:
        return "auto"  # the method knows when its ramp ends
    total = recipe.epochs * steps
    end = round(recipe.ramp_fraction * total) if method.takes_schedule else None
    period = scaled_period(period, ramp_end=end or None, total_steps=total)
    if method.every_divides_epoch:  # it is evaluated at the end of an epoch, right after an update
        period = max(each for each in range(1, period + 1) if steps % each == 0)
    return period


def _options(recipe: Recipe, method: type[Pruner], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the recipe sets; an option that the method does not have is an error."""
    fields = {name: getattr(recipe, name) for name in PASSED_ON} | {"stabilize": recipe.stabilize or None}
    given = {name: value for name, value in fields.items() if value not in (None, (), "auto", "paper")}
    if method.ignores_options:
        return {name: value for name, value in given.items() if name in known}
    given |= dict(map(_parse, recipe.options))
    for name, value in given.items():
        if name not in known:
            owners = [each for each in METHODS if name in method_options(find_method(each))]
            hint = f" It is for {owners[0]}." if len(owners) == 1 else did_you_mean(name, known, cutoff=0.5)
            hint = hint or f" It takes {', '.join(known)}."
            raise RecipeError(f"{recipe.method} has no option {name}, got {value!r}.{hint}")
        if isinstance(known[name], bool) and not isinstance(value, bool):
            raise RecipeError(f"{name} must be true or false, got {value!r}")
    return given


def _parse(option: str) -> tuple[str, Any]:
    """Split `name=value`; the value is parsed as TOML, but a word needs no quotes.

    >>> _parse("drop_fraction=0.2"), _parse("criterion=rms")
    (('drop_fraction', 0.2), ('criterion', 'rms'))
    """
    name, equals, value = option.partition("=")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"] if equals and "\n" not in value else None
    except tomllib.TOMLDecodeError:
        parsed = value.strip() if _WORD.fullmatch(value.strip()) else None
    if parsed is None:
        raise RecipeError(
            f"options must have the form name=value with a number, true, false, a word, or as in TOML a "
            f"quoted string or a list; got {option!r}"
        )
    return name.strip(), tuple(parsed) if isinstance(parsed, list) else parsed


def _given_masks(recipe: Recipe, model: nn.Module) -> Masks:
    """Return masks with the zeros of another model."""
    if recipe.masks is None:
        raise RecipeError("method fixed needs masks, a finished run or a model file whose zeros stay zero")
    state = _weights_in(recipe.masks, "masks")
    names = _masked_names(recipe, model, state)
    if missing := [name for name in names if name not in state]:
        raise RecipeError(f"masks: {recipe.masks} has no weight {missing[0]}: is it from another network?")
    return Masks({name: (state[name] != 0).to(torch.bool) for name in names})


def _weights_in(source: str, field: str) -> dict[str, Tensor]:
    """Return the tensors of a finished run or of a model file, without running code that it names or contains."""
    path = Path(source)
    try:
        if path.is_file() and zipfile.is_zipfile(path):
            return _saved_by_torch(path, field)
        found = load(path)
    except FileNotFoundError as error:
        raise RecipeError(f"{field}: {error}") from None
    return found.state_dict() if isinstance(found, nn.Module) else found


def _saved_by_torch(path: Path, field: str) -> dict[str, Tensor]:
    """Read a state dict written by torch.save, alone or under `state_dict` or `model`."""
    try:
        found = load_torch_file(path)
    except FormatError as error:
        raise RecipeError(f"{field}: {error}") from None
    inner = [found[name] for name in ("state_dict", "model") if isinstance(found, dict) and name in found]
    state = inner[0] if inner and isinstance(inner[0], dict) else found
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise RecipeError(f"{field}: {path} holds a {type(state).__name__}, expected a state dict of tensors")
    return dict(state)


def _masked_names(recipe: Recipe, model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Return the targets; by default also other weights of `state` with zeros."""
    targets = find_targets(
        model, recipe.targets or None, include_last=bool(recipe.include_last), exclude=recipe.exclude
    )
    names = {target.name for target in targets}
    if recipe.targets or recipe.exclude or recipe.include_last is not None:
        return [target.name for target in targets]
    weights = {name for name, parameter in named_parameters(model).items() if parameter.ndim > 1 and name in state}
    names |= {name for name in weights if bool((state[name] == 0).any())}
    return [name for name in named_parameters(model) if name in names]
