"""Converts JSON texts to stored documents and back. `jsonb.values` documents the stored bytes.

The texts of a column usually have the same shape: the same keys in the same order, and arrays of the same
length. A shape determines the marks and keys of a text (`jsonb.scan` finds them). The values of all texts
with this shape are checked and encoded column by column. Texts with other shapes, escapes, or integers above
18 digits are encoded one by one.

Decoding works the same way. Objects of one shape have equal header, key entries and key bytes, so the
position determines the value, without parsing each entry.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Union

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Bools
from spark_lance.errors import FormatError, SchemaError, UnsupportedFormatError
from spark_lance.jsonb.numbers import decode_numbers
from spark_lance.jsonb.scan import TextScan
from spark_lance.jsonb.values import (
    ARRAY,
    CONTAINER,
    FALSE,
    MISSING,
    NULL,
    NUMBER,
    OBJECT,
    SCALAR,
    STRING,
    TRUE,
    JsonValues,
    big_endian,
)

_LENGTH = 0x0FFFFFFF
# Maximum number of values of a shape that is processed by columns.
_MOST_SHAPE_VALUES = 256
_MOST_KEY_BYTES = 4096


@dataclass(frozen=True)
class SameShape:
    """Containers with the same shape as the first one.

    Attributes:
        same: flags of these containers.
        keys: names of the values; null in arrays.
        columns: the values at each position, for all of these containers.
    """

    same: Bools
    keys: JsonValues
    columns: list[JsonValues]


def find_same_shape(containers: JsonValues) -> SameShape | None:
    """Return the containers with the shape of the first one; None if it has too many values, or long keys.

    Raises:
        FormatError, UnsupportedFormatError: a container is damaged or has an unknown kind.
    """
    assert bool((containers.kinds == CONTAINER).all())
    first = containers.take(np.zeros(1, np.int64)).children()
    count, is_object = int(first.counts[0]), _is_object(containers)
    # Order: header, key entries, value entries, keys.
    head = 4 + 4 * count * is_object
    entries = head + 4 * count
    key_bytes = int(first.keys.lengths.sum()) if is_object else 0
    if count > _MOST_SHAPE_VALUES or key_bytes > _MOST_KEY_BYTES:
        return None
    same = containers.lengths >= entries + key_bytes
    places = np.flatnonzero(same)
    offsets = np.concatenate([np.arange(head), entries + np.arange(key_bytes)])
    rows = containers.data[containers.starts[places, None] + offsets]
    same[places] = (rows == rows[0]).all(axis=1)
    starts, lengths = containers.starts[same], containers.lengths[same]
    at = starts + entries + key_bytes
    columns = []
    for place in range(count):
        words = big_endian(containers.data, starts + head + 4 * place)
        sizes = words & _LENGTH
        columns.append(JsonValues(containers.data, (words >> 28).astype(np.uint8), at, sizes))
        at = at + sizes
    if bool((at > starts + lengths).any()):
        raise FormatError("the values of a JSON container are longer than its bytes")
    return SameShape(same, first.keys, columns)


def _is_object(containers: JsonValues) -> bool:
    return bool(containers.take(np.zeros(1, np.int64)).headers()[0][0] == OBJECT)


Words = npt.NDArray[np.uint32]

Places = npt.NDArray[np.int64]

# Larger shapes are too slow or not possible.
_MOST_VALUES, _MOST_DEPTH = 256, 24
# More digits may exceed 64 bits.
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
    """The shape of an object, or of an array, which has no keys."""

    keys: tuple[str, ...] | None
    parts: tuple[_Shape, ...]


# None is a value that is not a container.
_Shape = Union[_Container, None]  # noqa: UP007 (evaluated at run time on Python 3.10)


class _UnlikeError(ValueError):
    """The shape of a text cannot be used for other texts."""


def _pairs(pairs: list[tuple[str, Any]]) -> _Container:
    keys = tuple(key for key, _ in pairs)
    plain = not any(letter in '"\\' or letter < " " or _is_half(letter) for key in keys for letter in key)
    if len(set(keys)) < len(keys) or not plain:
        raise _UnlikeError
    return _Container(keys, tuple(_shape(value) for _, value in pairs))


def _is_half(letter: str) -> bool:
    """Return whether a character is half of a surrogate pair, which stored text cannot contain."""
    return "\ud800" <= letter <= "\udfff"


def _shape(value: Any) -> _Shape:
    if isinstance(value, list):
        return _Container(None, tuple(map(_shape, value)))
    return value if isinstance(value, _Container) else None


_shapes = json.JSONDecoder(object_pairs_hook=_pairs)


def _shape_of(text: str) -> _Shape:
    """Return the shape of a text.

    Raises:
        ValueError, RecursionError: the text is not JSON, or its shape cannot be used.
    """
    shape = _shape(_shapes.decode(text))
    values, depth = _measure_shape(shape)
    if values > _MOST_VALUES or depth > _MOST_DEPTH:
        raise _UnlikeError
    return shape


def _measure_shape(shape: _Shape) -> tuple[int, int]:
    """Return the number of values and the depth of a shape."""
    if shape is None:
        return 1, 0
    sizes = [_measure_shape(part) for part in shape.parts]
    return sum(values for values, _ in sizes) + 1, 1 + max([depth for _, depth in sizes], default=0)


def _outline(shape: _Shape, marks: bytearray, gaps: list[bytes | None]) -> None:
    """Append the marks of a shape, and its gaps: a key, "" for nothing, or None for a value."""
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
    """Return the texts with a given shape, as flags and as documents; None if `like` has no usable shape.

    Args:
        scan: scan of all texts.
        rows: ascending numbers of the texts to consider.
        like: a text with the shape.
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
            fits &= _equals_text(scan, gaps.starts[number], gaps.stops[number], text)
    fit, words, data = _stored_values(scan, gaps.starts[own], gaps.stops[own])
    fits &= fit.all(axis=0)
    # Keys and strings have a quote at each end. If a text has no other quotes, no string contains one.
    keys = sum(1 for text in documents if text)
    fits &= gaps.quotes == 2 * (keys + (words >> np.uint32(28) == STRING).sum(axis=0))
    columns = ((words[number], data.slice(number * count, count)) for number in range(len(own)))
    heads, data = _container_words(shape, columns, count)
    if shape is None:
        head = np.empty((count, 2), ">u4")
        head[:, 0], head[:, 1] = SCALAR, heads
        data = pc.binary_join_element_wise(_rows(head.view(np.uint8)), data, b"")
    if not fits.all():
        data = data.filter(pa.array(fits))
        same[np.flatnonzero(same)[~fits]] = False
    return same, data.cast(pa.large_binary())


