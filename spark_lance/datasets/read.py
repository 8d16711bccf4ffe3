"""Reading rows, by columns, filters, positions and ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_lance.datasets.base import DatasetBase
from spark_lance.errors import OptionError, RowNotFoundError
from spark_lance.file.extensions import known_batch, known_schema, known_table
from spark_lance.file.schema import Schema
from spark_lance.proto import table_pb2
from spark_lance.table.addresses import fragments_of
from spark_lance.table.manifest import Manifest
from spark_lance.table.predicates.predicate import Predicate
from spark_lance.table.reading.blobs import BlobFile, blob_path, descriptors, open_blobs
from spark_lance.table.reading.changes_feed import Changes, changes_between
from spark_lance.table.reading.scan import ROW_ADDRESS, Scan, rows_without_columns
from spark_lance.table.reading.scan_task import in_batches
from spark_lance.table.reading.take import RowNumbers, take_addresses, take_positions, take_row_ids
from spark_lance.table.versions.resolve import Reference, resolve
from spark_lance.table.versions.versions import load_version

__all__ = ["LanceFragment", "ReadMixin"]

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 17
_TABLE_BYTES = 64 << 20


class _Readable(ABC):
    """What can be read of a version and of one of its fragments alike."""

    @abstractmethod
    def _scan(
        self, columns: Sequence[str] | None, with_row_id: bool = False, with_row_address: bool = False
    ) -> Scan:
        """Plan to read columns of the rows that this stands for."""

    def count_rows(self, filter: Predicate | None = None) -> int:
        """Count rows; without a filter from the manifest alone."""
        scan = self._scan([])
        if filter is None:
            return sum(scan.live_rows(fragment) for fragment in scan.fragments)
        return sum(table.num_rows for table in scan.tables(filter))

    def to_table(
        self,
        columns: Sequence[str] | None = None,
        filter: Predicate | None = None,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
    ) -> pa.Table:
        """Read rows into memory.

        Columns have the extension types that pyarrow knows, built in or registered.

        Args:
            columns: top-level columns in the wanted order; all by default. The system columns `_rowid`,
                `_rowaddr`, `_rowoffset`, `_row_created_at_version` and `_row_last_updated_at_version` can be
                named too.
            filter: SQL or a pyarrow expression over any columns of the table, and over system columns but
                `_rowoffset`. Other columns are read only for rows that pass it.
            limit: the maximal number of rows, after the first `offset` rows were skipped.
            offset: rows to pass over.
            with_row_id: add the column `_rowid` (uint64).
            with_row_address: add the column `_rowaddr` (uint64: fragment id << 32 | physical row).

        Raises:
            SchemaError: a column does not exist.
            ExpressionError: the filter does not fit.
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
        """
        scan = self._scan(columns, with_row_id, with_row_address)
        tables = list(_tables(scan, filter, offset or 0, limit, _TABLE_BYTES))
        if not tables:
            return known_table(pa.Table.from_batches([], scan.arrow_schema))
        if not scan.names:
            return rows_without_columns(sum(table.num_rows for table in tables))
        return known_table(pa.concat_tables(tables).replace_schema_metadata(scan.arrow_schema.metadata))

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        filter: Predicate | None = None,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        batch_size: int = _BATCH_ROWS,
        batch_bytes: int = _BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Stream rows as record batches of about `batch_bytes` bytes and at most `batch_size` rows.

        The other arguments and the errors are those of `to_table`.
        """
        scan = self._scan(columns, with_row_id, with_row_address)
        tables = _tables(scan, filter, offset or 0, limit, batch_bytes)
        for batch in in_batches(tables, batch_size):
            yield known_batch(batch.replace_schema_metadata(scan.arrow_schema.metadata))

    def take(self, indices: RowNumbers, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows at positions `indices` (0-based, in scan order), in that order.

        Raises:
            IndexError: a position is outside the rows.
            SchemaError: a column does not exist.
        """
        return known_table(take_positions(self._scan(columns), indices))


class ReadMixin(DatasetBase, _Readable):
    """What can be read of one version."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, with the extension types that pyarrow knows."""
        return known_schema(self.lance_schema.to_arrow())

    @property
    def lance_schema(self) -> Schema:
        """The schema with field ids."""
        return self.manifest.schema

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows keep their `_rowid` when they are moved or changed."""
        return self.manifest.uses_stable_row_ids

    def get_fragments(self) -> list[LanceFragment]:
        """Return the fragments in scan order."""
        return [LanceFragment(self, fragment) for fragment in self.manifest.fragments]

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """Return the fragment of an id, None if there is none."""
        found = [fragment for fragment in self.manifest.fragments if fragment.id == fragment_id]
        return LanceFragment(self, found[0]) if found else None

    def _scan(
        self, columns: Sequence[str] | None, with_row_id: bool = False, with_row_address: bool = False
    ) -> Scan:
        return self.snapshot.scan(columns, with_row_id=with_row_id, with_row_address=with_row_address)

    def take_rows(self, row_ids: RowNumbers, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows with the given `_rowid`s, in that order; ids without a live row are passed over.

        Raises:
            IndexError: row ids are addresses here, and an existing fragment has no such physical row.
            SchemaError: a column does not exist.
        """
        return known_table(take_row_ids(self._scan(columns), row_ids))

    _take_rows = take_rows  # pylance's name

    def diff(self, from_version: Reference, to_version: Reference | None = None) -> Changes:
        """Return what changed from one version, exclusive, to another, inclusive.

        `diff(3).inserted()`, `.updated()` and `.deleted()` are streams of rows; see `Changes`. Without stable
        row ids they can be told if rows were only appended, deleted and overwritten between the versions.

        Args:
            from_version: a version of this line, by number or tag; 0 for the empty table before the first.
            to_version: a later one; this version by default.

        Raises:
            VersionNotFoundError: there is no such version.
            OptionError: the versions are in the wrong order, or on another branch.
        """
        at = self.snapshot
        end = at if to_version is None else at.at(self._on_this_line(to_version))
        begin = None if from_version == 0 else at.at(self._on_this_line(from_version))
        return changes_between(begin, end)

    def delta(
        self,
        compared_against: int | None = None,
        *,
        begin_version: int | None = None,
        end_version: int | None = None,
    ) -> Changes:
        """Return `diff(compared_against)` or `diff(begin_version, end_version)`, by pylance's name.

        Raises:
            OptionError: neither the one nor both of the others are given; or as `diff`.
        """
        if compared_against is not None and begin_version is None and end_version is None:
            return self.diff(compared_against)
        if compared_against is None and begin_version is not None and end_version is not None:
            return self.diff(begin_version, end_version)
        raise OptionError("delta needs compared_against, or begin_version and end_version")

    def _on_this_line(self, version: Reference) -> Manifest:
        place = resolve(self.store, self.main_root, version, self.branch)
        if place.root != self.root:
            raise OptionError(f"version {version!r} is on another branch: row ids mean other rows there")
        return load_version(self.store, self.root, place.version)

    def take_blobs(
        self,
        blob_column: str,
        indices: RowNumbers | None = None,
        *,
        ids: RowNumbers | None = None,
        addresses: RowNumbers | None = None,
    ) -> list[BlobFile | None]:
        """Return the blobs of rows as binary files, None for nulls.

        Args:
            blob_column: a blob column; dots lead into structs.
            indices: positions, 0-based, in scan order. (pylance's second argument is `ids`.)
            ids: `_rowid`s instead.
            addresses: `_rowaddr`s instead.

        Raises:
            IndexError: a position is outside the table, or an id or address has no live row.
            OptionError: not exactly one of the three is given.
            SchemaError: there is no such column, or it is not a blob column.
            FormatError, UnsupportedFormatError: a descriptor is damaged or of an unknown kind.
            FileNotFoundError: an object outside the table, to which a descriptor points, does not exist.
        """
        given = [numbers for numbers in (indices, ids, addresses) if numbers is not None]
        if len(given) != 1:
            raise OptionError("take_blobs needs one of indices, ids and addresses")
        path = blob_path(self.lance_schema, blob_column)
        scan = self._scan([path[0].name, ROW_ADDRESS])
        if indices is not None:
            rows = take_positions(scan, indices)
        elif ids is not None:
            rows = take_row_ids(scan, ids)
        else:
            rows = take_addresses(scan, given[0])
        if rows.num_rows != len(given[0]):
            raise RowNotFoundError(f"only {rows.num_rows} of {len(given[0])} rows exist")
        by_id = {fragment.id: fragment for fragment in self.manifest.fragments}
        fragments = [by_id[number] for number in fragments_of(rows[ROW_ADDRESS].to_numpy()).tolist()]
        return open_blobs(self.snapshot.bases, path[-1], descriptors(rows.column(0), path), fragments)


@dataclass(frozen=True)
class LanceFragment(_Readable):
    """One fragment of a version. `_rowoffset` counts the rows of the whole table."""

    parent: ReadMixin
    metadata: table_pb2.DataFragment

    @property
    def fragment_id(self) -> int:
        """The fragment's id."""
        return self.metadata.id

    @property
    def physical_rows(self) -> int:
        """Rows stored, deleted ones included."""
        return self.parent.snapshot.physical_rows(self.metadata)

    @property
    def num_deletions(self) -> int:
        """Rows deleted."""
        return int(self.metadata.deletion_file.num_deleted_rows)

    def _scan(
        self, columns: Sequence[str] | None, with_row_id: bool = False, with_row_address: bool = False
    ) -> Scan:
        return self.parent.snapshot.scan(
            columns,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            fragments=[self.metadata],
        )


def _tables(
    scan: Scan, filter: Predicate | None, offset: int, limit: int | None, target_bytes: int
) -> Iterator[pa.Table]:
    if offset < 0 or (limit is not None and limit < 0):
        raise OptionError("limit and offset cannot be negative")
    if filter is None:
        return scan.slice(offset, limit, target_bytes)
    return _cut(scan.tables(filter, target_bytes), offset, limit)


def _cut(parts: Iterable[pa.Table], offset: int, limit: int | None) -> Iterator[pa.Table]:
    """Pass over `offset` rows of a stream of tables, then let `limit` rows through."""
    for part in parts:
        if limit == 0:
            return
        skipped = min(offset, part.num_rows)
        offset -= skipped
        rows = part.num_rows - skipped
        kept = part.slice(skipped, rows if limit is None else min(rows, limit))
        if kept.num_rows:
            limit = None if limit is None else limit - kept.num_rows
            yield kept
