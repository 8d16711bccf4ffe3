"""Plans the change feed: creates the tasks that read the rows which each version of a table changed.

Rows have the columns of one version, the reference. To find these columns in an older version, the planner
walks back from the reference, version by version. A newer version must have the same columns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import InputPartition

from spark_lance.errors import SchemaError, VersionNotFoundError
from spark_lance.expressions.predicate import Condition, compile_predicate
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.blob_writer import has_blobs
from spark_lance.spark.options.option_fields import ReadOptions
from spark_lance.spark.options.option_values import Projection
from spark_lance.spark.scan.partitions import pack, row_bytes
from spark_lance.spark.schema.blobs import read_blobs
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.read_schema import find_column, narrow, resolve_projection, to_spark_schema
from spark_lance.spark.schema.types import arrow_schema, spark_type
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.fragment_rows import batch_without_columns
from spark_lance.table.reading.scan_task import ScanTask, rebatch
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import (
    ROW_OFFSET,
    filterable_schema,
    system_field,
    system_names,
)
from spark_lance.table.reading.version_changes import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    FEED_COLUMNS,
    INSERT,
    ChangedRows,
    ChangeTask,
    before_append,
    feed_field,
    find_changes,
)
from spark_lance.table.schema.history import OldColumn, Step, previous_columns
from spark_lance.table.versions.resolve import BranchReader

_FEED_TYPES = {
    CHANGE_TYPE: st.StringType(),
    COMMIT_VERSION: st.LongType(),
    COMMIT_TIMESTAMP: st.TimestampType(),
}


def inserted_schema(schema: Schema, projection: Projection) -> st.StructType:
    """Return the Spark schema of the rows that several versions inserted.

    Table columns are nullable, as older versions may lack them.

    Args:
        schema: the table's schema in the last version.
        projection: the columns to read with their types.

    Raises:
        SchemaError: a column does not exist, or Spark has no type for it.
    """
    fields = to_spark_schema(schema, projection)
    system = system_names(field.name for field in schema.fields)
    for field in fields:
        field.nullable = field.nullable or field.name not in system
    return fields


def changes_schema(schema: Schema, projection: Projection) -> st.StructType:
    """Return the Spark schema of changed rows: the columns of `inserted_schema`, and those of the feed.

    The three columns of the feed (change type, version, timestamp) come last, unless the projection names
    them.

    Args:
        schema: the table's schema.
        projection: the columns to read with their types. It can contain columns of the feed.

    Raises:
        SchemaError: a column does not exist, Spark has no type for it, or the table has a column with the
            name of a feed column.
    """
    reserved_names = [field.name for field in schema.fields if field.name.lower() in FEED_COLUMNS]
    if reserved_names:
        raise SchemaError(f"the table has a column {reserved_names[0]!r}, so its changes cannot be told")
    columns = projection.columns
    plain = None if columns is None else tuple(name for name in columns if name not in FEED_COLUMNS)
    table_fields = {
        field.name: field for field in inserted_schema(schema, replace(projection, columns=plain))
    }
    if ROW_OFFSET in table_fields:
        raise SchemaError(f"{ROW_OFFSET} counts the rows of one version: a change feed has none")
    feed_fields = {name: st.StructField(name, kind, False) for name, kind in _FEED_TYPES.items()}
    order = [*(columns or ()), *table_fields, *feed_fields]
    fields = {**table_fields, **feed_fields}
    # Requested names may differ from the table's names in case.
    names = [name if name in fields else find_column(schema, name).name for name in order]
    return st.StructType([fields[name] for name in dict.fromkeys(names)])


class ChangeColumns:
    """The requested columns of a read of changes, and the columns of its filter.

    Args:
        table: the schema of the reference version.
        projection: the Spark columns, in order.
        filter: an SQL condition on columns of the table, system columns and columns of the feed.
        feed: whether rows have the three columns of the feed (change type, version, timestamp).

    Attributes:
        names: the requested columns.
        schema: all columns that a task yields. Columns that only the filter needs come last.
        condition: the filter.
        blobs: the blob columns among the requested columns.

    Raises:
        SchemaError: columns do not exist, or have other types.
        ExpressionError: the filter does not fit the columns.
    """

    def __init__(
        self, table: Schema, projection: st.StructType, filter: str | None, *, feed: bool = True
    ) -> None:
        self._feed = FEED_COLUMNS if feed else ()
        plain = st.StructType([field for field in projection if field.name not in self._feed])
        table_names, fields = resolve_projection(table, plain)
        spelled = dict(zip(plain.names, table_names, strict=True))
        self.names = tuple(spelled.get(name, name) for name in projection.names)
        self._required = {spelled.get(field.name) for field in plain if not field.nullable}
        self.condition = self._condition(table, filter)
        read = self.condition.columns if self.condition else ()
        extra = [name for name in read if name not in self.names]
        narrowed = {field.name: field for field in fields}
        narrowed.update({field.name: field.as_descriptor() for field in table.fields if field.name in extra})
        self.blobs = tuple(field for field in table.fields if field.name in self.names and has_blobs(field))
        system = system_names(field.name for field in table.fields)
        self._system = [name for name in (*self.names, *extra) if name in system]
        self._narrowed = [replace(field, nullable=True) for field in narrowed.values()]
        whole = {field.name: field for field in table.fields}
        self.columns: list[OldColumn | None] = [OldColumn(whole[name]) for name in narrowed]
        self.takes_all = set(whole) == set(narrowed)
        self.schema = pa.schema([self._arrow(name) for name in (*self.names, *extra)])

    @property
    def fields(self) -> Sequence[Field]:
        """The table's fields among the columns."""
        return self._narrowed

    @property
    def system(self) -> Sequence[str]:
        """The system columns among them."""
        return self._system

    def at(
        self, columns: Sequence[OldColumn | None], version: int
    ) -> tuple[tuple[str, ...], tuple[Field, ...]]:
        """Return the column names, including system columns, and the fields for a scan of another version.

        Args:
            columns: the columns in that version, see `ChangeFeed.version_columns`.
            version: number of the version.

        Raises:
            SchemaError: the type of a column in that version cannot be read as the reference's type.
        """
        pairs = zip(self._narrowed, columns, strict=True)
        fields = [_past_field(field, column, version) for field, column in pairs if column is not None]
        return (*(field.name for field in fields), *self._system), tuple(fields)

    def match_by_name(self, table: Schema) -> list[OldColumn | None] | str:
        """Find the columns by name in a version newer than the reference.

        Returns:
            The columns in that version, or a text that says how they differ.
        """
        columns: list[OldColumn | None] = []
        there = {field.name: field for field in table.fields}
        for column in self.columns:
            assert column is not None  # these are columns of the version itself
            other = there.pop(column.field.name, None)
            if other is None:
                return f"column {column.field.name!r} was dropped or renamed"
            was, now = column.field.arrow_type(), other.arrow_type()
            if was != now:
                return f"column {column.field.name!r} was {was}, and is {now}"
            columns.append(OldColumn(other, other.id == column.field.id))
        if there and self.takes_all:
            return f"column {next(iter(there))!r} was added"
        return self.columns if columns == self.columns else columns

    def _arrow(self, name: str) -> pa.Field:
        if name in self._feed:
            return feed_field(name)
        if name in self._system:
            return system_field(name)
        field = next(field for field in self._narrowed if field.name == name).arrow_field()
        return field.with_nullable(field.name not in self._required)

    def _condition(self, table: Schema, filter: str | None) -> Condition | None:
        if filter is None:
            return None
        return compile_predicate(filter, pa.schema([*filterable_schema(table), *map(feed_field, self._feed)]))


