"""Checkpoints: the training state between two steps, written atomically and read without running code.

A checkpoint is a state file (`regrow.files.state_file`). Tensors that FSDP2 shards are
saved by all ranks, each its own rows; any number of ranks can load them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import signature
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch

from regrow.files.model_file import FormatError
from regrow.files.state_file import from_bytes, to_bytes
from regrow.runs.folder import CHECKPOINT, RunFolderError, check_inside, read_inside, write_whole

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from regrow.train.distributed import Ranks

_FORMAT = 3
_MARK = "sharded tensor"


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint at `path`; the old one stays until the new one is on disk."""
    try:
        content = to_bytes({"format": _FORMAT, **state})
    except ValueError as error:
        raise RunFolderError(f"cannot write {path}: {error}.") from error
    write_whole(path, content)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint. A file that is damaged or contains anything but data raises an error that names it."""
    try:
        state = from_bytes(read_inside(path))
    except FormatError as error:
        raise _damaged(path, str(error)) from error
    if state.get("format") != _FORMAT:
        found = state.get("format")
        raise RunFolderError(f"{path} has format {found!r:.40}, this version of regrow reads {_FORMAT}.")
    return state


def saves_shards() -> bool:
    """Return whether this torch can save sharded tensors as safetensors: from 2.9 on."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    return "save_distributed" in signature(HuggingFaceStorageWriter).parameters


def save_sharded(folder: Path, state: Mapping[str, Any], ranks: Ranks) -> dict[str, Any]:
    """Write the sharded tensors of `state` to a new subfolder; return the rest and the subfolder's name.

    The files are safetensors (torch's distributed checkpoint), so loading them runs no code. All ranks must see the
    same `folder`.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
    from torch.distributed.tensor import DTensor

    name = ranks.on_rank0(lambda: f"shards-{uuid4().hex[:8]}")
    tensors: dict[str, Any] = {}

    def take(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        tensors[path] = leaf.detach()
        return {_MARK: path, "shape": list(leaf.shape), "dtype": str(leaf.dtype).removeprefix("torch.")}

    rest: dict[str, Any] = _map_leaves(state, take)
    options: dict[str, Any] = {"save_distributed": True}  # unknown to torch 2.8
    save_tensors(tensors, storage_writer=HuggingFaceStorageWriter(str(folder / name), **options))
    return {**rest, "shards": name}


def load_sharded(folder: Path, rest: Mapping[str, Any], mesh: DeviceMesh) -> dict[str, Any]:
    """Return the state for which `save_sharded` returned `rest`, sharded over `mesh`."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
    from torch.distributed.tensor import Shard, empty

    path, room = _shards(folder, rest["shards"])
    tensors: dict[str, Any] = {}

    def allocate(_: str, leaf: Any) -> Any:
        nonlocal room
        if not (isinstance(leaf, dict) and _MARK in leaf):
            return leaf
        name, shape, dtype = _checked_mark(leaf, path)
        room -= prod(shape) * dtype.itemsize
        if room < 0:
            raise _damaged(path, "its tensors would be larger than its files")
        tensors[name] = empty(shape, dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
        return tensors[name]

    state: dict[str, Any] = _map_leaves(rest, allocate)
    try:
        load_tensors(tensors, storage_reader=HuggingFaceStorageReader(str(path)))
    except (CheckpointException, OSError, RuntimeError) as error:
        raise RunFolderError(
            f"{path} is damaged ({error}). Remove {folder / CHECKPOINT} to start the run from the beginning."
        ) from error
    return state


def _shards(folder: Path, name: object) -> tuple[Path, int]:
    """Return the folder of sharded tensors and the size of its files, all of which must be inside the run folder."""
    if not isinstance(name, str) or not re.fullmatch(r"shards-[0-9a-f]{8}", name):
        raise _damaged(folder / CHECKPOINT, f"its shards are in {name!r:.100}")
    path = folder / name
    if path.is_symlink() or not path.is_dir():
        raise RunFolderError(f"{path} is missing: it holds the tensors of {folder / CHECKPOINT}.")
    return path, sum(check_inside(file).st_size for file in path.iterdir())


def _checked_mark(mark: Mapping[str, Any], path: Path) -> tuple[str, list[int], torch.dtype]:
    """Return name, shape and type of a sharded tensor; a crafted state may hold anything."""
    name, shape, dtype = mark.get(_MARK), mark.get("shape"), getattr(torch, str(mark.get("dtype")), None)
    if not isinstance(name, str) or not isinstance(dtype, torch.dtype) or not isinstance(shape, list):
        raise _damaged(path, f"{mark!r:.100} is not a tensor")
    if len(shape) > 16 or not all(type(size) is int and 0 <= size < 1 << 48 for size in shape):
        raise _damaged(path, f"{mark!r:.100} is not a tensor")
    return name, shape, dtype


def _map_leaves(value: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """Return nested dictionaries and lists with `change(path, leaf)` in place of every leaf."""
    if isinstance(value, dict) and _MARK not in value:
        return {key: _map_leaves(each, change, f"{path}/{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [_map_leaves(each, change, f"{path}/{index}") for index, each in enumerate(value)]
    return change(path, value)


def _damaged(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(f"{path} is damaged ({reason}). Remove it to start the run from the beginning.")
