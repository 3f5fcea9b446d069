"""What exporters of torch are given, so that any model can be written and stays as it was."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from regrow.deploy.prepared import check_present, unwrapped

Inputs = tuple[Tensor, ...]


def exportable(model: nn.Module, example_input: Tensor | Inputs) -> tuple[nn.Module, Inputs]:
    """A copy of `model` in evaluation mode without its wrappers, and copies of its inputs, two elements at least.

    Exporters take a batch of one for a constant. The copies are for models that change their input in place.
    """
    given = example_input if isinstance(example_input, tuple) else (example_input,)
    if not given or not all(isinstance(value, Tensor) for value in given):
        raise TypeError(
            f"example_input must be a tensor such as torch.randn(1, 3, 32, 32), or several, got {example_input!r}"
        )
    model = unwrapped(model)
    check_present(model)
    inputs = tuple(value.detach() for value in given)
    inputs = tuple(torch.cat([value, value]) if len(value) == 1 else value.clone() for value in inputs)
    return deepcopy(model).eval(), inputs


def any_batch(inputs: Inputs) -> tuple[dict[int, Any], ...]:
    """The `dynamic_shapes` of inputs whose first dimension is the batch, the same for all, and free."""
    batch = torch.export.Dim("batch", min=1)
    return tuple({0: batch} for _ in inputs)
