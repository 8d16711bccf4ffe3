"""Partition fields: the declaration in a table's settings, and the partition of each row.

A partition is a group of rows, not a folder. The table's setting `partition-fields` is a JSON list of the
partition fields, with the keys and transforms of Iceberg's partition specs:

    [{"name": "a", "source": "a", "source-id": 0, "transform": "identity"},
     {"name": "ts_day", "source": "ts", "source-id": 3, "transform": "day"},
     {"name": "id_bucket", "source": "id", "source-id": 1, "transform": "bucket[16]"},
     {"name": "s_trunc", "source": "s", "source-id": 2, "transform": "truncate[4]"}]

A partition field belongs to the column that `source` names; a rename by this package updates the name.
`source-id` is the id of the column's field at the declaration. It is not used, because an overwrite of the
table gives the columns new ids, which can start at 0 again: the id may be that of another column. Writers
that do not know the setting may ignore it. If they rename the column, declare the field again.

The transforms follow Iceberg's specification; the transform of null is null:

    identity      the value
    year, month   years and months since 1970        int32
    day           the day in UTC                     date
    hour          hours since 1970 in UTC            int32
    bucket[n]     (Murmur3 & 0x7fffffff) % n         int32    numbers, dates and times are hashed as 8 bytes
    truncate[w]   numbers: v - (v mod w); text: the first w characters; bytes: the first w bytes
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.murmur3 import hash64, hash_bytes
from spark_lance.errors import OptionError, SchemaError, suggestion
from spark_lance.file.base.schema import Field, Schema
from spark_lance.io.stored_json import parse_json

PARTITION_FIELDS = "partition-fields"

_TRANSFORM = re.compile(r"(identity|year|month|day|hour|bucket|truncate)(?:\[(\d+)\])?")
_WITH_WIDTH = ("bucket", "truncate")
_SUFFIXES = {"identity": "", "bucket": "_bucket", "truncate": "_trunc"}
_SQL_NAMES = {"year": "years", "month": "months", "day": "days", "hour": "hours"}
_MICROS = {"s": 1_000_000, "ms": 1000, "us": 1}
_DAY_MICROS = 86_400_000_000
_HOUR_MICROS = 3_600_000_000
_MAX_WIDTH = 2**31 - 1
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PartitionField:
    """One partition field.

    Attributes:
        name: the name of the field in lists of partitions.
        source: the name of the column.
        transform: "identity", "year", "month", "day", "hour", "bucket" or "truncate".
        width: the number of buckets, or the width of `truncate`; 0 for others.
        source_id: the id of the column's field; None before the field is bound to columns.
    """

    name: str
    source: str
    transform: str = "identity"
    width: int = 0
    source_id: int | None = None

    @classmethod
    def of(cls, source: str, transform: str, width: int = 0, name: str | None = None) -> PartitionField:
        """Return a field; its default name depends on the transform: `ts_day`, `id_bucket`, `s_trunc`."""
        return cls(name or source + _SUFFIXES.get(transform, f"_{transform}"), source, transform, width)

    @property
    def sql(self) -> str:
        """The field in the syntax of PARTITIONED BY."""
        column = self.source if re.fullmatch(r"[A-Za-z_]\w*", self.source) else _quote(self.source)
        if self.transform == "identity":
            return column
        name = _SQL_NAMES.get(self.transform, self.transform)
        return f"{name}({self.width}, {column})" if self.width else f"{name}({column})"

    def message(self) -> dict[str, Any]:
        """Return the JSON object of the field in the setting."""
        transform = f"{self.transform}[{self.width}]" if self.width else self.transform
        identity = {} if self.source_id is None else {"source-id": self.source_id}
        return {"name": self.name, "source": self.source, **identity, "transform": transform}

    def check(self, field: Field) -> None:
        """Refuse a column whose type the transform does not support.

        Raises:
            SchemaError: the transform does not support the type.
        """
        kind = storage_type(field.as_descriptor().arrow_type())
        if field.is_blob or not _ACCEPTS[self.transform](kind):
            raise SchemaError(
                f"column {field.name!r} of type {kind} cannot be partitioned by {self.sql}: "
                "choose another column"
            )

    def type(self, kind: pa.DataType) -> pa.DataType:
        """Return the result type of the transform for a column type."""
        if self.transform in ("identity", "truncate"):
            source_type = storage_type(kind)
            is_decimal = self.transform == "truncate" and pa.types.is_decimal128(source_type)
            return _truncated_decimal_type(source_type) if is_decimal else source_type
        return pa.date32() if self.transform == "day" else pa.int32()

    def values(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the result of the transform for each value of a column."""
        if isinstance(column.type, pa.BaseExtensionType):
            storage = column.type.storage_type
            column = pa.chunked_array([chunk.storage for chunk in column.chunks], storage)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if self.transform == "identity":
            return _normalize_floats(column)
        chunks = [self._apply_transform(chunk) for chunk in column.chunks]
        return pa.chunked_array(chunks, self.type(column.type))

    def _apply_transform(self, values: pa.Array) -> pa.Array:
        if pa.types.is_null(values.type):
            return pa.nulls(len(values), self.type(values.type))
        mask = values.is_null().to_numpy(zero_copy_only=False)
        if self.transform == "truncate":
            return _truncate(values, self.width)
        if self.transform == "bucket":
            numbers: Int64Array = (_hash_values(values) & np.uint32(0x7FFFFFFF)).astype(np.int64) % self.width
        else:
            numbers = _compute_periods(values, self.transform)
        result = pa.array(numbers.astype(np.int32), pa.int32(), mask=mask)
        return result.view(pa.date32()) if self.transform == "day" else result


