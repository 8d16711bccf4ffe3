"""Find the rows of a table that are in the partitions of new rows: a dynamic overwrite deletes them.

Null is a separate partition. If another writer changes rows of these partitions between the version that was
read and the commit, the overwrite fails, so that no rows are lost silently. Concurrent changes in other
partitions do not conflict.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import IncompatibleConflictError
from spark_lance.proto import table_pb2
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.partition_bounds import (
    FieldBounds,
    Value,
    partition_display,
    single_partition,
    stored_value,
)
from spark_lance.table.format.partitions import PartitionSpec, partition_texts
from spark_lance.table.format.row_keys import KeyIndex
from spark_lance.table.format.row_set import Offsets, RowSet, address_offsets
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.rows.key_lookup import KeyFilter, key_filter

_WINDOW_BYTES = 64 << 20
# Identifies filters of partitions, which are only compared with each other.
_PROBABILITY = 0.00058
_MAX_INT32 = 0x7FFFFFFF
_MAX_SHOWN_PARTITIONS = 3
_MAX_SHOWN_CHARS = 60


class PartitionKeys:
    """A set of partitions.

    Args:
        spec: the partition spec.
        values: the partitions, as returned by `PartitionSpec.values`.
    """

    def __init__(self, spec: PartitionSpec, values: pa.Table) -> None:
        self.spec = spec
        self.rows = distinct_partitions(values)
        self._types = self.rows.schema
        self._index = KeyIndex(_null_safe(self.rows)) if self.rows.num_rows else None
        columns = [[_bound(value) for value in column] for column in self.rows.columns]
        self._ordinals = set(zip(*columns, strict=True))

    def mask(self, values: pa.Table) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows that are in one of the partitions."""
        if self._index is None:
            return np.zeros(values.num_rows, np.bool_)
        typed = pa.table([_cast(values[name], self._types.field(name).type) for name in self._types.names],
                         names=self._types.names)  # fmt: skip
        result: npt.NDArray[np.bool_] = self._index.lookup(_null_safe(typed)) >= 0
        return result

    def has(self, bounds: Sequence[FieldBounds]) -> bool:
        """Return whether the set contains the partition with these bounds of its fields."""
        return tuple(each.low for each in bounds) in self._ordinals

    def __len__(self) -> int:
        return int(self.rows.num_rows)


def _bound(value: pa.Scalar) -> Value | None:
    """Return a value as stored in bounds; None also for text that is not valid UTF-8, which has no bounds."""
    try:
        return stored_value(value)
    except UnicodeDecodeError:
        return None


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == kind else column.cast(kind)


def distinct_partitions(values: pa.Table) -> pa.Table:
    """Return the distinct partitions."""
    return values.group_by(values.column_names, use_threads=False).aggregate([])


def _null_safe(values: pa.Table) -> list[pa.ChunkedArray]:
    """Return columns without nulls that are equal if the values are; null equals null, -0.0 equals 0.0."""
    columns = []
    for column in values.columns:
        kind = column.type
        if pa.types.is_floating(kind):
            column = pc.add(column.cast(pa.float64()), pa.scalar(0.0, pa.float64()))
        elif pa.types.is_boolean(kind) or pa.types.is_null(kind):
            column = column.cast(pa.int8())
        columns.append(pc.fill_null(column, _fill_value(column.type)))
        columns.append(column.is_null().cast(pa.int8()))
    return columns


