"""The changes of one version of a table: rows inserted, updated and deleted, fragment by fragment.

The transaction has the kind of the change, and the two manifests show its place. Operations that move rows or
do not touch values (compaction, dropped columns, settings, indices) change nothing. For the others a fragment
is compared with itself in the version before:

    fragment is new            its live rows were added
    fragment is gone           its live rows were removed
    other deletion file        rows were removed, or came back (restore)
    other files for a column   the rows in the operation were changed in place (or all rows)

With stable row ids, a removed row and an added row with the same id are an update. If the version that
changed them last is the same too, the row only moved. Without stable row ids, the primary key replaces the
id: rows with the same key are updates if a value differs, and unchanged otherwise. Without a key, or if a key
is not unique, a row that an update moved is a delete and an insert. An update in place is an update.
(Lance table format, transactions, stable row ids, change data feed.)

`ChangeTask` reads the changed rows of one fragment; it can be pickled and runs anywhere. It yields columns as
a newer version has them, whatever they were when the rows were stored. Three more columns describe the change
of each row:

    _change_type         `insert`, `update_preimage`, `update_postimage` or `delete`
    _commit_version      the version that did it
    _commit_timestamp    when that version was committed
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from google.protobuf.message import Message
from pyroaring import BitMap

from spark_lance.errors import SchemaError, UnsupportedFormatError
from spark_lance.expressions.predicate import Condition
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.bitmaps import parse_offsets
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction
from spark_lance.table.operations.row_effects import effect_of
from spark_lance.table.reading.compare import FragmentView, IdentifiedRows, Rows, compare_rows
from spark_lance.table.reading.compare_keys import compare_by_key, shared_key
from spark_lance.table.reading.fragment_rows import rows_without_columns
from spark_lance.table.reading.lineage import UPDATED_AT
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.snapshot import Snapshot

INSERT = "insert"
DELETE = "delete"
PREIMAGE = "update_preimage"
POSTIMAGE = "update_postimage"

Fragment = table_pb2.DataFragment


@dataclass(frozen=True)
class ChangedRows:
    """Rows of one fragment that a version changed in one way.

    Attributes:
        kind: `insert`, `update_preimage`, `update_postimage` or `delete`; the second and the last are rows of
            the version before.
        fragment: the serialized DataFragment that holds them.
        rows: which they are: a serialized Roaring bitmap of physical numbers; None for all live rows ...
        without: ... but for those that live in this form of the fragment, too (serialized).
        count: how many there are, by what the manifests say.
    """

    kind: str
    fragment: bytes
    rows: bytes | None
    without: bytes | None
    count: int

    @property
    def is_before(self) -> bool:
        """Whether these are rows of the version before."""
        return self.kind in (DELETE, PREIMAGE)

    def offsets(self, table: TableRef, bases: Bases) -> Rows | None:
        """Return the physical numbers of the rows, ascending; None for all live rows of the fragment.

        Args:
            table: the table.
            bases: base paths of the version that holds the rows.

        Raises:
            FormatError, UnsupportedFormatError: a deletion file is missing or damaged.
        """
        if self.rows is not None:
            return np.asarray(BitMap.deserialize(self.rows).to_array(), np.int64)
        if self.without is None:
            return None
        here, other = Fragment.FromString(self.fragment), Fragment.FromString(self.without)
        return _gone(FragmentView(table, bases), here, other)


@dataclass(frozen=True)
class _Part:
    """Rows that came or went: all live rows of a fragment, but for those that another form of it has, too."""

    fragment: Fragment
    without: Fragment | None


def changes_of(old: Snapshot | None, new: Snapshot, transaction: Transaction) -> list[ChangedRows]:
    """Return the changes of a version, in an order that depends only on the version.

    With stable row ids the ids of rows that an update or a restore moved are held in memory, some 40 bytes
    each. Without them, and with a primary key, these rows are read and compared. For other operations the
    manifests, deletion files and row versions of changed fragments are enough.

    Args:
        old: the version before; None for the empty table before the first version.
        new: the version.
        transaction: the transaction of the version.

    Raises:
        UnsupportedFormatError: this release does not support the operation.
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    if transaction.name is None:
        raise UnsupportedFormatError(
            f"version {new.version} was made by an operation that this release does not know",
            new.manifest.path,
        )
    if old is not None and not effect_of(transaction.name).changes:
        return []
    return _Comparison(old, new, transaction).changes()


