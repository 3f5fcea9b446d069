"""`--nproc`: starts the processes of a run on this machine, and starts them again when one dies."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from regrow.system import cores
from regrow.train.world import ProcessesDiedError


def launch(work: Callable[..., int], arguments: tuple[Any, ...], *, nproc: int, restarts: int) -> int:
    """Run `work(*arguments)` in `nproc` processes and return the largest exit code.

    When a process dies all of them start anew, at most `restarts` times; a run goes on from its last checkpoint. A
    SIGINT or SIGTERM is passed on, and the processes have half a minute to save.
    """
    # As many threads as there are cores in all: otherwise every process would take them all.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores() // nproc, 1)))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        start_method="spawn",
    )
    try:
        codes: dict[int, int] = elastic_launch(config, work)(*arguments)
        return max(codes.values())
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    except ChildFailedError as failed:
        number, failure = failed.get_first_failure()
        raise ProcessesDiedError(
            f"process {number} of {nproc} died ({failure.signal_name() or f'exit code {failure.exitcode}'}) after "
            f"{restarts} new starts. The same command goes on from the last checkpoint."
        ) from None