@dataclass(frozen=True)
class PartitionSpec:
    """The partition fields of a table, in declaration order. Can be pickled."""

    fields: tuple[PartitionField, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.fields)

    @classmethod
    def of_config(cls, config: Mapping[str, str]) -> PartitionSpec:
        """Return the partition spec in a table's settings; a spec without fields if there is none.

        Raises:
            OptionError: the setting does not have the format described in this module.
        """
        text = config.get(PARTITION_FIELDS)
        if not text:
            return cls()
        try:
            return cls(tuple(_parse_field(item) for item in parse_json(text)))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OptionError(
                f"the table property {PARTITION_FIELDS!r} is damaged ({error}): declare the partitions with "
                f"ALTER TABLE ... UNSET TBLPROPERTIES ('{PARTITION_FIELDS}') and ADD PARTITION FIELD"
            ) from None

    def text(self) -> str:
        """Return the value of the setting, a JSON list."""
        return json.dumps([field.message() for field in self.fields])

    def bound(self, schema: Schema) -> PartitionSpec:
        """Return the spec bound to a schema, with the current names and field ids of the columns.

        Raises:
            SchemaError: a column does not exist or has an unsupported type, or a field is declared twice.
        """
        fields = []
        for field in self.fields:
            column = _find_column(field, schema)
            field.check(column)
            name = column.name if field.transform == "identity" and field.name == field.source else field.name
            fields.append(replace(field, name=name, source=column.name, source_id=column.id))
        names = [field.name.lower() for field in fields]
        sources = [(field.source, field.transform) for field in fields]
        for number, field in enumerate(fields):
            if names.index(field.name.lower()) < number or sources.index(sources[number]) < number:
                raise SchemaError(f"partition field {field.sql} is declared twice: write it once")
        return PartitionSpec(tuple(fields))

    def present(self, schema: Schema) -> PartitionSpec:
        """Return the spec bound to a schema of files, without fields whose columns the schema does not have.

        The result may have no fields, if the spec no longer matches the table.
        """
        fields: list[PartitionField] = []
        for field in self.fields:
            try:
                fields += PartitionSpec((field,)).bound(schema).fields
            except SchemaError:
                continue
        return PartitionSpec(tuple(fields))

    def renamed(self, before: Schema, after: Schema) -> PartitionSpec:
        """Return the spec after a rename of columns. A field with the name of its column is renamed, too."""
        names: dict[int | None, str] = {column.id: column.name for column in after.fields}
        fields = []
        for field in self.fields:
            for bound in PartitionSpec((field,)).present(before).fields:
                source = names.get(bound.source_id, bound.source)
                name = source if bound.name == bound.source else bound.name
                field = replace(bound, name=name, source=source)
            fields.append(field)
        return PartitionSpec(tuple(fields))

    def values(self, rows: pa.Table) -> pa.Table:
        """Return the partition of each row: a column for each field, with the name of the field.

        If the rows do not have the column of a field, the values are null.
        """
        columns = [
            field.values(rows[field.source])
            if field.source in rows.column_names
            else pa.chunked_array([pa.nulls(rows.num_rows)])
            for field in self.fields
        ]
        return pa.Table.from_arrays(columns, names=[field.name for field in self.fields])

    def keys(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a binary partition key for each row: rows of the same partition have equal keys."""
        columns = [partition_texts(column).cast(pa.large_binary()) for column in self.values(rows).columns]
        joined = pc.binary_join_element_wise(*columns, pa.scalar(b"\0", pa.large_binary()))
        return joined.cast(pa.binary())

    def sources(self) -> list[str]:
        """Return the unique names of the partition columns."""
        return list(dict.fromkeys(field.source for field in self.fields))

    def without(self, dropped: Iterable[PartitionField]) -> PartitionSpec:
        """Return the spec without the given fields."""
        dropped_fields = set(dropped)
        return PartitionSpec(tuple(field for field in self.fields if field not in dropped_fields))

    def find(self, name: str) -> PartitionField | None:
        """Return the field with a name, ignoring case; None if there is none."""
        return next((field for field in self.fields if field.name.lower() == name.lower()), None)


NO_PARTITIONS = PartitionSpec()


def _normalize_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in which equal floats have equal bits: -0.0 becomes 0.0, and every NaN the same NaN."""
    kind = column.type
    if not (pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        return column
    return pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), kind), pc.add(column, pa.scalar(0.0, kind)))