def before_append(new: Manifest, transaction: Transaction) -> Manifest:
    """Return the version before an append: its fragments without those that the append added."""
    assert isinstance(transaction.operation, transaction_pb2.Transaction.Append)
    paths = {file.path for fragment in transaction.operation.fragments for file in fragment.files}
    message = table_pb2.Manifest()
    message.CopyFrom(new.message)
    message.ClearField("fragments")
    message.fragments.extend(f for f in new.fragments if paths.isdisjoint(file.path for file in f.files))
    return replace(new, message=message)


class _Comparison:
    """A version and the one before it."""

    def __init__(self, old: Snapshot | None, new: Snapshot, transaction: Transaction) -> None:
        self._name = transaction.name or ""
        self._operation = transaction.operation
        self._stable = new.manifest.uses_stable_row_ids
        self._new_fields = _field_ids(new.manifest)
        # A column that is back counts as new, though its file may have been there all the time.
        self._old_fields = self._new_fields & (set() if old is None else _field_ids(old.manifest))
        self._versions = (new if old is None else old, new)
        self._before = _view(new if old is None else old)
        self._after = _view(new)
        self._old: Mapping[int, Fragment] = {} if old is None else {f.id: f for f in old.fragments}
        self._new: Mapping[int, Fragment] = {f.id: f for f in new.fragments}

    def changes(self) -> list[ChangedRows]:
        went, came, shared = self._sorted()
        result: list[ChangedRows] = []
        if went and came and effect_of(self._name).carries_ids and (self._stable or self._key()):
            result += self._matched(went, came)
        else:
            result += [_changed(DELETE, part, self._before) for part in went]
            result += [_changed(INSERT, part, self._after) for part in came]
        for one, other in shared:
            result += self._in_place(one, other)
        return [rows for rows in result if rows.count]

    def _key(self) -> bool:
        """Return whether both versions have the same primary key."""
        old, new = self._versions
        return bool(shared_key(old.schema, new.schema))

    def _sorted(self) -> tuple[list[_Part], list[_Part], list[tuple[Fragment, Fragment]]]:
        """Return the removed parts, the added parts, and the fragments with rows in both versions."""
        went, came, shared = [], [], []
        for one in self._old.values():
            other = self._counterpart(one, self._new)
            if other is None:
                went.append(_Part(one, None))
            elif one != other:
                shared.append((one, other))
                if one.deletion_file != other.deletion_file:
                    went.append(_Part(one, other))
                    if self._name not in ("delete", "update"):
                        came.append(_Part(other, one))
        for fragment in self._new.values():
            if self._counterpart(fragment, self._old) is None:
                came.append(_Part(fragment, None))
        return went, came, shared

    def _counterpart(self, fragment: Fragment, others: Mapping[int, Fragment]) -> Fragment | None:
        other = others.get(fragment.id)
        if other is None or not effect_of(self._name).renumbers or other == fragment:
            return other
        # In the past, an overwrite numbered fragments from 0 again: the files show if the rows are the same.
        paths = {file.path for file in other.files}
        return other if any(file.path in paths for file in fragment.files) else None

    def _matched(self, went: Sequence[_Part], came: Sequence[_Part]) -> Iterator[ChangedRows]:
        """Separate rows that were updated or moved from rows that came or went, by their ids or keys."""
        if self._stable:
            older, newer = compare_rows(
                [_identified(part, self._before) for part in went],
                (_identified(part, self._after) for part in came),
            )
        else:
            before = [(part.fragment, _offsets(part, self._before)) for part in went]
            after = [(part.fragment, _offsets(part, self._after)) for part in came]
            comparison = compare_by_key(*self._versions, before, after)
            older, newer = comparison.older, comparison.newer
        for rows in newer:
            yield _listed(INSERT, rows.fragment, rows.alone)
            yield _listed(POSTIMAGE, rows.fragment, rows.changed)
        for rows in older:
            yield _listed(DELETE, rows.fragment, rows.alone)
            yield _listed(PREIMAGE, rows.fragment, rows.changed)

    def _in_place(self, one: Fragment, other: Fragment) -> list[ChangedRows]:
        """Return the rows that kept their place and have other values in some column."""
        if _homes(one, self._old_fields) == _homes(other, self._new_fields):
            return []
        rows = self._rewritten(one, other)
        if rows is None and one.deletion_file == other.deletion_file:
            return [
                _changed(PREIMAGE, _Part(one, None), self._before),
                _changed(POSTIMAGE, _Part(other, None), self._after),
            ]
        common = np.intersect1d(self._before.live(one), self._after.live(other), assume_unique=True)
        if rows is not None:
            common = np.intersect1d(common, rows, assume_unique=True)
        return [_listed(PREIMAGE, one, common), _listed(POSTIMAGE, other, common)]

    def _rewritten(self, one: Fragment, other: Fragment) -> Rows | None:
        """Return the physical rows whose values may have changed, None for all."""
        if self._stable:
            every = np.arange(self._after.total(other), dtype=np.int64)
            was = self._before.lineage(one, UPDATED_AT, every)
            rows: Rows = np.flatnonzero(was != self._after.lineage(other, UPDATED_AT, every))
            # A writer that replaces a file without telling rows leaves their versions as they are.
            return rows if len(rows) else None
        return _named_rows(self._operation, other)


