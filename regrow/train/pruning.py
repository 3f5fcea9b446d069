"""From a recipe to a pruner: the methods count in optimizer steps, recipes in epochs and shares of training."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regrow.core import Constant, Cubic, Masks
from regrow.core.schedule import Schedule, scaled_period
from regrow.deploy.files import load_model
from regrow.host.hints import did_you_mean
from regrow.host.targets import find_targets, named_parameters
from regrow.methods import SFP, Dense, Feedback, Fixed, Pruner
from regrow.methods.registry import find_method, method_options
from regrow.train.config import Recipe, RecipeError

# The recipe's fields that are options of many methods, by the methods' names.
_SHARED = {
    "targets": "targets",
    "include_last": "include_last",
    "scope": "scope",
    "unit": "unit",
    "floor": "floor",
    "decay_at": "decay",
    "every": "every",
}

# A text that needs no quotes: nothing else in TOML looks like it but true, false, inf and nan.
_WORD = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)


def make_pruner(recipe: Recipe, model: nn.Module, optimizer: Optimizer, steps: int) -> Pruner:
    """Attach the recipe's method, where an epoch has `steps` optimizer steps.

    What the method says against its options is a `RecipeError`: nobody but the recipe has given them.
    """
    method = chosen_method(recipe)
    try:
        return _attached(recipe, method, model, optimizer, steps)
    except TypeError as error:
        given = f" (with options {', '.join(recipe.options)})" if recipe.options else ""
        raise RecipeError(f"{recipe.method}: {error}{given}") from error


def chosen_method(recipe: Recipe) -> type[Pruner]:
    """Return the recipe's method; a name that nobody knows, or that is something else's, is a `RecipeError`."""
    try:
        return find_method(recipe.method)
    except (TypeError, ValueError) as error:
        raise RecipeError(str(error)) from None


def _attached(recipe: Recipe, method: Any, model: nn.Module, optimizer: Optimizer, steps: int) -> Pruner:
    if method is Fixed:
        _options(recipe, method, dict.fromkeys(("targets", "include_last")))
        return Fixed(model, optimizer, _given_masks(recipe, model))
    if recipe.masks is not None:
        own = "has none" if method is Dense else "finds its own"
        raise RecipeError(f"masks are for method fixed, and {recipe.method} {own}: got {recipe.masks!r}")
    if issubclass(method, Feedback) and recipe.finetune_epochs:
        raise RecipeError(
            f"{recipe.method} has no mask that fine-tuning could keep, and without one it would undo the compression: "
            f"train longer instead of --finetune-epochs {recipe.finetune_epochs}"
        )
    known = method_options(method)
    options = {**_time(recipe, method, known, steps), **_options(recipe, method, known)}
    for name, default in known.items():
        if default is ... and name not in options:
            raise RecipeError(f"{recipe.method} needs --options {name}=VALUE: see regrow methods {recipe.method}")
    pruner: Pruner = method(model, optimizer, **options)
    if "total" not in options:  # who knows the length of the training has said it already
        pruner.warn_if_idle(recipe.epochs * steps)
    if method is SFP and steps % pruner.every:
        raise RecipeError(
            f"sfp is sparse only when it has just made a mask, as it should be when it is evaluated: every must divide "
            f"the {steps} steps of an epoch, got {pruner.every}"
        )
    return pruner


def make_schedule(recipe: Recipe, steps: int) -> Schedule:
    """Return the ramp in optimizer steps, where an epoch has `steps` of them (Appendix A.2)."""
    end = round(recipe.ramp_share * recipe.epochs * steps)
    if not end:
        return Constant(recipe.sparsity)
    return Cubic(recipe.sparsity, end=end, every=steps if recipe.ramp_by == "epoch" else 1)


def ramps(method: type[Pruner]) -> bool:
    """Return whether the method's sparsity may change over time."""
    hints = [get_type_hints(vars(cls)["__init__"]) for cls in method.__mro__[:-1] if "__init__" in vars(cls)]
    return next((hint["sparsity"] for hint in hints if "sparsity" in hint), None) is not float


