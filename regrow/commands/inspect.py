"""`regrow inspect`: what is left of each layer, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from regrow.analysis import Account


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
    from regrow.train.config import RecipeError

    try:
        model = models.build(name, classes=classes, channels=channels, size=size)
    except ValueError as error:
        raise RecipeError(f"{name!r} is no file or folder, and as a network: {error}") from None
    return account(model, model.architecture.input_shape)


def _file(path: Path) -> Account:
    from regrow.analysis import account
    from regrow.deploy.pack import load
    from regrow.models import Network
    from regrow.train.files import FolderError

    try:
        model = load(path)
    except FileNotFoundError as error:
        raise FolderError(str(error)) from None
    if not isinstance(model, Network):
        raise FolderError(f"{path} does not say of which network its tensors are.")
    return account(model, model.architecture.input_shape)


def _unfinished(folder: Path) -> Account:
    """Look at a run that is not complete, through its last checkpoint."""
    import torch

    from regrow.analysis import account
    from regrow.host.layout import unpack
    from regrow.train import checkpoint
    from regrow.train.files import FolderError
    from regrow.train.folder import read_recipe
    from regrow.train.parts import make_model

    if not (folder / "checkpoint.pt").is_file():
        raise FolderError(f"{folder} has no checkpoint yet.")
    state = checkpoint.load(folder / "checkpoint.pt")["trainer"]
    model = make_model(read_recipe(folder).changed(device="cpu"))
    model.load_state_dict(state["model"])
    shapes = state["pruner"]["shapes"]
    masks = {name: unpack(bits, torch.Size(shapes[name]), name) for name, bits in state["pruner"]["masks"].items()}
    print(f"not finished: after {state['step']:,} steps\n")
    return account(model, model.architecture.input_shape, masks)
