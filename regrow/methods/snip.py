"""SNIP (Lee et al. 2019): prune before training, by the sensitivity of the loss to each connection.

The score |∂L/∂m| at m = 1 is |g·w|, for one batch; the largest scores over all layers are kept, and the mask stays
fixed. By default batch norm is in training mode and the weights that were scored are trained, as in the common PyTorch
port. Different from the authors' code: they score with batch norm in inference mode (`inference=True`, which needs
`loss`) and train another initialization (`Fixed(fresh_model, optimizer, pruner.masks)`); recipes do neither. Different
from both: the last linear layer stays dense, as in the comparison of the DPF paper; `include_last=True` prunes it as
the authors and the port do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import Parameter
from torch.optim import Optimizer

from regrow.core.distributed import is_sharded
from regrow.core.hooks import overflowed
from regrow.core.options import MethodInfo, PrunerOptions, check_constant
from regrow.core.pruner import Pruner
from regrow.core.schedule import Level


class SNIP(Pruner):
    """Prunes `model` once, before it is trained.

    `loss` returns the loss of one batch, for example `lambda: F.cross_entropy(model(x), y)`. It is called once, when
    the pruner is attached, and leaves gradients and running statistics as they were. Without it, the gradients of the
    first training step score the weights just before they are updated. Gradients are averaged over all processes.
    """

    info = MethodInfo(
        paper="Lee et al. 2019",
        when="once, before training",
        score="gradient x weight on one batch",
        cost="one batch and one selection over n, once",
    )
    takes_schedule = False
    criterion = "l1"  # a filter's score is the sum of its weights' scores

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        sparsity: Level,
        loss: Callable[[], Tensor] | None = None,
        inference: bool = False,
        **options: Unpack[PrunerOptions],
    ) -> None:
        check_constant(self, sparsity)
        if inference and loss is None:
            raise ValueError("inference=True needs loss=, a function that returns the loss of one batch")
        self._gradients = {} if loss is None else _gradients(model, loss, inference, options.get("process_group"))
        self._scored = False
        super().__init__(model, optimizer, sparsity=sparsity, **options)

    def updates_at(self, t: int) -> bool:
        """Return whether the masks are computed when the pruner is attached: if a loss was given."""
        return t == 0 and bool(self._gradients)

    def before_update(self) -> None:
        """Score with the first step's gradients if nothing else has; a step that overflowed does not count."""
        done = self.step or self._scored or self._frozen
        if not (done or self._hooks.initializing or overflowed(self.optimizer)):
            self._gradients = {target.param: target.grad for target in self.targets.values()}
            self._update_masks()
        super().before_update()  # after scoring: the loss that is scored does not include weight decay

    def extra_state(self) -> dict[str, Any]:
        """Return whether the masks have been computed."""
        return {"scored": self._scored}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `extra_state` returned."""
        self._scored = state.get("scored", False)

    def next_masks(self, t: int) -> Iterable[tuple[str, Tensor]]:
        """Keep the weights of largest |g·w|."""
        gradients, self._gradients, self._scored = self._gradients, {}, True
        scores = {}
        for name, weight in self.weights.items():
            gradient = gradients.get(self.targets[name].param)  # parameters that are not trained have none
            scores[name] = torch.zeros_like(weight) if gradient is None else gradient * weight
        return self.keep_top(scores, self.schedule(t))


def _gradients(
    model: nn.Module, loss: Callable[[], Tensor], inference: bool, process_group: dist.ProcessGroup | None
) -> dict[Parameter, Tensor | None]:
    """Return the gradient of `loss` for every parameter and leave no other trace."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if any(map(is_sharded, parameters)):
        raise ValueError(
            "loss= needs whole weights, but these are sharded: leave out loss=, and the first training step scores them"
        )
    norms = [module for module in model.modules() if inference and isinstance(module, _BatchNorm) and module.training]
    buffers = {buffer: buffer.clone() for buffer in model.buffers()}
    unsynchronized = getattr(model, "no_sync", nullcontext)  # DDP would wait for a backward pass
    for module in norms:
        module.eval()
    try:
        with torch.enable_grad(), unsynchronized():
            gradients = torch.autograd.grad(loss(), parameters, allow_unused=True, materialize_grads=True)
    finally:
        for module in norms:
            module.train()
        for buffer, before in buffers.items():
            buffer.data.copy_(before)
    if dist.is_available() and dist.is_initialized():
        for gradient in gradients:
            dist.all_reduce(gradient, group=process_group)
    return dict(zip(parameters, gradients, strict=True))