def _view(snapshot: Snapshot) -> FragmentView:
    return FragmentView(snapshot.table, snapshot.bases)


def _field_ids(manifest: Manifest) -> set[int]:
    return {node.id for field in manifest.schema.fields for node in field.walk()}


def _homes(fragment: Fragment, fields: Container[int]) -> dict[int, tuple[str, int]]:
    """Return the file that each of some fields comes from."""
    return {
        field: (file.path, file.base_id)
        for file in fragment.files
        for field in file.fields
        if field in fields
    }


def _named_rows(operation: Message, fragment: Fragment) -> Rows | None:
    """Return the rows of a fragment that an update lists as changed in columns; None if it lists none."""
    if not isinstance(operation, transaction_pb2.Transaction.Update):
        return None
    data = operation.updated_fragment_offset_bitmaps.get(fragment.id)
    if not data:
        return None
    offsets = parse_offsets(data, fragment.physical_rows, f"updated rows of fragment {fragment.id}")
    return offsets.astype(np.int64)


def _identified(part: _Part, view: FragmentView) -> IdentifiedRows:
    return view.identified(part.fragment, _offsets(part, view), stable_row_ids=True)


def _offsets(part: _Part, view: FragmentView) -> Rows:
    fragment = part.fragment
    return view.live(fragment) if part.without is None else _gone(view, fragment, part.without)


def _gone(view: FragmentView, fragment: Fragment, other: Fragment) -> Rows:
    """Return the rows that are live in one form of a fragment and deleted in another."""
    rows: Rows = np.setdiff1d(view.deleted(other), view.deleted(fragment), assume_unique=True)
    return rows


def _listed(kind: str, fragment: Fragment, rows: Rows) -> ChangedRows:
    bitmap = BitMap(rows.astype(np.uint32))
    bitmap.run_optimize()
    return ChangedRows(kind, fragment.SerializeToString(), bitmap.serialize(), None, len(rows))


