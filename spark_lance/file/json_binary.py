"""Values of JSON columns: the binary form in which they are stored, as text.

All numbers of the container are big-endian; a value is

    container   u32: kind in the upper 3 bits, number of values in the other 29
                  0x80000000 array    0x40000000 object    0x20000000 one scalar (no number of values)
    entries     u32 for each value, of an object first for all keys, then for all values: kind and length
                  0x00000000 null    0x10000000 string    0x20000000 number
                  0x30000000 false   0x40000000 true      0x50000000 container
                the kind is in bits 28 to 30, the length in the 28 below
    data        the bytes of keys and values in the order of the entries; strings in UTF-8, containers as here

A number begins with a byte that tells its kind: 0x00 zero (alone), 0x40 signed, 0x50 unsigned, both in 1, 2,
4 or 8 bytes, 0x60 a double. Example: `{"a":7}` is 40000001 | 10000001 20000002 | 61 | 50 07.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator

import pyarrow as pa

from spark_lance.errors import FormatError, UnsupportedFormatError

__all__ = ["JSON_EXTENSION", "json_text", "json_texts"]

JSON_EXTENSION = "lance.json"

_ARRAY, _OBJECT, _SCALAR = 0x80000000, 0x40000000, 0x20000000
_COUNT = 0x1FFFFFFF
_NULL, _STRING, _NUMBER, _FALSE, _TRUE, _CONTAINER = range(6)
_LENGTH = 0x0FFFFFFF
_ZERO, _SIGNED, _UNSIGNED, _DOUBLE = 0x00, 0x40, 0x50, 0x60
_WIDTHS = frozenset({1, 2, 4, 8})
# As deep as the usual parsers go.
_MAX_DEPTH = 128


def json_texts(array: pa.Array) -> pa.Array:
    """Return stored JSON values as an array of strings; equal values are decoded once.

    Raises:
        FormatError: the bytes of a value are damaged.
        UnsupportedFormatError: a value of a kind that is not known.
    """
    encoded = array.dictionary_encode()
    texts = pa.array([json_text(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


def json_text(data: bytes) -> str:
    """Return one stored value as JSON text without spaces; errors as `json_texts`."""
    try:
        return _container(data, 0)
    except (struct.error, UnicodeDecodeError) as error:
        raise FormatError(f"a JSON value is damaged: {error}") from error


def _container(data: bytes, depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise UnsupportedFormatError(f"a JSON value that is nested more than {_MAX_DEPTH} levels deep")
    (header,) = struct.unpack_from(">I", data)
    kind, count = header & ~_COUNT, header & _COUNT
    if kind == _SCALAR:
        return next(_values(data, 1, depth))
    if kind == _ARRAY:
        return f"[{','.join(_values(data, count, depth))}]"
    if kind == _OBJECT:
        parts = list(_values(data, 2 * count, depth))
        keys, values = parts[:count], parts[count:]
        if not all(key.startswith('"') for key in keys):
            raise FormatError("a key of a JSON object is not a string")
        return "{" + ",".join(f"{key}:{value}" for key, value in zip(keys, values, strict=True)) + "}"
    raise UnsupportedFormatError(f"a JSON container of kind {header >> 29}")


def _values(data: bytes, count: int, depth: int) -> Iterator[str]:
    if 4 + 4 * count > len(data):
        raise FormatError(f"a JSON container of {count} values in {len(data)} bytes")
    start = 4 + 4 * count
    for (entry,) in struct.iter_unpack(">I", data[4:start]):
        length = entry & _LENGTH
        if start + length > len(data):
            raise FormatError(f"a JSON value of {length} bytes at {start} of {len(data)}")
        yield _value(entry >> 28, data[start : start + length], depth)
        start += length


def _value(kind: int, data: bytes, depth: int) -> str:
    if kind == _STRING:
        return json.dumps(data.decode(), ensure_ascii=False)
    if kind == _NUMBER:
        return _number(data)
    if kind == _CONTAINER:
        return _container(data, depth + 1)
    known = {_NULL: "null", _FALSE: "false", _TRUE: "true"}
    if kind not in known:
        raise UnsupportedFormatError(f"a JSON value of kind {kind}")
    return known[kind]


def _number(data: bytes) -> str:
    kind, width = (data[0], len(data) - 1) if data else (None, 0)
    if kind == _ZERO and not width:
        return "0"
    if kind in (_SIGNED, _UNSIGNED) and width in _WIDTHS:
        return str(int.from_bytes(data[1:], "big", signed=kind == _SIGNED))
    if kind == _DOUBLE and width == 8:
        (number,) = struct.unpack(">d", data[1:])
        if math.isfinite(number):
            return repr(number)
    raise UnsupportedFormatError(f"a JSON number stored as {data[:16].hex()}")