def _past_field(field: Field, column: OldColumn, version: int) -> Field:
    """Return the field to read in an older version, with its name in the reference."""
    if column.is_same:
        return field
    past = column.field
    now, then = field.arrow_type(), past.arrow_type()
    if pa.types.is_nested(now) and pa.types.is_nested(then):
        try:
            past = narrow(past, spark_type(now))
        except KeyError:
            raise _type_changed_error(field, past, version) from None
    if past.arrow_type() != now and (pa.types.is_nested(now) or pa.types.is_nested(then)):
        raise _type_changed_error(field, column.field, version)
    return replace(past, name=field.name, nullable=True)


def _type_changed_error(now: Field, then: Field, version: int) -> SchemaError:
    return SchemaError(
        f"column {now.name!r} is {now.arrow_type()}, but was {then.arrow_type()} in version {version}: read "
        f"the changes up to version {version} and those after it by themselves"
    )


_MAX_CACHED_VERSIONS = 1024
_MAX_CACHED_CHANGES = 100_000
_EPOCH_MICROS = 10**6


@dataclass(frozen=True)
class _VersionScan:
    """The parts of a scan of a version that do not depend on the rows."""

    names: tuple[str, ...]
    fields: tuple[Field, ...]
    bases: Bases
    stable: bool
    micros: int


