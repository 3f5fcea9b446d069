"""Checkpoints of sharded tensors: every process writes its own rows, any number of processes reads them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, empty

from regrow.train.files import FolderError
from regrow.train.world import World

_MARK = "sharded tensor"


def save(folder: Path, state: Mapping[str, Any], world: World) -> dict[str, Any]:
    """Write the sharded tensors of `state` to a new folder in `folder`; return the rest, which says where they are.

    The files are safetensors (torch's distributed checkpoint), so that reading them runs no code. All processes must
    see the same folder.
    """
    name = world.ask_first(lambda: f"shards-{uuid4().hex[:8]}")
    tensors: dict[str, Any] = {}

    def take(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        tensors[path] = leaf.detach()
        return {_MARK: path, "shape": list(leaf.shape), "dtype": str(leaf.dtype).removeprefix("torch.")}

    rest: dict[str, Any] = _changed(state, take)
    save_tensors(tensors, storage_writer=HuggingFaceStorageWriter(str(folder / name), save_distributed=True))
    return {**rest, "shards": name}


def load(folder: Path, rest: Mapping[str, Any], mesh: DeviceMesh) -> dict[str, Any]:
    """Return the state of which `save` returned `rest`, sharded over the processes of `mesh`."""
    path = folder / rest["shards"]
    if not path.is_dir():
        raise FolderError(f"{path} is missing: its tensors belong to {folder / 'checkpoint.pt'}.")
    tensors: dict[str, Any] = {}

    def allocate(_: str, leaf: Any) -> Any:
        if not (isinstance(leaf, dict) and _MARK in leaf):
            return leaf
        dtype = getattr(torch, leaf["dtype"])
        tensors[leaf[_MARK]] = empty(leaf["shape"], dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
        return tensors[leaf[_MARK]]

    state: dict[str, Any] = _changed(rest, allocate)
    try:
        load_tensors(tensors, storage_reader=HuggingFaceStorageReader(str(path)))
    except (CheckpointException, OSError, RuntimeError) as error:
        raise FolderError(f"{path} is damaged ({error}). Remove {folder / 'checkpoint.pt'} to start anew.") from error
    return state


def _changed(value: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """Return nested dictionaries and lists with every leaf changed; a leaf's path names it."""
    if isinstance(value, dict) and _MARK not in value:
        return {key: _changed(each, change, f"{path}/{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [_changed(each, change, f"{path}/{index}") for index, each in enumerate(value)]
    return change(path, value)
