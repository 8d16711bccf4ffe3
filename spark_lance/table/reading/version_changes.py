"""The changes of one version of a table: rows inserted, updated and deleted, fragment by fragment.

The transaction determines the kind of the change, and the two manifests determine the rows. Operations that
move rows or do not touch values (compaction, dropped columns, settings, indexes) change nothing. For other
operations, each fragment is compared with its state in the previous version:

    fragment is new            its live rows were added
    fragment was removed       its live rows were removed
    other deletion file        rows were removed, or restored (restore)
    other files for a column   the rows in the operation were changed in place (or all rows)

With stable row ids, a removed row and an added row with the same id are an update. If the version that
changed them last is the same too, the row only moved. Without stable row ids, the primary key replaces the
id. Without a key, or if a key is not unique, a row that an update moved is a delete and an insert. Rows that
an update wrote again with equal values are unchanged. (Lance table format, transactions, stable row ids,
change data feed.)

`ChangeTask` reads the changed rows of one fragment; it can be pickled and runs anywhere. It converts rows to
the schema of a newer version. Three more columns describe the change of each row:

    _change_type         `insert`, `update_preimage`, `update_postimage` or `delete`
    _commit_version      the version that changed the row
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
from spark_lance.file.base.schema import Field
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.bitmaps import parse_offsets
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import row_addresses
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction
from spark_lance.table.operations.row_effects import find_effect
from spark_lance.table.reading.compare import FragmentView, IdentifiedRows, Rows, compare_rows
from spark_lance.table.reading.compare_keys import (
    compare_by_key,
    comparison_steps,
    find_differences,
    shared_key,
)
from spark_lance.table.reading.equal_rows import remove_equal_rows, without_equal_rows
from spark_lance.table.reading.fragment_rows import rows_without_columns
from spark_lance.table.reading.lineage import UPDATED_AT
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.snapshot import Snapshot

INSERT = "insert"
DELETE = "delete"
PREIMAGE = "update_preimage"
POSTIMAGE = "update_postimage"
# The name of updates and merges.
_UPDATE = "update"

Fragment = table_pb2.DataFragment


@dataclass(frozen=True)
class ChangedRows:
    """Rows of one fragment that a version changed in one way.

    Attributes:
        kind: `insert`, `update_preimage`, `update_postimage` or `delete`; `update_preimage` and `delete` are
            rows of the previous version.
        fragment: the serialized DataFragment that has the rows.
        rows: the physical offsets of the rows as a serialized Roaring bitmap; None for all live rows, except
            the rows that `without` excludes.
        without: the other state of the fragment (a serialized DataFragment). Rows that are live in both
            states are excluded.
        count: the number of rows, from the manifests.
    """

    kind: str
    fragment: bytes
    rows: bytes | None
    without: bytes | None
    count: int

    @property
    def is_before(self) -> bool:
        """Whether these are rows of the previous version."""
        return self.kind in (DELETE, PREIMAGE)

    def offsets(self, table: TableRef, bases: Bases) -> Rows | None:
        """Return the physical offsets of the rows, ascending; None for all live rows of the fragment.

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
        return _rows_deleted_in(FragmentView(table, bases), here, other)


@dataclass(frozen=True)
class _Part:
    """Added or removed rows: the live rows of a fragment, except rows that are live in `without`, too."""

    fragment: Fragment
    without: Fragment | None


