"""The differences between two versions of a table: the rows inserted, updated and deleted.

With stable row ids, the id identifies a row. A row is inserted if it is live only at the end, and deleted if
it is live only at the beginning. It is updated if it is live at both and different versions changed it last.
A row that was inserted and then updated counts as inserted. A row that was inserted and then deleted does not
count. Compaction moves rows without changing them. Only fragments that differ are read; fragments that are
the same in both versions have the same rows. (Lance table format, change data feed.)

Without stable row ids, the address identifies a row if rows were only added and removed between the versions:
by appends, deletes, overwrites, and operations that touch no rows. After any other operation, the primary key
identifies a row, and the row is updated if a value differs.

The ids of the rows in fragments that differ are held in memory, about 40 bytes per row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from spark_lance.errors import OptionError, UnsupportedFormatError, VersionNotFoundError
from spark_lance.file.base.extensions import restore_schema_types, restore_table_types
from spark_lance.proto import table_pb2
from spark_lance.table.format.paths import manifest_path
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.operations.row_effects import find_effect
from spark_lance.table.reading.compare import FragmentView, IdentifiedRows, Rows, compare_rows
from spark_lance.table.reading.compare_keys import compare_by_key, shared_key
from spark_lance.table.reading.lineage import CREATED_AT, ROW_ID, UPDATED_AT
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import find_version, is_set_aside, load_version, read_whole

Fragment = table_pb2.DataFragment

_BATCH_BYTES = 8 << 20


@dataclass(frozen=True)
class _VersionRows:
    """Rows of one version: fragment id -> physical offsets, ascending."""

    at: Snapshot
    offsets: Mapping[int, Rows]


@dataclass(frozen=True)
class _Comparison:
    inserted: _VersionRows
    updated: _VersionRows
    deleted: _VersionRows


@dataclass(frozen=True, repr=False)
class Changes:
    """The changes from one version, exclusive, to another, inclusive. Made by `changes_between`.

    Rows are in scan order. They have the requested columns, then `_rowid` and, with stable row ids,
    `_row_created_at_version` and `_row_last_updated_at_version`. All methods that return rows raise
    FormatError and UnsupportedFormatError if stored bytes are damaged or not supported.
    """

    begin: Snapshot | None
    end: Snapshot

    def __repr__(self) -> str:
        first = 0 if self.begin is None else self.begin.manifest.version
        versions = f"after version {first} up to version {self.end.manifest.version}"
        return f"Changes(of {self.end.table.root!r}, {versions})"

    def inserted(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Return the inserted rows with their values at the end.

        Raises:
            SchemaError: a column does not exist at the end.
        """
        return self._read(self._comparison.inserted, columns)

    def updated(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Return the updated rows with their values at the end; raises the errors of `inserted`."""
        return self._read(self._comparison.updated, columns)

    def deleted(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Return the deleted rows with their values at the beginning.

        Raises:
            SchemaError: a column did not exist at the beginning.
        """
        return self._read(self._comparison.deleted, columns)

    def counts(self) -> dict[str, int]:
        """Return the numbers of rows with the keys `inserted`, `updated` and `deleted`."""
        compared = self._comparison
        kinds = {"inserted": compared.inserted, "updated": compared.updated, "deleted": compared.deleted}
        return {name: sum(map(len, rows.offsets.values())) for name, rows in kinds.items()}

    def get_inserted_rows(self) -> pa.RecordBatchReader:
        """Return `inserted()`; this is pylance's name."""
        return self.inserted()

    def get_updated_rows(self) -> pa.RecordBatchReader:
        """Return `updated()`; this is pylance's name."""
        return self.updated()

    def get_deleted_row_ids(self) -> pa.RecordBatchReader:
        """Return the `_rowid`s of the deleted rows; this is pylance's name."""
        reader = self.deleted([])
        schema = pa.schema([reader.schema.field(ROW_ID)])
        return pa.RecordBatchReader.from_batches(schema, (batch.select([ROW_ID]) for batch in reader))

    def list_transactions(self) -> list[Transaction]:
        """Return the transactions that made the versions, oldest first.

        Raises:
            VersionNotFoundError: a version between the two has been cleaned up.
            FormatError: a transaction cannot be read.
        """
        end, first = self.end, self.begin.version if self.begin else 0
        return [
            read_transaction(end.table, load_version(end.table, version))
            for version in range(first + 1, end.version + 1)
            if version == end.version or not self._is_torn(version)
        ]

    def _is_torn(self, version: int) -> bool:
        """Return whether the manifest of a version is incomplete, so that the version was never valid."""
        table = self.end.table
        try:
            find_version(table, version)
        except VersionNotFoundError:
            return is_set_aside(table, version)
        path = manifest_path(table.root, version, self.end.manifest.naming)
        return read_whole(table.store, path, self.end.manifest.naming) is None

    @cached_property
    def _comparison(self) -> _Comparison:
        if not self.end.manifest.uses_stable_row_ids and self.begin is not None:
            operations = {transaction.name for transaction in self.list_transactions()}
            moving = {name for name in operations if not find_effect(name).keeps_addresses}
            if moving:
                return _compare_primary_keys(self.begin, self.end, moving)
        return _compare_row_ids(self.begin, self.end)

    def _read(self, rows: _VersionRows, columns: Sequence[str] | None) -> pa.RecordBatchReader:
        system = [ROW_ID, CREATED_AT, UPDATED_AT] if self.end.manifest.uses_stable_row_ids else [ROW_ID]
        names = [field.name for field in rows.at.schema.fields] if columns is None else list(columns)
        names += [name for name in system if name not in names]
        scan = rows.at.scan(names)

        def batches() -> Iterator[pa.RecordBatch]:
            for task in scan.tasks():
                offsets = rows.offsets.get(task.message.id)
                if offsets is not None:
                    for table in task.rows(offsets, _BATCH_BYTES):
                        yield from restore_table_types(table.cast(scan.arrow_schema)).to_batches()

        return pa.RecordBatchReader.from_batches(restore_schema_types(scan.arrow_schema), batches())


def changes_between(begin: Snapshot | None, end: Snapshot) -> Changes:
    """Return the changes from a version of a table to a later one.

    Args:
        begin: the version to compare with; None for the empty table before the first version.
        end: the later version.

    Raises:
        OptionError: `begin` is later than `end`.
    """
    if begin is not None and begin.version > end.version:
        raise OptionError(f"version {begin.version} is later than version {end.version}")
    return Changes(begin, end)


def _compare_row_ids(begin: Snapshot | None, end: Snapshot) -> _Comparison:
    old = {fragment.id: fragment for fragment in begin.fragments} if begin else {}
    new = {fragment.id: fragment for fragment in end.fragments}

    def live(at: Snapshot, others: Mapping[int, Fragment]) -> Iterator[IdentifiedRows]:
        view = FragmentView(at.table, at.bases)
        for fragment in at.fragments:
            if others.get(fragment.id) != fragment:
                yield view.identified(fragment, view.live(fragment), at.manifest.uses_stable_row_ids)

    older, newer = compare_rows(list(live(begin, new)) if begin else [], live(end, old))
    return _Comparison(
        _version_rows(end, {rows.fragment.id: rows.alone for rows in newer}),
        _version_rows(end, {rows.fragment.id: rows.changed for rows in newer}),
        _version_rows(begin or end, {rows.fragment.id: rows.alone for rows in older}),
    )


def _compare_primary_keys(begin: Snapshot, end: Snapshot, moving: Collection[str | None]) -> _Comparison:
    """Compare two versions of a table without stable row ids by its primary key.

    Raises:
        UnsupportedFormatError: the versions have no common primary key, or a key is not unique.
    """
    names = ", ".join(sorted(name or "an unknown operation" for name in moving))
    problem = (
        f"cannot compare versions {begin.version} and {end.version}: rows were moved or changed ({names}), "
    )
    if not shared_key(begin.schema, end.schema):
        raise UnsupportedFormatError(
            f"{problem}and the table has neither stable row ids nor a primary key in both versions. Create "
            "tables with enable_stable_row_ids=True or with a primary key",
            end.root,
        )
    old = {fragment.id: fragment for fragment in begin.fragments}
    new = {fragment.id: fragment for fragment in end.fragments}

    def differing(at: Snapshot, others: Mapping[int, Fragment]) -> Iterator[tuple[Fragment, Rows]]:
        view = FragmentView(at.table, at.bases)
        for fragment in at.fragments:
            other = others.get(fragment.id)
            if other is None or _without_deletions(other) != _without_deletions(fragment):
                yield fragment, view.live(fragment)
            elif other != fragment:
                # Equal files have equal rows, so only rows that are deleted in one version differ.
                removed = np.setdiff1d(view.live(fragment), view.live(other), assume_unique=True)
                yield fragment, removed.astype(np.int64)

    comparison = compare_by_key(begin, end, list(differing(begin, new)), list(differing(end, old)))
    if comparison.repeated is not None:
        raise UnsupportedFormatError(
            f"{problem}the table has no stable row ids, and several rows have the primary key "
            f"{comparison.repeated}. Delete the duplicates, or create tables with enable_stable_row_ids=True",
            end.root,
        )
    older, newer = comparison.older, comparison.newer
    return _Comparison(
        _version_rows(end, {rows.fragment.id: rows.alone for rows in newer}),
        _version_rows(end, {rows.fragment.id: rows.changed for rows in newer}),
        _version_rows(begin, {rows.fragment.id: rows.alone for rows in older}),
    )


def _without_deletions(fragment: Fragment) -> Fragment:
    """Return a fragment without its deletions."""
    data = Fragment()
    data.CopyFrom(fragment)
    data.ClearField("deletion_file")
    return data


def _version_rows(at: Snapshot, offsets: Mapping[int, Rows]) -> _VersionRows:
    return _VersionRows(at, {number: rows for number, rows in offsets.items() if len(rows)})
