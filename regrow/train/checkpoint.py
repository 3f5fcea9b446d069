"""Checkpoints: the training state between two steps, written atomically and read without running code.

A checkpoint is a safetensors file; everything but the tensors is JSON in its metadata. Tensors that FSDP2 shards are
saved by all ranks, each its own rows; any number of ranks can load them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from inspect import signature
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
from torch import Tensor

from regrow.files.model_file import safetensors
from regrow.runs.folder import CHECKPOINT, RunFolderError, check_inside, read_inside, write_whole

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from regrow.train.distributed import Ranks

_FORMAT = 3
_MARK = "sharded tensor"

# Parsed JSON takes up to 30 times the memory of its text. 8 MiB are enough for 40,000 tensors.
_LARGEST_HEADER = 8 << 20

# The digest is over the whole file, with zeros in its own place: a flipped bit anywhere is noticed.
_DIGEST = 32
_FIELD = b'"checksum":"'


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint at `path`; the old one stays until the new one is on disk."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encoded({"format": _FORMAT, **state}, tensors), separators=(",", ":"))
    content = safetensors("torch").save(tensors, {"state": text, "checksum": "0" * _DIGEST})
    if _header_size(content) > _LARGEST_HEADER:
        raise RunFolderError(f"cannot write {path}: the state has more than {_LARGEST_HEADER:,} bytes besides tensors.")
    start = content.index(_FIELD) + len(_FIELD)
    write_whole(path, content[:start] + _digest(content, start) + content[start + _DIGEST :])


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint. A file that is damaged or contains anything but data raises an error that names it."""
    content = read_inside(path)
    if _header_size(content) > _LARGEST_HEADER:
        raise _damaged(path, "it is not a checkpoint of this version of regrow")
    start = content.find(_FIELD, 0, _LARGEST_HEADER) + len(_FIELD)
    if content[start : start + _DIGEST] != _digest(content, start):
        raise _damaged(path, "its checksum is missing or wrong")
    try:
        state = _decoded(json.loads(_metadata(content)["state"]), safetensors("torch").load(content))
    except Exception as error:  # a crafted file may raise anything
        raise _damaged(path, f"{type(error).__name__}: {str(error)[:200]}") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise RunFolderError(f"{path} has format {found!r:.40}, this version of regrow reads {_FORMAT}.")
    return state


def _header_size(content: bytes) -> int:
    return int.from_bytes(content[:8], "little")


def _metadata(content: bytes) -> dict[str, str]:
    header: dict[str, Any] = json.loads(content[8 : 8 + _header_size(content)])
    metadata: dict[str, str] = header["__metadata__"]
    return metadata


def _digest(content: bytes, start: int) -> bytes:
    """Return the digest of a file, without the place of the digest itself, as hexadecimal digits."""
    digest = blake2b(memoryview(content)[:start], digest_size=_DIGEST // 2)
    digest.update(memoryview(content)[start + _DIGEST :])
    return digest.hexdigest().encode()


def _encoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return `value` for JSON: each container as a list that starts with its kind. Tensors are added to `tensors`."""
    match value:
        case Tensor():
            name = str(len(tensors))
            order = _memory_order(value)
            tensors[name] = value.detach().permute(order).cpu().contiguous().clone()
            return ["tensor", name, order]
        case dict():
            return ["dict", [[_key(key), _encoded(each, tensors)] for key, each in value.items()]]
        case list() | tuple():
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, [_encoded(each, tensors) for each in value]]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"a checkpoint holds tensors, numbers and texts, got {type(value).__name__}.")


def _memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions from the slowest to the fastest in memory.

    The order must survive: fused optimizers combine weights and momentum by their place in memory.
    """
    return sorted(range(tensor.dim()), key=lambda dimension: -tensor.stride()[dimension])


def _key(key: object) -> int | str:
    if not isinstance(key, int | str):
        raise TypeError(f"the keys of a checkpoint are texts and whole numbers, got {key!r}.")
    return key


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `_encoded` was given; raise an error of any kind if `value` is something else."""
    match value:
        case ["tensor", name, order]:
            stored = tensors[name]
            return stored.permute([order.index(dimension) for dimension in range(stored.dim())])
        case ["dict", entries]:
            return {_key(key): _decoded(each, tensors) for key, each in entries}
        case ["list", entries]:
            return [_decoded(each, tensors) for each in entries]
        case ["tuple", entries]:
            return tuple(_decoded(each, tensors) for each in entries)
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"unknown entry {value!r:.40}")


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