def find_changes(old: Snapshot | None, new: Snapshot, transaction: Transaction) -> list[ChangedRows]:
    """Return the changes of a version, in an order that depends only on the version.

    The rows that an update wrote are compared with the rows that it replaced, piece by piece; memory holds
    about 40 bytes per row. Without stable row ids, and with a primary key, so are rows that a restore or an
    overwrite moved. Other operations need only the manifests, deletion files and row versions of changed
    fragments.

    Args:
        old: the previous version; None for the empty table before the first version.
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
    if old is not None and not find_effect(transaction.name).changes:
        return []
    return _Comparison(old, new, transaction).changes()


def before_append(new: Manifest, transaction: Transaction) -> Manifest:
    """Return the version before an append: the new version without the fragments that the append added."""
    assert isinstance(transaction.operation, transaction_pb2.Transaction.Append)
    paths = {file.path for fragment in transaction.operation.fragments for file in fragment.files}
    message = table_pb2.Manifest()
    message.CopyFrom(new.message)
    message.ClearField("fragments")
    message.fragments.extend(f for f in new.fragments if paths.isdisjoint(file.path for file in f.files))
    return replace(new, message=message)


class _Comparison:
    """Compares a version with the previous version."""

    def __init__(self, old: Snapshot | None, new: Snapshot, transaction: Transaction) -> None:
        self._name = transaction.name or ""
        self._operation = transaction.operation
        self._stable = new.manifest.uses_stable_row_ids
        self._new_fields = _field_ids(new.manifest)
        # A restored column counts as new, although its file may have existed all the time.
        self._old_fields = self._new_fields & (set() if old is None else _field_ids(old.manifest))
        self._versions = (new if old is None else old, new)
        self._before = _view(new if old is None else old)
        self._after = _view(new)
        self._old: Mapping[int, Fragment] = {} if old is None else {f.id: f for f in old.fragments}
        self._new: Mapping[int, Fragment] = {f.id: f for f in new.fragments}

    def changes(self) -> list[ChangedRows]:
        removed, added, shared = self._classify_fragments()
        result: list[ChangedRows] = []
        if (
            removed
            and added
            and find_effect(self._name).carries_ids
            and (self._stable or self._has_shared_key())
        ):
            result += self._match_rows(removed, added)
        elif removed and added and self._name == _UPDATE:
            result += self._remove_equal_rows(removed, added)
        else:
            result += self._list_parts(removed, added)
        for one, other in shared:
            result += self._rows_changed_in_place(one, other)
        return [rows for rows in result if rows.count]

    def _has_shared_key(self) -> bool:
        """Return whether both versions have the same primary key."""
        old, new = self._versions
        return bool(shared_key(old.schema, new.schema))

    def _classify_fragments(self) -> tuple[list[_Part], list[_Part], list[tuple[Fragment, Fragment]]]:
        """Return the removed parts, the added parts, and the fragments with rows in both versions."""
        removed, added, shared = [], [], []
        for one in self._old.values():
            other = self._counterpart(one, self._new)
            if other is None:
                removed.append(_Part(one, None))
            elif one != other:
                shared.append((one, other))
                if one.deletion_file != other.deletion_file:
                    removed.append(_Part(one, other))
                    if self._name not in ("delete", "update"):
                        added.append(_Part(other, one))
        for fragment in self._new.values():
            if self._counterpart(fragment, self._old) is None:
                added.append(_Part(fragment, None))
        return removed, added, shared

    def _counterpart(self, fragment: Fragment, others: Mapping[int, Fragment]) -> Fragment | None:
        other = others.get(fragment.id)
        if other is None or not find_effect(self._name).renumbers or other == fragment:
            return other
        # Old overwrites numbered fragments from 0 again, so only equal files prove that rows are the same.
        paths = {file.path for file in other.files}
        return other if any(file.path in paths for file in fragment.files) else None

    def _list_parts(self, removed: Sequence[_Part], added: Sequence[_Part]) -> list[ChangedRows]:
        return [
            *(_change_part(DELETE, part, self._before) for part in removed),
            *(_change_part(INSERT, part, self._after) for part in added),
        ]

    def _remove_equal_rows(self, removed: Sequence[_Part], added: Sequence[_Part]) -> list[ChangedRows]:
        """Return removed and added rows without pairs of rows with equal values."""
        before = [(part.fragment, _offsets(part, self._before)) for part in removed]
        after = [(part.fragment, _offsets(part, self._after)) for part in added]
        different = remove_equal_rows(self._versions, before, after, self._modified_fields())
        if different is None:
            return self._list_parts(removed, added)
        old_rows, new_rows = different
        return [
            *(_list_rows(DELETE, part.fragment, rows) for part, rows in zip(removed, old_rows, strict=True)),
            *(_list_rows(INSERT, part.fragment, rows) for part, rows in zip(added, new_rows, strict=True)),
        ]

    def _match_rows(self, removed: Sequence[_Part], added: Sequence[_Part]) -> Iterator[ChangedRows]:
        """Match removed rows with added rows by id or key: matches were updated or moved."""
        if self._stable:
            before_rows = [_identify(part, self._before) for part in removed]
            after_rows = [_identify(part, self._after) for part in added]
            older, newer = compare_rows(before_rows, after_rows)
            if self._name == _UPDATE:
                older, newer = without_equal_rows(
                    self._versions, (before_rows, older), (after_rows, newer), self._modified_fields()
                )
        else:
            before = [(part.fragment, _offsets(part, self._before)) for part in removed]
            after = [(part.fragment, _offsets(part, self._after)) for part in added]
            comparison = compare_by_key(*self._versions, before, after, self._modified_fields())
            older, newer = comparison.older, comparison.newer
        for rows in newer:
            yield _list_rows(INSERT, rows.fragment, rows.alone)
            yield _list_rows(POSTIMAGE, rows.fragment, rows.changed)
        for rows in older:
            yield _list_rows(DELETE, rows.fragment, rows.alone)
            yield _list_rows(PREIMAGE, rows.fragment, rows.changed)

    def _rows_changed_in_place(self, one: Fragment, other: Fragment) -> list[ChangedRows]:
        """Return the rows that were changed in place."""
        if not self._rewritten_fields(one, other):
            return []
        rows = self._rewritten_rows(one, other)
        if rows is None and one.deletion_file == other.deletion_file and self._name != _UPDATE:
            return [
                _change_part(PREIMAGE, _Part(one, None), self._before),
                _change_part(POSTIMAGE, _Part(other, None), self._after),
            ]
        common = np.intersect1d(self._before.live(one), self._after.live(other), assume_unique=True)
        if rows is not None:
            common = np.intersect1d(common, rows, assume_unique=True)
        if self._name == _UPDATE:
            pairs = row_addresses(one.id, common), row_addresses(other.id, common)
            steps = comparison_steps(self._rewritten_fields(one, other), self._modified_fields())
            common = common[find_differences(*self._versions, *pairs, steps)]
        return [_list_rows(PREIMAGE, one, common), _list_rows(POSTIMAGE, other, common)]

    def _rewritten_fields(self, one: Fragment, other: Fragment) -> list[Field]:
        """Return the columns of the newer version that have other files in a fragment."""
        old_files, files = _field_files(one, self._old_fields), _field_files(other, self._new_fields)
        return [
            field
            for field in self._versions[1].schema.fields
            if any(old_files.get(node.id) != files.get(node.id) for node in field.walk())
        ]

    def _modified_fields(self) -> set[int]:
        """Return the ids of the fields whose values an update assigned; empty if its writer lists none."""
        operation = self._operation
        if not isinstance(operation, transaction_pb2.Transaction.Update):
            return set()
        return {*operation.fields_modified, *operation.fields_for_preserving_frag_bitmap}

    def _rewritten_rows(self, one: Fragment, other: Fragment) -> Rows | None:
        """Return the physical rows whose values may have changed, None for all."""
        if self._stable:
            every = np.arange(self._after.total(other), dtype=np.int64)
            old_versions = self._before.lineage(one, UPDATED_AT, every)
            rows: Rows = np.flatnonzero(old_versions != self._after.lineage(other, UPDATED_AT, every))
            # A writer that replaces a file without listing its rows does not change their row versions.
            return rows if len(rows) else None
        return _rows_in_operation(self._operation, other)


def _view(snapshot: Snapshot) -> FragmentView:
    return FragmentView(snapshot.table, snapshot.bases)


def _field_ids(manifest: Manifest) -> set[int]:
    return {node.id for field in manifest.schema.fields for node in field.walk()}


def _field_files(fragment: Fragment, fields: Container[int]) -> dict[int, tuple[str, int]]:
    """Return field id -> (path, base id) of the file with the field, for some fields."""
    return {
        field: (file.path, file.base_id)
        for file in fragment.files
        for field in file.fields
        if field in fields
    }


def _rows_in_operation(operation: Message, fragment: Fragment) -> Rows | None:
    """Return the rows of a fragment that an update lists as changed in place; None if it lists none."""
    if not isinstance(operation, transaction_pb2.Transaction.Update):
        return None
    data = operation.updated_fragment_offset_bitmaps.get(fragment.id)
    if not data:
        return None
    offsets = parse_offsets(data, fragment.physical_rows, f"updated rows of fragment {fragment.id}")
    return offsets.astype(np.int64)


def _identify(part: _Part, view: FragmentView) -> IdentifiedRows:
    return view.identified(part.fragment, _offsets(part, view), stable_row_ids=True)


def _offsets(part: _Part, view: FragmentView) -> Rows:
    fragment = part.fragment
    return view.live(fragment) if part.without is None else _rows_deleted_in(view, fragment, part.without)


def _rows_deleted_in(view: FragmentView, fragment: Fragment, other: Fragment) -> Rows:
    """Return the rows that are live in `fragment` and deleted in `other`, a state of the same fragment."""
    rows: Rows = np.setdiff1d(view.deleted(other), view.deleted(fragment), assume_unique=True)
    return rows


def _list_rows(kind: str, fragment: Fragment, rows: Rows) -> ChangedRows:
    bitmap = BitMap(rows.astype(np.uint32))
    bitmap.run_optimize()
    return ChangedRows(kind, fragment.SerializeToString(), bitmap.serialize(), None, len(rows))


def _change_part(kind: str, part: _Part, view: FragmentView) -> ChangedRows:
    """Return the changed rows of a part, with a bitmap only if an operation restored deleted rows."""
    fragment, other = part.fragment, part.without
    deleted_rows = int(fragment.deletion_file.num_deleted_rows)
    if other is None:
        return ChangedRows(
            kind, fragment.SerializeToString(), None, None, view.total(fragment) - deleted_rows
        )
    if kind == DELETE and int(other.deletion_file.num_deleted_rows) > deleted_rows:
        count = int(other.deletion_file.num_deleted_rows) - deleted_rows
        return ChangedRows(kind, fragment.SerializeToString(), None, other.SerializeToString(), count)
    return _list_rows(kind, fragment, _rows_deleted_in(view, fragment, other))


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
        scan: reads the fragment; its columns have the same names as in `schema`.
        change: the rows and the kind of their change.
        version: the version that changed the rows.
        timestamp: the commit time of the version, in microseconds since 1970.
        schema: the columns to yield. Columns that neither `scan` nor the feed has are null.
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
            target_bytes: target size of one table in bytes.
            condition: yield only the rows for which it is true. It may refer to the columns of `schema`.

        Raises:
            SchemaError: a value does not fit the column's type in `schema`, or is null in a NOT NULL column.
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
