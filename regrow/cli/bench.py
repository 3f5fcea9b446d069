"""`regrow bench`: time a model on this machine, in the engine and in other runtimes."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated

import tyro

from regrow.cli.model import INPUT_HELP, MODEL_HELP, Subject, named_network, read_model


def bench(
    what: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|FILE|MODEL")],
    *,
    sparsity: float | None = None,
    batch: int = 1,
    threads: int = 1,
    seconds: float = 10.0,
    layers: bool = True,
    classes: int | None = None,
    channels: int | None = None,
    size: int | None = None,
    model: Annotated[str | None, tyro.conf.arg(help=MODEL_HELP)] = None,
    input: Annotated[tuple[int, ...] | None, tyro.conf.arg(help=INPUT_HELP)] = None,
) -> int:
    """Compare the engine with torch, inductor, ONNX Runtime and OpenVINO (those that are installed).

    Args:
        what: The folder of a run, a model file (safetensors or packed), or a network such as resnet20.
        sparsity: Fraction of zeros for a network given by name: random masks, sparser in large layers.
        batch: Batch size: 1 to measure latency, about 32 to measure throughput.
        threads: Threads for every runtime.
        seconds: Total measuring time; tuning and preparing the runtimes take additional time.
        layers: Also show the time of every layer in the engine.
        classes: Classes of a network given by name. None: 10.
        channels: Input channels of a network given by name. None: 3.
        size: Height and width of the input of a network given by name. None: 32.
    """
    from regrow.runs.recipe import UsageError
    from regrow.timing import bench as measure
    from regrow.train.display import make_console

    _check(batch, threads, seconds)
    if model is not None and not Path(what).exists():
        raise UsageError(f"--model is for a run or a model file; {what} does not exist.")
    subject = _subject(what, sparsity, {"classes": classes, "channels": channels, "size": size}, model, input)
    with make_console(stderr=True).status("loading") as status:
        found = measure(subject.model, subject.example(batch), threads=threads, seconds=seconds, tell=status.update)
    image = " x ".join(str(side) for side in subject.shape)
    print(f"{subject.name}, {found.sparsity:.1%} zeros, {batch} x {image}, {_count(threads)}\n")
    if layers:
        print(f"{found.profile.table(found.peak)}\n")
    print(found)
    if not found.pruned and not Path(what).exists():
        print(f"To see the effect of zeros: regrow bench {what} --sparsity 0.9")
    return 0


def _count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def _check(batch: int, threads: int, seconds: float) -> None:
    from regrow.runs.recipe import UsageError

    for name, value in (("--batch", batch), ("--threads", threads)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}.")
    if not 0 < seconds < inf:
        raise UsageError(f"--seconds must be more than 0, got {seconds:g}.")


def _subject(
    what: str,
    sparsity: float | None,
    options: dict[str, int | None],
    model: str | None,
    shape: tuple[int, ...] | None,
) -> Subject:
    import torch

    from regrow.core.schedule import check_sparsity
    from regrow.runs.recipe import UsageError
    from regrow.timing import prune_synthetically

    given = {name: value for name, value in options.items() if value is not None}
    if Path(what).exists():
        if sparsity is not None:
            raise UsageError(f"--sparsity is for networks given by name; {what} is already pruned or dense.")
        for name in given:
            raise UsageError(f"--{name} is for networks given by name; {what} stores its own.")
        return read_model(Path(what), model, shape)
    torch.manual_seed(0)  # the same weights every time
    network = named_network(what, **given)
    network.eval()
    try:
        check_sparsity(sparsity or 0.0, "--sparsity")
    except ValueError as error:
        raise UsageError(str(error)) from None
    prune_synthetically(network, sparsity or 0.0)
    return Subject(network, network.architecture.name, network.architecture.input_shape)
