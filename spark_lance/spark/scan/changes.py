"""Batch reads of the rows that each version of a range changed, in one of two kinds:

    change feed      all changed rows, with the type, version and time of each change
    inserted rows    with the option `insertedAfter`, as Iceberg's incremental appends: versions that updated
                     or deleted rows are skipped, as in a stream with the option `skipChangeCommits`

When the driver plans, it compares every version of the range with the previous version. The tasks then read
the changed rows; they read deleted rows from the files of the previous version. Rows of one version have no
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_lance.errors import OptionError, VersionNotFoundError
from spark_lance.io.store import open_store
from spark_lance.spark.options.option_fields import OPTIONS, ReadOptions, options_that_choose
from spark_lance.spark.scan.change_tasks import (
    ChangeColumns,
    ChangeFeed,
    TaskColumns,
    changes_schema,
    inserted_schema,
    pack_changes,
    read_changes,
)
from spark_lance.spark.scan.rows import pin
from spark_lance.spark.worker.failures import one_line
from spark_lance.spark.worker.process import keep_worker_ready
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.version_changes import INSERT
from spark_lance.table.versions.resolve import (
    BranchReader,
    VersionRef,
    oldest_version_since,
    version_as_of_time,
)

_PREFETCHED_VERSIONS = 32


def describe(options: ReadOptions, ref: VersionRef | None) -> tuple[VersionRef, st.StructType]:
    """Return the newest version that the read sees, and the Spark schema of the requested columns.

    The columns are those of the last version of the range.

    Raises:
        OptionError: the options name one version, not a range.
        VersionNotFoundError: a version of the range does not exist.
        TableNotFoundError, SchemaError, FormatError, UnsupportedFormatError: see `read.describe`.
    """
    check_no_version(options)
    keep_worker_ready()
    ref = pin(options) if ref is None else ref
    store, _ = open_store(options.path, options.storage)
    walk = BranchReader(TableRef(store, ref.root))
    manifest = walk.manifest(_last_version(walk, options, ref))
    read_schema = changes_schema if options.insertedAfter is None else inserted_schema
    return ref, read_schema(manifest.schema, options.projection)


def reader(options: ReadOptions, schema: st.StructType, ref: VersionRef | None) -> ChangedRowsReader:
    """Return the reader of the columns of `schema`. Spark applies filters itself."""
    keep_worker_ready()
    return ChangedRowsReader(options, schema, ref)


def check_no_version(options: ReadOptions) -> None:
    """Check that no option names one version or some of its fragments, because a range is read.

    Raises:
        OptionError: such an option is set.
    """
    if options.fragments is not None:
        raise OptionError("option 'fragments' names fragments of one version: changes are read between two")
    for name in options_that_choose("version"):
        if getattr(options, name) is not None:
            names = " or ".join((name, *OPTIONS[name].aliases))
            raise OptionError(
                f"option {name!r} names one version ({names}): changes are read between two of them, "
                "write startingVersion or startingTimestamp"
            )


class ChangedRowsReader(DataSourceReader):
    """Reads the rows that the versions of a range changed, or only the rows that they inserted.

    Args:
        options: options of the read.
        schema: the columns, in this order.
        ref: the newest version that the read sees.

    Raises:
        OptionError: the options have no start, two starts, or an end before the start.
        VersionNotFoundError: versions of the range do not exist, or were cleaned up.
        SchemaError, ExpressionError: see `ChangeColumns`.
    """

    def __init__(self, options: ReadOptions, schema: st.StructType, ref: VersionRef | None = None) -> None:
        check_no_version(options)
        self.ref = pin(options) if ref is None else ref
        store, _ = open_store(options.path, options.storage)
        self._walk = BranchReader(TableRef(store, self.ref.root))
        self._first, self._last = _range(self._walk, options, self.ref)
        self._options = options
        self._schema = schema
        self._reference = self._walk.manifest(self._last)
        feed = options.insertedAfter is None
        self._columns = ChangeColumns(self._reference.schema, schema, options.filter, feed=feed)
        self._shared = TaskColumns.of(self._columns)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_options", "_schema", "_shared")}

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions: changed rows of fragments. Small fragments share a partition."""
        if self._first > self._last:
            return []
        self._walk.require(self._first, self._last)
        feed = ChangeFeed(self._walk, self._reference, self._columns, exact=True)
        tasks = []
        # From the newest version to the oldest, because the columns are traced in this direction.
        for version in range(self._last, self._first - 1, -1):
            if (self._last - version) % _PREFETCHED_VERSIONS == 0:
                self._walk.prefetch(range(version, max(0, version - _PREFETCHED_VERSIONS - 1), -1))
            changes = feed.changes(version)
            if self._options.insertedAfter is None or all(change.kind == INSERT for change in changes):
                tasks += [feed.task(version, change) for change in reversed(changes)]
        return pack_changes(tasks[::-1], self._columns.fields, self._reference, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in batches of at most `batch_bytes` (about) and `batch_size` rows."""
        with one_line():
            yield from read_changes(partition, self._schema, self._shared, self._options)


def _range(walk: BranchReader, options: ReadOptions, ref: VersionRef) -> tuple[int, int]:
    """Return the first and the last version to read. If no version is in the range, the last is smaller."""
    if options.insertedAfter is not None:
        last = _last_version(walk, options, ref)
        if options.insertedAfter > last:
            raise OptionError(f"insertedAfter = {options.insertedAfter} is after the last version, {last}")
        return options.insertedAfter + 1, last
    start, moment = options.startingVersion, options.startingTimestamp
    if (start is None) == (moment is None):
        raise OptionError("a change feed needs one of the options startingVersion and startingTimestamp")
    if start == "latest":
        raise OptionError("startingVersion 'latest' is for streams: a change feed needs a number")
    last = _last_version(walk, options, ref)
    if moment is not None:
        first = oldest_version_since(walk.table, moment)
        if first > ref.version:
            raise VersionNotFoundError(f"version {first}, the first since {moment}, came after this read")
        return first, last
    # Lance numbers versions from 1, Delta from 0.
    first = max(1, int(start or 0))
    if first > ref.version:
        raise VersionNotFoundError(f"{walk.root} has no version {first} yet; its newest is {ref.version}")
    if first > last:
        raise OptionError(f"the first version, {first}, is after the last version, {last}: swap them")
    return first, last


def _last_version(walk: BranchReader, options: ReadOptions, ref: VersionRef) -> int:
    """Return the last version of a range, inclusive.

    Raises:
        OptionError: the options define it twice.
        VersionNotFoundError: the version does not exist.
    """
    if options.endingVersion is not None and options.endingTimestamp is not None:
        raise OptionError("give one of the options endingVersion and endingTimestamp")
    if options.endingTimestamp is not None:
        return min(version_as_of_time(walk.table, options.endingTimestamp), ref.version)
    last = options.endingVersion
    if last is not None and last > ref.version:
        raise VersionNotFoundError(f"{walk.root} has no version {last} yet; its newest is {ref.version}")
    return ref.version if last is None else last
