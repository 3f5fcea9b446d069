"""What a sparse model costs: parameters, non-zeros and multiply-accumulates, per layer and in total."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regrow.analysis.uses import Uses, count_uses
from regrow.host.hints import did_you_mean
from regrow.host.targets import named_parameters


@dataclass(frozen=True)
class Layer:
    """A weight tensor: its size, what is left of it, and what it costs in one forward pass."""

    name: str
    """The parameter's name, such as `layer1.0.conv1.weight`."""
    kind: Literal["conv", "linear", "other"]
    """How the forward pass uses it; `other` weights, such as embeddings, enter no product."""
    shape: tuple[int, ...]
    weights: int
    nonzeros: int
    macs: int
    targeted: bool
    """Whether it is pruned: it has a mask or, where no masks were given, it holds zeros."""

    @property
    def density(self) -> float:
        """The share of weights that is left."""
        return self.nonzeros / self.weights if self.weights else 1.0

    @property
    def macs_kept(self) -> int:
        """MACs that remain when zeros are skipped: non-zeros times the positions at which each is used."""
        return self.macs * self.nonzeros // self.weights if self.weights else 0


@dataclass(frozen=True)
class Account:
    """The costs of one model for one input.

    `macs` and `macs_kept` follow the paper: convolutions and linear layers, two per batch-norm element and
    one per ReLU element. `conv_macs` and `conv_macs_kept` are the other common convention. Zeros are counted in
    the weights of `layers` only; a bias or a batch-norm shift that happens to be zero is a value, not a pruned
    weight.
    """

    layers: tuple[Layer, ...]
    other_parameters: int
    """Parameters outside the layers: biases, and the scales and shifts of normalisation."""
    norm_macs: int
    relu_macs: int
    product_macs: int
    """Products between activations, such as attention scores."""

    @property
    def parameters(self) -> int:
        """All parameters of the dense model."""
        return sum(layer.weights for layer in self.layers) + self.other_parameters

    @property
    def nonzeros(self) -> int:
        """Parameters that remain, the paper's "remaining # of params"."""
        return sum(layer.nonzeros for layer in self.layers) + self.other_parameters

    @property
    def targeted(self) -> int:
        """Weights in layers that are pruned."""
        return sum(layer.weights for layer in self.layers if layer.targeted)

    @property
    def target_ratio(self) -> float:
        """The share of the targeted weights that is pruned (the "Target" column)."""
        return (self.parameters - self.nonzeros) / self.targeted if self.targeted else 0.0

    @property
    def reached_ratio(self) -> float:
        """The share of all parameters that is pruned (the "Reached" column)."""
        return (self.parameters - self.nonzeros) / self.parameters if self.parameters else 0.0

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
        """All totals as plain numbers, for a run's records."""
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
        """Lay everything out as aligned plain text: a row per layer, what has no layer, and the totals."""
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


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _row(
    name: str,
    *,
    shape: tuple[int, ...] = (),
    weights: tuple[int, int] | None = None,
    macs: tuple[int, int] | None = None,
) -> tuple[str, ...]:
    """The cells of one line, empty where there is nothing to say; pairs are the dense and the kept number."""
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
    model: nn.Module, input_shape: Sequence[int] | Tensor, masks: Mapping[str, Tensor] | None = None
) -> Account:
    """Count what `model` costs for one input, zeros left out.

    `input_shape` is the shape of one input without the batch dimension, such as `(3, 32, 32)`; a model that
    takes something other than floats is given an example instead, a batch of one. The model runs once on it, in
    evaluation mode and without gradients, and is left as it was. On the meta device all weights count as
    non-zero unless masks say otherwise.

    Zeros are those of the weights themselves or, with `masks` (by parameter name, true where a weight is
    kept), those of the masks: a weight that has just grown back is zero and yet there.

    >>> from regrow.models import build
    >>> account(build("resnet20"), (3, 32, 32)).conv_macs
    40812544
    """
    model = getattr(model, "_orig_mod", model)
    parameters = named_parameters(model)
    _check_masks(masks or {}, parameters)
    uses = _uses(model, parameters, input_shape)
    layers = tuple(
        _layer(name, parameter, masks, uses)
        for name, parameter in parameters.items()
        if parameter.dim() > 1 or name in (masks or {})
    )
    everything = sum(parameter.numel() for parameter in parameters.values())
    return Account(
        layers=layers,
        other_parameters=everything - sum(layer.weights for layer in layers),
        norm_macs=2 * uses.norm_elements,
        relu_macs=uses.relu_elements,
        product_macs=uses.products,
    )


def _layer(name: str, parameter: Tensor, masks: Mapping[str, Tensor] | None, uses: Uses) -> Layer:
    weights, nonzeros = parameter.numel(), _nonzeros(name, parameter, masks)
    return Layer(
        name=name,
        kind="conv" if name in uses.convolutions else "linear" if name in uses.macs else "other",
        shape=tuple(parameter.shape),
        weights=weights,
        nonzeros=nonzeros,
        macs=uses.macs.get(name, 0),
        targeted=nonzeros < weights if masks is None else name in masks,
    )


def _uses(model: nn.Module, parameters: Mapping[str, Tensor], input_shape: Sequence[int] | Tensor) -> Uses:
    first = next(iter(parameters.values()), torch.empty(0))
    if isinstance(input_shape, Tensor):
        return count_uses(model, parameters, input_shape.to(first.device))

    def run(*shape: int) -> Uses:
        return count_uses(model, parameters, torch.zeros(1, *shape, device=first.device, dtype=first.dtype))

    try:
        return run(*input_shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).partition("\n")[0]
        shape = tuple(input_shape)
        hint = f"; did you mean {shape[1:]}?" if _works(run, shape[1:]) else "."
        raise ValueError(
            f"the model does not run on an input of shape {shape} ({reason}). input_shape is the shape of one input,"
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
            raise ValueError(f"masks names {name!r}, which is no parameter of the model.{hint}")
        shape = parameters[name].shape
        if mask.shape != shape:
            raise ValueError(f"the mask of {name!r} has shape {tuple(mask.shape)}, its weight {tuple(shape)}.")
