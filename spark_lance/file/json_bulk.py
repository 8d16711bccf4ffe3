"""JSON texts of one shape as stored documents, by columns; `json_values` has the grammar of their bytes.

Texts of a column are mostly alike: the same keys in the same order, arrays of the same length. The shape of
one of them becomes a regular expression that takes all of that shape apart at once, and looks at the grammar
of JSON on the way; what it finds is put together by columns, too. Texts that it does not match, and those
with escapes or whole numbers beyond 18 digits, are left to whoever asks.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.file.json_values import ARRAY, CONTAINER, FALSE, NULL, NUMBER, OBJECT, SCALAR, STRING, TRUE

__all__ = ["encode_alike", "key_entries"]

Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint32]

# Larger shapes are not worth it, or not possible.
_MOST_VALUES, _MOST_DEPTH = 32, 24
# More digits may not fit into 64 bits.
_MOST_DIGITS = 18
_SPACE = r"[ \t\n\r]*"
_VALUE = r'"[^"\\\x00-\x1f]*"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null'
_KINDS = np.full(256, NUMBER, np.uint32)
for _letter, _kind in (('"', STRING), ("t", TRUE), ("f", FALSE), ("n", NULL)):
    _KINDS[ord(_letter)] = _kind


@dataclass(frozen=True)
class _Container:
    """An object, or an array without keys, of a shape."""

    keys: tuple[str, ...] | None
    parts: tuple[_Shape, ...]


# None is a value that is no container.
_Shape = Union[_Container, None]  # noqa: UP007 (evaluated at run time on Python 3.10)


class _UnlikeError(ValueError):
    """A text has no shape by which others can be taken apart."""


def _pairs(pairs: list[tuple[str, Any]]) -> _Container:
    keys = tuple(key for key, _ in pairs)
    plain = not any(letter in '"\\' or letter < " " or _is_half(letter) for key in keys for letter in key)
    if len(set(keys)) < len(keys) or not plain:
        raise _UnlikeError
    return _Container(keys, tuple(_shape(value) for _, value in pairs))


def _is_half(letter: str) -> bool:
    """Return whether a letter is half of a surrogate pair, which no text that is stored has."""
    return "\ud800" <= letter <= "\udfff"


def _shape(value: Any) -> _Shape:
    if isinstance(value, list):
        return _Container(None, tuple(map(_shape, value)))
    return value if isinstance(value, _Container) else None


_shapes = json.JSONDecoder(object_pairs_hook=_pairs)


def _shape_of(text: str) -> _Shape:
    """Return the shape of a text.

    Raises:
        ValueError, RecursionError: it is no JSON, or has no shape that is used.
    """
    shape = _shape(_shapes.decode(text))
    values, depth = _size(shape)
    if values > _MOST_VALUES or depth > _MOST_DEPTH:
        raise _UnlikeError
    return shape


def _size(shape: _Shape) -> tuple[int, int]:
    """Return how many values a shape has, and how deep it is."""
    if shape is None:
        return 1, 0
    sizes = [_size(part) for part in shape.parts]
    return sum(values for values, _ in sizes) + 1, 1 + max([depth for _, depth in sizes], default=0)


def _pattern(shape: _Shape, numbers: list[int]) -> str:
    """Return the expression for a shape; its values are groups v0, v1, ... in their order."""
    if shape is None:
        numbers.append(len(numbers))
        return f"(?P<v{numbers[-1]}>{_VALUE})"
    parts = [_pattern(part, numbers) for part in shape.parts]
    if shape.keys is not None:
        parts = [
            f'"{_literal(key)}"{_SPACE}:{_SPACE}{part}' for key, part in zip(shape.keys, parts, strict=True)
        ]
    inner = f"{_SPACE},{_SPACE}".join(parts)
    opening, closing = (r"\[", r"\]") if shape.keys is None else (r"\{", r"\}")
    return f"{opening}{_SPACE}{inner}{_SPACE}{closing}" if parts else f"{opening}{_SPACE}{closing}"


def _literal(text: str) -> str:
    return "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in text)


def encode_alike(texts: pa.Array, like: str) -> tuple[Bools, pa.Array] | None:
    """Return which texts are of the shape of another, and these as stored documents; None if it has none.

    Args:
        texts: strings without nulls, 2 GiB at most.
        like: the text whose shape is looked for.
    """
    try:
        shape = _shape_of(like)
    except (ValueError, RecursionError):
        return None
    numbers: list[int] = []
    pattern = rf"\A{_SPACE}{_pattern(shape, numbers)}{_SPACE}\z"
    if not numbers:
        return None
    found = pc.extract_regex(texts.cast(pa.string()), pattern)
    same = np.asarray(found.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    found = found.filter(pa.array(same)) if not same.all() else found
    columns = found.flatten()
    fits = np.ones(len(found), np.bool_)
    for column in columns:
        fits &= _fit(column)
    if not fits.all():
        columns = [column.filter(pa.array(fits)) for column in columns]
        same[np.flatnonzero(same)[~fits]] = False
    words, data = _stored(shape, iter(columns), int(fits.sum()))
    if shape is None:
        head = np.empty((len(data), 2), ">u4")
        head[:, 0], head[:, 1] = SCALAR, words
        data = pc.binary_join_element_wise(_rows(head.view(np.uint8)), data, b"")
    return same, data.cast(pa.large_binary())


def _letters(column: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the first byte of every text; none is empty."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :][: len(column)]
    return np.frombuffer(column.buffers()[2] or b"", np.uint8)[offsets]


def _fit(column: pa.Array) -> Bools:
    """Return which values of a column are stored as they are here: of numbers those of 64 bits."""
    numbers = _KINDS[_letters(column)] == NUMBER
    fits = ~numbers
    if numbers.any():
        # Without an exponent, a number of few digits is neither too large for 64 bits nor for a double.
        short = pc.binary_length(column).to_numpy() <= _MOST_DIGITS
        exponent = pc.or_(pc.match_substring(column, "e"), pc.match_substring(column, "E"))
        fits |= short & ~exponent.to_numpy(zero_copy_only=False)
    if fits.all():
        return np.asarray(fits, np.bool_)
    # The others are mostly doubles.
    places = np.flatnonzero(~fits)
    long = column.take(pa.array(places))
    doubles = pc.match_substring_regex(long, "[.eE]").to_numpy(zero_copy_only=False)
    finite = pc.is_finite(pc.cast(long, pa.float64())).to_numpy(zero_copy_only=False)
    fits[places] = doubles & finite
    return np.asarray(fits, np.bool_)


def _stored(shape: _Shape, columns: Any, count: int) -> tuple[Words, pa.Array]:
    """Return the entries and the bytes of values of a shape, which are in columns, in their order."""
    if shape is None:
        return _stored_values(next(columns))
    parts = [_stored(part, columns, count) for part in shape.parts]
    if shape.keys is None:
        head, texts = struct.pack(">I", ARRAY | len(parts)), b""
    else:
        order, head, texts = key_entries(tuple(key.encode() for key in shape.keys))
        parts = [parts[place] for place in order]
    fixed = np.empty((count, len(head) + 4 * len(parts) + len(texts)), np.uint8)
    fixed[:, : len(head)] = np.frombuffer(head, np.uint8)
    for place, (words, _) in enumerate(parts):
        start = len(head) + 4 * place
        fixed[:, start : start + 4] = words.astype(">u4").view(np.uint8).reshape(-1, 4)
    fixed[:, fixed.shape[1] - len(texts) :] = np.frombuffer(texts, np.uint8)
    data = pc.binary_join_element_wise(_rows(fixed), *(data for _, data in parts), b"")
    lengths = pc.binary_length(data).to_numpy().astype(np.uint32)
    return np.uint32(CONTAINER << 28) | lengths, data


def key_entries(names: tuple[bytes, ...]) -> tuple[tuple[int, ...], bytes, bytes]:
    """Return the order of the keys of an object, its header with their entries, and their bytes."""
    order = sorted(range(len(names)), key=names.__getitem__)
    words = [STRING << 28 | len(names[place]) for place in order]
    head = struct.pack(f">{1 + len(words)}I", OBJECT | len(words), *words)
    return tuple(order), head, b"".join([names[place] for place in order])


def _rows(matrix: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a matrix as binary values."""
    count, width = matrix.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    data = pa.py_buffer(np.ascontiguousarray(matrix))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])


