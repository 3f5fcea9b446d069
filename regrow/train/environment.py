"""What a reader of a run must know about the machine and the software that made it."""

from __future__ import annotations

import os
import platform
import subprocess
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
        "commit": commit(),
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "processes": processes,
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "REGROW_DATA": os.environ.get("REGROW_DATA"),
        "command": sys.argv,
    }


def commit() -> str | None:
    """Return the commit of the checkout that regrow runs from, marked if files differ; None if it is installed."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def cpu_name() -> str:
    """Return the processor's name as the system knows it, with family and model, since clouds hide the exact name."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "model name" in facts and "cpu family" in facts:
            return f"{facts['model name']} (family {facts['cpu family']}, model {facts.get('model')})"
        if "model name" in facts:
            return facts["model name"]
    return platform.processor() or platform.machine()