def _changed(kind: str, part: _Part, view: FragmentView) -> ChangedRows:
    """Return rows that need not be listed; only a fragment with rows that come back has to be read."""
    fragment, other = part.fragment, part.without
    gone = int(fragment.deletion_file.num_deleted_rows)
    if other is None:
        return ChangedRows(kind, fragment.SerializeToString(), None, None, view.total(fragment) - gone)
    if kind == DELETE and int(other.deletion_file.num_deleted_rows) > gone:
        count = int(other.deletion_file.num_deleted_rows) - gone
        return ChangedRows(kind, fragment.SerializeToString(), None, other.SerializeToString(), count)
    return _listed(kind, fragment, _gone(view, fragment, other))


CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
FEED_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)

_FEED_TYPES = {
    CHANGE_TYPE: pa.string(),
    COMMIT_VERSION: pa.int64(),
    COMMIT_TIMESTAMP: pa.timestamp("us", "UTC"),
}


def feed_field(name: str) -> pa.Field:
    """Return the Arrow field of one of the three columns that describe a change."""
    return pa.field(name, _FEED_TYPES[name], nullable=False)


@dataclass(frozen=True)
class ChangeTask:
    """Rows that a version changed in one way.

    Attributes:
        scan: reads the fragment; its columns have the names that they have in `schema`.
        change: which rows, and what happened to them.
        version: the version that changed them.
        timestamp: when it was committed, in microseconds since 1970.
        schema: the columns to yield; what `scan` does not read, and is not a column of the feed, is null.
        span: the physical rows [start, stop) to yield; all by default.
    """

    scan: ScanTask
    change: ChangedRows
    version: int
    timestamp: int
    schema: pa.Schema
    span: tuple[int, int] | None = None

    def tables(self, target_bytes: int, condition: Condition | None = None) -> Iterator[pa.Table]:
        """Yield the rows as tables of about `target_bytes`.

        Args:
            target_bytes: of one table.
            condition: keep the rows for which it is true; it may name the columns of `schema`.

        Raises:
            SchemaError: a value does not fit the type that its column has in `schema`, or is null.
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
            ExpressionError: the condition does not fit the columns.
        """
        for rows_of_table in self._stored_tables(target_bytes):
            table = self._with_change_columns(rows_of_table)
            if condition is not None:
                table = condition.filter(table)
            if table.num_rows:
                yield table

    def _stored_tables(self, target_bytes: int) -> Iterator[pa.Table]:
        scan = self.scan
        assert scan.bases is not None
        offsets = self.change.offsets(scan.table, scan.bases)
        if offsets is None:
            yield from scan.tables(target_bytes)
            return
        if self.span is not None:
            first, last = np.searchsorted(offsets, self.span)
            offsets = offsets[first:last]
        if len(offsets):
            yield from scan.rows(offsets, target_bytes)

    def _with_change_columns(self, table: pa.Table) -> pa.Table:
        rows = table.num_rows
        if not self.schema.names:
            return rows_without_columns(rows)
        constants = {
            CHANGE_TYPE: self.change.kind,
            COMMIT_VERSION: self.version,
            COMMIT_TIMESTAMP: self.timestamp,
        }
        names = set(table.column_names)
        columns = []
        for field in self.schema:
            if field.name in names:
                columns.append(_cast(table[field.name], field, self.version))
            elif field.name in constants:
                value = pa.scalar(constants[field.name], field.type)
                columns.append(pa.chunked_array([pa.repeat(value, rows)]))
            else:
                columns.append(pa.chunked_array([pa.nulls(rows, field.type)]))
            if columns[-1].null_count and not field.nullable:
                raise SchemaError(
                    f"column {field.name!r} is NOT NULL now, but was null in version {self.version}"
                )
        return pa.Table.from_arrays(columns, schema=self.schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, version: int) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"column {field.name!r} had another type in version {version}, and a value does not fit the "
            f"present one: {error}"
        ) from None