def _stored_values(column: pa.Array) -> tuple[Words, pa.Array]:
    """Return the entries and the bytes of the values that texts stand for."""
    kinds = _KINDS[_letters(column)]
    places, parts = [], []
    for kind in np.unique(kinds).tolist():
        here = np.flatnonzero(kinds == kind)
        texts = column if len(here) == len(column) else column.take(pa.array(here))
        places.append(here)
        if kind == STRING:
            parts.append(pc.binary_slice(texts.cast(pa.binary()), 1, -1))
        elif kind == NUMBER:
            parts.append(_stored_numbers(texts))
        else:
            parts.append(_rows(np.empty((len(here), 0), np.uint8)))
    if not parts:
        return np.empty(0, np.uint32), pa.array([], pa.binary())
    data = parts[0]
    if len(parts) > 1:
        order = np.argsort(np.concatenate(places), kind="stable")
        data = pa.concat_arrays(parts).take(pa.array(order))
    words: Words = kinds << np.uint32(28) | pc.binary_length(data).to_numpy().astype(np.uint32)
    return words, data


def _stored_numbers(texts: pa.Array) -> pa.Array:
    """Return numbers in their stored form: integers in as few bytes as they need, and doubles."""
    count = len(texts)
    double = pc.match_substring_regex(texts, "[.eE]").to_numpy(zero_copy_only=False)
    # A tag and 8 bytes for each, of which the last ones are kept.
    rows = np.empty((count, 9), np.uint8)
    widths = np.full(count, 8, np.int64)
    for is_double in (True, False):
        here = np.flatnonzero(double == is_double)
        some = texts if len(here) == count else texts.take(pa.array(here))
        if is_double:
            rows[here, 0] = 0x60
            values = pc.cast(some, pa.float64()).to_numpy().astype(">f8")
        else:
            whole = pc.cast(some, pa.int64()).to_numpy()
            rows[here, 0] = np.where(whole > 0, 0x50, np.where(whole < 0, 0x40, 0))
            widths[here] = _widths(whole)
            values = whole.astype(">i8")
        rows[here, 1:] = values.view(np.uint8).reshape(-1, 8)
    kept = np.arange(9) > 8 - widths[:, None]
    kept[:, 0] = True
    offsets = np.concatenate([[0], np.cumsum(1 + widths)]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows[kept])]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _widths(whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many bytes integers need: none for 0, else 1, 2, 4 or 8; negative ones with their sign."""
    size = np.where(whole < 0, ~whole, whole)
    shift = np.where(whole < 0, 1, 0)
    found = np.full(len(whole), 8, np.int64)
    for width in (4, 2, 1):
        found[size < (np.int64(1) << (8 * width - shift))] = width
    found[whole == 0] = 0
    return found
