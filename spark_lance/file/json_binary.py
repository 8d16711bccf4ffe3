"""Stored JSON documents as text, and text as documents; `json_values` has the grammar of their bytes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import FormatError, SchemaError, UnsupportedFormatError
from spark_lance.file.json_bulk import encode_alike, key_entries
from spark_lance.file.json_numbers import numbers_of
from spark_lance.file.json_scan import TextScan
from spark_lance.file.json_shapes import Alike, alike
from spark_lance.file.json_values import (
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
)

__all__ = ["JSON_EXTENSION", "json_documents", "json_texts", "strings_of", "texts_of"]

JSON_EXTENSION = "lance.json"

# As deep as the usual parsers go.
_MAX_DEPTH = 128
# Bytes of documents that are worked on at once, and of texts, whose marks take many times their bytes.
_WINDOW_BYTES, _ENCODED_BYTES = 8 << 20, 2 << 20
# Windows of this size, which few long texts make, are left to the decoder of single texts.
_MOST_ENCODED = 256 << 20
# Where so large a part of the first texts is distinct, equal ones are not looked for.
_SAMPLE, _MOSTLY_DISTINCT = 1000, 0.9
_NAMES = ("null", "false", "true", None)
_NAME_PLACES = {NULL: 0, FALSE: 1, TRUE: 2, MISSING: 3}
# Containers of a shape are put together by columns if they are one of so many, for so many shapes at most.
_WORTH_COLUMNS, _MOST_SHAPES, _LEAST_ALIKE = 4, 8, 32
_SPECIAL = r'[\x00-\x1f"\\]'


def json_texts(array: pa.Array) -> pa.Array:
    """Return stored documents as an array of strings: JSON without spaces, keys in the order of their bytes.

    Raises:
        FormatError: the bytes of a document are damaged.
        UnsupportedFormatError: a value of a kind that is not known, or nested too deeply.
    """
    parts = [texts_of(JsonValues.of(part)) for part in _windows(array)]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.string())


def _windows(array: pa.Array, nbytes: int = _WINDOW_BYTES) -> Iterator[pa.Array]:
    """Yield an array in parts of about as many bytes."""
    rows = len(array)
    if not rows:
        return
    step = max(1, rows * nbytes // max(1, array.nbytes))
    for start in range(0, rows, step):
        yield array.slice(start, step)


def texts_of(values: JsonValues, depth: int = 0) -> pa.Array:
    """Return values as JSON text, null where they are missing; errors as `json_texts`.

    Args:
        values: the values.
        depth: how many containers they are in.
    """
    if depth > _MAX_DEPTH:
        raise UnsupportedFormatError(f"a JSON value that is nested more than {_MAX_DEPTH} levels deep")
    places: list[Any] = []
    texts: list[pa.Array] = []
    for kind in np.unique(values.kinds).tolist():
        here = np.flatnonzero(values.kinds == kind)
        part = values.take(here)
        if kind == STRING:
            texts.append(_quoted(strings_of(part)))
        elif kind == NUMBER:
            texts.append(numbers_of(part).texts())
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
    """Return containers as text: those of frequent shapes by columns, the rest value by value."""
    rest = np.arange(len(containers))
    places: list[Any] = []
    texts: list[pa.Array] = []
    for _ in range(_MOST_SHAPES):
        if len(rest) < _LEAST_ALIKE:
            break
        part = containers.take(rest)
        shape = alike(part)
        if shape is None or _WORTH_COLUMNS * int(shape.same.sum()) < len(rest):
            break
        texts.append(_alike_texts(part, shape, depth))
        places.append(rest[shape.same])
        rest = rest[~shape.same]
    if len(rest) or not texts:
        texts.append(_mixed_texts(containers.take(rest), depth))
        places.append(rest)
    if len(texts) == 1:
        return texts[0]
    return pa.concat_arrays(texts).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


def _alike_texts(containers: JsonValues, shape: Alike, depth: int) -> pa.Array:
    """Return containers of one shape as text."""
    is_object = bool(containers.take(np.zeros(1, np.int64)).headers()[0][0] == OBJECT)
    opening, closing = ("{", "}") if is_object else ("[", "]")
    if not shape.columns:
        return pa.array([opening + closing] * int(shape.same.sum()), pa.string())
    keys = _quoted(strings_of(shape.keys)).to_pylist() if is_object else [""] * len(shape.columns)
    parts: list[Any] = []
    for number, (key, column) in enumerate(zip(keys, shape.columns, strict=True)):
        before = "," if number else opening
        parts += [f"{before}{key}:" if is_object else before, texts_of(column, depth + 1)]
    return pc.binary_join_element_wise(*parts, closing, "")


def _mixed_texts(containers: JsonValues, depth: int) -> pa.Array:
    children = containers.children()
    texts = texts_of(children.values, depth + 1)
    named = np.flatnonzero(children.keys.kinds == STRING)
    if len(named):
        keys = _quoted(strings_of(children.keys.take(named)))
        if len(named) == len(texts):
            texts = pc.binary_join_element_wise(keys, texts, ":")
        else:
            pairs = pc.binary_join_element_wise(keys, texts.take(pa.array(named)), ":")
            mask = pa.array(children.keys.kinds == STRING)
            texts = pc.replace_with_mask(texts, mask, pairs)
    offsets = np.concatenate([[0], np.cumsum(children.counts)]).astype(np.int32)
    inside = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), ",")
    is_object = pa.array(containers.headers()[0] == OBJECT)
    opening, closing = pc.if_else(is_object, "{", "["), pc.if_else(is_object, "}", "]")
    return pc.binary_join_element_wise(opening, inside, closing, "")


def strings_of(values: JsonValues) -> pa.Array:
    """Return strings without quotes.

    Raises:
        FormatError: the bytes of one are no UTF-8.
    """
    offsets, data = values.bytes_of()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    result = pa.Array.from_buffers(pa.large_string(), len(values), buffers)
    try:
        result.validate(full=True)
    except pa.ArrowInvalid as error:
        raise FormatError(f"a string of a JSON value is damaged: {error}") from None
    return result.cast(pa.string())


def _quoted(strings: pa.Array) -> pa.Array:
    data = np.frombuffer(strings.buffers()[2] or b"", np.uint8)
    if bool(((data < 0x20) | (data == 0x22) | (data == 0x5C)).any()):
        special = pc.match_substring_regex(strings, _SPECIAL)
        escaped = [json.dumps(text, ensure_ascii=False)[1:-1] for text in strings.filter(special).to_pylist()]
        strings = pc.replace_with_mask(strings, special, pa.array(escaped, pa.string()))
    return pc.binary_join_element_wise('"', strings, '"', "")


def json_documents(texts: pa.Array) -> pa.Array:
    """Return JSON texts as stored documents, a large_binary array.

    Raises:
        SchemaError: a text is not JSON, names a key of an object twice, has a number beyond the range of
            doubles, is nested too deeply, or is not UTF-8.
    """
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SchemaError(f"a text is not JSON that can be stored, it is not UTF-8: {error}") from None
    if pa.types.is_string_view(texts.type):
        texts = texts.cast(pa.large_string())
    if pc.count_distinct(texts.slice(0, _SAMPLE)).as_py() > _MOSTLY_DISTINCT * min(_SAMPLE, len(texts)):
        return _encoded(texts) if not texts.null_count else _with_nulls(texts)
    encoded = texts.dictionary_encode()
    return _encoded(encoded.dictionary).take(encoded.indices)


def _with_nulls(texts: pa.Array) -> pa.Array:
    """Return texts as documents; some may be null."""
    there = texts.is_valid()
    places = np.cumsum(there.to_numpy(zero_copy_only=False)) - 1
    return _encoded(texts.drop_null()).take(pc.if_else(there, pa.array(places), None))


def _encoded(texts: pa.Array) -> pa.Array:
    """Return texts without nulls as documents."""
    parts = [_documents(part) for part in _windows(texts, _ENCODED_BYTES)]
    return pa.concat_arrays(parts) if parts else pa.array([], pa.large_binary())


def _documents(texts: pa.Array) -> pa.Array:
    """Return texts as documents: those that are like one of them together, the others one by one."""
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


class _Stored(bytes):
    """A container in its stored form, in contrast to a string.

    Attributes:
        depth: the containers on the longest way to a value in it, itself included.
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
    """Return kind and bytes of a value as the decoder yields it."""
    kind = type(value)
    if kind is str:
        return STRING, _utf8(value)
    if kind is int:
        return NUMBER, _integer(value) if -(2**63) <= value < 2**64 else _double(float(value))
    if kind is float:
        return NUMBER, _double(value)
    if kind is _Stored:
        return CONTAINER, value
    if kind is list:
        return CONTAINER, _container(struct.pack(">I", ARRAY | len(value)), b"", value)
    if value is None:
        return NULL, b""
    return (TRUE if value else FALSE), b""