def _time(recipe: Recipe, method: type[Pruner], known: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return how much is pruned and when, as far as the method wants to know."""
    total = recipe.epochs * steps
    facts = {
        "sparsity": make_schedule(recipe, steps) if ramps(method) else recipe.sparsity,
        "at": total,
        "total": total,
        "total_steps": total,
        "seed": recipe.seed,
    }
    if known.get("every", ...) is None and recipe.every is None:
        facts["every"] = steps  # the methods without a period of their own work once per epoch
    if recipe.every == "auto" and "every" in known:
        period = steps if known["every"] is None else method.period
        end = round(recipe.ramp_share * total) if ramps(method) else None
        period = scaled_period(period, ramp_end=end or None, total_steps=total)
        if method is SFP:  # it is evaluated at the end of an epoch, where it must just have pruned
            period = max(each for each in range(1, period + 1) if steps % each == 0)
        facts["every"] = period
    return {name: value for name, value in facts.items() if name in known or name == "every"}


def _options(recipe: Recipe, method: type[Pruner], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the recipe says beyond the method's defaults; what the method cannot do is an error."""
    fields = {name: getattr(recipe, field) for field, name in _SHARED.items()}
    given = {name: value for name, value in fields.items() if value not in (None, (), "auto")}
    if method is Dense:  # the baseline of any recipe
        return {name: value for name, value in given.items() if name in known}
    given |= dict(map(_parse, recipe.options))
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(name, known, cutoff=0.5) or f" It takes {', '.join(known)}."
            raise RecipeError(f"{recipe.method} takes no {name}, got {value!r}.{hint}")
        if isinstance(known[name], bool) and not isinstance(value, bool):
            raise RecipeError(f"{name} must be true or false, got {value!r}")
    return given


def _parse(option: str) -> tuple[str, Any]:
    """Split `name=value`; the value is read as TOML does, but for a word, which needs no quotes.

    >>> _parse("zeta=0.2"), _parse("criterion=rms")
    (('zeta', 0.2), ('criterion', 'rms'))
    """
    name, equals, value = option.partition("=")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"] if equals and "\n" not in value else None
    except tomllib.TOMLDecodeError:
        parsed = value.strip() if _WORD.fullmatch(value.strip()) else None
    if parsed is None:
        raise RecipeError(
            f"options must be of the form name=value with a number, true, false, a word, or as in TOML a text "
            f"in quotes or a list; got {option!r}"
        )
    return name.strip(), tuple(parsed) if isinstance(parsed, list) else parsed


def _given_masks(recipe: Recipe, model: nn.Module) -> Masks:
    """Return the masks that the zeros of another model are."""
    if recipe.masks is None:
        raise RecipeError("method fixed needs masks, a finished run or a model file whose zeros stay zero")
    try:
        other = load_model(recipe.masks)
    except FileNotFoundError as error:
        raise RecipeError(f"masks: {error}") from None
    state: Mapping[str, Tensor] = other.state_dict() if isinstance(other, nn.Module) else other
    names = _masked_names(recipe, model, state)
    if missing := [name for name in names if name not in state]:
        raise RecipeError(f"masks: {recipe.masks} has no weight {missing[0]}: is it of another network?")
    return Masks({name: (state[name] != 0).to(torch.bool) for name in names})


def _masked_names(recipe: Recipe, model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Return the targets; unless they are chosen, the other weights in which the method of `state` left zeros too."""
    targets = find_targets(model, recipe.targets or None, include_last=bool(recipe.include_last))
    names = {target.name for target in targets}
    if recipe.targets or recipe.include_last is not None:
        return [target.name for target in targets]
    weights = {name for name, parameter in named_parameters(model).items() if parameter.ndim > 1 and name in state}
    names |= {name for name in weights if bool((state[name] == 0).any())}
    return [name for name in named_parameters(model) if name in names]
