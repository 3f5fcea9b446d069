"""Speed of shrunk and dense networks in torch and ONNX Runtime, and the remaining multiplications.

Half of every convolution's filters are pruned at random, with batch norms as training leaves them. `torch-pruning`
gets the same masks and removes the channels that are zero in every coupled layer, the only ones that it can remove
without harm; "error" is the change of the outputs. One image at a time on one thread, in CPU time, which does not
depend on other programs. Needs the extra `export`; `torch-pruning` is left out if it is not installed.
"""

from __future__ import annotations

import argparse
import copy
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.runner import interleave, report
from regrow import models, shrink

NETWORKS = (("resnet20", 32, 200), ("wrn28-2", 32, 100), ("resnet50", 224, 15))
SPARSITIES = (0.5, 0.75)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=float, default=1.0, help="factor on the number of timed runs")
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # the exporter warns about missing optional packages
    rows = []
    for name, size, runs in NETWORKS:
        for sparsity in SPARSITIES:
            rows += compare(name, size, sparsity, rounds=max(3, int(runs * rounds)))
    report(
        "Shrunk networks, batch 1: processor time and error beside what is left of parameters and MACs",
        rows,
        name="shrink",
    )


def compare(name: str, size: int, sparsity: float, *, rounds: int) -> list[dict[str, str | int | float]]:
    image = torch.randn(1, 3, size, size)
    dense = pruned(name, size, sparsity)
    contenders: dict[str, nn.Module] = {
        "dense": dense,
        "shrink": shrink(dense, image),
        "shrink gather=False": shrink(dense, image, gather=False),
        "shrink round_to=8": shrink(dense, image, round_to=8),
        "shrink round_to=16": shrink(dense, image, round_to=16),
    }
    if find_spec("torch_pruning"):
        contenders["torch-pruning"] = coupled_removed(dense, image)
    in_torch = interleave(
        {key: lambda m=m: m(image) for key, m in contenders.items()}, rounds=rounds, warmup=3, clock=time.thread_time
    )
    with tempfile.TemporaryDirectory() as folder:
        sessions = {key: session(m, image, Path(folder) / f"{i}.onnx") for i, (key, m) in enumerate(contenders.items())}
        in_onnx = interleave(sessions, rounds=rounds, warmup=3, clock=time.thread_time)
    whole = (parameters(dense), macs(dense, image))
    return [
        {
            "network": name,
            "filters pruned": f"{sparsity:.0%}",
            "model": key,
            "parameters left": parameters(m) / whole[0],
            "MACs left": macs(m, image) / whole[1],
            "torch ms": 1e3 * in_torch[key],
            "torch speed-up": in_torch["dense"] / in_torch[key],
            "ONNX Runtime ms": 1e3 * in_onnx[key],
            "ONNX Runtime speed-up": in_onnx["dense"] / in_onnx[key],
            "error": float((m(image) - dense(image)).abs().max() / dense(image).abs().max().clamp(min=1)),
        }
        for key, m in contenders.items()
    ]


def pruned(name: str, size: int, sparsity: float) -> nn.Module:
    """A network with random filters pruned and with batch norms whose shifts are not zero."""
    torch.manual_seed(0)
    model = models.build(name, classes=1000 if size == 224 else 10, size=size)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.bias, 0.0, 0.2)
            nn.init.normal_(module.running_mean, 0.0, 0.2)
        if isinstance(module, nn.Conv2d):
            module.weight[torch.rand(len(module.weight)) < sparsity] = 0
    return model.eval()


def coupled_removed(model: nn.Module, image: Tensor) -> nn.Module:
    """The same masks through `torch-pruning`: a coupled group loses the channels that are zero in all its layers."""
    import torch_pruning as tp

    model = copy.deepcopy(model)
    with torch.enable_grad():
        graph = tp.DependencyGraph().build_dependency(model, image)
    for group in graph.get_all_groups(root_module_types=[nn.Conv2d]):
        zero = torch.ones(group[0].dep.target.module.weight.shape[0], dtype=torch.bool)
        for item in group:
            module: Any = item.dep.target.module
            if isinstance(module, nn.Conv2d) and item.dep.handler == tp.prune_conv_out_channels:
                zero[item.root_idxs] &= (module.weight[item.idxs] == 0).flatten(1).all(1)
        indices = zero.nonzero().flatten().tolist()
        if 0 < len(indices) < len(zero):
            graph.get_pruning_group(group[0].dep.target.module, tp.prune_conv_out_channels, indices).prune()
    return model


def session(model: nn.Module, image: Tensor, file: Path) -> Callable[[], object]:
    torch.onnx.export(model, (image,), file, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    loaded = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    feed = {loaded.get_inputs()[0].name: image.numpy()}
    return lambda: loaded.run(None, feed)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def macs(model: nn.Module, image: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        model(image)
    return counter.get_total_flops() // 2


if __name__ == "__main__":
    main()
