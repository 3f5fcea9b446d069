"""Nested states (tensors, numbers, texts) in one safetensors file, without pickle: all but the tensors is JSON.

Reading takes memory in proportion to the file, and runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from torch import Tensor

from regrow.core.distributed import is_sharded
from regrow.files.model_file import FormatError, safetensors

# Parsed JSON takes up to 30 times the memory of its text. 8 MiB are enough for 40,000 tensors.
_LARGEST_HEADER = 8 << 20

# The digest covers the whole file, with zeros in place of the digest itself: a flipped bit anywhere is detected.
_DIGEST = 32
_FIELD = b'"checksum":"'


def to_bytes(state: Mapping[str, Any]) -> bytes:
    """Return the content of a file that holds `state`: dicts, lists, tuples, tensors, numbers, texts and None."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encoded(state, tensors), separators=(",", ":"))
    content: bytes = safetensors("torch").save(tensors, {"state": text, "checksum": "0" * _DIGEST})
    if _header_size(content) > _LARGEST_HEADER:
        raise ValueError(f"the state has more than {_LARGEST_HEADER:,} bytes besides tensors")
    return sealed(content)


def from_bytes(content: bytes) -> dict[str, Any]:
    """Return the state that `to_bytes` was given; anything else raises a `FormatError` that says why."""
    if _header_size(content) > _LARGEST_HEADER:
        raise FormatError("it is not a checkpoint of this version of regrow")
    start = content.find(_FIELD, 0, _LARGEST_HEADER) + len(_FIELD)
    if content[start : start + _DIGEST] != _digest(content, start):
        raise FormatError("its checksum is missing or wrong")
    try:
        header = json.loads(content[8 : 8 + _header_size(content)])
        state = _decoded(json.loads(header["__metadata__"]["state"]), safetensors("torch").load(content))
    except Exception as error:  # a crafted file may raise anything
        raise FormatError(f"{type(error).__name__}: {str(error)[:200]}") from error
    if not isinstance(state, dict):
        raise FormatError(f"it holds a {type(state).__name__}, not a dict")
    return state


def sealed(content: bytes) -> bytes:
    """Return the content with the right checksum."""
    start = content.find(_FIELD) + len(_FIELD)
    return content[:start] + _digest(content, start) + content[start + _DIGEST :]


def _header_size(content: bytes) -> int:
    return int.from_bytes(content[:8], "little")


def _digest(content: bytes, start: int) -> bytes:
    """Return the digest of a file, without the place of the digest itself, as hexadecimal digits."""
    digest = blake2b(memoryview(content)[:start], digest_size=_DIGEST // 2)
    digest.update(memoryview(content)[start + _DIGEST :])
    return digest.hexdigest().encode()


def _encoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return `value` for JSON: each container as a list that starts with its kind. Tensors are added to `tensors`."""
    match value:
        case Tensor() if not is_sharded(value):
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
