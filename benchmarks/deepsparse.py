"""DeepSparse in a separate process: its last version needs an older Python and torch than regrow."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
from torch import Tensor

_PROGRAM = """
import sys, time, numpy, deepsparse
engine = deepsparse.compile_model(sys.argv[1], batch_size=int(sys.argv[2]), num_cores=int(sys.argv[4]))
x = [numpy.load(sys.argv[3])]
for line in sys.stdin:
    best, (times, name) = float("inf"), line.split()
    clock = getattr(time, name)
    for _ in range(int(times)):
        start = clock(); engine.run(x); best = min(best, clock() - start)
    print("seconds", best, flush=True)
"""


class DeepSparse:
    """Runs an ONNX file on request, so that it takes turns with others.

    `python` is the interpreter of an environment with DeepSparse 1.8 (`pip install deepsparse==1.8.0`).
    """

    def __init__(self, python: str, path: Path, x: Tensor, *, threads: int = 1) -> None:
        data, self.log = path.with_suffix(".npy"), path.with_suffix(".log")
        np.save(data, x.numpy())
        command = [python, "-c", _PROGRAM, str(path), str(len(x)), str(data), str(threads)]
        try:
            with self.log.open("w") as log:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
        except OSError as error:
            raise ValueError(f"{python!r} is not a Python interpreter: {error}") from None

    def burst(self, times: int, clock: str) -> float:
        """Return the minimum seconds of `times` runs by a clock of the module `time`."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            print(times, clock, file=self.process.stdin, flush=True)
        while line := self.process.stdout.readline():
            if line.startswith("seconds"):
                return float(line.split()[1])
        last = self.log.read_text().strip().splitlines()[-1:]
        raise ValueError(f"DeepSparse did not run the model: {' '.join(last) or 'it stopped without a message'}")

    def __enter__(self) -> DeepSparse:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):
            self.process.communicate()
