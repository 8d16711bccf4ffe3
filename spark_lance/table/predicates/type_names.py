"""Names of types: SQL's, in cast() and ::, and Arrow's, in arrow_cast().

Arrow's are written as the Rust implementation of Arrow prints them: Int8, Utf8, Timestamp(Microsecond, None),
Timestamp(ms, "UTC"), List(Int64), FixedSizeList(2, Float32), Dictionary(Int32, Utf8), Decimal128(10, 2).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from spark_lance.errors import ExpressionError

__all__ = ["SQL_TYPES", "arrow_type"]

SQL_TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "DATETIME": pa.timestamp("us"),
    "TIME": pa.time64("us"),
}

_PLAIN: dict[str, pa.DataType] = {
    "Null": pa.null(),
    "Boolean": pa.bool_(),
    **{f"{sign}nt{bits}": getattr(pa, f"{sign.lower()}nt{bits}")() for sign in ("I", "UI")
       for bits in (8, 16, 32, 64)},
    **{f"Float{bits}": getattr(pa, f"float{bits}")() for bits in (16, 32, 64)},
    "Utf8": pa.string(),
    "LargeUtf8": pa.large_string(),
    "Utf8View": pa.string_view(),
    "Binary": pa.binary(),
    "LargeBinary": pa.large_binary(),
    "BinaryView": pa.binary_view(),
    "Date32": pa.date32(),
    "Date64": pa.date64(),
}  # fmt: skip

_UNITS = {"Second": "s", "Millisecond": "ms", "Microsecond": "us", "Nanosecond": "ns", "\u00b5s": "us"}
_UNITS |= {unit: unit for unit in ("s", "ms", "us", "ns")}
_TOKEN = re.compile(r"\s*(?:(\w+)|\"([^\"]*)\"|([(),]))")

# The parameters in parentheses: types, numbers and words.
_MAKERS: dict[str, Callable[..., pa.DataType]] = {
    "Timestamp": lambda unit, zone=None: pa.timestamp(_UNITS[unit], None if zone == "None" else zone),
    "Time32": lambda unit: pa.time32(_UNITS[unit]),
    "Time64": lambda unit: pa.time64(_UNITS[unit]),
    "Duration": lambda unit: pa.duration(_UNITS[unit]),
    "Decimal128": lambda digits, scale: pa.decimal128(int(digits), int(scale)),
    "Decimal256": lambda digits, scale: pa.decimal256(int(digits), int(scale)),
    "FixedSizeBinary": lambda width: pa.binary(int(width)),
    "Dictionary": pa.dictionary,
    "List": pa.list_,
    "LargeList": pa.large_list,
    "FixedSizeList": lambda *parts: pa.list_(parts[-1], int(parts[0])),
    "Some": lambda zone: zone,
}


def arrow_type(text: str) -> pa.DataType:
    """Return the type of a name.

    Raises:
        ExpressionError: there is no such type.
    """
    names = [next(part for part in groups if part) for groups in _TOKEN.findall(text)]
    try:
        if "".join(names) != re.sub(r"[\s\"]", "", text):
            raise ValueError(f"cannot be read as {' '.join(names)}")
        groups, rest = _read(names)
        if rest or not isinstance(groups, pa.DataType):
            raise ValueError("is not a type")
        return groups
    except (ValueError, KeyError, TypeError, IndexError, pa.ArrowInvalid) as error:
        raise ExpressionError(
            f"{text!r} is not an Arrow type such as 'Int8', 'Utf8' or 'Timestamp(Microsecond, None)': {error}"
        ) from error


def _read(names: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """Return the meaning of the first of some tokens, with its arguments, and the remaining tokens."""
    name, rest = names[0], names[1:]
    if name in _MAKERS and rest and rest[0] == "(":
        arguments, rest = [], rest[1:]
        while rest[0] != ")":
            argument, rest = _read(rest)
            arguments.append(argument)
            if rest[0] in (",", "x"):
                rest = rest[1:]
        return _MAKERS[name](*arguments), rest[1:]
    return _PLAIN.get(name, name), rest
