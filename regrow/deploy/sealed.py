"""The outside of a packed file: one byte tensor in a safetensors file, a few words about it, and a checksum."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np

from regrow.deploy.container import MAGIC, PACKED, FormatError, opened, read_json, safetensors

VERSION = 2

_METADATA, _TENSOR = "regrow", f"{PACKED}packed"
_CHECKSUM_BYTES = 8
_START = len(MAGIC) + _CHECKSUM_BYTES


def seal(words: Sequence[Any], data: bytes) -> bytes:
    """The bytes of a file that says `words`, which JSON can hold, and holds `data`.

    All metadata is one entry, because safetensors writes several in a random order: the same model gives the
    same file.
    """
    said = json.dumps([VERSION, *words], separators=(",", ":"))
    plane = np.frombuffer(MAGIC + _checksum(said, data) + data, np.uint8)
    sealed: bytes = safetensors("numpy").save({_TENSOR: plane}, {_METADATA: said})
    return sealed


def unseal(path: Path) -> tuple[list[Any], bytes] | None:
    """What a file says and holds, checked to be what was sealed; None if it is a plain safetensors file."""
    with opened(path, "numpy") as file:
        said = (file.metadata() or {}).get(_METADATA)
        if said is None:
            return None
        words = _words(said, path)
        if list(file.keys()) != [_TENSOR] or file.get_slice(_TENSOR).get_dtype() != "U8":
            raise FormatError(f"{path} does not hold the byte tensor {_TENSOR} of a packed file, and only that.")
        data = file.get_tensor(_TENSOR).tobytes()
    start, data = data[:_START], data[_START:]
    if start != MAGIC + _checksum(said, data):
        raise FormatError(f"{path} is damaged: its contents do not match its checksum.")
    return words, data


def _words(said: str, path: Path) -> list[Any]:
    words = read_json(said, path)
    if isinstance(words, dict):
        words = [words.get("version")]  # version 1 said more, by name
    if not isinstance(words, list) or not words:
        raise FormatError(f"{path} does not say of which version of the packed format it is.")
    version, *rest = words
    if version != VERSION:
        raise FormatError(
            f"{path} is of version {shortened(version)} of the packed format; this regrow reads {VERSION}."
            " Load it with the version that wrote it, or save the model anew."
        )
    return rest


def _checksum(said: str, data: bytes) -> bytes:
    """A digest of all that a file says and holds, so that no damage goes unnoticed."""
    words = said.encode()
    digest = blake2b(len(words).to_bytes(8, "little") + words, digest_size=_CHECKSUM_BYTES)
    digest.update(data)
    return digest.digest()
