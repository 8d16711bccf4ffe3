"""Converts Arrow arrays of Lance columns to the arrays that Spark expects.

A conversion is planned once from the two types and then applied to any number of batches. It changes names,
nullability and offsets without copying values: a fixed-size list becomes a list of the same values with the
offsets 0, n, 2n, ... JSON documents become text or variants. `table.writing.align` converts Spark's arrays to
Lance columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import SchemaError
from spark_lance.jsonb.binary import json_texts
from spark_lance.jsonb.columns import is_json_field, is_json_text
from spark_lance.spark.schema.spatial import is_carrier, to_carrier
from spark_lance.spark.schema.variants import variants_of_texts

_Convert = Callable[[pa.Array], pa.Array]
_INT32_MAX = 2**31 - 1
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True)
class BatchConverter:
    """Converts batches to `schema` column by column. `plan` creates it."""

    schema: pa.Schema
    columns: tuple[_Convert, ...]

    @classmethod
    def plan(cls, source: pa.Schema, target: pa.Schema) -> BatchConverter:
        """Plan the conversion of stored columns to Spark's columns, in the same order.

        Args:
            source: the schema of the input batches, with one or more columns.
            target: the schema that Spark expects, from `types.arrow_schema`. Its structs may have fewer
                fields than the source's, in another order.
        """
        pairs = zip(source, target, strict=True)
        return cls(target, tuple(_plan_field(old, new.type, new.name) for old, new in pairs))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the target schema and the same number of rows.

        Raises:
            SchemaError: a value does not fit its Spark type. The message names the column.
        """
        arrays = [convert(array) for convert, array in zip(self.columns, batch.columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _plan_field(source: pa.Field, target: pa.DataType, column: str) -> _Convert:
    if is_json_field(source) and pa.types.is_string(target):
        return json_texts
    if is_json_field(source) and pa.types.is_struct(target):
        return lambda array: variants_of_texts(json_texts(array), target)
    if is_json_text(source) and pa.types.is_struct(target):
        return lambda array: variants_of_texts(array.cast(pa.string()), target)
    if is_carrier(target):
        return lambda array: to_carrier(array, target)
    return _plan(source.type, target, column)


def _plan(source: pa.DataType, target: pa.DataType, column: str) -> _Convert:
    if source.equals(target):
        return _return_same
    if isinstance(source, pa.BaseExtensionType):
        inner = _plan(source.storage_type, target, column)
        return lambda array: inner(array.storage)
    if pa.types.is_dictionary(source):
        convert = _plan(source.value_type, target, column)
        return lambda array: convert(array.dictionary_decode())
    if pa.types.is_struct(source):
        return _plan_struct(source, target, column)
    if pa.types.is_map(source):
        return _plan_map(source, target, column)
    if pa.types.is_list(target):
        return _plan_list(source, target, column)
    if _is_finer(source, target):
        return lambda array: _floor_ticks(array, target)
    return lambda array: _cast(array, target, column)


def _return_same(array: pa.Array) -> pa.Array:
    return array


def _plan_struct(source: pa.DataType, target: pa.DataType, column: str) -> _Convert:
    parts = []
    for field in target:
        index = source.get_field_index(field.name)
        parts.append((index, _plan_field(source.field(index), field.type, f"{column}.{field.name}")))

    def convert(array: pa.StructArray) -> pa.Array:
        return _build(target, array, [], [part(array.field(index)) for index, part in parts])

    return convert


def _plan_list(source: pa.DataType, target: pa.DataType, column: str) -> _Convert:
    items = _plan_field(source.value_field, target.value_type, f"{column}.element")

    def convert(array: pa.Array) -> pa.Array:
        if pa.types.is_fixed_size_list(source):
            size = source.list_size
            offsets: npt.NDArray[Any] = np.arange(len(array) + 1, dtype=np.int64) * size
            values = array.values.slice(array.offset * size, len(array) * size)
        else:
            offsets, first, count = _list_offsets(array)
            values = array.values.slice(first, count)
        return _build(target, array, [_offset_buffer(offsets, column)], [items(values)])

    return convert


def _plan_map(source: pa.DataType, target: pa.DataType, column: str) -> _Convert:
    keys = _plan_field(source.key_field, target.key_type, f"{column}.key")
    values = _plan_field(source.item_field, target.item_type, f"{column}.value")
    entries = pa.struct([target.key_field, target.item_field])

    def convert(array: pa.MapArray) -> pa.Array:
        offsets, first, count = _list_offsets(array)
        parts = [keys(array.keys.slice(first, count)), values(array.items.slice(first, count))]
        pairs = pa.Array.from_buffers(entries, count, [None], 0, children=parts)
        return _build(target, array, [_offset_buffer(offsets, column)], [pairs])

    return convert


def _list_offsets(array: pa.Array) -> tuple[npt.NDArray[Any], int, int]:
    """Return a list array's offsets minus the first one, the first offset, and the number of items."""
    offsets = array.offsets.to_numpy()
    first = int(offsets[0])
    return (offsets - first if first else offsets), first, int(offsets[-1]) - first


def _offset_buffer(offsets: npt.NDArray[Any], column: str) -> pa.Buffer:
    if offsets[-1] > _INT32_MAX:
        raise SchemaError(
            f"column {column!r}: a batch holds {offsets[-1]} list items, more than Spark can count; "
            "lower option 'batch_bytes'"
        )
    return pa.py_buffer(np.ascontiguousarray(offsets, dtype=np.int32))


def _build(
    target: pa.DataType, like: pa.Array, buffers: Sequence[pa.Buffer], children: Sequence[pa.Array]
) -> pa.Array:
    """Return an array of `target` with the length and the nulls of `like`."""
    validity = None
    if like.null_count:
        # The bitmap of a sliced array may start within a byte, so it is packed again.
        validity = like.buffers()[0] if like.offset == 0 else like.is_valid().buffers()[1]
    return pa.Array.from_buffers(
        target, len(like), [validity, *buffers], like.null_count, children=list(children)
    )


def _is_finer(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether both types are timestamps, or both durations, and the source uses a finer unit."""
    timestamps = pa.types.is_timestamp(source) and pa.types.is_timestamp(target)
    durations = pa.types.is_duration(source) and pa.types.is_duration(target)
    return bool((timestamps or durations) and _TICKS[source.unit] > _TICKS[target.unit])


def _floor_ticks(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Round 64-bit counts down to a coarser unit. Arrow's own cast rounds towards 0."""
    ticks = np.frombuffer(array.buffers()[1], dtype=np.int64)[array.offset : array.offset + len(array)]
    coarse_ticks = ticks // (_TICKS[array.type.unit] // _TICKS[target.unit])
    return _build(target, array, [pa.py_buffer(coarse_ticks)], [])


def _cast(array: pa.Array, target: pa.DataType, column: str) -> pa.Array:
    try:
        return array.cast(target)
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as error:
        raise SchemaError(
            f"column {column!r} has a value that Spark's {target} cannot hold: {error}"
        ) from None
