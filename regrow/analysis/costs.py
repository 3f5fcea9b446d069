"""Costs of a sparse model: parameters, non-zeros and multiply-accumulates, per layer and in total."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

import torch
from torch import Tensor, nn

from regrow.analysis.macs import MacCounts, count_macs
from regrow.core.modules import brief, named_parameters, unwrap
from regrow.text import did_you_mean


@dataclass(frozen=True)
class LayerCosts:
    """A weight tensor: its size, its non-zeros, and its MACs in one forward pass."""

    name: str
    """The parameter's name, such as `layer1.0.conv1.weight`."""
    kind: Literal["conv", "linear", "other"]
    """How the forward pass uses it; `other` weights, such as embeddings, are not in a product."""
    shape: tuple[int, ...]
    weights: int
    nonzeros: int
    macs: int
    targeted: bool
    """Whether it is pruned: it has a mask or, if no masks were given, it has zeros."""

    @property
    def macs_kept(self) -> int:
        """MACs without zeros: non-zeros times the output positions at which each is used."""
        return self.macs * self.nonzeros // self.weights if self.weights else 0


@dataclass(frozen=True)
class Account:
    """The costs of a model for one input.

    `macs` and `macs_kept` follow the paper: convolutions and linear layers, two per batch-norm element and
    one per ReLU element. `conv_macs` and `conv_macs_kept` follow the other common convention. Only zeros in the weights
    of `layers` count as pruned; a bias or a batch-norm shift can be zero without being pruned.
    """

    layers: tuple[LayerCosts, ...]
    other_parameters: int
    """Parameters outside the layers: biases, and the scales and shifts of normalization."""
    norm_macs: int
    relu_macs: int
    product_macs: int
    """Products between activations, such as attention scores."""

    @property
    def parameters(self) -> int:
        """Number of parameters of the dense model."""
        return sum(layer.weights for layer in self.layers) + self.other_parameters

    @property
    def nonzeros(self) -> int:
        """Number of parameters that are not pruned, the paper's "remaining # of params"."""
        return sum(layer.nonzeros for layer in self.layers) + self.other_parameters

    @property
    def targeted(self) -> int:
        """Number of weights in layers that are pruned."""
        return sum(layer.weights for layer in self.layers if layer.targeted)

    @property
    def target_ratio(self) -> float:
        """Fraction of the targeted weights that is pruned (the "Target" column)."""
        return (self.parameters - self.nonzeros) / self.targeted if self.targeted else 0.0

    @property
    def reached_ratio(self) -> float:
        """Fraction of all parameters that is pruned (the "Reached" column)."""
        return (self.parameters - self.nonzeros) / self.parameters if self.parameters else 0.0

    @property
    def sparsity(self) -> float:
        """Same as `reached_ratio`: the fraction of all parameters, targeted or not, that is pruned."""
        return self.reached_ratio

    @property
    def macs(self) -> int:
        """MACs of the dense model in the paper's convention."""
        return sum(layer.macs for layer in self.layers) + self._elementwise

    @property
    def macs_kept(self) -> int:
        """MACs of the sparse model in the paper's convention."""
        return sum(layer.macs_kept for layer in self.layers) + self._elementwise

    @property
    def conv_macs(self) -> int:
        """MACs of the dense model's convolutions alone."""
        return sum(layer.macs for layer in self.layers if layer.kind == "conv")

    @property
    def conv_macs_kept(self) -> int:
        """MACs of the sparse model's convolutions alone."""
        return sum(layer.macs_kept for layer in self.layers if layer.kind == "conv")

    @property
    def _elementwise(self) -> int:
        return self.norm_macs + self.relu_macs + self.product_macs

    def totals(self) -> dict[str, int | float]:
        """Return all totals as plain numbers, for the records of a run."""
        return {
            "parameters": self.parameters,
            "nonzeros": self.nonzeros,
            "targeted": self.targeted,
            "target_ratio": self.target_ratio,
            "reached_ratio": self.reached_ratio,
            "macs": self.macs,
            "macs_kept": self.macs_kept,
            "conv_macs": self.conv_macs,
            "conv_macs_kept": self.conv_macs_kept,
        }

    def table(self) -> str:
        """Return a table as aligned plain text: a row per layer, the costs outside layers, and the totals."""
        header = ("layer", "shape", "weights", "non-zeros", "density", "MACs", "MACs kept")
        rows = [
            _row(
                layer.name.removesuffix(".weight"),
                shape=layer.shape,
                weights=(layer.weights, layer.nonzeros),
                macs=(layer.macs, layer.macs_kept),
            )
            for layer in self.layers
        ]
        if self.other_parameters:
            rows.append(_row("biases and norms", weights=(self.other_parameters, self.other_parameters)))
        for name, macs in (
            ("norms, 2 per element", self.norm_macs),
            ("ReLU, 1 per element", self.relu_macs),
            ("between activations", self.product_macs),
        ):
            if macs:
                rows.append(_row(name, macs=(macs, macs)))
        total = _row("total", weights=(self.parameters, self.nonzeros), macs=(self.macs, self.macs_kept))
        head, *body, foot = _align([header, *rows, total])
        rule = "-" * max(map(len, (head, *body, foot)))
        return "\n".join([head, rule, *body, rule, foot, "", *self._sentences()])

    def _sentences(self) -> list[str]:
        pruned = f"pruned {self.parameters - self.nonzeros:,} of {self.parameters:,} parameters"
        pruned += f" ({_percent(self.reached_ratio)})"
        if self.targeted:
            pruned += f", {_percent(self.target_ratio)} of the {self.targeted:,} targeted weights"
        if not self.conv_macs:
            return [pruned]
        kept = f"{self.conv_macs_kept / 1e6:,.2f} M of {self.conv_macs / 1e6:,.2f} M MACs"
        return [pruned, f"convolutions alone: {kept} ({_percent(self.conv_macs_kept / self.conv_macs)})"]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _row(
    name: str,
    *,
    shape: tuple[int, ...] = (),
    weights: tuple[int, int] | None = None,
    macs: tuple[int, int] | None = None,
) -> tuple[str, ...]:
    """Return the cells of one row; pairs are the dense and the kept number."""
    sizes = ("", "", "") if weights is None else (*_grouped(weights), _percent(weights[1] / max(weights[0], 1)))
    return (name, "x".join(map(str, shape)), *sizes, *(("", "") if macs is None else _grouped(macs)))


