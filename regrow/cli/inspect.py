"""Look at models and runs: `regrow inspect` (non-zero weights and cost of each layer) and `regrow report` (a page)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from regrow.cli.errors import check_file
from regrow.cli.model import INPUT_HELP, MODEL_HELP, named_network, own_subject, read_model, read_tensors
from regrow.runs.recipe import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from regrow.runs.recipe import Recipe
    from regrow.train.distributed import Ranks


def inspect(
    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL|RUN|FILE")],
    *,
    classes: int = 10,
    channels: int = 3,
    size: int = 32,
    model: Annotated[str | None, tyro.conf.arg(help=MODEL_HELP)] = None,
    input: Annotated[tuple[int, ...] | None, tyro.conf.arg(help=INPUT_HELP)] = None,
) -> int:
    """Print the layers of a network, a run or a model file: weights, non-zeros and MACs.

    For a network that is not one of regrow.models, --model names the callable that builds it. Without --model, the
    command lists the non-zeros of each tensor.

    Args:
        what: A network such as resnet20, the folder of a run, or a model file (safetensors or packed).
        classes: Classes of a network given by name.
        channels: Input channels of a network given by name.
        size: Height and width of the input of a network given by name.
    """
    path = Path(what)
    if (path / "recipe.toml").is_file() and not (path / "result.json").is_file():
        print(_unfinished(path, model, input))
    elif path.exists():
        print(_file(path, model, input))
    elif model is not None:
        raise UsageError(f"--model is for a run or a model file; {what} does not exist.")
    else:
        from regrow.analysis import account

        network = named_network(what, classes=classes, channels=channels, size=size)
        # Without masks, because among millions of random weights some are zero by chance.
        print(account(network, network.architecture.input_shape, masks={}).table())
    return 0


def _file(path: Path, model: str | None, shape: tuple[int, ...] | None) -> str:
    from torch import nn

    from regrow.analysis import account

    if model is None and not isinstance(found := read_tensors(path), nn.Module):
        return _tensors(found)
    subject = read_model(path, model, shape)
    return account(subject.model, subject.example(1)).table()


def _unfinished(folder: Path, model: str | None, shape: tuple[int, ...] | None) -> str:
    """Return the table of an unfinished run, from its last checkpoint."""
    from regrow import data
    from regrow.analysis import account
    from regrow.runs.folder import CHECKPOINT, RunFolderError, read_recipe
    from regrow.train.distributed import full_tensor, joined
    from regrow.train.loop import saved_masks

    recipe = read_recipe(folder).changed(device="cpu")
    network = _network(folder, recipe) if model is None and not recipe.imports else None
    # Gathering sharded tensors needs a process group, even for one process.
    with joined("cpu", sharded=recipe.parallel == "fsdp") as ranks:
        state = _trainer_state(folder, ranks)
        try:
            tensors = {name: full_tensor(value) for name, value in state["model"].items()}
            if network is not None:
                network.load_state_dict(tensors)
            masks = saved_masks(state["pruner"])
            step = int(state["step"])
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RunFolderError(f"{folder / CHECKPOINT} is not a state of this run ({str(error)[:200]}).") from None
    print(f"not finished: after {step:,} steps\n")
    if model is not None:
        subject = own_subject(folder, model, shape, tensors)
        return account(subject.model, subject.example(1), masks).table()
    if network is None:
        return _tensors(tensors)
    info = data.info(recipe.data)
    return account(network, (info.channels, info.size, info.size), masks).table()


def _network(folder: Path, recipe: Recipe) -> nn.Module:
    from regrow.train.build import make_model

    try:
        return make_model(recipe)
    except ValueError as error:
        raise UsageError(f"{folder / 'recipe.toml'}: {error}") from None


def _tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return a table of the tensors with two dimensions or more, for a network that is not known."""
    weights = {name: tensor for name, tensor in tensors.items() if tensor.dim() > 1}
    counts = {name: (tensor.numel(), int(tensor.count_nonzero())) for name, tensor in weights.items()}
    rows = [(name, "x".join(map(str, weights[name].shape)), *counts[name]) for name in weights]
    rows.append(("total", "", sum(n for n, _ in counts.values()), sum(kept for _, kept in counts.values())))
    width, sizes = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    lines = [f"{'tensor':{width}}  {'shape':{sizes}}  {'weights':>11}  {'non-zeros':>11}  density"]
    lines += [
        f"{name:{width}}  {shape:{sizes}}  {count:11,}  {kept:11,}  {100 * kept / max(count, 1):5.1f} %"
        for name, shape, count, kept in rows
    ]
    return "\n".join([*lines, "", "For MACs, name the callable that builds it: --model package.module:callable"])


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


def report(
    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN...")],
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report.html"),
    figures: Path | None = None,
    title: str = "Sparse training",
    note: str = "",
) -> int:
    """Write one self-contained HTML page about runs: results, curves, mask dynamics, recipes.

    Args:
        runs: Run folders, folders that contain some at any depth, or files of results (JSON Lines).
        out: The page.
        figures: Folder for every figure as SVG, PNG and PDF, for papers. None: do not write them.
        title: Heading of the page.
        note: A sentence under the heading, for example about the data.
    """
    from regrow.report import write_report
    from regrow.report.published import in_the_paper

    check_file(out, "report.html")
    if out.suffix != ".html":
        raise UsageError(f"--out must be an .html file, got {out}.")
    path = write_report(runs, out, title=title, note=note, published=in_the_paper, figures=figures)
    print(f"report in {path}" + (f", figures in {figures}" if figures else ""))
    return 0
