"""`regrow inspect`: non-zero weights and cost of each layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:
    from regrow.analysis import Account
    from regrow.train.distributed import Ranks


def inspect(
    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL|RUN|FILE")],
    *,
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
) -> int:
    """Print the layers of a network, a run or a model file: weights, non-zeros and MACs.

    Args:
        what: A network such as resnet20, the folder of a run, or a model file (safetensors or packed).
        classes: Classes of a network given by name.
        channels: Input channels of a network given by name.
        size: Height and width of the input of a network given by name.
    """
    path = Path(what)
    if (path / "recipe.toml").is_file() and not (path / "result.json").is_file():
        print(_unfinished(path).table())
    elif path.exists():
        print(_file(path).table())
    else:
        print(_named(what, classes, channels, size).table())
    return 0


def _named(name: str, classes: int, channels: int, size: int) -> Account:
    from regrow import models
    from regrow.analysis import account
    from regrow.runs.recipe import UsageError

    try:
        model = models.build(name, classes=classes, channels=channels, size=size)
    except ValueError as error:
        raise UsageError(f"{name!r} is not a file, a folder or a network: {error}") from None
    # Without masks, because among millions of random weights some are zero by chance.
    return account(model, model.architecture.input_shape, masks={})


def _file(path: Path) -> Account:
    from regrow.analysis import account
    from regrow.cli.export import read_network

    model = read_network(path)
    return account(model, model.architecture.input_shape)


def _unfinished(folder: Path) -> Account:
    """Return the account of an unfinished run, from its last checkpoint."""
    from regrow.analysis import account
    from regrow.runs.folder import CHECKPOINT, RunFolderError, read_recipe
    from regrow.runs.recipe import UsageError
    from regrow.train.build import make_model
    from regrow.train.distributed import full_tensor, joined
    from regrow.train.loop import saved_masks

    recipe = read_recipe(folder).changed(device="cpu")
    try:
        model = make_model(recipe)
    except ValueError as error:
        raise UsageError(f"{folder / 'recipe.toml'}: {error}") from None
    # Gathering sharded tensors needs a process group, even for one process.
    with joined("cpu", sharded=recipe.parallel == "fsdp") as ranks:
        state = _trainer_state(folder, ranks)
        try:
            model.load_state_dict({name: full_tensor(value) for name, value in state["model"].items()})
            masks = saved_masks(state["pruner"])
            step = int(state["step"])
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunFolderError(f"{folder / CHECKPOINT} is not a state of this run ({str(error)[:200]}).") from None
    print(f"not finished: after {step:,} steps\n")
    return account(model, model.architecture.input_shape, masks)


def _trainer_state(folder: Path, ranks: Ranks) -> dict[str, Any]:
    from regrow.runs.folder import CHECKPOINT, RunFolderError
    from regrow.train import checkpoint
    from regrow.train.distributed import make_mesh

    try:
        state = checkpoint.load(folder / CHECKPOINT)
    except FileNotFoundError:
        raise RunFolderError(f"{folder} has no checkpoint yet.") from None
    if "shards" in state:
        state = checkpoint.load_sharded(folder, state, make_mesh("cpu", ranks))
    trainer: dict[str, Any] = state.get("trainer", {})
    return trainer