class ChangeFeed:
    """The changes of versions of a table, as tasks.

    Args:
        walk: the versions.
        reference: the version that defines the columns.
        columns: the columns.
        exact: always trace the columns of an older version step by step. Otherwise a version whose fields
            equal the reference's fields is assumed to have had the same columns ever since.
    """

    def __init__(
        self, walk: BranchReader, reference: Manifest, columns: ChangeColumns, *, exact: bool
    ) -> None:
        self.walk = walk
        self._reference = reference
        self._columns = columns
        self._exact = exact
        self._columns_by_version: dict[int, list[OldColumn | None]] = {reference.version: columns.columns}
        self._own = columns.at(columns.columns, reference.version)
        self._changes: OrderedDict[int, list[ChangedRows]] = OrderedDict()
        self._cached_changes = 0
        self._version_scans: OrderedDict[int, _VersionScan] = OrderedDict()

    def changes(self, version: int) -> list[ChangedRows]:
        """Return the rows that a version changed.

        Raises:
            VersionNotFoundError: the version was cleaned up, or it did more than append and the previous
                version was cleaned up.
            FormatError, UnsupportedFormatError: see `find_changes`.
        """
        if version not in self._changes:
            walk = self.walk
            new, transaction = walk.manifest(version), walk.transaction(version)
            try:
                old = walk.before(version)
            except VersionNotFoundError:
                if transaction.name != "append":
                    raise
                old = before_append(new, transaction)
            at = self._snapshot(version)
            changed_rows = find_changes(None if old is None else at.at(old), at, transaction)
            self._changes[version] = changed_rows
            self._cached_changes += len(changed_rows)
            # Cache this now, while the manifest is loaded.
            self._version_scan(version)
            while len(self._changes) > _MAX_CACHED_VERSIONS or self._cached_changes > _MAX_CACHED_CHANGES:
                self._cached_changes -= len(self._changes.popitem(last=False)[1])
            return changed_rows
        return self._changes[version]

    def rows(self, version: int) -> list[ChangedRows]:
        """Return all rows of a version, as if it had inserted them."""
        at = self._snapshot(version)
        return [
            ChangedRows(INSERT, fragment.SerializeToString(), None, None, at.live_rows(fragment))
            for fragment in at.fragments
        ]

    def _snapshot(self, version: int) -> Snapshot:
        return Snapshot(self.walk.table, self.walk.manifest(version))

    def task(self, version: int, change: ChangedRows) -> ChangeTask:
        """Return the task that reads some rows that a version changed.

        Raises:
            SchemaError: the version's columns cannot be read as the reference's columns.
        """
        after, walk = self._version_scan(version), self.walk
        version_scan = self._version_scan(version - 1) if change.is_before else after
        scan = ScanTask(
            walk.table,
            version_scan.names,
            version_scan.fields,
            change.fragment,
            version_scan.stable,
            version_scan.bases,
        )
        return ChangeTask(scan, change, version, after.micros, self._columns.schema)

    def _version_scan(self, version: int) -> _VersionScan:
        if version not in self._version_scans:
            at = self._snapshot(version)
            columns = self.version_columns(version)
            own = columns is self._columns.columns
            names, fields = self._own if own else self._columns.at(columns, version)
            timestamp = at.manifest.message.timestamp
            micros = timestamp.seconds * _EPOCH_MICROS + timestamp.nanos // 1000
            self._version_scans[version] = _VersionScan(
                names, fields, at.bases, at.manifest.uses_stable_row_ids, micros
            )
            if len(self._version_scans) > _MAX_CACHED_VERSIONS:
                self._version_scans.popitem(last=False)
        return self._version_scans[version]

    def version_columns(self, version: int) -> list[OldColumn | None]:
        """Return the columns as they are in a version; None for a column that the version lacks.

        Raises:
            SchemaError: the version is newer than the reference, and its columns differ.
        """
        if version in self._columns_by_version:
            return self._columns_by_version[version]
        there = self.walk.manifest(version)
        if version > self._reference.version:
            columns = self._columns.match_by_name(there.schema)
            if isinstance(columns, str):
                raise SchemaError(
                    f"the columns of {self.walk.root} changed in version {version}: {columns}. "
                    "Load the stream again and start it with the same checkpoint to go on"
                )
            self._columns_by_version[version] = columns
            if len(self._columns_by_version) > _MAX_CACHED_VERSIONS:
                # A stream does not read a version again.
                self._columns_by_version.pop(min(self._columns_by_version.keys() - {self._reference.version}))
        elif not self._exact and there.message.fields == self._reference.message.fields:
            self._columns_by_version[version] = self._columns.columns
        else:
            self._walk_back(version)
        return self._columns_by_version[version]

    def _walk_back(self, version: int) -> None:
        newer = min(number for number in self._columns_by_version if number > version)
        for later in range(newer, version, -1):
            new, old = self.walk.manifest(later), self.walk.manifest(later - 1)
            step = Step.of(old, new, self.walk.transaction(later))
            self._columns_by_version[later - 1] = previous_columns(self._columns_by_version[later], step)


