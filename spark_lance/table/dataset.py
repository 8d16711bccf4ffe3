"""The Spark-free face of a table, with the names that users of pylance know."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import CommitOutcomeUnknownError, LanceError, OptionError
from spark_lance.file.arrays import pick_rows
from spark_lance.file.schema import Schema
from spark_lance.io.store import Store, open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.align import Aligner
from spark_lance.table.blobs import BlobFile, blob_path, descriptors, homes, open_blobs
from spark_lance.table.commit import commit_operation
from spark_lance.table.delete import delete_rows
from spark_lance.table.deletion import read_deletions
from spark_lance.table.fragment import FragmentReader, physical_rows
from spark_lance.table.manifest import Manifest, read_manifest
from spark_lance.table.operations.update_config import Texts, field_at, text_updates
from spark_lance.table.refs import latest_version, list_versions, load_latest, load_version
from spark_lance.table.scan import Scan, rows_without_columns
from spark_lance.table.tags import Tags, resolve_version
from spark_lance.table.write import (
    MAX_BYTES_PER_FILE,
    MAX_ROWS_PER_FILE,
    delete_fragment_files,
    write_fragments,
)
from spark_lance.table.write_plan import commit_write, plan_write

__all__ = ["LanceDataset", "LanceFragment", "dataset", "write_dataset"]

_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 17


def dataset(
    uri: str | os.PathLike[str],
    version: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> LanceDataset:
    """Open a table at its latest or a given version.

    Args:
        uri: a path or an fsspec URI.
        version: a version number or a tag; the latest version by default.
        storage_options: options of the fsspec file system.

    Raises:
        TableNotFoundError: there is no table.
        VersionNotFoundError: it has no such version or tag.
        UnsupportedFormatError: it uses a feature that this release does not read.
    """
    store, root = open_store(uri, storage_options)
    if version is None:
        manifest = load_latest(store, root)
    else:
        manifest = load_version(store, root, resolve_version(store, root, version))
    return LanceDataset(os.fspath(uri), store, root, manifest)


@dataclass(frozen=True)
class LanceDataset:
    """One version of a table. Made by `dataset` and `write_dataset`."""

    uri: str
    store: Store
    root: str
    manifest: Manifest

    @property
    def version(self) -> int:
        """The version that is read."""
        return self.manifest.version

    @property
    def latest_version(self) -> int:
        """The newest version in the store."""
        return latest_version(self.store, self.root).version

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema."""
        return self.lance_schema.to_arrow()

    @property
    def lance_schema(self) -> Schema:
        """The schema with field ids."""
        return self.manifest.schema

    def checkout_version(self, version: int | str) -> LanceDataset:
        """Return the table at another version, given by number or by tag.

        Raises:
            VersionNotFoundError: there is no such version or tag.
        """
        number = resolve_version(self.store, self.root, version)
        return self._at(load_version(self.store, self.root, number))

    @property
    def tags(self) -> Tags:
        """The names of versions: list, create, update and delete them."""
        return Tags(self.store, self.root, self.version)

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions that exist, oldest first: dicts of `version`, `timestamp` (UTC), `metadata`."""
        found = []
        for file in list_versions(self.store, self.root):
            manifest = read_manifest(self.store, file.path, file.naming)
            row = {"version": file.version, "timestamp": manifest.timestamp}
            found.append({**row, "metadata": dict(manifest.table_metadata)})
        return found

    def delete(self, predicate: pc.Expression) -> LanceDataset:
        """Delete the rows for which an expression over the columns is true; return the version without them.

        Rows are looked for in this version. If another writer changed the same rows meanwhile, or moved them,
        they are looked for again in the newest version. A version is made even if no row matches.

        Raises:
            ExpressionError: the expression does not fit the columns.
            CommitError: other writers were in the way; see its subclasses.
            UnsupportedFormatError: the table uses a feature that is not written here.
        """
        return self._at(delete_rows(self.store, self.root, self.manifest, predicate))

    def restore(self) -> LanceDataset:
        """Make this version's content the newest version, and return that.

        Schema, rows, indices, config and metadata come back as they were here; files that a clean-up has
        deleted do not.

        Raises:
            CommitError: the commit failed; see its subclasses.
            UnsupportedFormatError: the table uses a feature that is not written here.
        """
        operation = transaction_pb2.Transaction.Restore(version=self.version)
        return self._at(commit_operation(self.store, self.root, operation, read_version=self.latest_version))

    def config(self) -> dict[str, str]:
        """Return the table's settings."""
        return dict(self.manifest.config)

    @property
    def metadata(self) -> dict[str, str]:
        """The table's own metadata; that of its schema is `schema.metadata`."""
        return dict(self.manifest.table_metadata)

    def update_config(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set settings of the table and return the new version.

        Args:
            values: keys to set; None deletes a key. Keys beginning with `lance.` belong to the format.
            replace: drop all other keys.

        Raises:
            IncompatibleConflictError: another writer has updated one of the keys meanwhile.
            CommitError: the commit failed; see its subclasses.
        """
        return self._update(config_updates=text_updates(values, replace=replace))

    def delete_config_keys(self, keys: Sequence[str]) -> LanceDataset:
        """Delete settings of the table, whether or not they exist; errors as `update_config`."""
        return self.update_config(dict.fromkeys(keys))

    def update_metadata(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set metadata of the table; arguments and errors as `update_config`."""
        return self._update(table_metadata_updates=text_updates(values, replace=replace))

    def update_schema_metadata(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set metadata of the schema (`schema.metadata`); arguments and errors as `update_config`."""
        return self._update(schema_metadata_updates=text_updates(values, replace=replace))

    def update_field_metadata(self, updates: Mapping[str, Texts], *, replace: bool = False) -> LanceDataset:
        """Set metadata of fields, named by path (`a.b` is a field of a struct), as `update_config` does.

        Raises:
            SchemaError: a field does not exist, or the metadata makes it a key.
            CommitError: another writer was in the way; see its subclasses.
        """
        by_id = {
            field_at(self.manifest, path).id: text_updates(values, replace=replace)
            for path, values in updates.items()
        }
        return self._update(field_metadata_updates=by_id)

    def _update(self, **updates: Any) -> LanceDataset:
        operation = transaction_pb2.Transaction.UpdateConfig(**updates)
        return self._at(commit_operation(self.store, self.root, operation, read_version=self.version))

    def _at(self, manifest: Manifest) -> LanceDataset:
        return LanceDataset(self.uri, self.store, self.root, manifest)

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
        return open_blobs(self.store, self.root, path[-1], found, fragments)


@dataclass(frozen=True)
class LanceFragment:
    """One fragment of a version."""

    parent: LanceDataset
    metadata: table_pb2.DataFragment

    @property
    def fragment_id(self) -> int:
        """The fragment's id."""
        return self.metadata.id

    @property
    def physical_rows(self) -> int:
        """Rows stored, deleted ones included."""
        return physical_rows(self.parent.store, self.parent.root, self.metadata)

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
        """Read the fragment's rows; arguments and errors as `LanceDataset.to_table`."""
        return self._alone().to_table(columns, filter)

    def to_batches(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Stream the fragment's rows; arguments and errors as `LanceDataset.to_batches`."""
        return self._alone().to_batches(columns, filter)

    def _alone(self) -> LanceDataset:
        """Return a view of the version in which this is the only fragment."""
        parent = self.parent
        message = table_pb2.Manifest()
        message.CopyFrom(parent.manifest.message)
        del message.fragments[:]
        message.fragments.append(self.metadata)
        source = parent.manifest
        alone = Manifest(message, source.index_section, source.naming, source.path)
        return LanceDataset(parent.uri, parent.store, parent.root, alone)

    def _take_live(self, scan: Scan, positions: np.ndarray) -> pa.Table:
        """Return rows by ascending position among the rows that are not deleted."""
        parent = self.parent
        reader = FragmentReader(parent.store, parent.root, self.metadata, scan.fields)
        deleted = read_deletions(parent.store, parent.root, self.metadata, reader.num_rows).astype(np.int64)
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


def write_dataset(
    data: Any,
    uri: str | os.PathLike[str],
    mode: str = "create",
    *,
    schema: pa.Schema | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    max_bytes_per_file: int = MAX_BYTES_PER_FILE,
    data_storage_version: str | None = None,
    enable_stable_row_ids: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    transaction_properties: Mapping[str, str] | None = None,
) -> LanceDataset:
    """Write a table and return its new version.

    Args:
        data: a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, a pandas DataFrame, or an iterable
            of RecordBatches (which needs `schema`).
        uri: a path or an fsspec URI.
        mode: "create" (fails if the table exists), "append" or "overwrite" (both create it if missing).
        schema: of an iterable of batches.
        max_rows_per_file: rows after which a new file is begun.
        max_bytes_per_file: bytes after which a new file is begun.
        data_storage_version: "2.0", "2.1" or "2.2"; the table's own or 2.2 by default.
        enable_stable_row_ids: for a new table: rows keep their `_rowid` when they move.
        storage_options: options of the fsspec file system.
        transaction_properties: kept with the transaction.

    Raises:
        TableExistsError: mode "create" and the table exists.
        SchemaError: the data does not fit the table, or Lance cannot store a type.
        CommitError: another writer was in the way; see its subclasses.
    """
    reader = _as_reader(data, schema)
    store, root = open_store(uri, storage_options)
    plan = plan_write(
        store,
        root,
        reader.schema,
        mode,
        data_storage_version=data_storage_version,
        stable_row_ids=enable_stable_row_ids,
    )
    aligner = Aligner(reader.schema, plan.schema)
    fragments = write_fragments(
        (aligner.align(batch) for batch in reader),
        store,
        root,
        plan.schema,
        version=plan.version,
        max_rows_per_file=max_rows_per_file,
        max_bytes_per_file=max_bytes_per_file,
    )
    try:
        version = commit_write(store, root, plan, fragments, transaction_properties)
    except CommitOutcomeUnknownError:
        raise
    except (LanceError, OSError):
        # Every other failure says that nothing was committed.
        delete_fragment_files(store, root, fragments)
        raise
    return LanceDataset(os.fspath(uri), store, root, load_version(store, root, version))


def _as_reader(data: Any, schema: pa.Schema | None) -> pa.RecordBatchReader:
    """Return any accepted kind of data as a stream of batches."""
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "scanner"):
        return data.scanner().to_reader()
    if hasattr(data, "iloc"):
        return pa.Table.from_pandas(data, schema=schema, preserve_index=False).to_reader()
    if schema is None:
        raise OptionError("an iterable of record batches needs the argument schema")
    return pa.RecordBatchReader.from_batches(schema, data)
