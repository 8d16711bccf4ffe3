"""Tables as streams: the changes of new versions become micro-batches.

A stream begins with all rows of the newest version, unless an option says where to start. It continues with
the changes of later versions: inserted rows, or all changes with `readChangeFeed`. Spark keeps one reader per
query in a process of the driver. It asks this reader how far the next batch goes (`latestOffset`) and for its
tasks (`partitions`). Another reader, made from the same options, travels to the tasks (`read`).

Spark 4.0 and 4.1 ask for offsets without the position of the stream: there a batch takes all there is.

Where a stream of a table stands, and how far a micro-batch may go.

A position counts changed rows of fragments, in the order of `changes_of`; of a snapshot, its fragments. As
Spark keeps it in the checkpoint:

    {"format": 1, "version": 7, "index": 0, "snapshot": false, "commit": "6-<uuid>.txn"}
        all versions up to 7 have been read, and the first 0 of what version 8 changed
    {"format": 1, "version": 7, "index": 3, "snapshot": true, "commit": "6-<uuid>.txn"}
        the first 3 fragments of version 7 have been read, of all its rows

`commit` is the file name of the transaction that made the version; it tells a table from another one that
took its place.
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
from spark_lance.spark.scan.change_tasks import ChangeColumns, Feed, TaskColumns, pack_changes, read_changes
from spark_lance.spark.scan.changes import check_no_version
from spark_lance.spark.scan.rows import pin
from spark_lance.spark.worker.failures import one_line
from spark_lance.spark.worker.process import keep_worker_ready
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.version_changes import DELETE, INSERT, POSTIMAGE, ChangedRows
from spark_lance.table.versions.resolve import VersionRef, Walk, version_from
from spark_lance.table.versions.versions import latest_version

_FORMAT = 1
# Versions that change nothing cost a look at their manifests.
_MOST_VERSIONS = 1000


@dataclass(frozen=True)
class Position:
    """How far a stream has read; see above."""

    version: int
    index: int = 0
    snapshot: bool = False
    commit: str = ""

    @classmethod
    def parse(cls, offset: Mapping[str, Any]) -> Position:
        """Return the position that an offset of a checkpoint says.

        Raises:
            FormatError: it is none, or was written by a release that keeps others.
        """
        if offset.get("format") != _FORMAT:
            raise FormatError(f"the checkpoint holds the offset {offset}, which this release does not know")
        try:
            numbers = int(offset["version"]), int(offset["index"])
            return cls(*numbers, bool(offset["snapshot"]), str(offset["commit"]))
        except (KeyError, TypeError, ValueError):
            raise FormatError(f"the checkpoint holds the damaged offset {offset}") from None

    def offset(self) -> dict[str, Any]:
        """Return the position as Spark keeps it."""
        return {"format": _FORMAT, **asdict(self)}


class Budget:
    """The remaining budget of one micro-batch.

    Args:
        options: of the stream; None for everything.
    """

    def __init__(self, options: ReadOptions | None) -> None:
        self._versions = None if options is None else _MOST_VERSIONS
        self._files = None if options is None else options.maxFilesPerTrigger
        self._rows = None if options is None else options.maxRowsPerTrigger
        self._bytes = None if options is None else options.maxBytesPerTrigger
        self._taken = False

    def take(self, changes: Sequence[ChangedRows]) -> bool:
        """Take changed rows of fragments if they fit; the first ones always do."""
        if not changes:
            return True
        rows = sum(change.count for change in changes)
        byte_count = sum(_stored_bytes(change) for change in changes)
        costs = ((self._files, len(changes)), (self._rows, rows), (self._bytes, byte_count))
        if self._taken and any(left is not None and left < cost for left, cost in costs):
            return False
        self._taken = True
        self._files, self._rows, self._bytes = (None if left is None else left - cost for left, cost in costs)
        return True

    def take_version(self) -> bool:
        """Take one more version."""
        if self._versions is not None:
            self._versions -= 1
        return self._versions is None or self._versions >= 0


def _stored_bytes(change: ChangedRows) -> int:
    """Return the bytes that rows take in their files, about."""
    fragment = table_pb2.DataFragment.FromString(change.fragment)
    byte_count = sum(file.file_size_bytes for file in fragment.files)
    return byte_count * change.count // max(fragment.physical_rows, change.count, 1)


_AT_ONCE = 32


class FailedStreamReader(DataSourceStreamReader):
    """A stream that cannot begin, which says why at the first question.

    Spark's process stops the reader even if there is none. An error raised by `streamReader` is lost there.

    Args:
        error: what each method raises.
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
    """Reads what versions bring, as micro-batches.

    Args:
        options: what the stream was asked for.
        schema: the columns, in this order.
        ref: the version whose columns these are.

    Raises:
        OptionError: options that are for batches, or two starts.
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
        self._walk = Walk(TableRef(store, ref.root))
        self._reference = self._walk.manifest(ref.version)
        feed = options.readChangeFeed
        self._columns = ChangeColumns(self._reference.schema, schema, options.filter, feed=feed)
        self._shared = TaskColumns.of(self._columns)
        self._feed = Feed(self._walk, self._reference, self._columns, exact=False)
        self._start: Position | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_options", "_schema", "_shared")}

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the last version that this run of the query reads."""
        with one_line():
            self._target = self._newest()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set; `latestOffset` keeps to all of them."""
        return ReadMaxFiles(self._options.maxFilesPerTrigger)

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new stream begins.

        Raises:
            VersionNotFoundError: the version to start with does not exist, or was cleaned up.
        """
        with one_line():
            return self._begin().offset()

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return how far the next batch goes.

        Args:
            start: where it begins.
            limit: Spark's; `ReadAllAvailable` sets the options' limits aside.

        Raises:
            OptionError: a version updated or deleted rows, and no option says what to do about it.
            SchemaError: the columns of the table have changed.
            VersionNotFoundError: versions that have not been read were cleaned up.
            FormatError: another table has taken the place of the one that the stream has read.
        """
        with one_line():
            if start is None:
                self._begin()
                return self._at(self._newest()).offset()
            position = Position.parse(start)
            newest = self._check_table(position)
            everything = type(limit).__name__ == "ReadAllAvailable"
            budget = Budget(None if everything else self._options)
            end = self._advance(position, self._target or newest, budget)
            return start if end == position else end.offset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the work of the tasks of a batch; errors as `latestOffset`."""
        with one_line():
            changes = self._between(Position.parse(start), Position.parse(end))
            tasks = [self._feed.task(version, change) for version, change in changes]
            return pack_changes(tasks, self._columns.fields, self._reference, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in batches of at most `batch_bytes` (about) and `batch_size` rows."""
        with one_line():
            yield from read_changes(partition, self._schema, self._shared, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for batches that are done."""

    def stop(self) -> None:
        """Nothing is open."""

    def _begin(self) -> Position:
        """Return where a new stream begins; always the same, however often Spark asks."""
        if self._start is None:
            options = self._options
            newest = self._newest()
            if options.startingVersion is None and options.startingTimestamp is None:
                self._start = self._at(newest, snapshot=True)
            else:
                self._start = self._at(self._first(newest) - 1)
        return self._start

    def _first(self, newest: int) -> int:
        """Return the first version whose changes a new stream delivers."""
        start, moment = self._options.startingVersion, self._options.startingTimestamp
        if start == "latest":
            return newest + 1
        first = max(1, int(start or 0)) if moment is None else version_from(self._walk.table, moment)
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

    def _at(self, version: int, index: int = 0, *, snapshot: bool = False) -> Position:
        return Position(version, index, snapshot, self._commit(version))

    def _commit(self, version: int) -> str:
        """Return the name of the transaction that made a version, nothing if the version is not there."""
        try:
            return self._walk.manifest(version).transaction_file if version else ""
        except VersionNotFoundError:
            return ""

    def _check_table(self, position: Position) -> int:
        """Return the newest version, if this is the table that was read up to a position."""
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
        """Return how far a batch goes that begins at a position.

        All changes of a version come in one batch, as what replaces a row may stand in any fragment; inserted
        rows are cut between fragments.
        """
        first = position.version + 1
        while position.snapshot or position.version < newest:
            if not position.snapshot and not budget.take_version():
                break
            holder = position.version if position.snapshot else position.version + 1
            if (holder - first) % _AT_ONCE == 0:
                self._walk.prefetch(range(holder, min(holder + _AT_ONCE, newest + 1)))
            units = self._units(position)
            if self._options.readChangeFeed and not position.snapshot:
                if not budget.take(units):
                    return position
                units = []
            for index in range(position.index, len(units)):
                if self._is_delivered(units[index]) and not budget.take(units[index : index + 1]):
                    return self._at(position.version, index, snapshot=position.snapshot)
            position = self._at(holder)
        return position

    def _units(self, position: Position) -> list[ChangedRows]:
        """Return what is counted at a position: fragments of the snapshot, or changes of the next version."""
        if position.snapshot:
            return self._feed.rows(position.version)
        return self._changes(position.version + 1)

    def _between(self, start: Position, end: Position) -> Iterator[tuple[int, ChangedRows]]:
        """Yield what is delivered between two positions, with the versions that count as its makers."""
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
        """Return the changes of a version, if the stream can deliver it.

        `_is_delivered` selects the delivered ones: positions count all, whatever the options say.
        """
        try:
            self._feed.columns_at(version)
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
    """Refuse options that are for batches."""
    check_no_version(options)
    for name in ("endingVersion", "endingTimestamp"):
        if getattr(options, name) is not None:
            raise OptionError(f"option {name!r} is for batches: a stream has no end")
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
