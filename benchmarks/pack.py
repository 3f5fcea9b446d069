"""Size of packed files compared with the entropy limit and other formats, and the time of saving and loading.

The networks have fresh weights (He et al. for convolutions, torch's default for the last layer) of which one global
magnitude threshold prunes the given fraction, and batch norm with random statistics: trained networks have other masks,
but the same kinds of numbers. The limit is that of `regrow.files.describe`. Every other way stores the same
numbers in the same precision: a bitmask with the non-zeros, and gzip of the dense tensors.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from benchmarks.runner import interleave, report
from regrow import files, models
from regrow.files.model_file import load_model, save_model

NETWORKS = {"resnet20": {}, "wrn28-2": {}, "resnet50": {"classes": 1000, "size": 224}}
SPARSITIES = (0.8, 0.9, 0.95, 0.98)
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1}
CASTS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def pruned(name: str, sparsity: float, **options: int) -> nn.Module:
    torch.manual_seed(0)
    model = models.build(name, **options).eval()
    weights = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    magnitudes = torch.cat([weight.detach().abs().flatten() for weight in weights])
    threshold = magnitudes.kthvalue(max(1, int(sparsity * len(magnitudes)))).values
    with torch.no_grad():
        for weight in weights:
            weight[weight.abs() <= threshold] = 0.0
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.normal_(1, 0.3)
                module.bias.normal_(0, 0.3)
                module.running_mean.normal_(0, 0.3)
                module.running_var.log_normal_(0, 0.7)
    return model


def in_precision(tensor: Tensor, dtype: str) -> bytes:
    """The dense numbers of a tensor as a file would hold them."""
    if tensor.dim() < 2:
        return tensor.numpy().tobytes()
    if dtype != "int8":
        return tensor.to(CASTS[dtype]).view(torch.uint8).numpy().tobytes()
    scale = tensor.flatten(1).abs().amax(dim=1).clamp(min=1e-30) / 127
    steps = (tensor.flatten(1) / scale[:, None]).round().to(torch.int8)
    return steps.numpy().tobytes() + scale.numpy().tobytes()


def other_ways(state: dict[str, Tensor], dtype: str) -> dict[str, int]:
    """The bytes of the dense tensors, of their gzip, and of a bitmask with the non-zeros."""
    dense = b"".join(in_precision(tensor, dtype) for tensor in state.values())
    weights = [tensor for tensor in state.values() if tensor.dim() > 1]
    pruned_away = sum(tensor.numel() - int(tensor.count_nonzero()) for tensor in weights)
    masks = sum(tensor.numel() for tensor in weights) // 8
    return {
        "dense": len(dense),
        "gzip of dense": len(zlib.compress(dense, 6)),
        "bitmask + values": len(dense) - pruned_away * BYTES[dtype] + masks,
    }


def cpu_seconds(run: Callable[[], object], rounds: int = 15) -> float:
    """Return the minimum CPU time of several runs, which other processes disturb less than wall time."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return min(taken)


def measure(name: str, model: nn.Module, sparsity: float, dtype: str, folder: Path) -> dict[str, str | int | float]:
    packed, plain = folder / "net.regrow", folder / "net.safetensors"
    save_model(model, plain)
    seconds = interleave(
        {
            "save": lambda: files.save(model, packed, dtype=dtype),
            "load": lambda: files.load(packed),
            "load plain": lambda: load_model(plain),
        },
        rounds=7 if name == "resnet50" else 15,
    )
    described = files.describe(packed)
    return {
        "network": name,
        "sparsity": sparsity,
        "dtype": dtype,
        **other_ways(dict(model.state_dict()), dtype),
        "packed": described.file_bytes,
        "limit": round(described.limit_bytes),
        "above limit %": 100 * described.overhead,
        "save ms": 1e3 * seconds["save"],
        "load ms": 1e3 * seconds["load"],
        "load, CPU ms": 1e3 * cpu_seconds(lambda: files.load(packed)),
        "load plain fp32 ms": 1e3 * seconds["load plain"],
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    with TemporaryDirectory() as folder:
        for name, options in NETWORKS.items():
            for sparsity in SPARSITIES:
                model = pruned(name, sparsity, **options)
                # The first save fills caches that no other contender has to fill.
                files.save(model, Path(folder, "net.regrow"))
                rows += [measure(name, model, sparsity, dtype, Path(folder)) for dtype in BYTES]
    report("Packed files: bytes, and milliseconds with one thread", rows, name="pack")


if __name__ == "__main__":
    main()
