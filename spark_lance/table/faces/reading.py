"""Reading rows, by columns, filters and positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import OptionError
from spark_lance.file.arrays import pick_rows
from spark_lance.file.schema import Schema
from spark_lance.proto import table_pb2
from spark_lance.table.bases import Bases
from spark_lance.table.blobs import BlobFile, blob_path, descriptors, homes, open_blobs
from spark_lance.table.deletion import read_deletions
from spark_lance.table.faces.base import Face
from spark_lance.table.fragment import FragmentReader, physical_rows
from spark_lance.table.manifest import Manifest
from spark_lance.table.scan import Scan, rows_without_columns

__all__ = ["LanceFragment", "Reading"]

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 17


class Reading(Face):
    """What can be read of one version."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema."""
        return self.lance_schema.to_arrow()

    @property
    def lance_schema(self) -> Schema:
        """The schema with field ids."""
        return self.manifest.schema

    @property
    def _bases(self) -> Bases:
        return Bases.of(self.store, self.root, self.manifest.message)

    def get_fragments(self) -> list[LanceFragment]:
        """Return the fragments in scan order."""
        return [LanceFragment(self, fragment) for fragment in self.manifest.fragments]

    def count_rows(self, filter: pc.Expression | None = None) -> int:
        """Count rows; without a filter from the manifest alone."""
        if filter is None:
            return sum(fragment.count_rows() for fragment in self.get_fragments())
        return sum(table.num_rows for table in self._scan([]).tables(filter))

    def _scan(self, columns: Sequence[str] | None, row_id: bool = False, row_address: bool = False) -> Scan:
        return Scan.plan(
            self.store, self.root, self.manifest, columns, with_row_id=row_id, with_row_address=row_address
        )

    def to_table(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
    ) -> pa.Table:
        """Read rows into memory.

        Args:
            columns: top-level columns in the wanted order; all by default.
            filter: an expression over any columns of the table.
            limit: at most so many rows, after `offset` rows were passed over.
            offset: rows to pass over.
            with_row_id: add the column `_rowid` (uint64).
            with_row_address: add the column `_rowaddr` (uint64: fragment id << 32 | physical row).

        Raises:
            SchemaError: a column does not exist.
            ExpressionError: the filter does not fit.
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
        """
        scan = self._scan(columns, with_row_id, with_row_address)
        tables = list(_cut(scan.tables(filter), offset or 0, limit))
        if not tables:
            return pa.Table.from_batches([], scan.arrow_schema)
        if not scan.names:
            return rows_without_columns(sum(table.num_rows for table in tables))
        return pa.concat_tables(tables).replace_schema_metadata(scan.arrow_schema.metadata)

    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
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
        yield from _cut(scan.batches(batch_bytes, batch_size, filter), offset or 0, limit)

    def take(self, indices: Sequence[int] | np.ndarray, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows at positions `indices` (0-based, in scan order), in that order.

        Raises:
            IndexError: a position is outside the table.
            SchemaError: a column does not exist.
        """
        wanted = np.asarray(indices, dtype=np.int64)
        fragments = self.get_fragments()
        ends = np.cumsum([fragment.count_rows() for fragment in fragments], dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        if wanted.size and (wanted.min() < 0 or wanted.max() >= total):
            raise IndexError(f"row positions must be within 0 and {total - 1}")
        order, back = np.unique(wanted, return_inverse=True)
        homes = np.searchsorted(ends, order, side="right")
        scan = self._scan(columns)
        parts = [pa.Table.from_batches([], scan.arrow_schema)]
        for home in np.unique(homes):
            first = int(ends[home - 1]) if home else 0
            parts.append(fragments[home]._take_live(scan, order[homes == home] - first))
        return pick_rows(pa.concat_tables(parts), back.reshape(-1))

    def take_blobs(self, blob_column: str, indices: Sequence[int] | np.ndarray) -> list[BlobFile | None]:
        """Return the blobs of the rows at positions `indices` as binary files, None for nulls.

        Args:
            blob_column: a blob column; dots lead into structs.
            indices: 0-based, in scan order. (pylance's second argument is `ids`; there `indices` is named.)

        Raises:
            IndexError: a position is outside the table.
            SchemaError: there is no such column, or it is no blob column.
            FormatError, UnsupportedFormatError: a descriptor is damaged or of an unknown kind.
            FileNotFoundError: an object outside the table, to which a descriptor points, does not exist.
        """
        path = blob_path(self.lance_schema, blob_column)
        found = descriptors(self.take(indices, [path[0].name]).column(0), path)
        counts = [fragment.count_rows() for fragment in self.get_fragments()]
        fragments = [self.manifest.fragments[home] for home in homes(counts, list(map(int, indices)))]
        return open_blobs(self._bases, path[-1], found, fragments)


@dataclass(frozen=True)
class LanceFragment:
    """One fragment of a version."""

    parent: Reading
    metadata: table_pb2.DataFragment

    @property
    def fragment_id(self) -> int:
        """The fragment's id."""
        return self.metadata.id

    @property
    def physical_rows(self) -> int:
        """Rows stored, deleted ones included."""
        return physical_rows(self.parent.store, self.parent.root, self.metadata, self.parent._bases)

    @property
    def num_deletions(self) -> int:
        """Rows deleted."""
        return int(self.metadata.deletion_file.num_deleted_rows)

    def count_rows(self, filter: pc.Expression | None = None) -> int:
        """Count the rows that are not deleted."""
        if filter is not None:
            return int(self.to_table([], filter).num_rows)
        return self.physical_rows - self.num_deletions

    def to_table(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> pa.Table:
        """Read the fragment's rows; arguments and errors as `Reading.to_table`."""
        return self._alone().to_table(columns, filter)

    def to_batches(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Stream the fragment's rows; arguments and errors as `Reading.to_batches`."""
        return self._alone().to_batches(columns, filter)

    def _alone(self) -> Reading:
        """Return a view of the version in which this is the only fragment."""
        parent = self.parent
        message = table_pb2.Manifest()
        message.CopyFrom(parent.manifest.message)
        del message.fragments[:]
        message.fragments.append(self.metadata)
        source = parent.manifest
        alone = Manifest(message, source.index_section, source.naming, source.path)
        return Reading(parent.uri, parent.store, parent.root, alone)

    def _take_live(self, scan: Scan, positions: np.ndarray) -> pa.Table:
        """Return rows by ascending position among the rows that are not deleted."""
        parent = self.parent
        reader = FragmentReader(parent.store, parent.root, self.metadata, scan.fields, scan.bases)
        deleted = read_deletions(parent.store, parent.root, self.metadata, reader.num_rows, scan.bases)
        deleted = deleted.astype(np.int64)
        # Before the k-th deleted row there are deleted[k] - k live ones.
        physical = positions + np.searchsorted(deleted - np.arange(len(deleted)), positions, side="right")
        return pa.Table.from_arrays(reader.take(physical), schema=scan.arrow_schema)


def _cut(parts: Iterable[Any], offset: int, limit: int | None) -> Iterator[Any]:
    """Pass over `offset` rows of a stream of tables or batches, then let `limit` rows through."""
    if offset < 0 or (limit is not None and limit < 0):
        raise OptionError("limit and offset cannot be negative")
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
