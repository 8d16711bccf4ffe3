"""`LanceDataset`, the API of a table without Spark. Its method names follow pylance.

Methods with pylance's names call objects that group related methods, such as `ds.indices` and `ds.columns`.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.datasets.read import LanceFragment, Readable
from spark_lance.datasets.scan_request import Columns, Projection
from spark_lance.datasets.spelling import SpellingHintMixin
from spark_lance.expressions.predicate import Predicate
from spark_lance.file.base.extensions import restore_table_types
from spark_lance.file.base.schema import Schema
from spark_lance.index.fusion import RANK_CONSTANT
from spark_lance.index.pruners import index_pruners
from spark_lance.io.manifest_store import CommitLock
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.texts import texts_as_binary
from spark_lance.table.versions.versions import load_latest, load_version

if TYPE_CHECKING:
    from spark_lance.datasets.columns import DatasetColumns
    from spark_lance.datasets.config import DatasetSettings
    from spark_lance.datasets.fresh import FreshDataset
    from spark_lance.datasets.index import DatasetIndices
    from spark_lance.datasets.maintain import DatasetOptimizer
    from spark_lance.datasets.mem_wal import DatasetWal
    from spark_lance.datasets.merge import DatasetRows, MergeInsertBuilder, UpdateResult
    from spark_lance.datasets.operations import Index, Operation, Transaction
    from spark_lance.datasets.searching import DatasetSearcher
    from spark_lance.datasets.show import LanceStats
    from spark_lance.datasets.versions import DatasetBasePath, DatasetBases, DatasetHistory
    from spark_lance.memwal.shard_router import RoutedWriter
    from spark_lance.memwal.writer import ShardWriter
    from spark_lance.table.format import transaction as stored
    from spark_lance.table.indices.describe import IndexDescription
    from spark_lance.table.maintenance.compact_task import CompactionMetrics
    from spark_lance.table.operations.update_config import Texts
    from spark_lance.table.reading.blobs import BlobFile
    from spark_lance.table.reading.changes_feed import Changes
    from spark_lance.table.reading.take import RowNumbers
    from spark_lance.table.versions.branches import Branches
    from spark_lance.table.versions.cleanup import CleanupStats
    from spark_lance.table.versions.resolve import Reference
    from spark_lance.table.versions.tags import Tags

_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, repr=False, eq=False)
class LanceDataset(TableRefMixin, SpellingHintMixin, Readable):
    """One version of a Lance table, without Spark. Get it from `dataset` or `write_dataset`.

    It is immutable: methods that change the table return its new version, or a result that
    contains it. Two datasets are equal if they have the same URI, store and manifest.

    Read with `to_table`, `to_batches`, `scanner`, `take`, `sample`, `sql`. Search with
    `to_table(nearest=...)`, `to_table(full_text_query=...)`, `hybrid_search`. Change rows and columns with
    `insert`, `delete`, `update`, `merge_insert`, `add_columns`. Maintain the table with `optimize`,
    `create_index`, `cleanup_old_versions`. See also `versions`, `checkout_version`, `tags`, `branches`.

    Attributes:
        uri: path or URI of the table, as the user passed it.
        table: store and root path of the table.
        manifest: manifest of the version.
    """

    uri: str
    table: TableRef
    manifest: Manifest

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LanceDataset):
            return NotImplemented
        location = (self.uri, self.root, self.store)
        if location != (other.uri, other.root, other.store):
            return False
        return self.manifest is other.manifest or self.manifest.message == other.manifest.message

    def __hash__(self) -> int:
        return hash((self.uri, self.version))

    def __getstate__(self) -> dict[str, object]:
        # Cached values and open files are not pickled.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        from spark_lance.datasets.show import line

        return line(self)

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: a description of the table, and its first rows."""
        from spark_lance.datasets.show import html

        return html(self)

    def __len__(self) -> int:
        return self.count_rows()

    @property
    def version(self) -> int:
        """The version number of this dataset."""
        return self.manifest.version

    @property
    def branch(self) -> str | None:
        """The branch of this dataset; None for the main branch."""
        return self.manifest.message.branch or None

    @property
    def main_line(self) -> TableRef:
        """The main line of the table, which contains tags and branches."""
        from spark_lance.table.versions.resolve import main_line

        return main_line(self.table, self.manifest)

    @cached_property
    def snapshot(self) -> Snapshot:
        """The version as a `Snapshot`, for functions that read and change rows."""
        return Snapshot(self.table, self.manifest, index_pruners)

    @cached_property
    def searcher(self) -> DatasetSearcher:
        """Vector and full-text search, with a cache of open indexes."""
        from spark_lance.datasets.searching import DatasetSearcher

        return DatasetSearcher(self.snapshot)

    def at(self, manifest: Manifest) -> LanceDataset:
        """Return the same table at the version of another manifest."""
        return replace(self, manifest=manifest)

    @property
    def columns(self) -> DatasetColumns:
        """Methods that add, change and drop columns."""
        from spark_lance.datasets.columns import DatasetColumns

        return DatasetColumns(self)

    @property
    def rows(self) -> DatasetRows:
        """Methods that delete, update and merge rows."""
        from spark_lance.datasets.merge import DatasetRows

        return DatasetRows(self)

    @property
    def indices(self) -> DatasetIndices:
        """Methods that create, describe and drop vector, scalar and full-text indexes."""
        from spark_lance.datasets.index import DatasetIndices

        return DatasetIndices(self)

    @property
    def optimize(self) -> DatasetOptimizer:
        """Methods for compaction, index maintenance, cleanup and repair."""
        from spark_lance.datasets.maintain import DatasetOptimizer

        return DatasetOptimizer(self)

    @property
    def history(self) -> DatasetHistory:
        """The versions of this branch."""
        from spark_lance.datasets.versions import DatasetHistory

        return DatasetHistory(self)

    @property
    def bases(self) -> DatasetBases:
        """Additional base paths for the table's files."""
        from spark_lance.datasets.versions import DatasetBases

        return DatasetBases(self)

    @property
    def settings(self) -> DatasetSettings:
        """The config, and the metadata of table, schema and fields."""
        from spark_lance.datasets.config import DatasetSettings

        return DatasetSettings(self)

    @property
    def wal(self) -> DatasetWal:
        """The MemWAL: logs for streaming upserts."""
        from spark_lance.datasets.mem_wal import DatasetWal

        return DatasetWal(self)

    @property
    def stats(self) -> LanceStats:
        """Statistics of this version's rows, files, fields and indexes."""
        from spark_lance.datasets.show import LanceStats

        return LanceStats(self)

    @property
    def lance_schema(self) -> Schema:
        """The schema with field ids."""
        return self.manifest.schema

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows keep their `_rowid` when they are compacted or updated."""
        return self.manifest.uses_stable_row_ids

    @property
    def has_index(self) -> bool:
        """Whether the version has an index."""
        return bool(self.manifest.indices)

    @property
    def data_storage_version(self) -> str:
        """The format version of the data files, such as "2.1"."""
        return self.manifest.file_version.text

    @property
    def max_field_id(self) -> int:
        """The highest field id that the table uses or has used."""
        from spark_lance.table.schema.changes import new_field_ids

        return next(new_field_ids(self.manifest)) - 1

    def validate(self) -> None:
        """Read the whole version and check that it is valid by the format.

        Raises:
            FormatError: something is damaged; the message lists the damage.
        """
        from spark_lance.datasets.show import check_whole

        check_whole(self)

    def get_fragments(self) -> list[LanceFragment]:
        """Return the fragments in scan order."""
        return [LanceFragment(self, fragment) for fragment in self.manifest.fragments]

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """Return the fragment with an id, or None if it does not exist."""
        fragments = [fragment for fragment in self.manifest.fragments if fragment.id == fragment_id]
        return LanceFragment(self, fragments[0]) if fragments else None

    def plan_scan(
        self, columns: Sequence[str] | None, with_row_id: bool = False, with_row_address: bool = False
    ) -> Scan:
        """Return a scan plan for columns; None for all columns."""
        return self.snapshot.scan(columns, with_row_id=with_row_id, with_row_address=with_row_address)

    def _texts_as_binary(self) -> LanceDataset:
        return self.at(texts_as_binary(self.manifest))

    def hybrid_search(
        self,
        nearest: Mapping[str, Any],
        full_text_query: str | Mapping[str, Any],
        k: int = 10,
        *,
        columns: Sequence[str] | None = None,
        filter: Predicate | None = None,
        prefilter: bool = True,
        vector_weight: float = 1.0,
        text_weight: float = 1.0,
        rank_constant: float = RANK_CONSTANT,
        candidates: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
    ) -> pa.Table:
        """Return the k best rows by the combined ranks of a vector search and a full-text search.

        Args:
            nearest: the vector search, as for `to_table`, without `k`.
            full_text_query: the full-text query, as for `to_table`.
            k: number of rows to return.
            vector_weight, text_weight, rank_constant: see `datasets.hybrid`.
            candidates: number of rows that each search ranks. Default: the larger of 100 and k.
            columns, filter, prefilter, with_row_id, with_row_address: see `to_table`.
        """
        from spark_lance.datasets.hybrid import hybrid_search

        request: dict[str, Any] = {"nearest": nearest, "full_text_query": full_text_query, "k": k}
        request |= {"vector_weight": vector_weight, "text_weight": text_weight}
        request |= {"rank_constant": rank_constant, "candidates": candidates}
        return hybrid_search(
            self,
            request,
            columns=columns,
            filter=filter,
            prefilter=prefilter,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
        )

    def take_rows(self, row_ids: RowNumbers, columns: Columns = None) -> pa.Table:
        """Return the rows with the given `_rowid` values, in the given order.

        Ids without a live row are skipped.

        Raises:
            IndexError: the table has no stable row ids, and an id is beyond the rows of an existing fragment.
            SchemaError: a column does not exist.
        """
        from spark_lance.table.reading.take import take_row_ids

        projection = Projection.of(columns, self.lance_schema)
        return restore_table_types(projection.apply(take_row_ids(self.plan_scan(projection.reads), row_ids)))

    def sample(
        self, num_rows: int, columns: Columns = None, randomize_order: bool = True, *, seed: int | None = None
    ) -> pa.Table:
        """Return random rows without repetition; see `datasets.special_reads.sample`."""
        from spark_lance.datasets.special_reads import sample

        return sample(self, num_rows, columns, randomize_order, seed)

    def diff(self, from_version: Reference, to_version: Reference | None = None) -> Changes:
        """Return the changes after `from_version` until `to_version`; see `special_reads.changes`."""
        from spark_lance.datasets.special_reads import changes

        return changes(self, from_version, to_version)

    def delta(
        self,
        compared_against: int | None = None,
        *,
        begin_version: int | None = None,
        end_version: int | None = None,
    ) -> Changes:
        """Return `diff(compared_against)` or `diff(begin_version, end_version)`. The name is pylance's."""
        from spark_lance.datasets.special_reads import delta

        return delta(self, compared_against, begin_version, end_version)

    def take_blobs(
        self,
        blob_column: str,
        indices: RowNumbers | None = None,
        *,
        ids: RowNumbers | None = None,
        addresses: RowNumbers | None = None,
    ) -> list[BlobFile | None]:
        """Return the blobs of rows as binary file objects; None for a null.

        See `datasets.special_reads.blob_files`.
        """
        from spark_lance.datasets.special_reads import blob_files

        return blob_files(self, blob_column, indices, ids, addresses)

    def to_pyarrow(self) -> Any:
        """Return the table as a `pyarrow.dataset.Dataset`. Engines can push down columns and filters.

        DuckDB can query it by its variable name: `t = ds.to_pyarrow(); duckdb.sql("select n from t")`.
        """
        # The import loads pandas if it is installed, which takes half a second.
        from spark_lance.datasets.arrow_dataset import ArrowDataset

        return ArrowDataset(self)

    def to_polars(self) -> Any:
        """Return a polars LazyFrame, which pushes down columns, filters and limits.

        Raises:
            OptionError: polars is not installed.
        """
        from spark_lance.datasets.special_reads import polars_frame

        return polars_frame(self)

    def sql(self, query: str, table_name: str = "dataset") -> pa.Table:
        """Run an SQL query in DuckDB and return the result.

        Args:
            query: a query in DuckDB's SQL.
            table_name: the name of this version in the query.

        Raises:
            OptionError: DuckDB is not installed, or the statement returns no rows.
        """
        from spark_lance.datasets.special_reads import run_sql

        return run_sql(self, query, table_name)

    def insert(self, data: Any, *, mode: str = "append", **options: Any) -> LanceDataset:
        """Write data to the table and return the new version; see `write_dataset`."""
        from spark_lance.datasets.dataset import write_dataset

        return write_dataset(data, self, mode, **options)

    @staticmethod
    def commit(
        base_uri: str | os.PathLike[str] | LanceDataset,
        operation: Operation | Transaction,
        read_version: int | None = None,
        commit_lock: CommitLock | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        max_retries: int = 20,
        commit_message: str | None = None,
        enable_stable_row_ids: bool | None = None,
        detached: bool = False,
    ) -> LanceDataset:
        """Commit an operation whose files are already written, and return the new version.

        See `datasets.building.commit`.
        """
        from spark_lance.datasets.building import commit, locate_table

        place = locate_table(base_uri, storage_options, commit_lock).for_operation(operation)
        manifest = commit(
            place,
            operation,
            read_version,
            max_retries=max_retries,
            commit_message=commit_message,
            enable_stable_row_ids=enable_stable_row_ids,
            detached=detached,
        )
        return LanceDataset(place.uri, place.table, manifest)

    @staticmethod
    def commit_batch(
        dest: str | os.PathLike[str] | LanceDataset,
        transactions: Sequence[Transaction],
        commit_lock: CommitLock | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        max_retries: int = 20,
    ) -> dict[str, Any]:
        """Commit several appends as one version.

        Args:
            dest, transactions: the table, and the appends.
            commit_lock, storage_options, max_retries: see `commit`.

        Returns:
            A dict with `dataset`, the new version, and `merged`, the committed Transaction.

        Raises:
            OptionError: a transaction is not an append.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        from spark_lance.datasets.building import merge_appends

        merged = merge_appends(transactions)
        committed = LanceDataset.commit(
            dest, merged, None, commit_lock, storage_options, max_retries=max_retries
        )
        return {"dataset": committed, "merged": merged}

    def delete(
        self, predicate: Predicate, *, conflict_retries: int = 10, retry_timeout: timedelta = _TIMEOUT
    ) -> LanceDataset:
        """Delete the rows that match a predicate; see `rows.delete`."""
        return self.rows.delete(predicate, conflict_retries=conflict_retries, retry_timeout=retry_timeout)

    def update(
        self,
        updates: Mapping[str, Any],
        where: Predicate | None = None,
        conflict_retries: int = 10,
        retry_timeout: timedelta = _TIMEOUT,
    ) -> UpdateResult:
        """Set columns of the rows that match a predicate; see `rows.update`."""
        return self.rows.update(updates, where, conflict_retries, retry_timeout)

    def merge_insert(self, on: str | Iterable[str] | None = None) -> MergeInsertBuilder:
        """Return a merge builder; see `rows.merge`."""
        return self.rows.merge(on)

    def add_columns(
        self,
        transforms: Mapping[str, str]
        | Callable[[pa.RecordBatch], Any]
        | pa.Field
        | Sequence[pa.Field]
        | pa.Schema
        | Any,
        read_columns: Sequence[str] | None = None,
        reader_schema: pa.Schema | None = None,
        batch_size: int | None = None,
    ) -> LanceDataset:
        """Add columns and return the new version; see `columns.add`."""
        return self.columns.add(transforms, read_columns, reader_schema, batch_size)

    def merge(
        self, data_obj: Any, left_on: str, right_on: str | None = None, schema: pa.Schema | None = None
    ) -> LanceDataset:
        """Add columns by a left join with other data; see `columns.merge`."""
        return self.columns.merge(data_obj, left_on, right_on, schema)

    def update_columns(
        self,
        data_obj: Any,
        left_on: str = ROW_ID,
        right_on: str | None = None,
        schema: pa.Schema | None = None,
    ) -> LanceDataset:
        """Replace column values of the rows whose key is in other data; see `columns.update`."""
        return self.columns.update(data_obj, left_on, right_on, schema)

    def alter_columns(self, *alterations: Mapping[str, Any]) -> LanceDataset:
        """Rename columns, or change their type or nullability; see `columns.alter`."""
        return self.columns.alter(*alterations)

    def drop_columns(self, columns: Iterable[str]) -> LanceDataset:
        """Drop columns, or struct fields ("a.b"), and return the new version; see `columns.drop`."""
        return self.columns.drop(columns)

    def create_index(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        metric: str = "l2",
        replace: bool = True,
        num_partitions: int | None = None,
        num_sub_vectors: int | None = None,
        num_bits: int | None = None,
        **options: Any,
    ) -> LanceDataset:
        """Build an index and return the new version; see `indices.create`."""
        return self.indices.create(
            column, index_type, name, metric, replace, num_partitions, num_sub_vectors, num_bits, **options
        )

    def create_scalar_index(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        *,
        replace: bool = True,
        train: bool = True,
        **options: Any,
    ) -> LanceDataset:
        """Build a scalar or full-text index and return the new version; see `indices.create_scalar`."""
        return self.indices.create_scalar(column, index_type, name, replace=replace, train=train, **options)

    def index_statistics(self, name: str) -> dict[str, Any]:
        """Return statistics of an index; see `indices.statistics`."""
        return self.indices.statistics(name)

    def describe_indices(self) -> list[IndexDescription]:
        """Return the indexes of this version and their segments, sorted by name; see `indices.describe`."""
        return self.indices.describe()

    def list_indices(self) -> list[dict[str, Any]]:
        """Return one dict per index segment; see `indices.segments`."""
        return self.indices.segments()

    def drop_index(self, name: str) -> LanceDataset:
        """Remove an index and return the new version; see `indices.drop`."""
        return self.indices.drop(name)

    def create_index_uncommitted(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        *,
        fragment_ids: Iterable[int],
        index_uuid: str | None = None,
        **options: Any,
    ) -> Index:
        """Build an index segment of some fragments without a commit; see `indices.create_uncommitted`."""
        return self.indices.create_uncommitted(
            column, index_type, name, fragment_ids=fragment_ids, index_uuid=index_uuid, **options
        )

    def merge_index_metadata(self, index_uuid: str, index_type: str) -> Index:
        """Merge the parts of an index segment; see `indices.merge_parts`."""
        return self.indices.merge_parts(index_uuid, index_type)

    def merge_existing_index_segments(self, segments: Sequence[Index]) -> Index:
        """Merge uncommitted index segments; see `indices.merge_segments`."""
        return self.indices.merge_segments(segments)

    def commit_existing_index_segments(
        self, index_name: str, column: str, segments: Sequence[Index]
    ) -> LanceDataset:
        """Commit segments as an index; see `indices.commit_segments`."""
        return self.indices.commit_segments(index_name, column, segments)

    def compact_files(self, **options: Any) -> CompactionMetrics:
        """Rewrite small fragments; see `optimize.compact_files`."""
        return self.optimize.compact_files(**options)

    def cleanup_old_versions(
        self,
        older_than: timedelta | None = None,
        retain_versions: int | None = None,
        *,
        delete_unverified: bool = False,
        error_if_tagged_old_versions: bool = True,
        delete_rate_limit: int | None = None,
        versions: Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> CleanupStats:
        """Delete old versions of this branch; see `optimize.cleanup_old_versions`."""
        return self.optimize.cleanup_old_versions(
            older_than,
            retain_versions,
            delete_unverified=delete_unverified,
            error_if_tagged_old_versions=error_if_tagged_old_versions,
            delete_rate_limit=delete_rate_limit,
            versions=versions,
            dry_run=dry_run,
        )

    def repair(self) -> LanceDataset:
        """Move torn manifests aside and return the newest version; see `optimize.repair`."""
        return self.optimize.repair()

    @property
    def latest_version(self) -> int:
        """The number of this branch's newest version in the store."""
        from spark_lance.table.versions.versions import latest_version

        return latest_version(self.table).version

    def checkout_version(self, version: Reference) -> LanceDataset:
        """Return the table at another version.

        Args:
            version: a version number of this branch, a tag, or (branch, number). None means the newest
                version, or the main branch.

        Raises:
            VersionNotFoundError: the version, tag or branch does not exist.
        """
        from spark_lance.table.versions.resolve import resolve

        ref = resolve(self.main_line, version, self.branch)
        manifest = load_version(TableRef(self.store, ref.root), ref.version)
        uri = self.uri if ref.root == self.root else self.store.uri(ref.root)
        return replace(self, uri=uri, table=TableRef(self.store, ref.root), manifest=manifest)

    def checkout_latest(self) -> LanceDataset:
        """Return the table at the newest version of this branch."""
        return self.at(load_latest(self.table))

    @property
    def tags(self) -> Tags:
        """The tags: list, create, update and delete them."""
        from spark_lance.datasets.versions import version_ref
        from spark_lance.table.versions.tags import Tags

        return Tags(self.main_line, version_ref(self))

    @property
    def branches(self) -> Branches:
        """The branches: list them, delete them, and replace their metadata."""
        from spark_lance.table.versions.branches import Branches

        return Branches(self.main_line)

    def create_branch(self, branch: str, reference: Reference | None = None) -> LanceDataset:
        """Create a branch and return it; see `datasets.versions.begin_branch`."""
        from spark_lance.datasets.versions import begin_branch

        return begin_branch(self, branch, reference)

    def shallow_clone(
        self,
        target_path: str | os.PathLike[str],
        reference: Reference | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> LanceDataset:
        """Create a table at another path that references the files of a version, and return it.

        See `datasets.versions.clone`.
        """
        from spark_lance.datasets.versions import clone

        return clone(self, target_path, reference, storage_options, shallow=True)

    def deep_clone(
        self,
        target_path: str | os.PathLike[str],
        reference: Reference | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> LanceDataset:
        """Create an independent copy of a version with all its files; arguments as for `shallow_clone`."""
        from spark_lance.datasets.versions import clone

        return clone(self, target_path, reference, storage_options, shallow=False)

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions that exist, oldest first; see `history.versions`."""
        return self.history.versions()

    def get_transactions(self, recent_transactions: int = 10) -> list[stored.Transaction | None]:
        """Return the transactions of this and earlier versions; see `history.transactions`."""
        return self.history.transactions(recent_transactions)

    def read_transaction(self, version: int) -> stored.Transaction | None:
        """Return the transaction of a version of this branch; see `history.transaction`."""
        return self.history.transaction(version)

    def restore(self) -> LanceDataset:
        """Commit this version's content as the newest version and return it; see `history.restore`."""
        return self.history.restore()

    def add_bases(self, new_bases: Sequence[DatasetBasePath]) -> LanceDataset:
        """Register base paths for the table's files; see `bases.add`."""
        return self.bases.add(new_bases)

    def base_paths(self) -> list[DatasetBasePath]:
        """Return the base paths of this version; see `bases.list`."""
        return self.bases.list()

    def migrate_manifest_paths_v2(self) -> None:
        """Rename the manifests of an old table so that a listing returns the newest first.

        Nobody may use the table meanwhile. Run an interrupted migration again until it ends.
        """
        from spark_lance.table.versions.versions import migrate_names

        migrate_names(self.table)

    def config(self) -> dict[str, str]:
        """Return the table's config without the internal keys of this package; see `settings.get`."""
        return self.settings.get()

    @property
    def metadata(self) -> dict[str, str]:
        """The table metadata, which is not the schema metadata `schema.metadata`; see `settings.metadata`."""
        return self.settings.metadata

    def update_config(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set keys of the table's config and return the new version; see `settings.update`."""
        return self.settings.update(values, replace=replace)

    def delete_config_keys(self, keys: Sequence[str]) -> LanceDataset:
        """Delete keys of the table's config; see `settings.delete`."""
        return self.settings.delete(keys)

    def update_metadata(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set keys of the table metadata; see `settings.update_metadata`."""
        return self.settings.update_metadata(values, replace=replace)

    def update_schema_metadata(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set keys of the schema metadata; see `settings.update_schema_metadata`."""
        return self.settings.update_schema_metadata(values, replace=replace)

    def update_field_metadata(self, updates: Mapping[str, Texts], *, replace: bool = False) -> LanceDataset:
        """Set keys of field metadata; see `settings.update_field_metadata`."""
        return self.settings.update_field_metadata(updates, replace=replace)

    def initialize_mem_wal(
        self,
        *,
        maintained_indexes: Sequence[str] | None = None,
        bucket_column: str | None = None,
        num_buckets: int | None = None,
        identity_column: str | None = None,
        unsharded: bool = False,
        **writer_defaults: Any,
    ) -> LanceDataset:
        """Create the table's MemWAL and return the new version; see `wal.initialize`."""
        return self.wal.initialize(
            maintained_indexes=maintained_indexes,
            bucket_column=bucket_column,
            num_buckets=num_buckets,
            identity_column=identity_column,
            unsharded=unsharded,
            **writer_defaults,
        )

    def mem_wal_index_details(self) -> dict[str, Any] | None:
        """Return the sharding and the writer defaults of the MemWAL; see `wal.details`."""
        return self.wal.details()

    def mem_wal_writer(self, shard_id: str | uuid.UUID, **settings: Any) -> ShardWriter:
        """Claim a shard and return its writer; see `wal.writer`."""
        return self.wal.writer(shard_id, **settings)

    def upsert_log(self, **settings: Any) -> RoutedWriter:
        """Return a writer that sends each row to its MemWAL shard; see `wal.upsert_log`."""
        return self.wal.upsert_log(**settings)

    def fresh(self, *, accept_loss: bool = False) -> FreshDataset:
        """Return the newest version combined with all rows in the MemWAL; see `wal.fresh`."""
        return self.wal.fresh(accept_loss=accept_loss)
