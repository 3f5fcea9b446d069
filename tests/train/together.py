"""Processes that form a group as torchrun's do, started quickly from the fork server."""

import os
import socket

from tests.train.processes import context


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_together(size: int, job, *arguments):
    """Start `size` processes that call `job(*arguments)` with torchrun's variables in their environment."""
    port = free_port()
    processes = [context().Process(target=_member, args=(rank, size, port, job, arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    return processes


def run_together(size: int, job, *arguments) -> None:
    """Start them, and see that all end well."""
    processes = start_together(size, job, *arguments)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * size


def _member(rank, size, port, job, arguments):
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
    }
    job(*arguments)