def _equals_text(scan: TextScan, starts: Places, stops: Places, text: bytes) -> Bools:
    """Return which byte ranges are equal to `text`."""
    fits: Bools = stops - starts == len(text)
    here = starts if fits.all() else starts[fits]
    same = np.ones(len(here), np.bool_)
    for number, letter in enumerate(text):
        same &= scan.data[here + number] == letter
    fits[fits] = same
    return fits


def _container_words(shape: _Shape, columns: Any, count: int) -> tuple[Words, pa.Array]:
    """Return the entries and the bytes of the values of a shape, given as columns, in their order."""
    if shape is None:
        column: tuple[Words, pa.Array] = next(columns)
        return column
    parts = [_container_words(part, columns, count) for part in shape.parts]
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
    """Return which values can be stored directly, their entries, and their bytes.

    Args:
        scan: scan of the texts.
        starts, stops: byte ranges, one row per position of the shape, one column per text.

    Returns:
        The first two with the shape of `starts`, the bytes as one array of its rows. Entries and bytes of
        other values are arbitrary.
    """
    places, count = starts.shape
    fits = starts < stops
    kinds = np.full(starts.shape, NUMBER, np.uint32)
    kinds[fits] = _KINDS[scan.data[starts[fits]]]
    # An unclosed string is not a valid JSON value, and not a number, either.
    strings = np.nonzero(kinds == STRING)
    is_closed = (scan.data[stops[strings] - 1] == _QUOTE) & (stops[strings] - starts[strings] > 1)
    kinds[strings] = np.where(is_closed, np.uint32(STRING), np.uint32(NUMBER))
    for kind, text in _LITERALS:
        here = np.nonzero(kinds == kind)
        fits[here] &= _equals_text(scan, starts[here], stops[here], text)
    is_string = kinds == STRING
    literal = ~is_string & (kinds != NUMBER)
    inner = starts + is_string
    slots = scan.slots(inner.T.ravel(), np.where(literal, inner, stops - is_string).T.ravel())
    order = 2 * (np.arange(places)[:, None] + places * np.arange(count))
    numbers = np.nonzero(kinds == NUMBER)
    if len(numbers[0]):
        fit, texts_of_numbers = _stored_numbers(slots.take(pa.array(order[numbers])).cast(pa.string()))
        fits[numbers] &= fit
        order[numbers] = len(slots) + np.arange(len(texts_of_numbers))
        slots = pa.concat_arrays([slots, texts_of_numbers])
    data = slots.take(pa.array(order.ravel()))
    lengths = pc.binary_length(data).to_numpy().astype(np.uint32).reshape(starts.shape)
    words: Words = kinds << np.uint32(28) | lengths
    return fits, words, data


