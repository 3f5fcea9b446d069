"""Huffman codes by zlib's deflate, with tables that follow the data and decoding that cannot explode."""

import zlib
from collections.abc import Iterable

from regrow.deploy.coding.bits import Bytes

# Below this many bytes a Huffman table of its own costs more than it saves.
_OWN_TABLE = 1024


def deflate(chunks: Iterable[Bytes]) -> bytes:
    """One deflate stream over `chunks`, in which each large chunk has a code of its own."""
    # Exponents and magnitudes have no repeated strings to find: Huffman codes alone are smaller and faster.
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    parts, pending = [], 0
    for chunk in chunks:
        if pending and max(pending, len(chunk)) >= _OWN_TABLE:
            parts.append(coder.flush(zlib.Z_BLOCK))
            pending = 0
        parts.append(coder.compress(chunk.tobytes()))
        pending += len(chunk)
    return b"".join([*parts, coder.flush()])


def deflate_text(text: bytes) -> bytes:
    """A deflate stream over text, in which repeated strings are worth finding."""
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    return coder.compress(text) + coder.flush()


def inflate(data: bytes, most: int) -> tuple[bytes, bytes]:
    """What the deflate stream at the start of `data` stands for, and what follows the stream.

    A ValueError is raised where it is damaged or stands for more than `most` bytes, before more are made.
    """
    coder = zlib.decompressobj(-15)
    try:
        # One byte more than allowed lets the stream reach its end, and shows one that goes on.
        result = coder.decompress(data, most + 1)
    except zlib.error as error:
        raise ValueError(f"a deflate stream is damaged ({error})") from None
    if len(result) > most:
        raise ValueError(f"a deflate stream is longer than {most} bytes")
    if not coder.eof:
        raise ValueError("a deflate stream has no end")
    return result, coder.unused_data
