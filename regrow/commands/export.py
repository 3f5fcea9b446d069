"""`regrow export`: a trained model as a file for somewhere else: packed, ONNX, a torch program, or C for devices."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from regrow.commands.errors import check_file

if TYPE_CHECKING:
    from torch import Tensor, nn

    from regrow.deploy.pack import Dtype
    from regrow.engine.plan.weights import Format
    from regrow.models import Network

_ENDINGS = {"packed": ".regrow", "onnx": ".onnx", "program": ".pt2", "c": ".c"}


def export(
    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|FILE")],
    *,
    to: Literal["packed", "onnx", "program", "c"] | None = None,
    out: Path | None = None,
    shrink: bool = False,
    round_to: int = 1,
    dtype: Literal["fp32", "fp16", "bf16", "int8"] = "fp32",
    sparse: bool = False,
    weights: Literal["fp32", "fp16", "int8"] = "fp32",
    lanes: Literal[4, 8, 16] = 4,
) -> int:
    """Write the model of a finished run to a file for somewhere else.

    Args:
        what: The folder of a run, or a model file (safetensors or packed).
        to: packed is small and read by regrow.load; onnx runs anywhere; program is read by torch.export.load; c is one
            C99 file without dependencies, for devices. None: packed, or program for a shrunk network, whose layers no
            longer have their standard sizes.
        out: The file. None: model.regrow, model.onnx, model.pt2 or model.c in the run's folder.
        shrink: Remove pruned filters and all that only they fed; the outputs stay the same.
        round_to: With --shrink, keep channel counts in multiples of this, for runtimes that like 8 or 16.
        dtype: Precision of the weights in a packed file.
        sparse: Store sparse weights of an ONNX file as sparse initializers: a smaller file, not a faster model.
        weights: Precision of the weights in a C file.
        lanes: Floats in a vector register of the device, for a C file: 4 for NEON and SSE, 8 for AVX2, 16 for AVX-512.
    """
    to = to or ("program" if shrink else "packed")
    _check_options(to, dtype, sparse, for_c=(weights, lanes) != ("fp32", 4))
    _check_rounding(round_to, shrink)
    source = Path(what)
    network = read_network(source)
    folder = source if source.is_dir() else source.parent
    path = out or folder / f"{'model' if source.is_dir() else source.stem}{_ENDINGS[to]}"
    with _writing(path):
        check_file(path, f"model{_ENDINGS[to]}")
        path.parent.mkdir(parents=True, exist_ok=True)
    model = _shrunk(network, round_to) if shrink else network
    if to == "c":
        return _write_c(model, network, path, weights, lanes)
    with _writing(path):
        _write(model, network, path, to, dtype, sparse)
    dense = 4 * sum(parameter.numel() for parameter in network.parameters())
    print(f"{path}: {path.stat().st_size:,} bytes (the dense weights in fp32: {dense:,})")
    return 0


def _check_options(to: str, dtype: str, sparse: bool, *, for_c: bool) -> None:
    """Refuse options of another kind of file."""
    from regrow.train.config import RecipeError

    if dtype != "fp32" and to != "packed":
        raise RecipeError(f"--dtype {dtype} is for packed files; --to {to} keeps fp32.")
    if sparse and to != "onnx":
        raise RecipeError(f"--sparse is for ONNX files, not for --to {to}.")
    if for_c and to != "c":
        raise RecipeError(f"--weights and --lanes are for C files, not for --to {to}.")


def _check_rounding(round_to: int, shrink: bool) -> None:
    """Refuse what is no number of channels, and one that nothing is rounded to."""
    from regrow.train.config import RecipeError

    if round_to < 1:
        raise RecipeError(f"--round-to must be at least 1, got {round_to}. Did you mean 8?")
    if round_to > 1 and not shrink:
        raise RecipeError(f"--round-to {round_to} is for smaller networks: give --shrink, too.")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn what keeps `path` from being written into the error that names it."""
    from regrow.train.files import FolderError, cannot_write

    try:
        yield
    except FileExistsError:
        raise FolderError(f"cannot write {path}: {path.parent} is a file.") from None
    except OSError as error:
        raise cannot_write(path, error) from error


def read_network(source: Path) -> Network:
    """The network in a run folder or a model file, ready for inference."""
    from regrow.deploy.pack import load
    from regrow.models import Network
    from regrow.train.files import FolderError

    try:
        model = load(source)
    except FileNotFoundError as error:
        raise FolderError(_unfinished(source) or str(error)) from None
    if not isinstance(model, Network):
        raise FolderError(
            f"{source} does not say of which network its tensors are, and the command line knows the networks of "
            f"regrow.models only. In Python, load them into your model, model.load_state_dict(regrow.load(...)), and "
            f"call regrow.compile, regrow.deploy.onnx.to_onnx or regrow.deploy.export_c.export_c."
        )
    return model.eval()


def _unfinished(folder: Path) -> str | None:
    """What to say of a run that has no model yet."""
    if not (folder / "recipe.toml").is_file() or (folder / "result.json").is_file():
        return None
    return f"{folder} is not finished and has no model yet. Go on with: regrow train --resume {folder}"


def _shrunk(network: Network, round_to: int) -> nn.Module:
    import regrow

    small = regrow.shrink(network, _example(network), round_to=round_to)
    print(regrow.shrink_report(small))
    return small


def _write(model: nn.Module, network: Network, path: Path, to: str, dtype: Dtype, sparse: bool) -> None:
    if to == "packed":
        from regrow.deploy.pack import save

        save(model, path, dtype=dtype)
    elif to == "onnx":
        from regrow.deploy.onnx import to_onnx

        to_onnx(model, _example(network), path, sparse=sparse)
    else:
        from regrow.deploy.program import to_program

        to_program(model, _example(network), path)


def _write_c(model: nn.Module, network: Network, path: Path, weights: Format, lanes: int) -> int:
    from regrow.deploy.export_c import export_c
    from regrow.train.config import RecipeError

    try:
        with _writing(path):
            export = export_c(model, _example(network), path, weights=weights, lanes=lanes)
    except ValueError as error:
        raise RecipeError(str(error)) from None
    print(f"{export.source}, {export.header.name} and {export.main.name}, which checks itself:")
    sources = shlex.join([str(export.source), str(export.main)])
    print(f"    cc -O2 -ffp-contract=fast {sources} -lm -o check && ./check")
    print(f"flash   {export.flash:>11,} bytes of weights and plan, and some tens of KB of code")
    print(f"RAM     {export.ram:>11,} bytes, static, beside input and output")
    if weights != "fp32":
        print(f"error   {export.error:>11.1e} of the largest output, on one image of noise, from rounding the weights")
    return 0


def _example(network: Network) -> Tensor:
    import torch

    return torch.randn(2, *network.architecture.input_shape, generator=torch.Generator().manual_seed(0))