def _object(pairs: list[tuple[str, Any]]) -> _Stored:
    if not pairs:
        return _container(struct.pack(">I", OBJECT), b"", [])
    names, values = zip(*pairs, strict=True)
    order, head, texts = _keys(names)
    return _container(head, texts, [values[place] for place in order])


@lru_cache(maxsize=1024)
def _keys(names: tuple[str, ...]) -> tuple[tuple[int, ...], bytes, bytes]:
    """Return the order of the keys of an object, the header with their entries, and their bytes."""
    texts = tuple(_utf8(name) for name in names)
    if len(set(texts)) < len(texts):
        raise _UnfitError("an object has a key twice")
    return key_entries(texts)


def _container(head: bytes, texts: bytes, values: list[Any]) -> _Stored:
    """Return a container of its header with the entries of keys, the bytes of the keys, and its values."""
    entries = [_entry(value) for value in values]
    words = [kind << 28 | len(data) for kind, data in entries]
    parts = [data for _, data in entries]
    stored = _Stored(b"".join([head, struct.pack(f">{len(words)}I", *words), texts, *parts]))
    stored.depth = 1 + max([data.depth for data in parts if type(data) is _Stored], default=0)
    if stored.depth > _MAX_DEPTH:
        raise _UnfitError(f"it is nested more than {_MAX_DEPTH} levels deep")
    return stored


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
