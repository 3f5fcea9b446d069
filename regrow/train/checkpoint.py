"""Checkpoints: the training state between two steps, written atomically and read without running code.

Tensors that FSDP2 shards are saved by all ranks, each its own rows; any number of ranks can load them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch

from regrow.runs.folder import RunFolderError, write_whole

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from regrow.train.distributed import Ranks

_FORMAT = 2
_MAGIC = b"regrow checkpoint"
_TRAILER = 16 + len(_MAGIC)
_MARK = "sharded tensor"


def save(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at `path`; the old one stays until the new one is on disk."""
    # Serialize in memory first: torch reports a full disk with errors that do not say so.
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, **state}, buffer)
    content = buffer.getvalue()
    write_whole(path, content + _trailer(content))


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint. A file that is damaged or contains anything but data raises an error that names it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}.") from error
    body = content[:-_TRAILER]
    if content[-_TRAILER:] != _trailer(body):
        raise _damaged(path, "its checksum is missing or wrong")
    try:
        state = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception as error:  # a crafted file may raise anything
        raise _damaged(path, str(error)) from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise RunFolderError(f"{path} has format {found!r}, this version of regrow reads {_FORMAT}.")
    return state


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
    save_tensors(tensors, storage_writer=HuggingFaceStorageWriter(str(folder / name), save_distributed=True))
    return {**rest, "shards": name}


def load_sharded(folder: Path, rest: Mapping[str, Any], mesh: DeviceMesh) -> dict[str, Any]:
    """Return the state for which `save_sharded` returned `rest`, sharded over `mesh`."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
    from torch.distributed.tensor import Shard, empty

    path = folder / rest["shards"]
    if not path.is_dir():
        raise RunFolderError(f"{path} is missing: it holds the tensors of {folder / 'checkpoint.pt'}.")
    tensors: dict[str, Any] = {}

    def allocate(_: str, leaf: Any) -> Any:
        if not (isinstance(leaf, dict) and _MARK in leaf):
            return leaf
        dtype = getattr(torch, leaf["dtype"])
        tensors[leaf[_MARK]] = empty(leaf["shape"], dtype=dtype, device_mesh=mesh, placements=[Shard(0)])
        return tensors[leaf[_MARK]]

    state: dict[str, Any] = _map_leaves(rest, allocate)
    try:
        load_tensors(tensors, storage_reader=HuggingFaceStorageReader(str(path)))
    except (CheckpointException, OSError, RuntimeError) as error:
        raise RunFolderError(
            f"{path} is damaged ({error}). Remove {folder / 'checkpoint.pt'} to start the run from the beginning."
        ) from error
    return state


def _map_leaves(value: Any, change: Callable[[str, Any], Any], path: str = "") -> Any:
    """Return nested dictionaries and lists with `change(path, leaf)` in place of every leaf."""
    if isinstance(value, dict) and _MARK not in value:
        return {key: _map_leaves(each, change, f"{path}/{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [_map_leaves(each, change, f"{path}/{index}") for index, each in enumerate(value)]
    return change(path, value)


def _damaged(path: Path, reason: str) -> RunFolderError:
    return RunFolderError(f"{path} is damaged ({reason}). Remove it to start the run from the beginning.")


def _trailer(content: bytes) -> bytes:
    """Return the checksum that follows the content: torch does not detect a flipped bit, and ignores what follows."""
    return blake2b(content, digest_size=_TRAILER - len(_MAGIC)).digest() + _MAGIC