def _stored_numbers(texts: pa.Array) -> tuple[Bools, pa.Array]:
    """Return which numbers fit into 64 bits, and their stored form.

    The stored form is an integer with the minimum number of bytes, or a double.
    """
    count = len(texts)
    whole = pc.match_substring_regex(texts, _INTEGER).to_numpy(zero_copy_only=False)
    fits = np.array(whole)
    # A tag and 8 bytes for each number; only the last bytes are used.
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
    """Return the bytes that integers need: 0 for zero, else 1, 2, 4 or 8, including the sign."""
    size = np.where(whole < 0, ~whole, whole)
    shift = np.where(whole < 0, 1, 0)
    result = np.full(len(whole), 8, np.int64)
    for width in (4, 2, 1):
        result[size < (np.int64(1) << (8 * width - shift))] = width
    result[whole == 0] = 0
    return result


JSON_EXTENSION = "lance.json"

# The limit of common parsers.
_MAX_DEPTH = 128
# Maximum bytes of documents per step, and of texts, whose marks need many times their bytes.
_WINDOW_BYTES, _ENCODED_BYTES = 8 << 20, 2 << 20
# Windows with fewer texts, which are long, are decoded text by text.
_MOST_ENCODED = 256 << 20
# If this fraction of the first texts is distinct, duplicates are not searched.
_SAMPLE, _MOSTLY_DISTINCT = 1000, 0.9
_NAMES = ("null", "false", "true", None)
_NAME_PLACES = {NULL: 0, FALSE: 1, TRUE: 2, MISSING: 3}
# Containers of a shape are put together by columns if they are one of so many, for so many shapes at most.
_WORTH_COLUMNS, _MOST_SHAPES, _LEAST_ALIKE = 4, 8, 32
_SPECIAL = r'[\x00-\x1f"\\]'


def json_texts(array: pa.Array) -> pa.Array:
    """Return stored documents as an array of strings: JSON without spaces, with keys in byte order.

    Raises:
        FormatError: the bytes of a document are damaged.
        UnsupportedFormatError: a value has an unknown kind, or is nested too deeply.
    """
    parts = [to_json_texts(JsonValues.of(part)) for part in _windows(array)]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.string())


def _windows(array: pa.Array, nbytes: int = _WINDOW_BYTES) -> Iterator[pa.Array]:
    """Yield slices of an array of about `nbytes` bytes."""
    rows = len(array)
    if not rows:
        return
    step = max(1, rows * nbytes // max(1, array.nbytes))
    for start in range(0, rows, step):
        yield array.slice(start, step)


def to_json_texts(values: JsonValues, depth: int = 0) -> pa.Array:
    """Return values as JSON text, null where missing. Errors as for `json_texts`.

    Args:
        values: the values.
        depth: number of containers around the values.
    """
    if depth > _MAX_DEPTH:
        raise UnsupportedFormatError(f"a JSON value that is nested more than {_MAX_DEPTH} levels deep")
    places: list[Any] = []
    texts: list[pa.Array] = []
    for kind in np.unique(values.kinds).tolist():
        here = np.flatnonzero(values.kinds == kind)
        part = values.take(here)
        if kind == STRING:
            texts.append(_quote(decode_strings(part)))
        elif kind == NUMBER:
            texts.append(decode_numbers(part).texts())
        elif kind == CONTAINER:
            texts.append(_container_texts(part, depth))
        elif kind in _NAME_PLACES:
            texts.append(pa.array(_NAMES, pa.string()).take(pa.array(np.full(len(here), _NAME_PLACES[kind]))))
        else:
            raise UnsupportedFormatError(f"a JSON value of kind {kind}")
        places.append(here)
    if len(texts) == 1:
        return texts[0]
    if not texts:
        return pa.array([], pa.string())
    return pa.concat_arrays(texts).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


def _container_texts(containers: JsonValues, depth: int) -> pa.Array:
    """Return containers as text: frequent shapes by columns, other containers value by value."""
    rest = np.arange(len(containers))
    places: list[Any] = []
    texts: list[pa.Array] = []
    for _ in range(_MOST_SHAPES):
        if len(rest) < _LEAST_ALIKE:
            break
        part = containers.take(rest)
        shape = find_same_shape(part)
        if shape is None or _WORTH_COLUMNS * int(shape.same.sum()) < len(rest):
            break
        texts.append(_same_shape_texts(part, shape, depth))
        places.append(rest[shape.same])
        rest = rest[~shape.same]
    if len(rest) or not texts:
        texts.append(_mixed_texts(containers.take(rest), depth))
        places.append(rest)
    if len(texts) == 1:
        return texts[0]
    return pa.concat_arrays(texts).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


def _same_shape_texts(containers: JsonValues, shape: SameShape, depth: int) -> pa.Array:
    """Return containers of one shape as text."""
    is_object = bool(containers.take(np.zeros(1, np.int64)).headers()[0][0] == OBJECT)
    opening, closing = ("{", "}") if is_object else ("[", "]")
    if not shape.columns:
        return pa.array([opening + closing] * int(shape.same.sum()), pa.string())
    keys = _quote(decode_strings(shape.keys)).to_pylist() if is_object else [""] * len(shape.columns)
    parts: list[Any] = []
    for number, (key, column) in enumerate(zip(keys, shape.columns, strict=True)):
        before = "," if number else opening
        parts += [f"{before}{key}:" if is_object else before, to_json_texts(column, depth + 1)]
    return pc.binary_join_element_wise(*parts, closing, "")


def _mixed_texts(containers: JsonValues, depth: int) -> pa.Array:
    children = containers.children()
    texts = to_json_texts(children.values, depth + 1)
    string_keys = np.flatnonzero(children.keys.kinds == STRING)
    if len(string_keys):
        keys = _quote(decode_strings(children.keys.take(string_keys)))
        if len(string_keys) == len(texts):
            texts = pc.binary_join_element_wise(keys, texts, ":")
        else:
            pairs = pc.binary_join_element_wise(keys, texts.take(pa.array(string_keys)), ":")
            mask = pa.array(children.keys.kinds == STRING)
            texts = pc.replace_with_mask(texts, mask, pairs)
    offsets = np.concatenate([[0], np.cumsum(children.counts)]).astype(np.int32)
    inside = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), ",")
    is_object = pa.array(containers.headers()[0] == OBJECT)
    opening, closing = pc.if_else(is_object, "{", "["), pc.if_else(is_object, "}", "]")
    return pc.binary_join_element_wise(opening, inside, closing, "")