def _grouped(numbers: tuple[int, int]) -> tuple[str, str]:
    return f"{numbers[0]:,}", f"{numbers[1]:,}"


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def account(
    model: nn.Module,
    input_shape: Sequence[int] | Tensor | tuple[Tensor, ...],
    masks: Mapping[str, Tensor] | None = None,
) -> Account:
    """Count parameters and MACs of `model` for one input, with and without zeros.

    `input_shape` is the shape of one input without the batch dimension, such as `(3, 32, 32)`. If the input is not of
    floats, pass a batch as a tensor; its first input is used. If the model has several inputs, pass a tuple of tensors;
    they are used as they are. The model runs once, in evaluation mode and without gradients, and is not changed.

    Zeros are counted in the weights or, if given, in `masks` (by parameter name, True where a weight is kept): a weight
    that has just grown back is zero but not pruned. On the meta device, without masks, no weight counts as zero.

    >>> from regrow.models import build
    >>> account(build("resnet20"), (3, 32, 32)).conv_macs
    40812544
    """
    model = unwrap(model)
    parameters = named_parameters(model)
    _check_masks(masks or {}, parameters)
    counts = _counts(model, parameters, input_shape)
    layers = tuple(
        _layer(name, parameter, masks, counts)
        for name, parameter in parameters.items()
        if parameter.dim() > 1 or name in (masks or {})
    )
    everything = sum(parameter.numel() for parameter in parameters.values())
    return Account(
        layers=layers,
        other_parameters=everything - sum(layer.weights for layer in layers),
        norm_macs=2 * counts.norm_elements,
        relu_macs=counts.relu_elements,
        product_macs=counts.products,
    )


def _layer(name: str, parameter: Tensor, masks: Mapping[str, Tensor] | None, counts: MacCounts) -> LayerCosts:
    weights, nonzeros = parameter.numel(), _nonzeros(name, parameter, masks)
    return LayerCosts(
        name=name,
        kind="conv" if name in counts.convolutions else "linear" if name in counts.macs else "other",
        shape=tuple(parameter.shape),
        weights=weights,
        nonzeros=nonzeros,
        macs=counts.macs.get(name, 0),
        targeted=nonzeros < weights if masks is None else name in masks,
    )


def _counts(
    model: nn.Module, parameters: Mapping[str, Tensor], input_shape: Sequence[int] | Tensor | tuple[Tensor, ...]
) -> MacCounts:
    first = next(iter(parameters.values()), torch.empty(0))
    if isinstance(input_shape, Tensor):
        return count_macs(model, parameters, input_shape[:1].to(first.device))
    entries: list[object] = list(input_shape)
    examples = [entry for entry in entries if isinstance(entry, Tensor)]
    if examples and len(examples) == len(entries):
        return count_macs(model, parameters, *(example.to(first.device) for example in examples))
    sizes = [int(entry) for entry in entries if isinstance(entry, Integral)]
    if len(sizes) != len(entries):
        raise TypeError(
            f"input_shape must be a shape such as (3, 32, 32), a tensor or a tuple of tensors, got {brief(input_shape)}"
        )

    def run(*shape: int) -> MacCounts:
        return count_macs(model, parameters, torch.zeros(1, *shape, device=first.device, dtype=first.dtype))

    try:
        return run(*sizes)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        shape = tuple(sizes)
        hint = f"; did you mean {shape[1:]}?" if _works(run, shape[1:]) else "."
        raise ValueError(
            f"the model cannot run on an input of shape {shape} ({reason}). input_shape is the shape of one input,"
            f" without the batch dimension{hint}"
        ) from error


def _works(run: Callable[..., object], shape: tuple[int, ...]) -> bool:
    try:
        run(*shape)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return False
    return True


def _nonzeros(name: str, parameter: Tensor, masks: Mapping[str, Tensor] | None) -> int:
    if masks is not None:
        return int(torch.count_nonzero(masks[name])) if name in masks else parameter.numel()
    if parameter.is_meta:
        return parameter.numel()
    return int(torch.count_nonzero(parameter.detach()))


def _check_masks(masks: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    for name, mask in masks.items():
        if name not in parameters:
            hint = did_you_mean(name, parameters, cutoff=0)
            raise ValueError(f"masks names {name!r}, which is not a parameter of the model.{hint}")
        shape = parameters[name].shape
        if mask.shape != shape:
            raise ValueError(f"the mask of {name!r} has shape {tuple(mask.shape)}, its weight {tuple(shape)}.")
