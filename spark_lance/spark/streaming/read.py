"""Tables as streams: the changes of new versions become micro-batches.

A stream begins with all rows of the newest version, unless an option defines the start. It continues with
the changes of later versions: inserted rows, or all changes with `readChangeFeed`. Spark keeps one reader per
query in a process of the driver. It calls this reader for the end of the next batch (`latestOffset`) and for
its tasks (`partitions`). Spark sends another reader, created from the same options, to the tasks (`read`).

Spark 4.0 and 4.1 request offsets without the position of the stream, so a batch contains all new data.

The offsets of a stream are positions. The index of a position counts items: in a snapshot its fragments,
otherwise the `ChangedRows` of a version in the order of `find_changes`. Spark's checkpoint stores a position
as

    {"format": 1, "version": 7, "index": 0, "snapshot": false, "commit": "6-<uuid>.txn"}
        all versions up to 7 have been read, and the first 0 changes of version 8
    {"format": 1, "version": 7, "index": 3, "snapshot": true, "commit": "6-<uuid>.txn"}
        the first 3 fragments of version 7 have been read, with all their rows

`commit` is the file name of the transaction that created the version. It detects that another table has
replaced the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_lance.errors import FormatError, OptionError, VersionNotFoundError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.spark.base.compat import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from spark_lance.spark.options.option_fields import ReadOptions
from spark_lance.spark.scan.change_tasks import (
    ChangeColumns,
    ChangeFeed,
    TaskColumns,
    pack_changes,
    read_changes,
)
from spark_lance.spark.scan.changes import check_no_version
from spark_lance.spark.scan.rows import pin
from spark_lance.spark.worker.failures import one_line
from spark_lance.spark.worker.process import keep_worker_ready
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.version_changes import DELETE, INSERT, POSTIMAGE, ChangedRows
from spark_lance.table.versions.resolve import BranchReader, VersionRef, oldest_version_since
from spark_lance.table.versions.versions import latest_version

_FORMAT = 1
# A batch spans at most this many versions: even versions without changes cost a read of their manifests.
_MAX_VERSIONS = 1000


@dataclass(frozen=True)
class Position:
    """The position up to which a stream has read, see the module's docstring."""

    version: int
    index: int = 0
    snapshot: bool = False
    commit: str = ""

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Position:
        """Return the position in an offset of a checkpoint.

        Raises:
            FormatError: the offset is damaged, or a release with another format wrote it.
        """
        if offset.get("format") != _FORMAT:
            raise FormatError(f"the checkpoint holds the offset {offset}, which this release does not know")
        try:
            numbers = int(offset["version"]), int(offset["index"])
            return cls(*numbers, bool(offset["snapshot"]), str(offset["commit"]))
        except (KeyError, TypeError, ValueError):
            raise FormatError(f"the checkpoint holds the damaged offset {offset}") from None

    def offset(self) -> dict[str, Any]:
        """Return the position as the offset that Spark stores."""
        return {"format": _FORMAT, **asdict(self)}


class Budget:
    """The remaining budget of one micro-batch.

    Args:
        options: options of the stream; None for no limits.
    """

    def __init__(self, options: ReadOptions | None) -> None:
        self._versions = None if options is None else _MAX_VERSIONS
        self._files = None if options is None else options.maxFilesPerTrigger
        self._rows = None if options is None else options.maxRowsPerTrigger
        self._bytes = None if options is None else options.maxBytesPerTrigger
        self._has_changes = False

    def take(self, changes: Sequence[ChangedRows]) -> bool:
        """Charge changed rows to the budget, and return whether they fit. The first ones always fit."""
        if not changes:
            return True
        rows = sum(change.count for change in changes)
        byte_count = sum(_stored_bytes(change) for change in changes)
        costs = ((self._files, len(changes)), (self._rows, rows), (self._bytes, byte_count))
        if self._has_changes and any(left is not None and left < cost for left, cost in costs):
            return False
        self._has_changes = True
        self._files, self._rows, self._bytes = (None if left is None else left - cost for left, cost in costs)
        return True

    def take_version(self) -> bool:
        """Charge one more version to the budget, and return whether it fits."""
        if self._versions is not None:
            self._versions -= 1
        return self._versions is None or self._versions >= 0


def _stored_bytes(change: ChangedRows) -> int:
    """Return the approximate bytes of rows in their files."""
    fragment = table_pb2.DataFragment.FromString(change.fragment)
    byte_count = sum(file.file_size_bytes for file in fragment.files)
    return byte_count * change.count // max(fragment.physical_rows, change.count, 1)


_PREFETCHED_VERSIONS = 32