def decode_strings(values: JsonValues) -> pa.Array:
    """Return strings without quotes.

    Raises:
        FormatError: a string is not UTF-8.
    """
    offsets, data = values.contiguous_bytes()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    result = pa.Array.from_buffers(pa.large_string(), len(values), buffers)
    try:
        result.validate(full=True)
    except pa.ArrowInvalid as error:
        raise FormatError(f"a string of a JSON value is damaged: {error}") from None
    return result.cast(pa.string())


def _quote(strings: pa.Array) -> pa.Array:
    data = np.frombuffer(strings.buffers()[2] or b"", np.uint8)
    if bool(((data < 0x20) | (data == 0x22) | (data == 0x5C)).any()):
        special = pc.match_substring_regex(strings, _SPECIAL)
        escaped = [json.dumps(text, ensure_ascii=False)[1:-1] for text in strings.filter(special).to_pylist()]
        strings = pc.replace_with_mask(strings, special, pa.array(escaped, pa.string()))
    return pc.binary_join_element_wise('"', strings, '"', "")


def json_documents(texts: pa.Array) -> pa.Array:
    """Return JSON texts as stored documents, a large_binary array.

    Raises:
        SchemaError: a text is not JSON, an object has a key twice, a number exceeds the range of doubles, or
            a text is nested too deeply or is not UTF-8.
    """
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"a text is not JSON that can be stored, it is not UTF-8: {error}") from None
    if pa.types.is_string_view(texts.type):
        texts = texts.cast(pa.large_string())
    if pc.count_distinct(texts.slice(0, _SAMPLE)).as_py() > _MOSTLY_DISTINCT * min(_SAMPLE, len(texts)):
        return _encode_texts(texts) if not texts.null_count else _with_nulls(texts)
    encoded = texts.dictionary_encode()
    return _encode_texts(encoded.dictionary).take(encoded.indices)


def _with_nulls(texts: pa.Array) -> pa.Array:
    """Return texts, which may be null, as documents."""
    there = texts.is_valid()
    places = np.cumsum(there.to_numpy(zero_copy_only=False)) - 1
    return _encode_texts(texts.drop_null()).take(pc.if_else(there, pa.array(places), None))


def _encode_texts(texts: pa.Array) -> pa.Array:
    """Return texts without nulls as documents."""
    parts = [_documents(part) for part in _windows(texts, _ENCODED_BYTES)]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.large_binary())


