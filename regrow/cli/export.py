"""`regrow export`: writes a trained model in one of the formats of `regrow.export.FORMATS`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from regrow.cli.errors import check_file
from regrow.cli.model import INPUT_HELP, MODEL_HELP, read_model
from regrow.export import FORMATS

_OPTIONS = {name: option for format in FORMATS.values() for name, option in format.options.items()}


def _formats_with(option: str) -> str:
    return " or ".join(f"--to {name}" for name, format in FORMATS.items() if option in format.options)


_TO_HELP = (
    f"{'; '.join(f'{name}: {format.help}' for name, format in FORMATS.items())}. None: packed, or program for a shrunk "
    "network, whose layers no longer have their standard sizes."
)
_OUT_HELP = (
    f"The file or folder. None: model, or model-shrunk, with the suffix of the format "
    f"({', '.join(f.suffix for f in FORMATS.values())})."
)

if TYPE_CHECKING:
    from torch import nn

    from regrow.cli.model import Subject

    To = str
    Options = Any
else:
    To = tyro.extras.literal_type_from_choices(list(FORMATS))
    Options = make_dataclass(
        "Options",
        [
            (name, Annotated[each.type, tyro.conf.arg(help=f"{each.help} For {_formats_with(name)}.")], each.default)
            for name, each in _OPTIONS.items()
        ],
    )


def export(
    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|FILE")],
    *,
    to: Annotated[To | None, tyro.conf.arg(help=_TO_HELP)] = None,
    out: Annotated[Path | None, tyro.conf.arg(help=_OUT_HELP)] = None,
    shrink: bool = False,
    round_to: int = 1,
    model: Annotated[str | None, tyro.conf.arg(help=MODEL_HELP)] = None,
    input: Annotated[tuple[int, ...] | None, tyro.conf.arg(help=INPUT_HELP)] = None,
    format: Options,
) -> int:
    """Write the model of a finished run in another format.

    Args:
        what: The folder of a run, or a model file (safetensors or packed).
        shrink: Remove pruned filters and everything that is connected only to them; the outputs stay the same.
        round_to: With --shrink, round channel counts up to multiples of this, for runtimes that prefer 8 or 16.
    """
    from regrow.runs.folder import made
    from regrow.runs.recipe import UsageError

    to = to or ("program" if shrink else "packed")
    form = FORMATS[to]
    given = {name: value for name, value in asdict(format).items() if value != _OPTIONS[name].default}
    _check_options(to, given, round_to, shrink)
    source = Path(what)
    subject = read_model(source, model, input)
    folder = source if source.is_dir() else source.parent
    stem = f"{'model' if source.is_dir() else source.stem}{'-shrunk' if shrink else ''}"
    path = out or folder / f"{stem}{form.suffix}"
    if "mean" in form.options:
        given = _normalization(source) | given
    if out is None and path.is_symlink():  # the folder may come from elsewhere
        raise UsageError(f"{path} is a symbolic link. Remove it, or choose another file with --out.")
    with _writing(path):
        if not form.is_folder:
            check_file(path, f"model{form.suffix}")
    with made(path.parent, file=path):
        network = _shrunk(subject, round_to) if shrink else subject.model
        with _writing(path):
            report = form.write(network, subject.example(2), path, **given)
    dense = 4 * sum(parameter.numel() for parameter in subject.model.parameters())
    print(report or f"{path}: {path.stat().st_size:,} bytes (the dense weights in fp32: {dense:,})")
    return 0


def _normalization(source: Path) -> dict[str, Any]:
    """Return mean and standard deviation of the data of a run; nothing for user data or a model file."""
    from regrow.data import info
    from regrow.runs.folder import read_recipe

    if not (source / "recipe.toml").is_file() or ":" in (name := read_recipe(source).data):
        return {}
    facts = info(name)
    return {"mean": facts.mean, "std": facts.std}


def _check_options(to: str, given: dict[str, Any], round_to: int, shrink: bool) -> None:
    """Refuse options of other formats, and invalid numbers of channels."""
    from regrow.runs.recipe import UsageError

    for name in given:
        if name not in FORMATS[to].options:
            raise UsageError(f"--{name} is for {_formats_with(name)}, not for --to {to}.")
    if round_to < 1:
        raise UsageError(f"--round-to must be at least 1, got {round_to}. Did you mean 8?")
    if round_to > 1 and not shrink:
        raise UsageError(f"--round-to {round_to} needs --shrink.")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an error of writing `path` into one that names it, and a wrong value into a usage error."""
    from regrow.runs.folder import RunFolderError, cannot_write
    from regrow.runs.recipe import UsageError

    try:
        yield
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from None
    except FileExistsError:
        raise RunFolderError(f"cannot write {path}: {path.parent} is a file.") from None
    except OSError as error:
        raise cannot_write(path, error) from error


def _shrunk(subject: Subject, round_to: int) -> nn.Module:
    import regrow

    small = regrow.shrink(subject.model, subject.example(2), round_to=round_to)
    print(regrow.shrink_report(small))
    return small
