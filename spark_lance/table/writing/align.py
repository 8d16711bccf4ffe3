"""Convert incoming data to a table's schema: columns by name, with lossless casts.

The types are compared once, before any data is converted, and all differences are reported together. Then one
function per column casts values. A cast is allowed if it preserves every value (int32 to int64). It is also
allowed if it raises an error for values that it would change (int64 to uint32, a list to a vector).
Blob references (see `file.blob_references`) in columns of blobs or bytes stay references of one type: their
bytes are fetched when they are written.

Errors contain the types that differ, or the first row that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import make_filterable, normalise_offsets
from spark_lance.arrow.texts import is_text
from spark_lance.errors import NullValueError, SchemaError, suggestion
from spark_lance.file.base.extensions import EXTENSION_NAME, restore_schema_types
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.blob_references import (
    REFERENCE,
    describes_blobs,
    holds_references,
    is_blob_field,
    is_reference,
)
from spark_lance.jsonb.columns import is_json_field, to_json_documents
from spark_lance.table.reading.system_columns import SYSTEM_COLUMNS
from spark_lance.table.schema.defaults import default_array, default_sql, generation_sql, get_identity

_MAX_SHOWN_COLUMNS = 5
_MAX_VALUE_LENGTH = 40


@dataclass(frozen=True)
class TypeDifference:
    """A column or field whose type in the data cannot be cast to its type in the table.

    Attributes:
        path: the path of the field; `[]` is an item of a list.
        source: the type in the data.
        target: the type in the table.
    """

    path: str
    source: pa.DataType
    target: pa.DataType

    def describe(self, name_of: Callable[[pa.DataType], str] = str) -> str:
        """Return a sentence on the difference; `name_of` returns the name of a type for the user."""
        source, target = name_of(self.source), name_of(self.target)
        return f"column {self.path!r} is {source} in the data and {target} in the table"

    def __str__(self) -> str:
        remedy = (
            f"; cast it to {self.target}, or all by data.cast(dataset.schema)" if self.is_castable else ""
        )
        return f"{self.describe()}{remedy}"

    @property
    def is_castable(self) -> bool:
        """Whether a cast by the user may help: both types are nested, or neither is."""
        return bool(pa.types.is_nested(self.source) == pa.types.is_nested(self.target))


# A difference is a sentence, or a pair of types.
Differences: TypeAlias = "list[str | TypeDifference]"


def schema_difference_error(
    differences: Sequence[str | TypeDifference], tell: Callable[[str | TypeDifference], str] = str
) -> SchemaError:
    """Return the error that lists differences; its `differences` allow callers to use other type names.

    Args:
        differences: the differences between the data and the table.
        tell: returns the line of the message for a difference.
    """
    distinct = tuple(dict.fromkeys(differences))
    lines = [tell(line) for line in distinct]
    text = f" {lines[0]}" if len(lines) == 1 else "".join(f"\n  - {line}" for line in lines)
    error = SchemaError(f"the data does not fit the table:{text}")
    error.differences = distinct
    return error


def row_text(batch: pa.RecordBatch, row: int) -> str:
    """Return a row as text for a message: its first columns, with long values truncated."""
    names = batch.schema.names[:_MAX_SHOWN_COLUMNS]
    values = ", ".join(f"{name}: {_short_text(batch.column(name)[row].as_py())}" for name in names)
    return f"{{{values}{', ...' if batch.num_columns > _MAX_SHOWN_COLUMNS else ''}}}"


def _short_text(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."


Cast = Callable[[pa.Array], pa.Array]

# The remedy for a column that the table lacks.
ADD_IT = ": leave it out, or add it first (in Spark the option mergeSchema does)"


class WrongLengthError(Exception):
    """A list cannot become a vector because its length differs; `row` is its position in the cast array."""

    def __init__(self, path: str, size: int, length: int, row: int) -> None:
        super().__init__(path, size, length, row)
        self.path, self.size, self.length, self.row = path, size, length, row

    def in_row(self, batch: pa.RecordBatch | None) -> SchemaError:
        """Return the error for the user; `batch` is None if `row` is not a row of the batch."""
        text = f"column {self.path!r} holds vectors of length {self.size}; a value has {self.length} elements"
        return SchemaError(text if batch is None else f"{text}, in row {row_text(batch, self.row)}")


def with_references(source: pa.DataType, target: pa.Field) -> pa.Field:
    """Return a field of the table with the reference type where the data has references to blobs."""
    kind = target.type
    if not holds_references(source):
        return target
    if is_reference(source):
        fits = is_blob_field(target) or _is_bytes(kind)
        return target.with_type(REFERENCE) if fits else target
    if pa.types.is_struct(source) and pa.types.is_struct(kind):
        parts = []
        for part in kind:
            index = source.get_field_index(part.name)
            parts.append(part if index < 0 else with_references(source.field(index).type, part))
        return target.with_type(pa.struct(parts))
    if _is_any_list(source) and _is_any_list(kind):
        item = with_references(source.value_type, kind.value_field)
        return target.with_type(pa.large_list(item) if pa.types.is_large_list(kind) else pa.list_(item))
    return target


def cast_field(source_field: pa.Field, target: pa.Field, path: str, differences: Differences) -> Cast | None:
    """Return the cast to a field's type; None if no cast is needed or the types do not fit.

    Bytes can be cast to blobs of version 2.2, and text to JSON.

    Args:
        source_field: the field of the data.
        target: the field of the table.
        path: the path of the field, for messages.
        differences: the list to which differences are added.
    """
    source = source_field.type
    if is_json_field(target):
        return _cast_json(source_field, target, path, differences)
    if isinstance(source, pa.BaseExtensionType):
        if not _is_same_extension(source, target):
            target_type = restore_schema_types(pa.schema([target])).field(0).type
            differences.append(TypeDifference(path, source, target_type))
            return None
        inner = cast_field(source_field.with_type(source.storage_type), target, path, differences)
        return lambda array: _apply_cast(
            inner, array.storage if isinstance(array, pa.ExtensionArray) else array
        )
    if _is_spatial(source) and _is_bytes(target.type):
        inner = _cast_type(pa.binary(), target.type, path, differences)
        return lambda array: _apply_cast(inner, _geometry_bytes(array))
    if is_blob_field(target) and describes_blobs(source):
        differences.append(
            f"column {path!r} has blobs in the table, and the data describes blobs without telling where "
            "they were read from: read the data with blob_handling=all_binary"
        )
        return None
    if is_reference(source) and not is_reference(target.type):
        differences.append(
            f"column {path!r} refers to blobs in the data and is {target.type} in the table: drop the field "
            "'blob_source' of the data to store what is left of the struct, without the bytes"
        )
        return None
    if _is_bytes(source) and (target.metadata or {}).get(EXTENSION_NAME.encode()) == b"lance.blob.v2":
        return lambda array: _to_blobs(array, target.type)
    return _cast_type(source, target.type, path, differences)


def _cast_json(source_field: pa.Field, target: pa.Field, path: str, differences: Differences) -> Cast | None:
    """Return the cast that parses JSON text into stored documents; None if the data has documents."""
    if is_json_field(source_field):
        return None
    if to_json_documents(pa.chunked_array([], source_field.type).combine_chunks()) is None:
        target_type = restore_schema_types(pa.schema([target])).field(0).type
        differences.append(TypeDifference(path, source_field.type, target_type))
        return None

    def cast(array: pa.Array) -> pa.Array:
        try:
            documents = to_json_documents(array)
        except SchemaError as error:
            raise SchemaError(f"column {path!r}: {error}") from None
        assert documents is not None
        return documents

    return cast


def _is_spatial(source: pa.DataType) -> bool:
    """Return whether a type is the struct of SRID and WKB in which engines exchange geometries."""
    if not pa.types.is_struct(source) or [field.name for field in source] != ["srid", "wkb"]:
        return False
    metadata = source.field("wkb").metadata or {}
    return b"geometry" in metadata or b"geography" in metadata


def _geometry_bytes(array: pa.StructArray) -> pa.Array:
    binary = array.field("wkb")
    return pc.if_else(array.is_valid(), binary, pa.scalar(None, binary.type)) if array.null_count else binary


def _is_same_extension(source: pa.BaseExtensionType, target: pa.Field) -> bool:
    """Return whether a field can store values of an extension type: it has no extension type, or the same."""
    name = (target.metadata or {}).get(EXTENSION_NAME.encode())
    target_type = restore_schema_types(pa.schema([target])).field(0).type
    if isinstance(target_type, pa.BaseExtensionType):
        return bool(target_type == source)
    return name is None or name == source.extension_name.encode()


def _to_blobs(array: pa.Array, target: pa.StructType) -> pa.Array:
    """Return structs with the bytes as their field `data`."""
    parts = [
        array.cast(pa.large_binary()) if field.name == "data" else pa.nulls(len(array), field.type)
        for field in target
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)


def _cast_type(source: pa.DataType, target: pa.DataType, path: str, differences: Differences) -> Cast | None:
    if source == target and not pa.types.is_nested(target):
        return None
    if pa.types.is_null(source):
        return lambda array: pa.nulls(len(array), target)
    if pa.types.is_dictionary(source) and not pa.types.is_dictionary(target):
        inner = _cast_type(source.value_type, target, path, differences)
        return lambda array: _apply_cast(inner, array.dictionary_decode())
    for applies, make in _NESTED_CASTS:
        if applies(source, target):
            return make(source, target, path, differences)
    for applies_to_types, cast in _CASTS:
        if applies_to_types(source, target):
            return lambda array: cast(array, target)
    differences.append(TypeDifference(path, source, target))
    return None


def _apply_cast(cast: Cast | None, array: pa.Array) -> pa.Array:
    return array if cast is None else cast(array)


def _is_any_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _cast_struct(
    source: pa.DataType, target: pa.DataType, path: str, differences: Differences
) -> Cast | None:
    names = [source.field(i).name for i in range(source.num_fields)]
    targets = [target.field(i) for i in range(target.num_fields)]
    for name in names:
        if names.count(name) > 1:
            differences.append(f"column {path + '.' + name!r} occurs twice in the data")
        elif target.get_field_index(name) < 0:
            differences.append(f"column {path + '.' + name!r} is not in the table{ADD_IT}")
    casts: list[tuple[int, Cast | None]] = []
    for field in targets:
        index = source.get_field_index(field.name)
        if index < 0:
            if not field.nullable:
                differences.append(
                    f"column {path + '.' + field.name!r} must not be null but is missing in the data"
                )
            casts.append((-1, None))
        else:
            inner = cast_field(source.field(index), field, f"{path}.{field.name}", differences)
            casts.append((index, inner))
    if source == target and all(cast is None for _, cast in casts):
        return None

    def cast(array: pa.StructArray) -> pa.Array:
        children = [
            pa.nulls(len(array), field.type) if index < 0 else _apply_cast(inner, array.field(index))
            for (index, inner), field in zip(casts, targets, strict=True)
        ]
        mask = array.is_null() if array.null_count else None
        if not children:
            return pa.array(
                [{}] * len(array), type=target, mask=None if mask is None else mask.to_numpy(False)
            )
        return pa.StructArray.from_arrays(children, fields=targets, mask=mask)

    return cast


def _cast_list(source: pa.DataType, target: pa.DataType, path: str, differences: Differences) -> Cast | None:
    inner = cast_field(source.value_field, target.value_field, f"{path}[]", differences)
    if source == target and inner is None:
        return None
    large = pa.types.is_large_list(target)
    kind = pa.LargeListArray if large else pa.ListArray
    width = pa.int64() if large else pa.int32()

    def cast(array: pa.Array) -> pa.Array:
        offsets = array.offsets.cast(width)
        mask = array.is_null() if array.null_count else None
        if mask is not None and offsets.offset:
            offsets = pa.concat_arrays([offsets])
        return kind.from_arrays(offsets, _apply_cast(inner, array.values), type=target, mask=mask)

    return cast


def _cast_map(source: pa.DataType, target: pa.DataType, path: str, differences: Differences) -> Cast | None:
    keys = cast_field(source.key_field, target.key_field, f"{path}.key", differences)
    values = cast_field(source.item_field, target.item_field, f"{path}.value", differences)
    if source == target and keys is None and values is None:
        return None

    def cast(array: pa.MapArray) -> pa.Array:
        offsets = array.offsets
        mask = array.is_null() if array.null_count else None
        if mask is not None and offsets.offset:
            offsets = pa.concat_arrays([offsets])
        return pa.MapArray.from_arrays(
            offsets, _apply_cast(keys, array.keys), _apply_cast(values, array.items), type=target, mask=mask
        )

    return cast


def _cast_list_to_vector(
    source: pa.DataType, target: pa.DataType, path: str, differences: Differences
) -> Cast | None:
    inner = _cast_type(source.value_type, target.value_type, f"{path}[]", differences)
    size = target.list_size

    def cast(array: pa.Array) -> pa.Array:
        lengths = pc.list_value_length(array)
        wrong = pc.fill_null(pc.not_equal(lengths, size), False)
        if pc.any(wrong).as_py():
            bad = pc.index(wrong, True).as_py()
            raise WrongLengthError(path, size, lengths[bad].as_py(), bad)
        if not array.null_count:
            return pa.FixedSizeListArray.from_arrays(_apply_cast(inner, array.flatten()), type=target)
        # A null row has no elements in a list, but `size` elements in a fixed-size list.
        valid = np.asarray(array.is_valid())
        filler = np.repeat(np.cumsum(valid) - 1, size) * size + np.tile(np.arange(size), len(array))
        picks = pa.array(filler, mask=np.repeat(~valid, size))
        values = _apply_cast(inner, make_filterable(array.flatten()).take(picks))
        return pa.FixedSizeListArray.from_arrays(values, type=target, mask=array.is_null())

    return cast


def _cast_vector(
    source: pa.DataType, target: pa.DataType, path: str, differences: Differences
) -> Cast | None:
    if source.list_size != target.list_size:
        differences.append(TypeDifference(path, source, target))
        return None
    inner = cast_field(source.value_field, target.value_field, f"{path}[]", differences)
    if source == target and inner is None:
        return None

    def cast(array: pa.FixedSizeListArray) -> pa.Array:
        values = array.values.slice(array.offset * source.list_size, len(array) * source.list_size)
        mask = array.is_null() if array.null_count else None
        return pa.FixedSizeListArray.from_arrays(_apply_cast(inner, values), type=target, mask=mask)

    return cast


_MakeCast = Callable[[pa.DataType, pa.DataType, str, Differences], "Cast | None"]
_Applies = Callable[[pa.DataType, pa.DataType], bool]

_NESTED_CASTS: Sequence[tuple[_Applies, _MakeCast]] = (
    (lambda s, t: pa.types.is_struct(s) and pa.types.is_struct(t), _cast_struct),
    (lambda s, t: _is_any_list(s) and _is_any_list(t), _cast_list),
    (lambda s, t: pa.types.is_map(s) and pa.types.is_map(t), _cast_map),
    (lambda s, t: _is_any_list(s) and pa.types.is_fixed_size_list(t), _cast_list_to_vector),
    (lambda s, t: pa.types.is_fixed_size_list(s) and pa.types.is_fixed_size_list(t), _cast_vector),
)


def _cast_safely(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(target, safe=True)


def _cast_to_half(array: pa.Array, target: pa.DataType) -> pa.Array:
    halves = array.cast(target)
    back = halves.cast(array.type)
    same = pc.or_kleene(pc.equal(back, array), pc.and_(pc.is_nan(back), pc.is_nan(array)))
    if not pc.all(pc.fill_null(same, True), min_count=0).as_py():
        raise pa.ArrowInvalid("a number is not exact in half precision")
    return halves


def _cast_to_dictionary(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    encoded = array.cast(target.value_type).dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(target.index_type), encoded.dictionary, ordered=target.ordered
    )


def _cast_decimal_to_uint64(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(pa.decimal128(38, 0), safe=True).cast(target, safe=True)


def _is_bytes(kind: pa.DataType) -> bool:
    plain = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return bool(plain or pa.types.is_fixed_size_binary(kind))


def _widens_integer(source: pa.DataType, target: pa.DataType) -> bool:
    if not (pa.types.is_integer(source) and pa.types.is_integer(target)):
        return False
    if pa.types.is_unsigned_integer(target):
        # Spark has signed types only; the cast checks every value.
        return True if pa.types.is_signed_integer(source) else bool(source.bit_width <= target.bit_width)
    unsigned = pa.types.is_unsigned_integer(source)
    return bool(
        source.bit_width < target.bit_width or (source.bit_width == target.bit_width and not unsigned)
    )


def _widens_float(source: pa.DataType, target: pa.DataType) -> bool:
    both = pa.types.is_floating(source) and pa.types.is_floating(target)
    return bool(both and source.bit_width <= target.bit_width)


def _are_both_instants_or_local(source: pa.DataType, target: pa.DataType) -> bool:
    both = pa.types.is_timestamp(source) and pa.types.is_timestamp(target)
    return bool(both and (source.tz is None) == (target.tz is None))


# Pairs of a test of (source, target) and a cast, which raises ArrowInvalid for a value that it cannot
# preserve.
_CASTS: Sequence[tuple[_Applies, Callable[[pa.Array, pa.DataType], pa.Array]]] = (
    (lambda s, t: pa.types.is_dictionary(t), _cast_to_dictionary),
    (_widens_integer, _cast_safely),
    (_widens_float, _cast_safely),
    (lambda s, t: pa.types.is_float32(s) and pa.types.is_float16(t), _cast_to_half),
    (lambda s, t: is_text(s) and is_text(t), _cast_safely),
    (lambda s, t: _is_bytes(s) and _is_bytes(t), _cast_safely),
    (_are_both_instants_or_local, _cast_safely),
    (lambda s, t: pa.types.is_date(s) and pa.types.is_date(t), _cast_safely),
    (lambda s, t: pa.types.is_time(s) and pa.types.is_time(t), _cast_safely),
    (lambda s, t: pa.types.is_duration(s) and pa.types.is_duration(t), _cast_safely),
    (lambda s, t: pa.types.is_decimal(s) and pa.types.is_decimal(t), _cast_safely),
    (lambda s, t: pa.types.is_decimal(s) and s.scale == 0 and pa.types.is_uint64(t), _cast_decimal_to_uint64),
)


# Columns that reads add to the columns of a table, and what adds them.
_ADDED_COLUMNS = {
    **dict.fromkeys(SYSTEM_COLUMNS, "an option of the read"),
    **dict.fromkeys(("_change_type", "_commit_version", "_commit_timestamp"), "a change feed"),
    **dict.fromkeys(("_distance", "_score", "query_index"), "a search"),
}


def check_added_names(names: Iterable[str]) -> None:
    """Check that new columns of a table are not columns that a read of a table has added to the data.

    Raises:
        SchemaError: a name is one of these columns.
    """
    for name in names:
        # A name without an underscore may be a column of the user.
        if name in _ADDED_COLUMNS and name.startswith("_"):
            raise SchemaError(
                f"the table has no column {name!r}, and {_ADDED_COLUMNS[name]} adds it to what is read: "
                "leave it out of the data, or rename it"
            )


class Aligner:
    """Converts batches of one Arrow schema to batches of (a subset of) a table's schema.

    Args:
        source: the schema of the incoming batches, with columns in any order. Nullable columns and columns
            with a default may be missing.
        target: the table's schema.

    Raises:
        SchemaError: the table lacks a column of the data, the data lacks a NOT NULL column, or types do not
            fit. The message lists all differences.
    """

    def __init__(self, source: pa.Schema, target: Schema) -> None:
        differences: Differences = []
        by_name = {field.name: field for field in target.fields}
        for name in source.names:
            if source.names.count(name) > 1:
                differences.append(f"column {name!r} occurs twice in the data")
            elif name not in by_name:
                origin = f": {_ADDED_COLUMNS[name]} adds it; leave it out" if name in _ADDED_COLUMNS else None
                hint = origin or f"{ADD_IT}{suggestion(name, set(by_name) - set(source.names))}"
                differences.append(f"column {name!r} is not in the table{hint}")
        casts: list[tuple[str, Cast | None]] = []
        fields: list[Field] = []
        arrow: list[pa.Field] = []
        self._defaults: dict[str, Field] = {}
        for field in target.fields:
            index = source.get_field_index(field.name)
            if index < 0:
                if any(declaration(field) for declaration in (default_sql, generation_sql, get_identity)):
                    default_array(field, 0)
                    casts.append((field.name, None))
                    fields.append(field)
                    arrow.append(field.arrow_field())
                    self._defaults[field.name] = field
                elif not field.nullable:
                    differences.append(f"column {field.name!r} must not be null but is missing in the data")
                continue
            source_field = source.field(index)
            aligned = with_references(source_field.type, field.arrow_field())
            casts.append((field.name, cast_field(source_field, aligned, field.name, differences)))
            fields.append(field)
            arrow.append(aligned)
        if len(fields) == len(self._defaults) and not differences and target.fields:
            differences.append("the data has none of the table's columns")
        if differences:
            raise schema_difference_error(differences)
        self.schema = Schema(tuple(fields), target.metadata)
        self.arrow_schema = pa.schema(arrow, dict(target.metadata) or None)
        self._casts = casts

    def align(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the table's columns, types and nullability.

        Raises:
            SchemaError: a cast would change a value, or a NOT NULL column has a null.
        """
        arrays = []
        for (name, cast), field in zip(self._casts, self.arrow_schema, strict=True):
            if name in self._defaults:
                array = default_array(self._defaults[name], batch.num_rows)
            else:
                array = normalise_offsets(batch.column(name))
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            if cast is not None:
                try:
                    array = cast(array)
                except WrongLengthError as error:
                    raise error.in_row(batch if error.path == name else None) from None
                except pa.ArrowInvalid as error:
                    raise SchemaError(
                        f"column {name!r} has a value that {field.type} cannot hold: {error}"
                    ) from error
            if not field.nullable and array.null_count:
                raise NullValueError(_null_message(name, array), name)
            arrays.append(array)
        if not arrays:
            return batch.select([])
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)


def _null_message(name: str, array: pa.Array) -> str:
    """Return the message about nulls in a NOT NULL column."""
    count = array.null_count
    values, them = ("value is", "it") if count == 1 else ("values are", "them")
    first = pc.index(pc.is_null(array), True).as_py()
    return (
        f"column {name!r} must not be null, but {count:,} incoming {values} null, first in row {first:,} of "
        f"a batch: filter or fill {them}"
    )
