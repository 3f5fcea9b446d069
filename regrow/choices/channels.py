"""What belongs to a filter besides its weights: its bias, and scale and shift of the batch norm that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import Parameter

from regrow.core.modules import named_parameters, unwrap
from regrow.host.targets import Target


def layers_and_norms(model: nn.Module) -> Iterator[tuple[nn.Module, _BatchNorm | None]]:
    """Yield every layer with a weight, called once, and the batch norm that takes its output if nothing else does."""
    model = unwrap(model)
    try:
        nodes = [node for node in fx.Tracer().trace(model).nodes if node.op == "call_module"]
    except Exception as error:
        raise ValueError(
            "which batch norm follows which filter is read from the model's graph, but torch.fx cannot trace it: do "
            f"without channels=True and criterion='bn' ({error})"
        ) from error
    calls = Counter(node.target for node in nodes)
    for node in nodes:
        layer = model.get_submodule(str(node.target))
        if calls[node.target] == 1 and isinstance(getattr(layer, "weight", None), Parameter):
            users = [user.target for user in node.users if user.op == "call_module" and calls[user.target] == 1]
            norm = model.get_submodule(str(users[0])) if len(users) == len(node.users) == 1 else None
            yield layer, norm if isinstance(norm, _BatchNorm) else None


def companions(model: nn.Module, targets: Iterable[Target]) -> dict[str, list[Target]]:
    """Return for each target the parameters that have one element per filter, and that go when the filter goes."""
    names = {id(parameter): name for name, parameter in named_parameters(model).items()}
    owners = {id(target.param): target for target in targets}
    found: dict[str, list[Target]] = {}
    for layer, norm in layers_and_norms(model):
        if owner := owners.get(id(layer.weight)):
            parameters = [getattr(layer, "bias", None), *((norm.weight, norm.bias) if norm else ())]
            filters = owner.param.shape[owner.out_dim]
            found[owner.name] = [Target(names[id(p)], p) for p in parameters if p is not None and len(p) == filters]
    return found


def norm_scales(model: nn.Module, targets: Iterable[Target]) -> dict[str, Parameter]:
    """Return for each target the scale of the batch norm that follows it, which every one must have."""
    scales = {id(layer.weight): norm.weight for layer, norm in layers_and_norms(model) if norm and norm.affine}
    missing = [target.name for target in targets if id(target.param) not in scales]
    if missing:
        raise ValueError(
            f"criterion='bn' ranks filters by the scale of the batch norm right after them, and {missing[0]} has none: "
            "leave it out with targets=..., or take criterion='l2'"
        )
    return {target.name: scales[id(target.param)] for target in targets}
