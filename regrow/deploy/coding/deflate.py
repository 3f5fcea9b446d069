"""Huffman codes by zlib's deflate, with tables where they pay and decoding that cannot explode."""

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from regrow.deploy.coding.bits import Bytes

# What a Huffman table takes in a deflate stream: its frame, and each symbol that it has a code for.
_TABLE_BITS = 80
_BITS_PER_SYMBOL = 4

# A block of more chunks than this is not considered, so that the search is linear in their number.
_LONGEST_BLOCK = 64


def deflate(chunks: Sequence[Bytes]) -> bytes:
    """One deflate stream over `chunks`, cut between them into the blocks that share a Huffman table best."""
    # Exponents and magnitudes have no repeated strings to find: Huffman codes alone are smaller and faster.
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    parts: list[bytes] = []
    for block in _blocks([chunk for chunk in chunks if len(chunk)]):
        if parts:
            parts.append(coder.flush(zlib.Z_BLOCK))
        parts += [coder.compress(chunk.tobytes()) for chunk in block]
    return b"".join([*parts, coder.flush()])


def _blocks(chunks: Sequence[Bytes]) -> list[Sequence[Bytes]]:
    """Cut `chunks` into runs whose codes and tables take the fewest bits together, by dynamic programming."""
    counts = np.zeros((len(chunks) + 1, 256))
    for i, chunk in enumerate(chunks):
        counts[i + 1] = counts[i] + np.bincount(chunk, minlength=256)
    least, starts = np.zeros(len(chunks) + 1), [0]
    for end in range(1, len(chunks) + 1):
        first = max(0, end - _LONGEST_BLOCK)
        bits = least[first:end] + _block_bits(counts[end] - counts[first:end])
        starts.append(first + int(bits.argmin()))
        least[end] = bits.min()
    blocks, end = [], len(chunks)
    while end:
        blocks.append(chunks[starts[end] : end])
        end = starts[end]
    return blocks[::-1]


def _block_bits(counts: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """About how many bits deflate needs for blocks with these frequencies, one block a row."""
    used = counts > 0
    share = np.divide(counts, counts.sum(axis=1, keepdims=True))
    entropies = -(counts * np.log2(share, where=used, out=np.zeros_like(counts))).sum(axis=1)
    estimate: npt.NDArray[np.float64] = entropies + _TABLE_BITS + _BITS_PER_SYMBOL * used.sum(axis=1)
    return estimate


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