def partition_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as text (or binary), with a text for null that no value can have."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.chunked_array([pa.array(["n"] * len(column), pa.string())])
    if pa.types.is_floating(kind):
        column = pc.add(column.cast(pa.float64()), pa.scalar(0.0, pa.float64()))
    elif pa.types.is_fixed_size_binary(kind):
        column = column.cast(pa.binary())
    elif pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        # Arrow has no text for days and times outside the years 1 to 9999.
        column = column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        mark, separator, null = (pa.scalar(text, pa.large_binary()) for text in (b"v", b"", b"n"))
        texts = pc.binary_join_element_wise(mark, column.cast(pa.large_binary()), separator)
        return pc.fill_null(texts, null)
    texts = column.cast(pa.string())
    return pc.fill_null(pc.binary_join_element_wise("v", texts, ""), "n")


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def split_transform(text: str) -> tuple[str, int]:
    """Return the name and the width of a transform such as `bucket[16]`; the width is 0 if it has none.

    Raises:
        ValueError: the transform does not exist, or its width is invalid.
    """
    match = _TRANSFORM.fullmatch(text)
    width = int(match[2] or 0) if match else 0
    if match is None or (match[1] in _WITH_WIDTH) != (match[2] is not None) or not 0 <= width <= _MAX_WIDTH:
        raise ValueError(f"unknown transform {text!r}")
    if match[2] is not None and not width:
        raise ValueError(f"the width of {text!r} is at least 1")
    return match[1], width


def _parse_field(item: Mapping[str, Any]) -> PartitionField:
    transform, width = split_transform(item["transform"])
    number = item.get("source-id")
    if not isinstance(item["name"], str) or not isinstance(item["source"], str):
        raise TypeError("a name is no text")
    return PartitionField(
        item["name"], item["source"], transform, width, None if number is None else int(number)
    )


