"""Networks and data sets of your own, named in a recipe as `package.module:callable`.

Importing a module runs its code, so a name is imported only if it is in `imports`: the names that the user gave in this
call. A name in a run folder or a model file is never enough.
"""

from __future__ import annotations

import importlib
import inspect
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, default_collate

from regrow.core.modules import evaluating
from regrow.data import DatasetInfo, ImageSet
from regrow.data.images import evenly, holdout_indices
from regrow.data.random import Stream, permutation
from regrow.runs.recipe import Recipe, RecipeError
from regrow.text import did_you_mean

_DATA = "a pair (train, test) of data sets or loaders, whose items are (inputs, labels)"


def named_callable(field: str, name: str, imports: Collection[str]) -> Callable[..., Any]:
    """Import the callable that a recipe's `field` names, if the user named it, too; `imports` has these names."""
    if name not in imports:
        raise RecipeError(f"{field} is {name!r}: code is imported only if you name it yourself. Add --{field} {name}")
    module_name, _, path = name.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # last, so that a file here cannot replace an installed module
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but one that it imports does not
        raise RecipeError(f"{field} {name!r}: no module {error.name!r} here or in the installed packages") from None
    for part in path.split("."):
        if not hasattr(found, part):
            raise RecipeError(f"{field} {name!r}: {module_name} has no {part!r}.{did_you_mean(part, dir(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise RecipeError(f"{field} must name a callable, but {name!r} is {_kind(found)}")
    checked: Callable[..., Any] = found
    return checked


def own_model(name: str, imports: Collection[str], **options: int) -> nn.Module:
    """Return the network that the callable `name` builds, with `options` as keyword arguments."""
    build = named_callable("model", name, imports)
    _check_call("model", name, build, options)
    model = build(**options)
    if not isinstance(model, nn.Module):
        raise RecipeError(f"model {name!r} returned {_kind(model)}, expected an nn.Module")
    return model


def own_data(recipe: Recipe, imports: Collection[str]) -> tuple[Any, Any]:
    """Return the training and the test data that the callable of the recipe's `data` returns."""
    make = named_callable("data", recipe.data, imports)
    _check_call("data", recipe.data, make, {})
    found = make()
    if isinstance(found, Mapping) and {"train", "test"} <= found.keys():
        found = found["train"], found["test"]
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise RecipeError(f"data {recipe.data!r} returned {_kind(found)}, expected {_DATA}")
    if all(isinstance(part, ImageSet) for part in found):
        return found[0], found[1]
    for split, part in zip(("train", "test"), found, strict=True):
        loads = hasattr(part, "__getitem__") or hasattr(part, "__iter__")
        if not loads or not isinstance(part, Sized) or not len(part):
            size = ""
            if loads:
                size = " without items" if isinstance(part, Sized) else " without a length"
            raise RecipeError(f"data {recipe.data!r} returned {_kind(part)}{size} as {split} data, expected {_DATA}")
    return _selected(recipe, *found)


def _selected(recipe: Recipe, train: Any, test: Any) -> tuple[Any, Any]:
    """Apply `limit` and `holdout`, which need data sets."""
    if recipe.limit is None and not recipe.holdout:
        return train, test
    if is_loader(train):
        field = "holdout" if recipe.holdout else "limit"
        raise RecipeError(f"{field} needs a data set, but {recipe.data!r} returned {_kind(train)} as train data")
    if recipe.limit is not None:
        train = Subset(train, evenly(recipe.limit, len(train)).tolist())
    if recipe.holdout:
        rest, held = holdout_indices(recipe.holdout, len(train), 0)
        train, test = Subset(train, rest.tolist()), Subset(train, held.tolist())
    return train, test


def is_loader(part: Any) -> bool:
    """Return whether `part` yields batches; a data set has single items."""
    return isinstance(part, DataLoader) or not (isinstance(part, Dataset) or hasattr(part, "__getitem__"))


def seed_all(*numbers: int) -> None:
    """Seed torch, NumPy and Python from `numbers`: a resumed run then draws what an uninterrupted one draws."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@dataclass(frozen=True)
class OwnBatches:
    """The batches of a data set or a loader, with the interface of `regrow.data.Batches`.

    The order of a data set depends on (seed, epoch) only. Random numbers are seeded before each batch, so an epoch can
    start at any batch; a loader must skip the batches before it.
    """

    name: str
    part: Any
    batch_size: int
    device: torch.device
    seed: int = 0
    shuffle: bool = True
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if is_loader(self.part) and self.world > 1:
            raise RecipeError(
                f"{self.name!r} returned {_kind(self.part)}, which cannot be split among {self.world} processes: "
                "return a data set"
            )

    def __len__(self) -> int:
        count = len(self.part)
        return count if is_loader(self.part) else -(-count // self.batch_size)

    def images(self, batch: int) -> int | None:
        """Return the number of items in a batch over all processes; None if only the loader knows."""
        return None if is_loader(self.part) else min(self.batch_size, len(self.part) - batch * self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.epoch(0)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the batches of `epoch`, starting at batch number `start`."""
        fetch = self._loaded if is_loader(self.part) else self._collated
        for batch in fetch(epoch, start):
            inputs, labels = self._pair(batch)
            yield inputs.to(self.device), labels.to(self.device)

    def example(self) -> Tensor:
        """Return a batch of one input."""
        return next(self.epoch(0))[0][:1]

    def _collated(self, epoch: int, start: int) -> Iterator[Any]:
        count = len(self.part)
        order = permutation(self.seed, epoch, Stream.ORDER, count) if self.shuffle else np.arange(count)
        for batch in range(start, len(self)):
            seed_all(self.seed, epoch, batch, self.rank)
            first = batch * self.batch_size
            chosen = order[first : first + self.batch_size][self.rank :: self.world]
            yield default_collate([self.part[int(index)] for index in chosen])

    def _loaded(self, epoch: int, start: int) -> Iterator[Any]:
        seed_all(self.seed, epoch)
        if (generator := getattr(self.part, "generator", None)) is not None:
            generator.manual_seed(torch.initial_seed())
        batches = iter(self.part)
        for batch in range(len(self)):
            seed_all(self.seed, epoch, batch)
            try:
                found = next(batches)
            except StopIteration:
                raise RecipeError(
                    f"{self.name!r}: the loader has length {len(self)} but ended after {batch} batches"
                ) from None
            if batch >= start:
                yield found

    def _pair(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return inputs and labels; anything else is an error that says what was found."""
        pair = isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(x, Tensor) for x in batch)
        if not pair:
            raise RecipeError(f"{self.name!r} yields {_kind(batch)}, expected (inputs, labels), two tensors")
        inputs, labels = batch
        if labels.is_floating_point() or labels.shape != inputs.shape[:1]:
            raise RecipeError(
                f"{self.name!r} yields labels of {labels.dtype} and shape {tuple(labels.shape)} for inputs of shape "
                f"{tuple(inputs.shape)}, expected one whole number, the class, for each input"
            )
        return inputs, labels.long()


def own_info(name: str, train: Any, test: Any, example: Tensor) -> DatasetInfo:
    """Return the known properties of user data; 0 stands for an unknown number."""
    square = example.dim() == 4 and example.shape[2] == example.shape[3]
    return DatasetInfo(
        name=name,
        title=name,
        channels=example.shape[1] if square else 0,
        size=example.shape[2] if square else 0,
        classes=_classes(train),
        train=len(train),
        test=len(test),
        mean=(),
        std=(),
        pad=0,
        flip=False,
        source="",
    )


def _classes(part: Any) -> int:
    """Return the number of classes from `classes`, `targets` or `tensors`, as torchvision and torch name them."""
    source = part
    while isinstance(source, DataLoader | Subset):
        source = source.dataset
    if isinstance(names := getattr(source, "classes", None), Sized):
        return len(names)
    labels = getattr(source, "targets", None)
    if labels is None and (tensors := getattr(source, "tensors", None)):
        labels = tensors[-1]
    if labels is None or not len(labels):
        return 0
    return int(torch.as_tensor(labels).max()) + 1


def check_fit(recipe: Recipe, model: nn.Module, batches: Any) -> None:
    """Refuse a network whose outputs are not class scores for the labels of the data."""
    inputs, labels = next(iter(batches))
    inputs, labels = inputs[:2], labels[:2]
    try:
        with evaluating(model), torch.no_grad():
            scores = model(inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        raise RecipeError(
            f"model {recipe.model!r} does not run on the inputs of {recipe.data!r}, {inputs.dtype} of shape "
            f"{tuple(inputs.shape)}: {reason}"
        ) from error
    if not isinstance(scores, Tensor) or scores.dim() != 2 or len(scores) != len(inputs):
        shape = f" of shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else ""
        raise RecipeError(
            f"model {recipe.model!r} returns {_kind(scores)}{shape}, expected a tensor (inputs, classes) of scores"
        )
    if int(labels.max()) >= scores.shape[1] or int(labels.min()) < 0:
        raise RecipeError(
            f"model {recipe.model!r} has {scores.shape[1]} classes, but {recipe.data!r} has the label "
            f"{int(labels.max())}"
        )


def _check_call(field: str, name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse arguments that the callable does not take, before it is called: its own errors keep their traceback."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some builtins have none
    try:
        signature.bind(**options)
    except TypeError as error:
        given = f" with {', '.join(f'{key}={value}' for key, value in options.items())}" if options else ""
        raise RecipeError(
            f"{field} {name!r} is called{given or ' without arguments'}, but takes {signature}: {error}"
        ) from None


def _kind(value: Any) -> str:
    """Describe a value by its type; for a tuple or list, also by the types of its items."""
    name = type(value).__name__
    if isinstance(value, tuple | list):
        items = ", ".join(type(item).__name__ for item in value[:5])
        name = f"{name} of {len(value)} ({items}{', …' if len(value) > 5 else ''})"
    if value is None:
        return "None"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
