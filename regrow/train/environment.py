"""What a reader of a run must know about the machine and the software that made it."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from regrow.version import __version__

_PACKAGES = (
    *("torch", "numpy", "tyro", "rich", "safetensors", "pyarrow", "pillow", "altair", "tensorboard"),
    *("onnx", "onnxruntime", "openvino"),
)


def versions() -> dict[str, str]:
    """Return the versions of Python, regrow and the packages it uses, those that are not installed left out."""
    found = {"python": platform.python_version(), "regrow": __version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def environment(processes: int = 1) -> dict[str, Any]:
    """Return versions, machine, the command that was given and how many processes it started."""
    import torch

    return {
        "versions": versions(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "REGROW_DATA": os.environ.get("REGROW_DATA"),
        "command": sys.argv,
    }


def cpu_name() -> str:
    """Return the processor's name as the system knows it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
