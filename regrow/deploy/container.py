"""Model files on disk: found, opened through safetensors, refused with one clear exception."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

RUN_MODEL = "model.safetensors"
"""The file in a run folder that holds the trained model."""

PACKED = "regrow."
"""How the name of the tensor in a packed file starts, so that it is not mistaken for a tensor of a model."""

MAGIC = b"grow"
"""How the bytes of that tensor start, so that it is known even where its name is damaged."""


ZIP = b"PK\x03\x04"
"""How the files of torch.save start, which are zip archives."""


class FormatError(ValueError):
    """A model file is damaged, hostile or not what it says; the message names it and what is wrong."""


def locate(path: str | Path) -> Path:
    """The file that `path` means: itself, or the model inside a run folder."""
    path = Path(path)
    found = path / RUN_MODEL if path.is_dir() else path
    if not found.is_file():
        what = f"{path} has no {RUN_MODEL}" if path.is_dir() else f"{path} does not exist"
        raise FileNotFoundError(f"{what}. Give a model file or the folder of a finished run.")
    return found


def safetensors(framework: str) -> Any:
    """The functions of safetensors for `framework` ("numpy" or "torch"), which is an optional dependency."""
    try:
        return import_module(f"safetensors.{framework}")
    except ImportError:
        raise ImportError('model files need safetensors: pip install "regrow[cli]"') from None


def read_json(text: str, path: Path) -> Any:
    """A JSON value from the metadata of a file."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: its metadata cannot be read: {error}.") from None


@contextmanager
def opened(path: Path, framework: str) -> Iterator[Any]:
    """A safetensors file, opened for "numpy" or "torch"; what the parser refuses is a `FormatError`."""
    module = safetensors(framework)
    from safetensors import SafetensorError

    try:
        with module.safe_open(path, framework=framework) as file:
            yield file
    except SafetensorError as error:
        raise FormatError(f"{path} is not a safetensors file, or a damaged one: {error}.{_hint(path)}") from None


def _hint(path: Path) -> str:
    """What to do with a file of the kind that most people have."""
    with path.open("rb") as file:
        if file.read(len(ZIP)) != ZIP:
            return ""
    return (
        " It looks like one of torch.save, which may hold code: read it with torch.load(path, weights_only=True), and"
        " write what you get with regrow.save."
    )
