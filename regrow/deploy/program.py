"""Models as programs of `torch.export`: graph and weights in one file that torch alone can run, any batch size."""

import io
from pathlib import Path

import torch
from torch import Tensor, nn

from regrow.core.modules import any_batch, exportable
from regrow.system import write_atomically


def to_program(model: nn.Module, example_input: Tensor | tuple[Tensor, ...], path: str | Path) -> None:
    """Write `model` in evaluation mode for `torch.export.load(path).module()`; the batch size is free."""
    network, inputs = exportable(model, example_input)
    with torch.no_grad():
        program = torch.export.export(network, inputs, dynamic_shapes=any_batch(inputs))
    stream = io.BytesIO()
    torch.export.save(program, stream)
    write_atomically(path, stream.getvalue())
