"""The partitions of a version: their rows, files and last changes.

A file is not opened if its name shows that all its rows are in the same partition. In other files, only the
partition columns are read. A file with rows of several partitions counts for each of them, with its bytes
split in proportion to the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.proto import table_pb2
from spark_lance.table.format.partition_bounds import FieldBounds, partition_display, single_partition
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.metadata.columns import TEXT_MAP, TIME, Column, MetadataTable, history_version
from spark_lance.table.metadata.versions import VersionRow, version_rows, version_time
from spark_lance.table.reading.snapshot import Snapshot


def partition_counts(at: Snapshot, spec: PartitionSpec) -> pa.Table:
    """Return the partitions of a version, with numbers of rows (`record_count`) and fragments (`file_count`).

    The other columns have the names of the partition fields.
    """
    empty = spec.values(at.scan(spec.sources()).arrow_schema.empty_table())
    parts = [_count_partitions(empty), *(counts for _, counts in _fragment_counts(at, spec, empty))]
    with_files = [
        part.append_column("file_count", pa.array(np.ones(part.num_rows, np.int64))) for part in parts
    ]
    counts = _sum_counts(pa.concat_tables(with_files, promote_options="permissive"), empty.column_names)
    return counts.filter(pc.greater(counts["record_count"], 0))


def _fragment_counts(
    at: Snapshot, spec: PartitionSpec, empty: pa.Table
) -> Iterator[tuple[table_pb2.DataFragment, pa.Table]]:
    """Yield the fragments that have rows, each with its partitions and their numbers of rows."""
    for fragment in at.fragments:
        bounds = single_partition(spec, fragment)
        if bounds is not None:
            values = [
                _scalar_column(each, column.type) for each, column in zip(bounds, empty.columns, strict=True)
            ]
            counts = [*values, pa.array([at.live_rows(fragment)])]
            yield fragment, pa.Table.from_arrays(counts, names=[*empty.column_names, "record_count"])
            continue
        scan = at.scan(spec.sources(), fragments=[fragment])
        tables = [_count_partitions(spec.values(rows)) for rows in scan.tables() if rows.num_rows]
        if tables:
            yield (
                fragment,
                _sum_counts(pa.concat_tables(tables, promote_options="permissive"), empty.column_names),
            )


def fragment_partition(
    spec: PartitionSpec, snapshot: Snapshot, fragment: table_pb2.DataFragment
) -> dict[str, str | None] | None:
    """Return the values of a fragment's partition, as text; None unless its files show a single partition."""
    if not spec:
        return {}
    bounds = single_partition(spec, fragment)
    if bounds is None:
        return None
    empty = spec.values(snapshot.scan(spec.sources()).arrow_schema.empty_table())
    return {
        name: partition_display(_scalar_column(each, column.type)[0])
        for name, each, column in zip(empty.column_names, bounds, empty.columns, strict=True)
    }


