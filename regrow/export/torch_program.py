"""Export to programs of `torch.export`: graph and weights in one file that needs only torch."""

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regrow.core.modules import any_batch, exportable
from regrow.core.pruner import warn_if_unfinished
from regrow.system import write_atomically


def program(model: nn.Module, example_input: Tensor | tuple[Tensor, ...], path: str | Path) -> None:
    """Write `model` in evaluation mode for `torch.export.load(path).module()`, which accepts any batch size."""
    warn_if_unfinished(model)
    network, inputs = exportable(model, example_input)
    shapes: Any = any_batch(inputs)  # torch 2.8 declares a tuple of one
    with torch.no_grad():
        exported = torch.export.export(network, inputs, dynamic_shapes=shapes)
    stream = io.BytesIO()
    torch.export.save(exported, stream)
    write_atomically(path, stream.getvalue())