def _documents(texts: pa.Array) -> pa.Array:
    """Return texts as documents: texts of the same shape together, others one by one."""
    left = np.arange(len(texts))
    places, parts = [], []
    scan = TextScan(texts) if len(texts) >= _LEAST_ALIKE and texts.nbytes < _MOST_ENCODED else None
    for _ in range(_MOST_SHAPES):
        if scan is None or len(left) < _LEAST_ALIKE:
            break
        encoded = encode_alike(scan, left, texts[int(left[0])].as_py())
        if encoded is None:
            break
        same, documents = encoded
        places.append(left[same])
        parts.append(documents)
        worth = _WORTH_COLUMNS * len(documents) >= len(left)
        left = left[~same]
        if not worth:
            break
    rest = texts if len(left) == len(texts) else texts.take(pa.array(left))
    places.append(left)
    parts.append(pa.array([_document(text) for text in rest.to_pylist()], pa.large_binary()))
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order))


class _StoredValue(bytes):
    """A container in its stored form, as opposed to a string.

    Attributes:
        depth: maximum nesting depth, including the container itself.
    """

    depth: int


class _UnfitError(ValueError):
    """A JSON value that a document cannot store."""


def _document(text: str) -> bytes:
    try:
        kind, data = _entry(_decoder.decode(text))
    except (ValueError, RecursionError, OverflowError) as error:
        excerpt = text if len(text) <= 60 else f"{text[:60]}..."
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SchemaError(f"{excerpt!r} is not JSON that can be stored: {reason}") from None
    if kind == CONTAINER:
        return data
    return struct.pack(">II", SCALAR, kind << 28 | len(data)) + data


def _entry(value: Any) -> tuple[int, bytes]:
    """Return the kind and the bytes of a value from the JSON decoder."""
    kind = type(value)
    if kind is str:
        return STRING, _utf8(value)
    if kind is int:
        return NUMBER, _integer(value) if -(2**63) <= value < 2**64 else _double(float(value))
    if kind is float:
        return NUMBER, _double(value)
    if kind is _StoredValue:
        return CONTAINER, value
    if kind is list:
        return CONTAINER, _container(struct.pack(">I", ARRAY | len(value)), b"", value)
    if value is None:
        return NULL, b""
    return (TRUE if value else FALSE), b""


def _object(pairs: list[tuple[str, Any]]) -> _StoredValue:
    if not pairs:
        return _container(struct.pack(">I", OBJECT), b"", [])
    names, values = zip(*pairs, strict=True)
    order, head, texts = _keys(names) if len(names) <= _MOST_CACHED_KEYS else _order_keys(names)
    return _container(head, texts, [values[place] for place in order])


def _order_keys(names: tuple[str, ...]) -> tuple[tuple[int, ...], bytes, bytes]:
    """Return the order of an object's keys, the header with the key entries, and the bytes of the keys."""
    texts = tuple(_utf8(name) for name in names)
    if len(set(texts)) < len(texts):
        raise _UnfitError("an object has a key twice")
    return key_entries(texts)


# Documents repeat their keys. Objects with many keys are not cached, because the cache has no byte limit.
_MOST_CACHED_KEYS = 64
_keys = lru_cache(maxsize=1024)(_order_keys)


def _container(head: bytes, texts: bytes, values: list[Any]) -> _StoredValue:
    """Return a container, built from the header with key entries, the bytes of the keys, and the values."""
    entries = [_entry(value) for value in values]
    words = [kind << 28 | len(data) for kind, data in entries]
    parts = [data for _, data in entries]
    result = _StoredValue(b"".join([head, struct.pack(f">{len(words)}I", *words), texts, *parts]))
    result.depth = 1 + max([data.depth for data in parts if type(data) is _StoredValue], default=0)
    if result.depth > _MAX_DEPTH:
        raise _UnfitError(f"it is nested more than {_MAX_DEPTH} levels deep")
    return result


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _UnfitError("half of a surrogate pair stands alone") from None


def _double(value: float) -> bytes:
    if not math.isfinite(value):
        raise _UnfitError("a number is beyond the range of doubles")
    return struct.pack(">Bd", 0x60, value)


@lru_cache(maxsize=4096)
def _integer(value: int) -> bytes:
    if not value:
        return b"\x00"
    tag, bits = (0x50, value.bit_length()) if value > 0 else (0x40, (~value).bit_length() + 1)
    width = next(width for width in (1, 2, 4, 8) if bits <= 8 * width)
    return bytes([tag]) + value.to_bytes(width, "big", signed=value < 0)


def _constant(text: str) -> None:
    raise _UnfitError(f"JSON has no {text}")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