def _scalar_column(bounds: FieldBounds, kind: pa.DataType) -> pa.Array:
    value = bounds.low
    if value is not None and (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
        divisor = {"s": 1_000_000, "ms": 1000}.get(getattr(kind, "unit", ""), 1)
        return pa.array([int(value) // divisor], width).view(kind)
    return pa.array([value], kind)


def _count_partitions(values: pa.Table) -> pa.Table:
    ones = pa.array(np.ones(values.num_rows, np.int64))
    return _sum_counts(values.append_column("record_count", ones), values.column_names)


def _sum_counts(table: pa.Table, names: Sequence[str]) -> pa.Table:
    numbers = [name for name in ("record_count", "file_count") if name in table.column_names]
    grouped = table.group_by(list(names), use_threads=False).aggregate([(name, "sum") for name in numbers])
    return grouped.rename_columns([name.removesuffix("_sum") if name not in names else name
                                   for name in grouped.column_names])  # fmt: skip


@dataclass
class _ChangeHistory:
    """Finds the versions that last changed fragments; old versions are read on the first request."""

    snapshot: Snapshot
    _last_changes: dict[int, VersionRow | None] | None = None

    def last_change(self, numbers: frozenset[int]) -> VersionRow | None:
        """Return the newest version that changed one of some fragments; None if one of them is unknown."""
        if self._last_changes is None:
            self._last_changes = self._read()
        rows = [self._last_changes.get(number) for number in numbers]
        recorded = [row for row in rows if row is not None]
        complete = bool(recorded) and len(recorded) == len(rows)
        return max(recorded, key=lambda row: row.number) if complete else None

    def _read(self) -> dict[int, VersionRow | None]:
        pending = {fragment.id: _identity(fragment) for fragment in self.snapshot.fragments}
        result: dict[int, VersionRow | None] = dict.fromkeys(pending)
        for row in version_rows(self.snapshot):
            older = None if row.older is None else row.older.manifest
            if (row.older is None and row.number > 1) or (row.older is not None and older is None):
                break
            fragments = () if older is None else older.fragments
            before = {fragment.id: _identity(fragment) for fragment in fragments}
            for number in [number for number, files in pending.items() if before.get(number) != files]:
                result[number] = row
                del pending[number]
            if not pending:
                break
        return result


def _identity(fragment: table_pb2.DataFragment) -> tuple[Any, ...]:
    return (
        tuple(file.path for file in fragment.files),
        fragment.deletion_file.SerializeToString() if fragment.HasField("deletion_file") else b"",
    )


@dataclass
class _Partition:
    """A partition of a version; a partition without values is the whole table."""

    history: _ChangeHistory
    values: Mapping[str, str | None]
    rows: int = 0
    files: int = 0
    size: float | None = 0
    deleted: int = 0
    deletion_files: int = 0
    fragments: set[int] = field(default_factory=set)

    def add(self, snapshot: Snapshot, fragment: table_pb2.DataFragment, rows: int, total: int) -> None:
        """Add `rows` of the `total` live rows of a fragment."""
        share = rows / total if total else 1.0
        sizes = [file.file_size_bytes for file in fragment.files]
        self.rows += rows
        self.files += len(fragment.files)
        self.size = None if self.size is None or 0 in sizes else self.size + share * sum(sizes)
        if fragment.HasField("deletion_file"):
            # The partition of deleted rows is known only if all rows are in the same partition.
            self.deleted += snapshot.physical_rows(fragment) - total if rows == total else 0
            self.deletion_files += 1
        self.fragments.add(fragment.id)

    @property
    def last_change(self) -> VersionRow | None:
        return self.history.last_change(frozenset(self.fragments))


def _partitions(snapshot: Snapshot) -> Iterator[_Partition]:
    spec = PartitionSpec.of_config(snapshot.manifest.config).present(snapshot.schema)
    history = _ChangeHistory(snapshot)
    whole = _Partition(history, {})
    if not spec:
        for fragment in snapshot.fragments:
            rows = snapshot.live_rows(fragment)
            whole.add(snapshot, fragment, rows, rows)
        yield whole
        return
    partitions: dict[tuple[str | None, ...], _Partition] = {}
    names = [each.name for each in spec.fields]
    empty = spec.values(snapshot.scan(spec.sources()).arrow_schema.empty_table())
    for fragment, counts in _fragment_counts(snapshot, spec, empty):
        total = snapshot.live_rows(fragment)
        for place, count in enumerate(counts["record_count"].to_pylist()):
            if count:
                key = tuple(partition_display(counts[name][place]) for name in names)
                partition = partitions.setdefault(
                    key, _Partition(history, dict(zip(names, key, strict=True)))
                )
                partition.add(snapshot, fragment, count, total)
    yield from (partitions[key] for key in sorted(partitions, key=_order))


def _order(key: tuple[str | None, ...]) -> list[tuple[bool, str]]:
    return [(text is not None, text or "") for text in key]


def _updated_at(row: _Partition) -> datetime | None:
    return None if row.last_change is None else version_time(row.last_change)


def _updated_by(row: _Partition) -> int | None:
    return None if row.last_change is None else history_version(row.last_change.number)


PARTITIONS = MetadataTable(
    (
        Column(
            "partition",
            TEXT_MAP,
            lambda row: row.values,
            "values of the partition fields",
        ),
        Column("spec_id", pa.int32(), lambda row: 0, "always 0"),
        Column("record_count", pa.int64(), lambda row: row.rows, "live rows"),
        Column("file_count", pa.int32(), lambda row: row.files, "data files with its rows"),
        Column(
            "total_data_file_size_in_bytes",
            pa.int64(),
            lambda row: None if row.size is None else round(row.size),
            "size of its data files; of shared files by share of rows",
        ),
        Column(
            "position_delete_record_count",
            pa.int64(),
            lambda row: row.deleted,
            "deleted rows in files of this partition only",
        ),
        Column(
            "position_delete_file_count",
            pa.int32(),
            lambda row: row.deletion_files,
            "deletion files",
        ),
        Column("equality_delete_record_count", pa.int64(), lambda row: 0, "always 0"),
        Column("equality_delete_file_count", pa.int32(), lambda row: 0, "always 0"),
        Column(
            "last_updated_at",
            TIME,
            _updated_at,
            "when its files last changed",
        ),
        Column("last_updated_snapshot_id", pa.int64(), _updated_by, "version that last changed its files"),
    ),
    _partitions,
    reads=True,
)
