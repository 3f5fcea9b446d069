"""Read the model that `inspect`, `export` and `bench` are about, from regrow.models or built by the user's code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

    from regrow.models import Network
    from regrow.runs.recipe import Recipe

MODEL_HELP = (
    "Callable that builds the network of a run or file, package.module:callable, if it is not one of regrow.models. "
    "Code is imported only if it is named here."
)
_DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8")
INPUT_HELP = "Shape of one input for --model, such as 3 32 32. None: as in the run."


@dataclass(frozen=True)
class Subject:
    """A model in evaluation mode, its name, and the shape and type of one input."""

    model: nn.Module
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def example(self, batch: int) -> Tensor:
        """Return a batch of random inputs, the same every time; whole numbers are 0 and 1."""
        import torch

        generator, dtype = torch.Generator().manual_seed(0), getattr(torch, self.dtype)
        if not dtype.is_floating_point:
            return torch.randint(0, 2, (batch, *self.shape), generator=generator, dtype=dtype)
        return torch.randn(batch, *self.shape, generator=generator).to(dtype)


def read_model(source: Path, model: str | None = None, shape: tuple[int, ...] | None = None) -> Subject:
    """Return the model in a run folder or a model file; `model` builds a network that is not of regrow.models."""
    from regrow.models import Network
    from regrow.runs.recipe import UsageError

    found = read_tensors(source)
    if isinstance(found, Network):
        if model is not None:
            raise UsageError(f"--model {model}: {source} stores its own network, {found.architecture.name}.")
        return Subject(found.eval(), found.architecture.name, found.architecture.input_shape)
    if model is None:
        raise UsageError(_unnamed(source))
    return own_subject(source, model, shape, found)


def named_network(name: str, **options: int) -> Network:
    """Build a network of regrow.models."""
    from regrow import models
    from regrow.runs.recipe import UsageError

    try:
        return models.build(name, **options)
    except ValueError as error:
        raise UsageError(f"{name!r} is not a file, a folder or a network: {error}") from None


def read_tensors(source: Path) -> Any:
    """Return the network of regrow.models in a run folder or file, or its tensors if it is another one."""
    from regrow.files.packed import load
    from regrow.runs.folder import RunFolderError

    try:
        return load(source)
    except FileNotFoundError as error:
        raise RunFolderError(_unfinished(source) or str(error)) from None


def own_subject(source: Path, name: str, shape: tuple[int, ...] | None, state: dict[str, Tensor]) -> Subject:
    """Return the network that the callable `name` builds, with the tensors of `source`."""
    from regrow.files.model_file import difference
    from regrow.runs.recipe import UsageError
    from regrow.train.own import own_model

    if ":" not in name:
        raise UsageError(f"--model must have the form package.module:callable, got {name!r}.")
    recipe = _recipe(source)
    options = {field: getattr(recipe, field, None) for field in ("width", "stem_stride", "growth")}
    model = own_model(name, {name}, **{field: value for field, value in options.items() if value is not None})
    if differs := difference(model, state):
        raise UsageError(f"--model {name} is not the network in {source}: {differs}.")
    model.load_state_dict(state)
    known, dtype = _input(source, recipe)
    if shape is None and known is None:
        raise UsageError(f"{source} does not say what one input of {name} is: add its shape, such as --input 3 32 32.")
    return Subject(model.eval(), name, tuple(shape or known or ()), dtype)


def _input(source: Path, recipe: Recipe | None) -> tuple[tuple[int, ...] | None, str]:
    """Return the shape of one input and its type, as the run or its data set says."""
    from regrow import data
    from regrow.runs.folder import read_result

    if recipe is None:
        return None, "float32"
    result = read_result(source) or {}
    shape, dtype = result.get("input_shape"), result.get("input_dtype")
    if isinstance(shape, list) and all(isinstance(size, int) for size in shape) and dtype in _DTYPES:
        return tuple(shape), dtype
    if ":" in recipe.data:
        return None, "float32"
    info = data.info(recipe.data)
    return (info.channels, info.size, info.size), "float32"


def _recipe(source: Path) -> Recipe | None:
    from regrow.runs.folder import read_recipe

    return read_recipe(source) if (source / "recipe.toml").is_file() else None


def _unnamed(source: Path) -> str:
    recipe = _recipe(source)
    name = recipe.model if recipe is not None and ":" in recipe.model else "package.module:callable"
    return f"{source} holds a network that is not in regrow.models: name the callable that builds it, --model {name}"


def _unfinished(folder: Path) -> str | None:
    """Return the message for a run that has no model yet."""
    if not (folder / "recipe.toml").is_file() or (folder / "result.json").is_file():
        return None
    return f"{folder} is not finished and has no model yet. Resume: regrow train --resume {folder}"
