"""Contenders in another process measure themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from benchmarks.deepsparse import DeepSparse
from regrow.timing import SelfTimed


def test_an_environment_without_deepsparse_is_an_error(tmp_path: Path) -> None:
    rival = DeepSparse(sys.executable, tmp_path / "net.onnx", torch.zeros(1))
    assert isinstance(rival, SelfTimed)
    with rival, pytest.raises(ValueError, match="No module named 'deepsparse'"):
        rival.burst(1, "perf_counter")
    with pytest.raises(ValueError, match="is not a Python interpreter"):
        DeepSparse(str(tmp_path / "python"), tmp_path / "net.onnx", torch.zeros(1))
