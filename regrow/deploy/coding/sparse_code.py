"""One array of numbers with many zeros as a mask and its non-zeros, each coded close to its entropy."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from regrow.deploy.coding.bits import (
    SYMBOL_BITS,
    Bits,
    Bytes,
    Words,
    pack_fields,
    pack_symbols,
    symbol_bits,
    symbol_bytes,
    unpack_fields,
    unpack_symbols,
)
from regrow.deploy.coding.rice import Positions, best_shift, gaps_of, positions_of

Fields = tuple[Bytes, Bits]
BitPattern = npt.NDArray[np.unsignedinteger[Any]]


Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class Format:
    """How a number's bits divide, from the top: one sign, then the exponent, then the mantissa."""

    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        """The bits of one number."""
        return 1 + self.exponent + self.mantissa

    @property
    def tail(self) -> int:
        """The bits that look random and are stored as they are: sign and mantissa."""
        return 1 + self.mantissa

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The unsigned integers that hold the bits."""
        return np.dtype(f"<u{self.bits // 8}")


# int8 is sign and magnitude here: a float whose exponent is the whole magnitude.
FORMATS = {"fp32": Format(8, 23), "fp16": Format(5, 10), "bf16": Format(8, 7), "int8": Format(7, 0)}


@dataclass(frozen=True)
class Layout:
    """What has to be known of an array to read it: the sizes of everything else follow from this.

    `shift` is the Rice parameter of the gaps; exponents are stored as the distance below `top`, in symbols of
    `width` bits.
    """

    STORED: ClassVar = ("nonzeros", "shift", "top", "width")
    """The numbers that a file has to say; format and count follow from the tensors."""

    format: Format
    count: int
    nonzeros: int
    shift: int
    top: int
    width: int

    def __post_init__(self) -> None:
        """Refuse what no array can be, so that everything derived from a layout is small and exact."""
        exponents = 1 << self.format.exponent
        checks = (
            ("nonzeros", self.nonzeros, range(self.count + 1)),
            ("shift", self.shift, range(max(1, self.count).bit_length() + 1)),
            ("top", self.top, range(exponents)),
            ("width", self.width, SYMBOL_BITS),
        )
        for name, value, allowed in checks:
            if value not in allowed:
                raise ValueError(f"{name} is {value}, which is not in 0 to {allowed[-1]}")

    @property
    def marked(self) -> int:
        """How many positions are coded: those of the non-zeros or those of the zeros, whichever are fewer."""
        return min(self.nonzeros, self.count - self.nonzeros)

    @property
    def field_bytes(self) -> tuple[int, int]:
        """The whole bytes of signs and mantissas, and of the gaps' low bits."""
        return self.nonzeros * (self.format.tail // 8), self.marked * (self.shift // 8)

    @property
    def field_bits(self) -> tuple[int, int]:
        """The bits that are left of both."""
        return self.nonzeros * (self.format.tail % 8), self.marked * (self.shift % 8)

    @property
    def symbol_bytes(self) -> int:
        """The bytes of the exponents before they are deflated."""
        return symbol_bytes(self.nonzeros, self.width)


@dataclass(frozen=True)
class Code:
    """An array in parts: exponents to be deflated, signs and mantissas, low bits and quotients of gaps."""

    layout: Layout
    symbols: Bytes
    tails: Fields
    gaps: Fields
    quotients: Words


@dataclass(frozen=True)
class NonZeros(Generic[Scalar]):
    """The non-zeros of an array: where they are (None: every number is given) and what they are."""

    positions: Positions | None
    values: npt.NDArray[Scalar]

    def dense(self, count: int) -> npt.NDArray[Scalar]:
        """All `count` numbers, zeros included."""
        if self.positions is None:
            return self.values
        array = np.zeros(count, self.values.dtype)
        array[self.positions] = self.values
        return array


def encode(array: BitPattern, form: Format) -> Code:
    """Code a flat array given by its bit patterns; only the pattern of +0.0 is a zero."""
    positions = np.flatnonzero(array)
    values = array[positions].astype(np.uint64)
    minority = positions if 2 * len(positions) <= len(array) else np.flatnonzero(array == 0)
    gaps = gaps_of(minority)
    shift = best_shift(gaps)

    exponents = (values >> np.uint64(form.mantissa)) & np.uint64((1 << form.exponent) - 1)
    top = int(exponents.max()) if len(values) else 0
    symbols = (np.uint64(top) - exponents).astype(np.uint8)
    width = symbol_bits(int(symbols.max()) + 1) if len(values) else 0
    signs = values >> np.uint64(form.bits - 1)
    mantissas = values & np.uint64((1 << form.mantissa) - 1)

    return Code(
        Layout(form, len(array), len(positions), shift, top, width),
        symbols=pack_symbols(symbols, width),
        tails=pack_fields(mantissas | signs << np.uint64(form.mantissa), form.tail),
        gaps=pack_fields(gaps & np.uint64((1 << shift) - 1), shift),
        quotients=gaps >> np.uint64(shift),
    )


def decode(code: Code) -> NonZeros[np.unsignedinteger[Any]]:
    """The inverse of `encode`, checked: a ValueError says what cannot be."""
    layout, form = code.layout, code.layout.format
    symbols = unpack_symbols(code.symbols, layout.nonzeros, layout.width)
    if layout.nonzeros and int(symbols.max()) > layout.top:
        raise ValueError("it has an exponent below the smallest one")
    exponents = (np.uint8(layout.top) - symbols).astype(form.dtype)
    tails = unpack_fields(*code.tails, layout.nonzeros, form.tail).astype(form.dtype)
    signs = tails >> form.mantissa
    mantissas = tails & ((1 << form.mantissa) - 1)
    values = signs << (form.bits - 1) | exponents << form.mantissa | mantissas
    return NonZeros(_positions(code), values.astype(form.dtype, copy=False))


def _positions(code: Code) -> Positions | None:
    layout = code.layout
    if layout.nonzeros == layout.count:
        return None
    # Quotients count bits that exist, so this sum is exact; it keeps all that follows below 2**62.
    if int(code.quotients.sum()) + layout.marked >= 1 << (62 - layout.shift):
        raise ValueError("its mask is larger than its shape")
    low = unpack_fields(*code.gaps, layout.marked, layout.shift)
    minority = positions_of(code.quotients << np.uint64(layout.shift) | low)
    if layout.marked and int(minority[-1]) >= layout.count:
        raise ValueError("its mask is larger than its shape")
    if layout.marked == layout.nonzeros:
        return minority
    keep = np.ones(layout.count, bool)
    keep[minority] = False
    return np.flatnonzero(keep)


def limit_bits(array: NonZeros[np.unsignedinteger[Any]], count: int, form: Format) -> float:
    """The entropy limit of `count` numbers: mask entropy + non-zeros x (sign + mantissa + entropy of the exponent)."""
    values = array.values[array.values != 0]
    exponents = (values >> form.mantissa) & ((1 << form.exponent) - 1)
    mask = count * _entropy((len(values), count - len(values)))
    return mask + len(values) * (form.tail + _entropy(np.bincount(exponents).tolist()))


def _entropy(counts: Sequence[int]) -> float:
    """Bits per symbol of a source with these frequencies."""
    total = sum(counts)
    return -sum(count / total * log2(count / total) for count in counts if count)