class TaskColumns(NamedTuple):
    """The part of a read's columns that a task needs: the filter, and which columns are blobs."""

    condition: Condition | None
    blobs: tuple[Field, ...]

    @classmethod
    def of(cls, columns: ChangeColumns) -> TaskColumns:
        """Return the part of `columns` that a task needs."""
        return cls(columns.condition, columns.blobs)


@dataclass(frozen=True)
class ChangePartition(InputPartition):
    """The input of one Spark task.

    Attributes:
        tasks: the tasks, each with changed rows of one fragment.
    """

    tasks: tuple[ChangeTask, ...]


def pack_changes(
    tasks: Sequence[ChangeTask],
    fields: Sequence[Field],
    reference: Manifest,
    options: ReadOptions,
) -> list[ChangePartition]:
    """Pack tasks into partitions of about `partition_bytes`, see `pack`.

    Args:
        tasks: the tasks.
        fields: the table's fields that the tasks read.
        reference: the version that has these fields.
        options: options of the read.
    """
    names = [field.name for field in fields]
    width = row_bytes(reference.schema, [task.scan for task in tasks], names, fields)

    def count_rows(task: ChangeTask) -> int:
        return task.change.count

    def find_span(task: ChangeTask) -> tuple[int, int]:
        scan = task.scan
        return 0, physical_rows(scan.table, scan.message, scan.bases)

    def cut(task: ChangeTask, span: tuple[int, int]) -> ChangeTask:
        return replace(task, scan=replace(task.scan, span=span), span=span)

    packed = pack(tasks, count_rows, find_span, cut, width, options.partition_bytes)
    return [ChangePartition(items) for items in packed]


def read_changes(
    partition: InputPartition, projection: st.StructType, columns: TaskColumns, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in the Arrow types that Spark expects.

    Args:
        partition: a `ChangePartition`. A partition of another class has no rows.
        projection: the schema that Spark expects.
        columns: the filter and the blob columns.
        options: options of the read.

    Raises:
        SchemaError, FormatError, UnsupportedFormatError, ExpressionError: see `ChangeTask.tables`.
    """
    if not isinstance(partition, ChangePartition):
        return
    target = arrow_schema(projection)
    for task in partition.tasks:
        convert: BatchConverter | None = None
        tables = task.tables(options.batch_bytes, columns.condition)
        for batch in rebatch(tables, options.batch_size):
            if not target.names:
                yield batch_without_columns(batch.num_rows)
                continue
            # Columns that only the condition needs come after the requested columns.
            visible = batch.select(range(len(target.names)))
            parts: Iterable[pa.RecordBatch] = [visible]
            if columns.blobs:
                scan = task.scan
                bases = scan.bases or Bases(scan.table)
                limit = options.batch_bytes
                parts = read_blobs(visible, columns.blobs, projection, scan.message, bases, limit)
            for part in parts:
                convert = convert or BatchConverter.plan(part.schema, target)
                yield convert(part)
