"""Decodes the numbers in stored JSON documents, many at once. `jsonb.values` documents their bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.jsonb.values import NUMBER, JsonValues

_ZERO, _NAN, _INFINITY, _MINUS_INFINITY = 0x00, 0x10, 0x20, 0x30
_SIGNED, _UNSIGNED, _DOUBLE, _DECIMAL = 0x40, 0x50, 0x60, 0x70
_SPECIAL = {_NAN: np.nan, _INFINITY: np.inf, _MINUS_INFINITY: -np.inf}
_WIDTHS = (1, 2, 4, 8)
_DECIMAL_WIDTHS = (9, 17, 33)
# Between these bounds we write no exponent, and Arrow seldom does.
_LEAST_PLAIN, _MOST_PLAIN = 1e-5, 1e15


@dataclass(frozen=True)
class Numbers:
    """Numbers in their stored types. `which` selects the attribute with the value of each number.

    Attributes:
        which: type of each number: "i" signed, "u" unsigned, "f" double, "d" decimal.
        signed, unsigned, doubles: values of the three types; arbitrary for numbers of other types.
        decimals: position of a decimal -> its value.
    """

    which: npt.NDArray[np.str_]
    signed: npt.NDArray[np.int64]
    unsigned: npt.NDArray[np.uint64]
    doubles: npt.NDArray[np.float64]
    decimals: dict[int, Decimal]

    def texts(self, special: bool = False) -> pa.Array:
        """Return the numbers as JSON text.

        Args:
            special: write NaN and infinities by name. Otherwise they become null, because JSON has none of
                them.
        """
        out = np.empty(len(self.which), object)
        parts: tuple[tuple[str, Callable[[Any], pa.Array]], ...] = (
            ("i", lambda at: pc.cast(pa.array(self.signed[at]), pa.string())),
            ("u", lambda at: pc.cast(pa.array(self.unsigned[at]), pa.string())),
            ("f", lambda at: double_texts(self.doubles[at], special)),
        )
        for letter, texts in parts:
            places = np.flatnonzero(self.which == letter)
            if len(places) == len(out):
                return texts(places)
            out[places] = texts(places).to_numpy(zero_copy_only=False)
        for place, value in self.decimals.items():
            out[place] = format(value, "f")
        return pa.array(out, pa.string())

    def as_doubles(self) -> npt.NDArray[np.float64]:
        """Return the nearest doubles."""
        result = np.where(self.which == "i", self.signed.astype(np.float64), self.doubles)
        result = np.where(self.which == "u", self.unsigned.astype(np.float64), result)
        for place, value in self.decimals.items():
            result[place] = float(value)
        return result

    def as_integers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return 64-bit integers, rounded half away from 0, and which numbers do not fit."""
        doubles = np.where(np.isin(self.which, ("f", "d")), self.as_doubles(), 0.0)
        rounded, outside = rounded_doubles(doubles)
        whole = np.where(self.which == "i", self.signed, rounded)
        whole = np.where(self.which == "u", self.unsigned.view(np.int64), whole)
        return whole, outside | ((self.which == "u") & (self.unsigned > np.iinfo(np.int64).max))


