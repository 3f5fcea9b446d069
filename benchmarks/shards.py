"""Communication of a mask update of sharded weights (FSDP2): calls and bytes, counted and by formula."""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard

import regrow
from benchmarks.runner import report

LAYERS = 8
HISTOGRAM = 8 * ((1 << 16) + 1)  # int64 counts of 16 bits, and one of NaN
DIGITS = 2  # a float32 has two times 16 bits


def formula(scope: str, ties: bool, processes: int) -> tuple[int, int]:
    """Return calls and bytes of one process: sizes, histograms, ties by layer and process, flips, what is left."""
    pools = LAYERS if scope == "layer" else 1
    calls = 1 + pools * (DIGITS + ties) + 2
    payload = 8 * LAYERS + pools * DIGITS * HISTOGRAM + ties * 8 * LAYERS * processes + 8 + 8 * LAYERS
    return calls, payload


def worker(rank: int, processes: int, port: int, path: str) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "all of")  # equal weights are pruned from the first layer on
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=processes)
    found = [_refresh(scope, ties) for scope in ("global", "layer") for ties in (False, True)]
    if rank == 0:
        Path(path).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _refresh(scope: str, ties: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(LAYERS)), nn.Linear(512, 1))
    if ties:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_((parameter * 100).round())
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    regrow.DPF(model, optimizer, sparsity=0.9, scope=scope, every=1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    counted = [0, 0]
    plain = dist.all_reduce

    def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        counted[0] += 1
        counted[1] += tensor.nbytes
        return plain(tensor, *args, **kwargs)

    dist.all_reduce = counting
    optimizer.step()
    dist.all_reduce = plain
    return {"calls": counted[0], "bytes": counted[1]}


def rows(processes: int) -> list[dict[str, Any]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.NamedTemporaryFile() as file:
        mp.spawn(worker, args=(processes, port, file.name), nprocs=processes)
        found = json.loads(Path(file.name).read_text())
    table, noun = [], "process" if processes == 1 else "processes"
    for case, (scope, ties) in zip(found, [(s, t) for s in ("global", "layer") for t in (False, True)], strict=True):
        calls, payload = formula(scope, ties, processes)
        table.append(
            {
                "measured": f"{processes} {noun}, {scope} scope, {'ties' if ties else 'no ties'}",
                "calls": case["calls"],
                "calls by formula": calls,
                "bytes": case["bytes"],
                "bytes by formula": payload,
            }
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    weights = LAYERS * 512 * 512
    found = [row for processes in options.processes for row in rows(processes)]
    report(f"A mask refresh over shards: {LAYERS} layers, {weights / 1e6:.1f} M float32 weights", found, name="shards")


if __name__ == "__main__":
    main()