def _fill_value(kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar("", kind)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar(b"", kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.scalar(bytes(kind.byte_width), kind)
    if pa.types.is_date32(kind) or pa.types.is_decimal(kind):
        return pa.scalar(0, kind)
    return pa.scalar(0, pa.int64()).cast(kind)


@dataclass(frozen=True)
class PartitionMatch:
    """Finds the rows of a table that are in the same partition as a new row. Can be pickled.

    Attributes:
        spec: the partition spec, bound to the table's columns.
    """

    spec: PartitionSpec

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The columns of the table that determine the partition."""
        return tuple(self.spec.sources())

    def read_rows(self, at: Snapshot, fragments: Sequence[table_pb2.DataFragment]) -> pa.Table:
        """Return the distinct partitions of new rows."""
        scan = at.scan(list(self.table_columns), fragments=fragments)
        parts = [distinct_partitions(self.spec.values(rows)) for rows in scan.tables()]
        empty = self.spec.values(scan.arrow_schema.empty_table())
        return distinct_partitions(pa.concat_tables([empty, *parts], promote_options="permissive"))

    def find(self, at: Snapshot, partitions: pa.Table) -> RowChanges:
        """Return the rows of a version that are in one of the partitions."""
        return RowChanges(at, find_partitions(at, PartitionKeys(self.spec, partitions)))

    def inserted_keys(self, partitions: pa.Table) -> KeyFilter:
        """Return the filter of the partitions; it makes two overwrites of the same partition conflict."""
        ids = [-1 if field.source_id is None else field.source_id for field in self.spec.fields]
        text = repr([(field.transform, field.width) for field in self.spec.fields])
        columns = [partition_texts(column) for column in partitions.columns]
        result = key_filter([*ids, zlib.crc32(text.encode()) & _MAX_INT32], columns)
        result.bloom.probability = _PROBABILITY
        return result

    def check_unchanged(self, first: RowSet, now: RowSet, at: Snapshot, partitions: pa.Table) -> None:
        """Check that the rows of the partitions are the same as in the version that was read.

        Args:
            first: the rows of the partitions in the version that was read.
            now: the rows of the partitions in `at`.
            at: the newest version.
            partitions: the partitions, for the message.

        Raises:
            IncompatibleConflictError: another writer changed rows of the partitions.
        """
        before, after = ({number: rows.offsets(number).tolist() for number in rows} for rows in (first, now))
        if before == after:
            return
        names = "; ".join(
            ", ".join(f"{name}={_excerpt(partitions[name][row])}" for name in partitions.column_names)
            for row in range(min(len(partitions), _MAX_SHOWN_PARTITIONS))
        )
        more = (
            ""
            if len(partitions) <= _MAX_SHOWN_PARTITIONS
            else f" and {len(partitions) - _MAX_SHOWN_PARTITIONS} more"
        )
        raise IncompatibleConflictError(
            f"version {at.version} of {at.root} changed rows of a partition that this statement overwrites "
            f"({names}{more}), and nothing was written: run the statement again"
        )


def _excerpt(value: pa.Scalar) -> str:
    """Return a value as text for a message: one line, and not long."""
    text = partition_display(value)
    if text is None:
        return "null"
    short = text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
    return short if short.isprintable() else repr(short)


def find_partitions(at: Snapshot, keys: PartitionKeys) -> RowSet:
    """Return the rows of a version that are in some partitions.

    A file is not opened if its name shows that all its rows are in the same partition.
    """
    rows: dict[int, Offsets] = {}
    if not len(keys):
        return RowSet.from_offsets(rows)
    mixed = []
    for fragment in at.fragments:
        bounds = single_partition(keys.spec, fragment)
        if bounds is None:
            mixed.append(fragment)
        elif keys.has(bounds):
            total = at.physical_rows(fragment)
            live = np.delete(np.arange(total, dtype=np.uint32), at.deletions(fragment))
            if len(live):
                rows[fragment.id] = live
    scan = at.scan([*keys.spec.sources(), ROW_ADDRESS], fragments=mixed)
    for task in scan.tasks():
        parts = [np.empty(0, np.uint32)]
        for table in task.tables(_WINDOW_BYTES):
            matches = keys.mask(keys.spec.values(table))
            parts.append(address_offsets(table[ROW_ADDRESS].to_numpy()[matches]))
        offsets = np.concatenate(parts)
        if len(offsets):
            rows[task.message.id] = np.unique(offsets)
    return RowSet.from_offsets(rows)
