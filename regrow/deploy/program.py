"""Models as programs of `torch.export`: graph and weights in one file that torch alone can run, any batch size."""

import io
from pathlib import Path

import torch
from torch import Tensor, nn

from regrow.host.disk import write_atomically


def to_program(model: nn.Module, example_input: Tensor, path: str | Path) -> None:
    """Write `model` in evaluation mode for `torch.export.load(path).module()`; the batch size is free."""
    batch = torch.export.Dim("batch", min=1)
    with torch.no_grad():
        program = torch.export.export(model.eval(), (example_input,), dynamic_shapes=({0: batch},))
    stream = io.BytesIO()
    torch.export.save(program, stream)
    write_atomically(path, stream.getvalue())
