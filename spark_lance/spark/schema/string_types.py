"""Stores and checks declared Spark types that Lance has no type for: strings, times and intervals.

CHAR(n), VARCHAR(n), and STRING with a collation: Lance stores text. The metadata of the text's field, at any
depth of a column, has the declaration. Other engines ignore it:

    spark.string-type = "char(5)" | "varchar(10)" | "string collate UTF8_LCASE"

In the schema that Spark reads, CHAR and VARCHAR are strings. The metadata of the column has the declared type
of the whole column, as in Spark's own relations:

    __CHAR_VARCHAR_TYPE_STRING = "char(5)" | "array<varchar(10)>" | "struct<a:char(5),b:int>" | ...

From it Spark pads values, checks lengths and prints types. (Spark: CharVarcharUtils.)

TIME(p) and day-time intervals: Lance stores TIME in nanoseconds and intervals in microseconds, which may be
finer than the declared type. The metadata of the field, at any depth of a column, has the declared type.
Other engines ignore it. TIME(6) and INTERVAL DAY TO SECOND need no metadata:

    spark.precise-type = "time(3)" | "interval day" | "interval hour to minute"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st

from spark_lance.errors import SchemaError, TextLengthError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.spark.base.compat import TimeType

PRECISE_TYPE = "spark.precise-type"
_TIME = re.compile(r"time\(([0-6])\)")
_FIELDS = ("day", "hour", "minute", "second")
_INTERVAL = re.compile(rf"interval ({'|'.join(_FIELDS)})(?: to ({'|'.join(_FIELDS)}))?")
# Last field of an interval -> its length in microseconds. Seconds have microsecond precision.
_MICROSECONDS = {0: 86_400_000_000, 1: 3_600_000_000, 2: 60_000_000}
_TIME_DIGITS = 9
_SPARK_TIME_DIGITS = 6


def precise_metadata(kind: st.DataType) -> dict[str, str]:
    """Return the field metadata for the precision of a type; empty if the Arrow type has this precision."""
    if isinstance(kind, st.DayTimeIntervalType) and kind != st.DayTimeIntervalType():
        return {PRECISE_TYPE: kind.simpleString()}
    if TimeType is not None and isinstance(kind, TimeType) and kind != TimeType():
        return {PRECISE_TYPE: kind.simpleString()}
    return {}


def precise_type(arrow: pa.DataType, metadata: Mapping[str, str]) -> st.DataType | None:
    """Return the declared type of a field; None without a declaration, or if it is for another Arrow type."""
    text = metadata.get(PRECISE_TYPE, "")
    if arrow == pa.duration("us") and (match := _INTERVAL.fullmatch(text)):
        first, last = _FIELDS.index(match[1]), _FIELDS.index(match[2] or match[1])
        return st.DayTimeIntervalType(first, last) if first <= last else None
    if arrow == pa.time64("ns") and TimeType is not None and (match := _TIME.fullmatch(text)):
        return TimeType(int(match[1]))  # type: ignore[call-arg]
    return None


def check_widened(name: str, table_field: Field, field: pa.Field) -> None:
    """Check that all values of a column fit a newly declared type.

    Args:
        name: the column, for errors.
        table_field: the table's column.
        field: the column with the new type in its metadata.

    Raises:
        SchemaError: the new type has fewer digits, or an interval with a coarser last field.
    """
    metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    kind = precise_type(field.type, metadata)
    if kind is None or table_field.kind != "leaf" or table_field.arrow_type() != field.type:
        return
    old = precise_type(field.type, table_field.metadata)
    if _unit(kind) > (1 if old is None else _unit(old)):
        text = kind.simpleString()
        raise SchemaError(
            f"column {name!r} may have values with more digits than {text}: add a column of that type, "
            f"set it to cast({name} AS {text}), and drop {name!r}"
        )


def plan_precision(arrow: pa.DataType, metadata: Mapping[str, str], column: str) -> _Check | None:
    """Return a function that checks that no value of an array is finer than a field's declared precision.

    Spark checks this itself for tables by name. For tables by path Spark accepts any schema.
    """
    kind = precise_type(arrow, metadata)
    unit = 1 if kind is None else _unit(kind)
    if kind is None or unit == 1:
        return None
    name = kind.simpleString()

    def check(array: pa.Array) -> pa.Array:
        values = array.cast(pa.int64())
        if pc.any(pc.not_equal(pc.multiply(pc.divide(values, unit), unit), values)).as_py():
            raise SchemaError(
                f"column {column!r} is {name}, but a batch has values with more digits: "
                f"write cast(... AS {name})"
            )
        return array

    return check


def is_widening(actual: st.DataType, target: st.DataType) -> bool:
    """Return whether both types are times, or both intervals, and the target can represent all values."""
    times = (st.DayTimeIntervalType,) if TimeType is None else (st.DayTimeIntervalType, TimeType)
    return isinstance(actual, times) and type(actual) is type(target) and _unit(target) <= _unit(actual)


_Check = Callable[[pa.Array], pa.Array]


def _unit(kind: st.DataType) -> int:
    """Return the distance between two values of a type, in units of its Arrow type."""
    if isinstance(kind, st.DayTimeIntervalType):
        return _MICROSECONDS.get(kind.endField, 1)
    if TimeType is not None and isinstance(kind, TimeType):
        digits = int(kind.precision)  # type: ignore[attr-defined]
        return 1 if digits == _SPARK_TIME_DIGITS else int(10 ** (_TIME_DIGITS - digits))
    return 1


STRING_TYPE = "spark.string-type"
DECLARED_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
_STRING_DECLARATION = re.compile(r"(char|varchar)\(([0-9]{1,10})\)|string(?: collate (\w+))?")


def declared_string(text: str) -> st.DataType | None:
    """Parse a declaration of a string type; None if it is not one."""
    match = _STRING_DECLARATION.fullmatch(text)
    return None if match is None else _string_type(match)


def _string_type(match: re.Match[str]) -> st.DataType:
    if match[1]:
        return (st.CharType if match[1] == "char" else st.VarcharType)(int(match[2]))
    return st.StringType(match[3]) if match[3] else st.StringType()


def string_metadata(kind: st.DataType) -> dict[str, str]:
    """Return the field metadata for a declared string type; empty for plain strings and other types."""
    if isinstance(kind, (st.CharType, st.VarcharType)) or (
        isinstance(kind, st.StringType) and kind != st.StringType()
    ):
        return {STRING_TYPE: kind.simpleString()}
    return {}


def has_collation(metadata: Mapping[str, str]) -> bool:
    """Return whether field metadata has a collation, so that Spark does not compare text by its bytes."""
    return metadata.get(STRING_TYPE, "").startswith("string collate ")


def has_lengths(kind: st.DataType) -> bool:
    """Return whether a type is or contains CHAR or VARCHAR."""
    if isinstance(kind, st.StructType):
        return any(has_lengths(field.dataType) for field in kind)
    if isinstance(kind, st.ArrayType):
        return has_lengths(kind.elementType)
    if isinstance(kind, st.MapType):
        return has_lengths(kind.keyType) or has_lengths(kind.valueType)
    return isinstance(kind, (st.CharType, st.VarcharType))


def readable_type(kind: st.DataType) -> st.DataType:
    """Return a type with CHAR and VARCHAR replaced by strings, at every depth."""
    if isinstance(kind, st.StructType):
        fields = [st.StructField(f.name, readable_type(f.dataType), f.nullable, f.metadata) for f in kind]
        return st.StructType(fields)
    if isinstance(kind, st.ArrayType):
        return st.ArrayType(readable_type(kind.elementType), kind.containsNull)
    if isinstance(kind, st.MapType):
        return st.MapType(readable_type(kind.keyType), readable_type(kind.valueType), kind.valueContainsNull)
    return st.StringType() if isinstance(kind, (st.CharType, st.VarcharType)) else kind


def declared_type(field: st.StructField) -> st.DataType:
    """Return the declared type of a column, with CHAR and VARCHAR.

    Metadata that does not fit the column's type comes from a former type of the column, and is ignored.
    """
    text = (field.metadata or {}).get(DECLARED_TYPE)
    if not isinstance(text, str):
        return field.dataType
    try:
        kind, rest = _parse_declared(field.dataType, text)
    except _MisfitError:
        return field.dataType
    return field.dataType if rest else kind


def declared_schema(schema: st.StructType) -> st.StructType:
    """Return a schema with the declared types of its columns."""
    fields = []
    for field in schema.fields:
        metadata = {key: value for key, value in (field.metadata or {}).items() if key != DECLARED_TYPE}
        fields.append(st.StructField(field.name, declared_type(field), field.nullable, metadata))
    return st.StructType(fields)


class _MisfitError(Exception):
    """A declaration does not describe the type of its column."""


def _parse_declared(kind: st.DataType, text: str) -> tuple[st.DataType, str]:
    """Parse a declared type with the structure of `kind` at the start of a text.

    Returns:
        The type and the rest of the text.

    Raises:
        _MisfitError: the text has another structure.
    """
    if isinstance(kind, st.StringType):
        match = _STRING_DECLARATION.match(text)
        if match is None:
            raise _MisfitError
        return _string_type(match), text[match.end() :]
    if isinstance(kind, st.ArrayType):
        element, rest = _parse_declared(kind.elementType, _strip_prefix(text, "array<"))
        return st.ArrayType(element, kind.containsNull), _strip_prefix(rest, ">")
    if isinstance(kind, st.MapType):
        key, rest = _parse_declared(kind.keyType, _strip_prefix(text, "map<"))
        value, rest = _parse_declared(kind.valueType, _strip_prefix(rest, ","))
        return st.MapType(key, value, kind.valueContainsNull), _strip_prefix(rest, ">")
    if isinstance(kind, st.StructType):
        rest, fields = _strip_prefix(text, "struct<"), []
        for number, field in enumerate(kind):
            part, rest = _parse_declared(
                field.dataType, _strip_prefix(rest, f"{',' * (number > 0)}{field.name}:")
            )
            fields.append(st.StructField(field.name, part, field.nullable, field.metadata))
        return st.StructType(fields), _strip_prefix(rest, ">")
    return kind, _strip_prefix(text, kind.simpleString())


def _strip_prefix(text: str, start: str) -> str:
    if not text.startswith(start):
        raise _MisfitError
    return text[len(start) :]


_Fit = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class DeclaredTypeChecks:
    """Pads CHAR values, and checks the lengths and the precision of values against declared types.

    Spark does this itself for tables by name. For tables by path Spark accepts any schema.

    Attributes:
        columns: name of a column -> the function for its arrays.
    """

    columns: dict[str, _Fit]

    @classmethod
    def plan(cls, schema: Schema) -> DeclaredTypeChecks:
        """Plan the checks for a table's schema."""
        return cls({field.name: fit for field in schema.fields if (fit := _plan_field(field, field.name))})

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with padded values.

        Raises:
            SchemaError: a value is longer than its column allows, not counting trailing spaces, or more
                precise.
        """
        for number, field in enumerate(batch.schema if self.columns else ()):
            if fit := self.columns.get(field.name):
                batch = batch.set_column(number, field, fit(batch.column(number)))
        return batch


def _plan_field(field: Field, column: str) -> _Fit | None:
    kind = declared_string(field.metadata.get(STRING_TYPE, ""))
    if isinstance(kind, (st.CharType, st.VarcharType)):
        length, pads = kind.length, isinstance(kind, st.CharType)
        return lambda array: _fit_length(array, length, pads, column)
    if PRECISE_TYPE in field.metadata:
        return plan_precision(field.arrow_type(), field.metadata, column)
    children = [(child.name, _plan_field(child, f"{column}.{child.name}")) for child in field.children]
    fits = {name: fit for name, fit in children if fit is not None}
    return (lambda array: _fit_nested(array, fits)) if fits else None


def _fit_nested(array: pa.Array, fits: dict[str, _Fit]) -> pa.Array:
    """Apply the functions `fits` to the children of a struct, list or map array."""
    kind, mask = array.type, array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        parts = [fits.get(field.name, _return_same)(array.field(field.name)) for field in kind]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_map(kind):
        entries = fits.get("entries", _return_same)(_entries(array))
        return pa.MapArray.from_arrays(
            _offsets(array), entries.field(0), entries.field(1), type=kind, mask=mask
        )
    (fit,) = fits.values()
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    values = fit(array.values.slice(first, last - first))
    return type(array).from_arrays(_offsets(array), values, type=kind, mask=mask)


def _entries(array: pa.MapArray) -> pa.StructArray:
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    parts = [array.keys.slice(first, last - first), array.items.slice(first, last - first)]
    return pa.StructArray.from_arrays(parts, fields=[array.type.key_field, array.type.item_field])


def _offsets(array: pa.Array) -> pa.Array:
    return pc.subtract(array.offsets, array.offsets[0])


def _return_same(array: pa.Array) -> pa.Array:
    return array


def _fit_length(array: pa.Array, length: int, pads: bool, column: str) -> pa.Array:
    """Cut trailing spaces of text to `length` characters, and pad shorter text with spaces if `pads`.

    Raises:
        TextLengthError: text is longer even without its trailing spaces.
    """
    longest = pc.max(pc.utf8_length(array)).as_py()
    if longest is not None and longest > length:
        shorter = pc.utf8_rtrim(array, characters=" ")
        over = pc.greater(pc.utf8_length(shorter), length)
        if pc.any(over).as_py():
            row = pc.index(over, True).as_py()
            raise TextLengthError(
                f"column {column!r} takes {length} characters at most, but row {row} of a batch has more: "
                "cut the text, or make the column's type STRING",
                length,
            )
        array = pc.if_else(
            pc.greater(pc.utf8_length(array), length), pc.utf8_slice_codeunits(array, 0, length), array
        )
    return pc.utf8_rpad(array, width=length, padding=" ") if pads else array
