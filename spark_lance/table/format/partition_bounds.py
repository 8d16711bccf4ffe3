"""Partition bounds of a data file, stored in the file's name.

    {24 binary digits}{26 hex digits}-p-{base64url of JSON, without padding}.lance
    [[0, "day", 19723, 19723, 0], [2, "bucket[16]", 3, 9, 1]]

Each item has the position of the column in the file's `fields`, the transform, the least and the greatest
value, and 1 if any value is null. The least and the greatest value are null if all values are null. Days are
days since 1970, times are microseconds, decimals are text. A data file never changes, so its bounds are valid
wherever the file is used: in a clone, after a restore, after the column was renamed. Other readers can ignore
them.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.file.base.schema import Schema, owned_columns
from spark_lance.file.base.version import FileVersion
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.stored_json import parse_json
from spark_lance.proto import table_pb2
from spark_lance.table.format.partitions import PartitionField, PartitionSpec, split_transform, storage_type

_MARK = "-p-"
_NAME_CHARS = 50
_MOST_CHARS = 180
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICRO = datetime.timedelta(microseconds=1)
# Approximate memory of the bounds of one field.
_FIELD_BYTES = 400

Value: TypeAlias = "bool | int | str | Decimal"


@dataclass(frozen=True)
class FieldBounds:
    """The bounds of one transform of a column in a data file.

    Attributes:
        place: the position of the column in the file's `fields`.
        transform: the transform, such as "day" or "bucket[16]".
        low, high: the least and the greatest value; None if all values are null.
        nulls: whether any value is null.
    """

    place: int
    transform: str
    low: Value | None
    high: Value | None
    nulls: bool

    @property
    def is_single(self) -> bool:
        """Whether all values are equal, or all are null."""
        return self.low == self.high and self.nulls == (self.low is None)

    def field(self, source: str) -> PartitionField:
        """Return the partition field that computes the values."""
        return PartitionField.of(source, *split_transform(self.transform))


def ordinal(value: Any) -> Value | None:
    """Return a value as stored in bounds; None for null and for types that bounds do not support."""
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.timezone.utc)
        return (aware - _EPOCH) // _MICRO
    if isinstance(value, datetime.date):
        return value.toordinal() - _EPOCH.toordinal()
    return value if isinstance(value, (bool, int, str, Decimal)) else None


def stored_value(value: pa.Scalar) -> Value | None:
    """Return a value of a partition as stored in bounds; None for null and for types without bounds.

    Days and times outside the years 1 to 9999 have no Python object, so this function reads their numbers.

    Raises:
        UnicodeDecodeError: a text is not valid UTF-8.
    """
    kind = value.type
    if not value.is_valid or not _has_order(storage_type(kind)):
        return None
    if pa.types.is_date32(kind):
        return int(value.value)
    if pa.types.is_timestamp(kind):
        return int(value.value) * {"s": 1_000_000, "ms": 1000}.get(kind.unit, 1)
    return ordinal(value.as_py())


def partition_key(value: pa.Scalar) -> Any:
    """Return a hashable object that is equal for equal values of a partition, also for null and NaN."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return value.value
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return value.as_buffer().to_pybytes()
    result = value.as_py()
    return "NaN" if isinstance(result, float) and math.isnan(result) else result


def partition_display(value: pa.Scalar) -> str | None:
    """Return a value of a partition as text for users; None for null."""
    if not value.is_valid:
        return None
    try:
        result = value.as_py()
    except (ValueError, OverflowError):
        if pa.types.is_date32(value.type) or pa.types.is_timestamp(value.type):
            unit: Any = getattr(value.type, "unit", "D")
            return str(np.datetime64(value.value, unit)).replace("T", " ")
        return str(value.as_buffer().to_pybytes(), errors="replace")
    if isinstance(result, bytes):
        return result.hex()
    if isinstance(result, bool):
        return str(result).lower()
    return format(result, "f") if isinstance(result, Decimal) else str(result)


def _has_order(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return bool(kind.unit != "ns")
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_date32, pa.types.is_string,
             pa.types.is_large_string, pa.types.is_decimal128)  # fmt: skip
    return any(test(kind) for test in tests)


def bounds_of_rows(spec: PartitionSpec, values: pa.Table, places: Mapping[str, int]) -> list[FieldBounds]:
    """Return the partition bounds of rows.

    Args:
        spec: the partition spec.
        values: the partitions of the rows, as returned by `PartitionSpec.values`.
        places: column positions, as returned by `column_places`.
    """
    result = []
    for field in spec.fields:
        column = values[field.name]
        if field.source not in places or not _has_order(storage_type(column.type)):
            continue
        extremes = pc.min_max(column)
        try:
            low, high = (stored_value(extremes[end]) for end in ("min", "max"))
        except UnicodeDecodeError:
            continue
        if field.transform == "truncate" and _may_overflow(high, column.type, field.width):
            continue
        transform = f"{field.transform}[{field.width}]" if field.width else field.transform
        result.append(FieldBounds(places[field.source], transform, low, high, column.null_count > 0))
    return result