def _find_column(field: PartitionField, schema: Schema) -> Field:
    """Return the column that a partition field names, in any case if no column has exactly this name."""
    exact = [column for column in schema.fields if column.name == field.source]
    alike = [column for column in schema.fields if column.name.lower() == field.source.lower()]
    columns = exact or alike
    if len(columns) != 1:
        names = ", ".join(column.name for column in schema.fields)
        raise SchemaError(
            f"partition field {field.sql} needs column {field.source!r}, and the table has {names}: name "
            f"one of these, or run ALTER TABLE ... DROP PARTITION FIELD {field.sql}"
        )
    return columns[0]


def storage_type(kind: pa.DataType) -> pa.DataType:
    """Return the storage type of an extension type and the value type of a dictionary type."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal128(kind))


def _is_signed(kind: pa.DataType) -> bool:
    return bool(_is_number(kind) and kind != pa.uint64())


def _is_day_or_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


_ACCEPTS: Mapping[str, Any] = {
    "identity": lambda kind: (
        _is_number(kind)
        or _is_text(kind)
        or _is_bytes(kind)
        or _is_day_or_time(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_floating(kind)
    ),
    "year": _is_day_or_time,
    "month": _is_day_or_time,
    "day": _is_day_or_time,
    "hour": lambda kind: bool(pa.types.is_timestamp(kind)),
    "bucket": lambda kind: _is_signed(kind) or _is_text(kind) or _is_bytes(kind) or _is_day_or_time(kind),
    "truncate": lambda kind: _is_signed(kind) or _is_text(kind) or _is_bytes(kind),
}


def _to_micros(values: pa.Array) -> Int64Array:
    """Return times in microseconds since 1970 (int64); 0 for nulls."""
    kind = values.type
    numbers: Int64Array = values.view(pa.int64()).fill_null(0).to_numpy().astype(np.int64)
    return numbers // 1000 if kind.unit == "ns" else numbers * _MICROS[kind.unit]


def _compute_periods(values: pa.Array, transform: str) -> Int64Array:
    if pa.types.is_date32(values.type):
        days: Int64Array = values.view(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
    else:
        times = _to_micros(values)
        if transform == "hour":
            return times // _HOUR_MICROS
        days = times // _DAY_MICROS
    if transform == "day":
        return days
    unit = "M" if transform == "month" else "Y"
    periods: Int64Array = days.astype("datetime64[D]").astype(f"datetime64[{unit}]").astype(np.int64)
    return periods


def _hash_values(values: pa.Array) -> npt.NDArray[np.uint32]:
    kind = values.type
    if _is_text(kind) or _is_bytes(kind):
        return hash_bytes(values.cast(pa.large_binary()).fill_null(b""))
    if pa.types.is_decimal128(kind):
        return hash_bytes(_to_shortest_bytes(values))
    if pa.types.is_date32(kind):
        return hash64(values.view(pa.int32()).fill_null(0).to_numpy().astype(np.int64).view(np.uint64))
    if pa.types.is_timestamp(kind):
        return hash64(_to_micros(values).view(np.uint64))
    return hash64(values.fill_null(0).cast(pa.int64(), safe=False).to_numpy().view(np.uint64))


def _to_shortest_bytes(values: pa.Decimal128Array) -> pa.LargeBinaryArray:
    """Return the unscaled values of decimals in the minimum number of bytes, big-endian."""
    raw = np.frombuffer(values.buffers()[1], np.uint8).reshape(-1, 16)
    matrix = raw[values.offset : values.offset + len(values)][:, ::-1]
    sign = np.where(matrix[:, :1] >= 128, 255, 0).astype(np.uint8)
    # A leading byte is omitted if it only repeats the sign and the next byte has the same sign.
    repeats = (matrix[:, :-1] == sign) & ((matrix[:, 1:] >= 128) == (sign >= 128))
    skipped = np.cumprod(repeats, axis=1).sum(axis=1)
    keep = np.arange(16)[None, :] >= skipped[:, None]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(16 - skipped)])
    data = np.ascontiguousarray(matrix[keep])
    buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(values), buffers)


def _truncate(values: pa.Array, width: int) -> pa.Array:
    kind = values.type
    if _is_text(kind):
        return pc.utf8_slice_codeunits(values, 0, width)
    if _is_bytes(kind):
        return pc.binary_slice(values, 0, width)
    if pa.types.is_decimal128(kind):
        return _truncate_decimals(values, width)
    wide = values.fill_null(0).to_numpy()
    with np.errstate(over="ignore"):
        numbers = wide.astype(np.int64) - np.mod(wide.astype(np.int64), width)
    mask = values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers.astype(wide.dtype), kind, mask=mask)


def _truncate_decimals(values: pa.Decimal128Array, width: int) -> pa.Array:
    """Return decimals rounded down to a multiple of the width (unscaled); distinct values are computed once.

    The multiple below a negative number may need one more digit, as in Iceberg. With 38 digits there is no
    room for it: then the result is the least decimal, which is the result of no other number.
    """
    kind = values.type
    result = _truncated_decimal_type(kind)
    least = 1 - 10**result.precision
    encoded = values.dictionary_encode()
    numbers = [_to_unscaled(value, kind.scale) for value in encoded.dictionary.to_pylist()]
    rounded = [_to_decimal(max(number - number % width, least), kind.scale) for number in numbers]
    return pa.array(rounded, result).take(encoded.indices)


def _truncated_decimal_type(kind: pa.Decimal128Type) -> pa.Decimal128Type:
    return pa.decimal128(min(kind.precision + 1, 38), kind.scale)


def _to_unscaled(value: Decimal, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (int(exponent) + scale)
    return -number if sign else number


def _to_decimal(number: int, scale: int) -> Decimal:
    return Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def parse_transform(text: str) -> PartitionField:
    """Return the partition field of a PARTITIONED BY item, such as `a`, `days(ts)` or `bucket(16, id)`.

    Raises:
        OptionError: the transform does not exist, or its arguments are invalid.
    """
    match = re.fullmatch(r"(\w+)\s*\((.*)\)", text.strip(), re.DOTALL)
    if match is None:
        return PartitionField.of(_unquote(text), "identity")
    name = match[1].lower()
    arguments = [part.strip() for part in re.findall(r"`(?:[^`]|``)*`|[^,]+", match[2]) if part.strip()]
    widths = [part for part in arguments if part.isdigit()]
    columns = [part for part in arguments if not part.isdigit()]
    transform = _ALIASES.get(name)
    if transform is None:
        raise OptionError(
            f"PARTITIONED BY has no transform {name!r}: write a column, or years, months, days, hours, "
            f"bucket or truncate of one{suggestion(name, _ALIASES)}"
        )
    if len(columns) != 1 or len(widths) != (transform in _WITH_WIDTH):
        form = f"{name}(16, column)" if transform in _WITH_WIDTH else f"{name}(column)"
        raise OptionError(f"the partition field {text} is not understood: write {form}")
    width = int(widths[0]) if widths else 0
    if widths and not 1 <= width <= _MAX_WIDTH:
        raise OptionError(f"the partition field {text} needs a number from 1 on")
    return PartitionField.of(_unquote(columns[0]), transform, width)


_ALIASES = {
    "identity": "identity",
    **{name: name for name in ("year", "month", "day", "hour", "bucket", "truncate")},
    **{plural: name for name, plural in _SQL_NAMES.items()},
    "date": "day",
    "date_hour": "hour",
}


def _unquote(text: str) -> str:
    text = text.strip()
    if text.startswith("`") and text.endswith("`"):
        text = text[1:-1].replace("``", "`")
    return text
