"""Whole numbers of a few bits each, as bytes and back: what the packed file is made of."""

from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.uint8]
"""Bits of which each is a 0 or 1 of its own, so that they can be joined and cut anywhere."""

Words = npt.NDArray[np.unsignedinteger[Any]]

SYMBOL_BITS = (0, 1, 2, 4, 8)


def pack_fields(values: Words, width: int) -> tuple[Bytes, Bits]:
    """Numbers below `2**width`: the whole low bytes of each, then every bit that is left, plane by plane."""
    whole = width // 8
    low = np.ascontiguousarray(values, dtype="<u8").view(np.uint8).reshape(-1, 8)[:, :whole]
    planes = [(values >> np.uint64(bit)).astype(np.uint8) & 1 for bit in range(8 * whole, width)]
    return low.ravel(), np.concatenate([np.zeros(0, np.uint8), *planes])


def unpack_fields(low: Bytes, bits: Bits, count: int, width: int) -> Words:
    """Read back what `pack_fields` gave, into the smallest integers that hold it."""
    whole = width // 8
    size = next(size for size in (1, 2, 4, 8) if width <= 8 * size)
    words = np.zeros((count, size), np.uint8)
    words[:, :whole] = low.reshape(count, whole)
    for bit, plane in enumerate(bits.reshape(width % 8, count)):
        words[:, whole] |= plane << np.uint8(bit)
    return words.view(f"<u{size}").ravel()


def symbol_bits(levels: int) -> int:
    """The fewest bits that tell `levels` symbols apart, of those that fill a byte evenly."""
    return next(bits for bits in SYMBOL_BITS if levels <= 1 << bits)


def symbol_bytes(count: int, bits: int) -> int:
    """The bytes that `count` symbols of `bits` bits take before they are deflated."""
    return (count * bits + 7) // 8


def pack_symbols(symbols: Bytes, bits: int) -> Bytes:
    """Put neighbouring symbols into one byte.

    Deflate spends at least one bit on a byte, while an exponent often holds less than one: with several of
    them in each byte, the Huffman code comes within a few hundredths of a bit of the entropy.
    """
    if bits in (0, 8):
        return symbols if bits else symbols[:0]
    per_byte = 8 // bits
    padded = np.zeros(symbol_bytes(len(symbols), bits) * per_byte, np.uint8)
    padded[: len(symbols)] = symbols
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    packed: Bytes = np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1)
    return packed


def unpack_symbols(data: Bytes, count: int, bits: int) -> Bytes:
    """Read back what `pack_symbols` wrote."""
    if bits == 0:
        return np.zeros(count, np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    mask = np.uint8((1 << bits) - 1)
    return ((data[:, None] >> shifts) & mask).ravel()[:count]