def rounded_doubles(doubles: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return doubles as 64-bit integers, rounded half away from 0, and which do not fit."""
    cut = np.trunc(doubles)
    with np.errstate(invalid="ignore"):
        rounded = cut + np.where(np.abs(doubles - cut) >= 0.5, np.copysign(1.0, doubles), 0.0)
        outside = ~((rounded >= -(2.0**63)) & (rounded < 2.0**63))
    return np.where(outside, 0.0, rounded).astype(np.int64), outside


def decode_numbers(values: JsonValues) -> Numbers:
    """Decode values that are all numbers.

    Raises:
        FormatError: a number is damaged.
        UnsupportedFormatError: a number has an unknown kind.
    """
    assert bool((values.kinds == NUMBER).all())
    count = len(values)
    if bool((values.lengths < 1).any()):
        raise FormatError("a JSON number of no bytes")
    tags = values.data[values.starts]
    widths = values.lengths - 1
    which = np.full(count, "u")
    signed, unsigned = np.zeros(count, np.int64), np.zeros(count, np.uint64)
    doubles = np.zeros(count)
    decimals: dict[int, Decimal] = {}
    is_zero = (tags == _ZERO) & (widths == 0)
    for tag, value in _SPECIAL.items():
        places = np.flatnonzero((tags == tag) & (widths == 0))
        which[places], doubles[places], is_zero[places] = "f", value, True
    for width in _WIDTHS:
        for tag in (_SIGNED, _UNSIGNED, _DOUBLE):
            places = np.flatnonzero((tags == tag) & (widths == width))
            if not len(places) or (tag == _DOUBLE and width != 8):
                continue
            is_zero[places] = True
            words = _words(values, places, width)
            if tag == _SIGNED:
                which[places] = "i"
                # The sign of a short number is in its first bit.
                signed[places] = words.view(np.int64) >> (64 - 8 * width)
            elif tag == _UNSIGNED:
                unsigned[places] = words >> np.uint64(64 - 8 * width)
            else:
                which[places], doubles[places] = "f", words.view(np.float64)
    for place in np.flatnonzero((tags == _DECIMAL) & np.isin(widths, _DECIMAL_WIDTHS)).tolist():
        raw = values.data[values.starts[place] + 1 :][: widths[place]].tobytes()
        which[place], is_zero[place] = "d", True
        decimals[place] = Decimal(int.from_bytes(raw[:-1], "big", signed=True)).scaleb(-raw[-1])
    if not bool(is_zero.all()):
        place = int(np.flatnonzero(~is_zero)[0])
        raw = values.data[values.starts[place] :][: min(int(values.lengths[place]), 16)].tobytes()
        raise UnsupportedFormatError(f"a JSON number stored as {raw.hex()}")
    return Numbers(which, signed, unsigned, doubles, decimals)


def _words(values: JsonValues, places: npt.NDArray[Any], width: int) -> npt.NDArray[np.uint64]:
    """Return numbers of `width` bytes in the upper bits of 64-bit numbers."""
    rows = np.zeros((len(places), 8), np.uint8)
    rows[:, :width] = values.data[values.starts[places, None] + 1 + np.arange(width)]
    return rows.view(">u8").reshape(-1).astype(np.uint64)


def double_texts(doubles: npt.NDArray[np.float64], special: bool = False) -> pa.Array:
    """Return the shortest text of each double that is parsed as the same double, with a point or an exponent.

    Exponents are used below 1e-5 and from 1e16 on, as in the reference implementation.
    """
    texts = pc.cast(pa.array(doubles), pa.string())
    size = np.abs(doubles)
    plain = (size == 0) | ((size >= _LEAST_PLAIN) & (size < _MOST_PLAIN))
    plain &= ~pc.match_substring(texts, "e").to_numpy(zero_copy_only=False)
    whole = pc.invert(pc.match_substring(texts, "."))
    texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    if bool(plain.all()):
        return texts
    others = [_text(value, special) for value in doubles[~plain].tolist()]
    return pc.replace_with_mask(texts, pa.array(~plain), pa.array(others, pa.string()))


def _text(value: float, special: bool) -> str:
    if value != value or value in (np.inf, -np.inf):
        name = "NaN" if value != value else "inf" if value > 0 else "-inf"
        return name if special else "null"
    text = repr(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    sign, digits = ("+", exponent[1:]) if exponent[0] == "+" else ("-", exponent[1:])
    if sign == "-" and int(digits) == 5:
        minus, mantissa = ("-", mantissa[1:]) if mantissa[0] == "-" else ("", mantissa)
        return f"{minus}0.0000{mantissa.replace('.', '')}"
    return f"{mantissa}e{sign}{int(digits)}" if sign == "+" else f"{mantissa}e-{int(digits)}"
