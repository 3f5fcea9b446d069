"""Code for one array with many zeros: positions (Golomb-Rice), signs, exponents and mantissas of the non-zeros."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from regrow.files.entropy import (
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

Fields = tuple[Bytes, Bits]
Positions = npt.NDArray[np.int64]
BitPattern = npt.NDArray[np.unsignedinteger[Any]]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True)
class NumberFormat:
    """The bits of a number, from the highest: one sign bit, the exponent, the mantissa."""

    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        """Bits of one number."""
        return 1 + self.exponent + self.mantissa

    @property
    def tail(self) -> int:
        """Bits of sign and mantissa, which look random and are stored without compression."""
        return 1 + self.mantissa

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Unsigned integer type that holds the bits."""
        return np.dtype(f"<u{self.bits // 8}")


# int8 is stored as sign and magnitude: a float whose exponent is the magnitude, without a mantissa.
FORMATS = {
    "fp32": NumberFormat(8, 23),
    "fp16": NumberFormat(5, 10),
    "bf16": NumberFormat(8, 7),
    "int8": NumberFormat(7, 0),
}


@dataclass(frozen=True)
class ArrayLayout:
    """The numbers needed to read an array; the sizes of all its parts follow from them.

    `shift` is the Rice parameter of the gaps. An exponent is stored as `top` minus the exponent, in a symbol of `width`
    bits.
    """

    STORED: ClassVar = ("nonzeros", "shift", "top", "width")
    """The fields that a file stores; format and count follow from the tensors."""

    format: NumberFormat
    count: int
    nonzeros: int
    shift: int
    top: int
    width: int

    def __post_init__(self) -> None:
        """Refuse impossible values, so that all sizes derived from a layout are bounded and exact."""
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
        """Number of coded positions: those of the non-zeros or of the zeros, whichever are fewer."""
        return min(self.nonzeros, self.count - self.nonzeros)

    @property
    def field_bytes(self) -> tuple[int, int]:
        """Whole bytes of signs and mantissas, and of the low bits of the gaps."""
        return self.nonzeros * (self.format.tail // 8), self.marked * (self.shift // 8)

    @property
    def field_bits(self) -> tuple[int, int]:
        """Bits of both that do not fill whole bytes."""
        return self.nonzeros * (self.format.tail % 8), self.marked * (self.shift % 8)

    @property
    def symbol_bytes(self) -> int:
        """Bytes of the exponents before deflate."""
        return symbol_bytes(self.nonzeros, self.width)


@dataclass(frozen=True)
class Code:
    """The parts of a coded array: exponents, signs and mantissas (`tails`), low bits and quotients of the gaps."""

    layout: ArrayLayout
    symbols: Bytes
    tails: Fields
    gaps: Fields
    quotients: Words


@dataclass(frozen=True)
class SparseArray(Generic[Scalar]):
    """Positions and values of the non-zeros of an array; without positions, `values` holds every element."""

    positions: Positions | None
    values: npt.NDArray[Scalar]

    def dense(self, count: int) -> npt.NDArray[Scalar]:
        """Return all `count` elements, including the zeros."""
        if self.positions is None:
            return self.values
        array = np.zeros(count, self.values.dtype)
        array[self.positions] = self.values
        return array


def encode(array: BitPattern, form: NumberFormat) -> Code:
    """Encode a flat array given by its bit patterns; only the pattern of +0.0 is a zero."""
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
        ArrayLayout(form, len(array), len(positions), shift, top, width),
        symbols=pack_symbols(symbols, width),
        tails=pack_fields(mantissas | signs << np.uint64(form.mantissa), form.tail),
        gaps=pack_fields(gaps & np.uint64((1 << shift) - 1), shift),
        quotients=gaps >> np.uint64(shift),
    )


def decode(code: Code) -> SparseArray[np.unsignedinteger[Any]]:
    """Invert `encode`; raise a ValueError that says what is wrong with a damaged code."""
    layout, form = code.layout, code.layout.format
    symbols = unpack_symbols(code.symbols, layout.nonzeros, layout.width)
    if layout.nonzeros and int(symbols.max()) > layout.top:
        raise ValueError("it has an exponent below the smallest one")
    exponents = (np.uint8(layout.top) - symbols).astype(form.dtype)
    tails = unpack_fields(*code.tails, layout.nonzeros, form.tail).astype(form.dtype)
    signs = tails >> form.mantissa
    mantissas = tails & ((1 << form.mantissa) - 1)
    values = signs << (form.bits - 1) | exponents << form.mantissa | mantissas
    return SparseArray(_positions(code), values.astype(form.dtype, copy=False))


def _positions(code: Code) -> Positions | None:
    layout = code.layout
    if layout.nonzeros == layout.count:
        return None
    # Every quotient was counted in stored bits, so this sum cannot overflow; positions then stay below 2**62.
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


def limit_bits(array: SparseArray[np.unsignedinteger[Any]], count: int, form: NumberFormat) -> float:
    """Return the entropy of the mask + non-zeros x (sign + mantissa + entropy of the exponent), for `count` numbers."""
    values = array.values[array.values != 0]
    exponents = (values >> form.mantissa) & ((1 << form.exponent) - 1)
    mask = count * _entropy((len(values), count - len(values)))
    return mask + len(values) * (form.tail + _entropy(np.bincount(exponents).tolist()))


def _entropy(counts: Sequence[int]) -> float:
    """Return the entropy, in bits per symbol, of a source with these frequencies."""
    total = sum(counts)
    return -sum(count / total * log2(count / total) for count in counts if count)


def gaps_of(positions: Positions) -> Words:
    """Return the number of elements between each position and the one before it; positions are increasing."""
    return (np.diff(positions, prepend=-1) - 1).astype(np.uint64)


def positions_of(gaps: Words) -> Positions:
    """Invert `gaps_of`."""
    return np.cumsum(gaps.astype(np.int64) + 1) - 1


def best_shift(gaps: Words) -> int:
    """Return the Rice parameter k that codes `gaps` in the fewest bits: k low bits as they are, the rest in unary."""
    if not len(gaps):
        return 0
    guess = max(0, int(gaps.sum() // len(gaps)).bit_length() - 1)
    candidates = range(max(0, guess - 1), guess + 2)
    return min(candidates, key=lambda k: k * len(gaps) + int((gaps >> np.uint64(k)).sum()))


def pack_quotients(quotients: Words) -> Bits:
    """Write each number q in unary: q zeros and a one."""
    ends = np.cumsum(quotients.astype(np.int64) + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, np.uint8)
    bits[ends] = 1
    return bits


def unpack_quotients(bits: Bits, count: int) -> Words:
    """Read `count` unary numbers, which less than a byte of padding zeros may follow.

    The ones are counted before their positions are computed, so that `count` and the data bound the memory.
    """
    ones = bits.view(bool)  # numpy counts and finds booleans much faster than integers
    found = int(np.count_nonzero(ones))
    if found != count:
        raise ValueError(f"its mask has {found} unary codes where the index implies {count}")
    ends = np.flatnonzero(ones)
    if len(bits) - (int(ends[-1]) + 1 if count else 0) >= 8:
        raise ValueError("it has bytes after its last unary code")
    return gaps_of(ends)
