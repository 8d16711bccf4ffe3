"""JSON texts of one shape as stored documents, by columns; `json_values` has the grammar of their bytes.

Texts of a column are mostly alike: the same keys in the same order, arrays of the same length. The shape of
one of them says which marks and keys a text must have (`json_scan` finds them). The values of texts with this
shape are checked, encoded and put together by columns. Texts of other shapes, and those with escapes or whole
numbers beyond 18 digits, are left to the caller.
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

from spark_lance.file.json_scan import TextScan
from spark_lance.file.json_values import ARRAY, CONTAINER, FALSE, NULL, NUMBER, OBJECT, SCALAR, STRING, TRUE

__all__ = ["encode_alike", "key_entries"]

Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint32]

Places = npt.NDArray[np.int64]

# Larger shapes are not worth it, or not possible.
_MOST_VALUES, _MOST_DEPTH = 256, 24
# More digits may not fit into 64 bits.
_MOST_DIGITS = 18
_QUOTE = ord('"')
_INTEGER = r"\A-?(?:0|[1-9][0-9]*)\z"
_DOUBLE = r"\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\z"
_LITERALS = ((NULL, b"null"), (TRUE, b"true"), (FALSE, b"false"))
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
    """A text has no shape that could serve as a template for others."""


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


def _outline(shape: _Shape, marks: bytearray, gaps: list[bytes | None]) -> None:
    """Add the marks of a shape, and what is in the gaps between them: a key, nothing, or None for a value."""
    if shape is None:
        gaps.append(None)
        return
    gaps.append(b"")
    marks += b"[" if shape.keys is None else b"{"
    for number, part in enumerate(shape.parts):
        if number:
            marks += b","
        if shape.keys is not None:
            gaps.append(f'"{shape.keys[number]}"'.encode())
            marks += b":"
        _outline(part, marks, gaps)
    if not shape.parts:
        gaps.append(b"")
    marks += b"]" if shape.keys is None else b"}"
    gaps.append(b"")


def encode_alike(scan: TextScan, rows: Places, like: str) -> tuple[Bools, pa.Array] | None:
    """Return which texts are of the shape of another, and these as stored documents; None if it has none.

    Args:
        scan: of all texts.
        rows: the numbers of those that are asked for, ascending.
        like: the text whose shape is looked for.
    """
    try:
        shape = _shape_of(like)
    except (ValueError, RecursionError):
        return None
    marks = bytearray()
    documents: list[bytes | None] = []
    _outline(shape, marks, documents)
    own = [number for number, text in enumerate(documents) if text is None]
    if not own:
        return None
    same, gaps = scan.gaps(rows, bytes(marks))
    count = gaps.starts.shape[1]
    fits = np.ones(count, np.bool_)
    for number, text in enumerate(documents):
        if text is not None:
            fits &= _are(scan, gaps.starts[number], gaps.stops[number], text)
    fit, words, data = _stored_values(scan, gaps.starts[own], gaps.stops[own])
    fits &= fit.all(axis=0)
    # Keys and strings have a quote at each end; if a text has no others, there are none inside.
    keys = sum(1 for text in documents if text)
    fits &= gaps.quotes == 2 * (keys + (words >> np.uint32(28) == STRING).sum(axis=0))
    columns = ((words[number], data.slice(number * count, count)) for number in range(len(own)))
    heads, data = _stored(shape, columns, count)
    if shape is None:
        head = np.empty((count, 2), ">u4")
        head[:, 0], head[:, 1] = SCALAR, heads
        data = pc.binary_join_element_wise(_rows(head.view(np.uint8)), data, b"")
    if not fits.all():
        data = data.filter(pa.array(fits))
        same[np.flatnonzero(same)[~fits]] = False
    return same, data.cast(pa.large_binary())


def _are(scan: TextScan, starts: Places, stops: Places, text: bytes) -> Bools:
    """Return between which places a text is."""
    fits: Bools = stops - starts == len(text)
    here = starts if fits.all() else starts[fits]
    same = np.ones(len(here), np.bool_)
    for number, letter in enumerate(text):
        same &= scan.data[here + number] == letter
    fits[fits] = same
    return fits


def _stored(shape: _Shape, columns: Any, count: int) -> tuple[Words, pa.Array]:
    """Return the entries and the bytes of values of a shape, which are in columns, in their order."""
    if shape is None:
        column: tuple[Words, pa.Array] = next(columns)
        return column
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


def _stored_values(scan: TextScan, starts: Places, stops: Places) -> tuple[Bools, Words, pa.Array]:
    """Return which values are stored as they are here, their entries, and their bytes.

    Args:
        scan: of the texts.
        starts, stops: a row per place of the shape, a column per text.

    Returns:
        The first two as `starts` is, the last as one array of its rows. Of values that do not fit, the last
        two mean nothing.
    """
    places, count = starts.shape
    fits = starts < stops
    kinds = np.full(starts.shape, NUMBER, np.uint32)
    kinds[fits] = _KINDS[scan.data[starts[fits]]]
    # An unclosed string is not a JSON value, so it is no number, either.
    strings = np.nonzero(kinds == STRING)
    closed = (scan.data[stops[strings] - 1] == _QUOTE) & (stops[strings] - starts[strings] > 1)
    kinds[strings] = np.where(closed, np.uint32(STRING), np.uint32(NUMBER))
    for kind, text in _LITERALS:
        here = np.nonzero(kinds == kind)
        fits[here] &= _are(scan, starts[here], stops[here], text)
    is_string = kinds == STRING
    literal = ~is_string & (kinds != NUMBER)
    inner = starts + is_string
    slots = scan.slots(inner.T.ravel(), np.where(literal, inner, stops - is_string).T.ravel())
    order = 2 * (np.arange(places)[:, None] + places * np.arange(count))
    numbers = np.nonzero(kinds == NUMBER)
    if len(numbers[0]):
        fit, stored = _stored_numbers(slots.take(pa.array(order[numbers])).cast(pa.string()))
        fits[numbers] &= fit
        order[numbers] = len(slots) + np.arange(len(stored))
        slots = pa.concat_arrays([slots, stored])
    data = slots.take(pa.array(order.ravel()))
    lengths = pc.binary_length(data).to_numpy().astype(np.uint32).reshape(starts.shape)
    words: Words = kinds << np.uint32(28) | lengths
    return fits, words, data


def _stored_numbers(texts: pa.Array) -> tuple[Bools, pa.Array]:
    """Return which numbers fit into 64 bits as they are written, and their stored form.

    That is, integers in as few bytes as they need, and doubles.
    """
    count = len(texts)
    whole = pc.match_substring_regex(texts, _INTEGER).to_numpy(zero_copy_only=False)
    fits = np.array(whole)
    # A tag and 8 bytes for each; the last bytes are kept.
    rows = np.zeros((count, 9), np.uint8)
    widths = np.zeros(count, np.int64)
    here = np.flatnonzero(~whole)
    if len(here):
        some = texts if len(here) == count else texts.take(pa.array(here))
        fit = pc.match_substring_regex(some, _DOUBLE)
        values = pc.cast(pc.if_else(fit, some, "0"), pa.float64()).to_numpy()
        fits[here] = fit.to_numpy(zero_copy_only=False) & np.isfinite(values)
        rows[here, 0], widths[here] = 0x60, 8
        rows[here, 1:] = values.astype(">f8").view(np.uint8).reshape(-1, 8)
    short = pc.binary_length(texts).to_numpy() <= _MOST_DIGITS
    fits &= short | ~whole
    here = np.flatnonzero(whole & short)
    if len(here):
        some = texts if len(here) == count else texts.take(pa.array(here))
        integers = pc.cast(some, pa.int64()).to_numpy()
        rows[here, 0] = np.where(integers > 0, 0x50, np.where(integers < 0, 0x40, 0))
        widths[here] = _widths(integers)
        rows[here, 1:] = integers.astype(">i8").view(np.uint8).reshape(-1, 8)
    keep = np.arange(9) > 8 - widths[:, None]
    keep[:, 0] = True
    offsets = np.concatenate([[0], np.cumsum(1 + widths)]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(rows[keep])]
    return fits, pa.Array.from_buffers(pa.binary(), count, buffers)


def _widths(whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how many bytes integers need: none for 0, else 1, 2, 4 or 8; negative ones with their sign."""
    size = np.where(whole < 0, ~whole, whole)
    shift = np.where(whole < 0, 1, 0)
    result = np.full(len(whole), 8, np.int64)
    for width in (4, 2, 1):
        result[size < (np.int64(1) << (8 * width - shift))] = width
    result[whole == 0] = 0
    return result