class FailedStreamReader(DataSourceStreamReader):
    """A stream that cannot begin, and raises the error at the first call.

    If `streamReader` raises an error, Spark fails to stop the missing reader, and the error is lost.

    Args:
        error: the error that each method raises.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        return self._fail()

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        """Raise the error."""
        return self._fail()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        return self._fail()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        return self._fail()

    def _fail(self) -> NoReturn:
        with one_line():
            raise self._error


class LanceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes of versions as micro-batches.

    Args:
        options: options of the stream.
        schema: the columns, in this order.
        ref: the version that has these columns.

    Raises:
        OptionError: options are for batches, or define two starts.
        SchemaError, ExpressionError: see `ChangeColumns`.
        TableNotFoundError, FormatError, UnsupportedFormatError: see `load_version`.
    """

    def __init__(self, options: ReadOptions, schema: st.StructType, ref: VersionRef | None = None) -> None:
        _check(options)
        self._options = options
        self._schema = schema
        keep_worker_ready()
        ref = pin(options) if ref is None else ref
        store, _ = open_store(options.path, options.storage)
        self._walk = BranchReader(TableRef(store, ref.root))
        self._reference = self._walk.manifest(ref.version)
        feed = options.readChangeFeed
        self._columns = ChangeColumns(self._reference.schema, schema, options.filter, feed=feed)
        self._shared = TaskColumns.of(self._columns)
        self._feed = ChangeFeed(self._walk, self._reference, self._columns, exact=False)
        self._start: Position | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_options", "_schema", "_shared")}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the last version that this run of the query reads."""
        with one_line():
            self._target = self._newest()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit from the options. `latestOffset` respects all limits of the options."""
        return ReadMaxFiles(self._options.maxFilesPerTrigger)

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a new stream begins.

        Raises:
            VersionNotFoundError: the version to start with does not exist, or was cleaned up.
        """
        with one_line():
            return self._start_position().offset()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the offset at which the next batch ends.

        Args:
            start: the offset at which the batch begins.
            limit: Spark's limit. `ReadAllAvailable` overrides the limits in the options.

        Raises:
            OptionError: a version updated or deleted rows, and no option defines how to handle this.
            SchemaError: the columns of the table have changed.
            VersionNotFoundError: versions that have not been read were cleaned up.
            FormatError: another table has replaced the table that the stream has read.
        """
        with one_line():
            if start is None:
                self._start_position()
                return self._position(self._newest()).offset()
            position = Position.parse(start)
            newest = self._check_table(position)
            everything = type(limit).__name__ == "ReadAllAvailable"
            budget = Budget(None if everything else self._options)
            end = self._advance(position, self._target or newest, budget)
            return start if end == position else end.offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a batch. Raises the errors of `latestOffset`."""
        with one_line():
            changes = self._delivered_changes(Position.parse(start), Position.parse(end))
            tasks = [self._feed.task(version, change) for version, change in changes]
            return pack_changes(tasks, self._columns.fields, self._reference, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in batches of at most `batch_bytes` (about) and `batch_size` rows."""
        with one_line():
            yield from read_changes(partition, self._schema, self._shared, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the reader stores nothing for finished batches."""

    def stop(self) -> None:
        """Do nothing: the reader has no open files."""

    def _start_position(self) -> Position:
        """Return the position at which a new stream begins. It is the same for every call."""
        if self._start is None:
            options = self._options
            newest = self._newest()
            if options.startingVersion is None and options.startingTimestamp is None:
                self._start = self._position(newest, snapshot=True)
            else:
                self._start = self._position(self._first_version(newest) - 1)
        return self._start

    def _first_version(self, newest: int) -> int:
        """Return the first version whose changes a new stream delivers."""
        start, moment = self._options.startingVersion, self._options.startingTimestamp
        if start == "latest":
            return newest + 1
        first = max(1, int(start or 0)) if moment is None else oldest_version_since(self._walk.table, moment)
        if first <= newest:
            self._walk.require(first, first)
        elif first > newest + 1:
            raise VersionNotFoundError(
                f"{self._walk.root} has no version {first} yet; its newest is {newest}: use one up to "
                f"{newest + 1}, or `latest`"
            )
        return first

    def _newest(self) -> int:
        if self._target is not None:
            return self._target
        return latest_version(self._walk.table).version

    def _position(self, version: int, index: int = 0, *, snapshot: bool = False) -> Position:
        return Position(version, index, snapshot, self._commit(version))

    def _commit(self, version: int) -> str:
        """Return the file name of the transaction of a version; empty if the version does not exist."""
        try:
            return self._walk.manifest(version).transaction_file if version else ""
        except VersionNotFoundError:
            return ""

    def _check_table(self, position: Position) -> int:
        """Check that the stream has read this table up to a position, and return the newest version."""
        newest = latest_version(self._walk.table).version
        commit = self._commit(position.version)
        if newest < position.version or (commit and position.commit and commit != position.commit):
            raise FormatError(
                f"the stream has read up to version {position.version}, but this is another table (its "
                f"newest version is {newest}): start with a new checkpoint",
                self._walk.root,
            )
        return newest

    def _advance(self, position: Position, newest: int, budget: Budget) -> Position:
        """Return the end of a batch that begins at a position.

        A batch of a change feed has all changes of a version, because the new state of a row may be in any
        fragment. Inserted rows are split between fragments.
        """
        first = position.version + 1
        while position.snapshot or position.version < newest:
            if not position.snapshot and not budget.take_version():
                break
            version = position.version if position.snapshot else position.version + 1
            if (version - first) % _PREFETCHED_VERSIONS == 0:
                self._walk.prefetch(range(version, min(version + _PREFETCHED_VERSIONS, newest + 1)))
            units = self._change_units(position)
            if self._options.readChangeFeed and not position.snapshot:
                if not budget.take(units):
                    return position
                units = []
            for index in range(position.index, len(units)):
                if self._is_delivered(units[index]) and not budget.take(units[index : index + 1]):
                    return self._position(position.version, index, snapshot=position.snapshot)
            position = self._position(version)
        return position

    def _change_units(self, position: Position) -> list[ChangedRows]:
        """Return the items that an index counts: fragments of the snapshot or changes of the next version."""
        if position.snapshot:
            return self._feed.rows(position.version)
        return self._changes(position.version + 1)

    def _delivered_changes(self, start: Position, end: Position) -> Iterator[tuple[int, ChangedRows]]:
        """Yield the changes that the stream delivers between two positions, each with its version."""
        index = start.index
        if start.snapshot:
            rows = self._feed.rows(start.version)
            last = end.index if end.snapshot else len(rows)
            yield from ((start.version, change) for change in rows[index:last])
            index = 0
        if end.snapshot:
            return
        for version in range(start.version + 1, end.version + 2):
            stop: int | None = end.index if version > end.version else None
            if stop == 0:
                return
            for change in self._changes(version)[index:stop]:
                if self._is_delivered(change):
                    yield version, change
            index = 0

    def _changes(self, version: int) -> list[ChangedRows]:
        """Return the changes of a version, after a check that the stream can deliver the version.

        Positions count all of them, whatever the options are. `_is_delivered` selects those to deliver.
        """
        try:
            self._feed.version_columns(version)
            changes = self._feed.changes(version)
        except VersionNotFoundError as error:
            raise VersionNotFoundError(
                f"the stream has not read version {version} and cannot go on: {error}; start with a new "
                "checkpoint"
            ) from None
        options = self._options
        kinds = {change.kind for change in changes}
        if options.readChangeFeed or options.ignoreChanges or kinds <= {INSERT}:
            return changes
        if options.skipChangeCommits or (kinds == {DELETE} and options.ignoreDeletes):
            return []
        deletes = "set option ignoreDeletes=true to pass over such versions, " if kinds == {DELETE} else ""
        what = "deleted" if kinds == {DELETE} else "updated or deleted"
        raise OptionError(
            f"version {version} of {self._walk.root} {what} rows, which a stream of inserted rows cannot "
            f"tell: {deletes}skipChangeCommits=true to pass over it, ignoreChanges=true to get inserted and "
            "updated rows, or readChangeFeed=true to get every change"
        )

    def _is_delivered(self, change: ChangedRows) -> bool:
        return self._options.readChangeFeed or change.kind in (INSERT, POSTIMAGE)


def _check(options: ReadOptions) -> None:
    """Check that no option is for batches only."""
    check_no_version(options)
    for name in ("endingVersion", "endingTimestamp"):
        if getattr(options, name) is not None:
            raise OptionError(f"option {name!r} is for batches: a stream has no end")
    if options.insertedAfter is not None:
        raise OptionError("option 'insertedAfter' is for batches: use option 'startingVersion'")
    if options.startingVersion is not None and options.startingTimestamp is not None:
        raise OptionError("give one of the options startingVersion and startingTimestamp")
    if options.table is not None:
        raise OptionError("metadata tables cannot be read as streams")
    if options.fresh:
        raise OptionError("option 'fresh' is for batches: a stream reads versions")
    if options.text_as != "string":
        raise OptionError("option 'text_as' is for batches: a stream reads text as it is")
    if options.kind == "nearest":
        raise OptionError("searches cannot be read as streams")