def _may_overflow(high: Value | None, kind: pa.DataType, width: int) -> bool:
    """Return whether a truncated integer may have overflowed, so that `high` is not reliable."""
    if not isinstance(high, int) or not pa.types.is_signed_integer(kind):
        return False
    return bool(high > 2 ** (kind.bit_width - 1) - 1 - width)


def column_places(schema: Schema, version: FileVersion) -> dict[str, int]:
    """Return column name -> position in the `fields` of a data file with this schema."""
    owners = [field.id for field in owned_columns(schema.fields, version)]
    return {field.name: owners.index(field.id) for field in schema.fields if field.id in owners}


def bounds_text(bounds: Sequence[FieldBounds]) -> str:
    """Return the end of a file's name with bounds; "" if it would be too long, or without bounds."""
    if not bounds:
        return ""
    items = [
        [each.place, each.transform, _to_json(each.low), _to_json(each.high), int(each.nulls)]
        for each in bounds
    ]
    data = json.dumps(items, separators=(",", ":"), ensure_ascii=False).encode()
    text = base64.urlsafe_b64encode(data).decode().rstrip("=")
    return f"{_MARK}{text}" if len(text) <= _MOST_CHARS else ""


def _to_json(value: Value | None) -> Any:
    return {"decimal": str(value)} if isinstance(value, Decimal) else value


def read_bounds(path: str) -> tuple[FieldBounds, ...]:
    """Return the bounds in the name of a data file; empty if it has none, or they cannot be parsed."""
    name = path.rpartition("/")[2].removesuffix(".lance")
    if name[_NAME_CHARS : _NAME_CHARS + len(_MARK)] != _MARK:
        return ()
    text = name[_NAME_CHARS + len(_MARK) :]
    return _BOUNDS.get(
        text, lambda: _parse_bounds(text), lambda bounds: _FIELD_BYTES * len(bounds) + len(text)
    )


def _parse_bounds(text: str) -> tuple[FieldBounds, ...]:
    try:
        items = parse_json(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        bounds = tuple(
            FieldBounds(int(place), transform, _parse_value(low), _parse_value(high), bool(nulls))
            for place, transform, low, high, nulls in items
        )
        for each in bounds:
            split_transform(each.transform)
    except (ValueError, TypeError, KeyError, ArithmeticError):
        return ()
    return bounds


def _parse_value(value: Any) -> Value | None:
    """Return the bound of a JSON value.

    Raises:
        TypeError, KeyError, ArithmeticError: the JSON value is not a bound.
    """
    if isinstance(value, dict):
        return Decimal(value["decimal"])
    if value is not None and not isinstance(value, (bool, int, str)):
        raise TypeError(f"{value!r} is no bound")
    return value


# Parsed bounds by the text in the file name, because every scan of a table reads the bounds of all files.
_BOUNDS: CacheSection[tuple[FieldBounds, ...]] = CacheSection(
    "partition bounds", CACHE, share=1 / 8, counted=False
)


def bounds_of_fragment(fragment: table_pb2.DataFragment) -> Mapping[int, list[FieldBounds]]:
    """Return field id -> partition bounds of a fragment."""
    if fragment.overlays:
        return {}
    result: dict[int, list[FieldBounds]] = {}
    for file in fragment.files:
        for bounds in read_bounds(file.path):
            if 0 <= bounds.place < len(file.fields):
                number = file.fields[bounds.place]
                if sum(list(other.fields).count(number) for other in fragment.files) == 1:
                    result.setdefault(number, []).append(bounds)
    return result


def single_partition(spec: PartitionSpec, fragment: table_pb2.DataFragment) -> tuple[FieldBounds, ...] | None:
    """Return the partition of a fragment from the names of its files; None if it is not exactly one."""
    bounds = bounds_of_fragment(fragment)
    result = []
    for field in spec.fields:
        transform = f"{field.transform}[{field.width}]" if field.width else field.transform
        parts = [
            part
            for part in bounds.get(-1 if field.source_id is None else field.source_id, ())
            if part.transform == transform and part.is_single
        ]
        if not parts:
            return None
        result.append(parts[0])
    return tuple(result)


def merged_bounds_text(
    fragments: Sequence[table_pb2.DataFragment], schema: Schema, version: FileVersion
) -> str:
    """Return the end of the name of a file with rows of several fragments: the merged bounds of all of them.

    Args:
        fragments: the fragments; their file names may have bounds.
        schema: the schema of the new file.
        version: the version of the new file.
    """
    places = column_places(schema, version)
    ids = {field.id: places[field.name] for field in schema.fields if field.name in places}
    parts = [
        {(number, each.transform): each for number, all_bounds in bounds.items() for each in all_bounds}
        for bounds in map(bounds_of_fragment, fragments)
    ]
    result = []
    for number, transform in parts[0] if parts else ():
        same = [part[number, transform] for part in parts if (number, transform) in part]
        lows = [each.low for each in same if each.low is not None]
        highs = [each.high for each in same if each.high is not None]
        if number not in ids or len(same) < len(parts) or len({*map(type, lows), *map(type, highs)}) > 1:
            continue
        low: Any = min(lows, default=None)
        high: Any = max(highs, default=None)
        result.append(FieldBounds(ids[number], transform, low, high, any(each.nulls for each in same)))
    return bounds_text(result)
