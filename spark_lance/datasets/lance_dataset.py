"""A table without Spark: `LanceDataset`, with the names that users of pylance know.

Groups of methods are objects of their own, such as `ds.indices` and `ds.columns`. The names of pylance are
methods that call them.
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
from spark_lance.datasets.spelling import OneSpelling
from spark_lance.expressions.predicate import Predicate
from spark_lance.file.base.extensions import known_table
from spark_lance.file.base.schema import Schema
from spark_lance.index.fusion import RANK_CONSTANT
from spark_lance.index.pruners import index_pruners
from spark_lance.io.manifest_store import CommitLock
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import OfTable, TableRef
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
class LanceDataset(OfTable, OneSpelling, Readable):
    """One version of a Lance table, without Spark. Made by `dataset` and `write_dataset`.

    It never changes: methods that change the table return its new version, or a result with it. Two are
    equal if they name the same table and have equal manifests.

    Read with `to_table`, `to_batches`, `scanner`, `take`, `sample`, `sql`. Search with
    `to_table(nearest=...)`, `to_table(full_text_query=...)` and `hybrid_search`. Change with `insert`,
    `delete`, `update`, `merge_insert`, `add_columns`. Maintain it with `optimize`, `create_index`,
    `cleanup_old_versions`. Go through its versions with `versions`, `checkout_version`, `tags`, `branches`.

    Attributes:
        uri: the table as the user named it.
        table: the table.
        manifest: the version.
    """

    uri: str
    table: TableRef
    manifest: Manifest

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LanceDataset):
            return NotImplemented
        place = (self.uri, self.root, self.store)
        if place != (other.uri, other.root, other.store):
            return False
        return self.manifest is other.manifest or self.manifest.message == other.manifest.message

    def __hash__(self) -> int:
        return hash((self.uri, self.version))

    def __getstate__(self) -> dict[str, object]:
        # Computed values and open files stay behind.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        from spark_lance.datasets.show import line

        return line(self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what the table is, and its first rows."""
        from spark_lance.datasets.show import html

        return html(self)

    def __len__(self) -> int:
        return self.count_rows()

    @property
    def version(self) -> int:
        """The version that is read."""
        return self.manifest.version

    @property
    def branch(self) -> str | None:
        """The branch that is read, None for the main line."""
        return self.manifest.message.branch or None

    @property
    def main_root(self) -> str:
        """The root path of the main line, which holds tags and branches."""
        from spark_lance.table.versions.resolve import main_root

        return main_root(self.root, self.manifest)

    @cached_property
    def snapshot(self) -> Snapshot:
        """The version as a value, for the functions that read and change rows."""
        return Snapshot(self.table, self.manifest, index_pruners)

    @cached_property
    def searcher(self) -> DatasetSearcher:
        """Searches by vector and by words, which keep indices open."""
        from spark_lance.datasets.searching import DatasetSearcher

        return DatasetSearcher(self.snapshot)

    def at(self, manifest: Manifest) -> LanceDataset:
        """Return the same table at another version."""
        return replace(self, manifest=manifest)

    @property
    def columns(self) -> DatasetColumns:
        """Adding, changing and dropping columns."""
        from spark_lance.datasets.columns import DatasetColumns

        return DatasetColumns(self)

    @property
    def rows(self) -> DatasetRows:
        """Deleting, updating and merging rows."""
        from spark_lance.datasets.merge import DatasetRows

        return DatasetRows(self)

    @property
    def indices(self) -> DatasetIndices:
        """Indices of vectors, values and words."""
        from spark_lance.datasets.index import DatasetIndices

        return DatasetIndices(self)

    @property
    def optimize(self) -> DatasetOptimizer:
        """Compaction, upkeep of indices, clean-up and repair."""
        from spark_lance.datasets.maintain import DatasetOptimizer

        return DatasetOptimizer(self)

    @property
    def history(self) -> DatasetHistory:
        """The versions of this line."""
        from spark_lance.datasets.versions import DatasetHistory

        return DatasetHistory(self)

    @property
    def bases(self) -> DatasetBases:
        """More places for the table's files."""
        from spark_lance.datasets.versions import DatasetBases

        return DatasetBases(self)

    @property
    def settings(self) -> DatasetSettings:
        """Settings, and metadata of table, schema and fields."""
        from spark_lance.datasets.config import DatasetSettings

        return DatasetSettings(self)

    @property
    def wal(self) -> DatasetWal:
        """Logs of streaming upserts (MemWAL)."""
        from spark_lance.datasets.mem_wal import DatasetWal

        return DatasetWal(self)

    @property
    def stats(self) -> LanceStats:
        """Figures of this version: of rows and files, of fields, of indices."""
        from spark_lance.datasets.show import LanceStats

        return LanceStats(self)

    @property
    def lance_schema(self) -> Schema:
        """The schema with field ids."""
        return self.manifest.schema

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows keep their `_rowid` when they are moved or changed."""
        return self.manifest.uses_stable_row_ids

    @property
    def has_index(self) -> bool:
        """Whether there is an index."""
        return bool(self.manifest.indices)

    @property
    def data_storage_version(self) -> str:
        """The version of the format of data files."""
        return self.manifest.file_version.text

    @property
    def max_field_id(self) -> int:
        """The highest id that a field has or had."""
        from spark_lance.table.schema.changes import new_field_ids

        return next(new_field_ids(self.manifest)) - 1

    def validate(self) -> None:
        """Read the version as a whole and check what the format promises of it.

        Raises:
            FormatError: something is damaged; the message lists it.
        """
        from spark_lance.datasets.show import check_whole

        check_whole(self)

    def get_fragments(self) -> list[LanceFragment]:
        """Return the fragments in scan order."""
        return [LanceFragment(self, fragment) for fragment in self.manifest.fragments]

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """Return the fragment of an id, None if there is none."""
        fragments = [fragment for fragment in self.manifest.fragments if fragment.id == fragment_id]
        return LanceFragment(self, fragments[0]) if fragments else None

    def plan_scan(
        self, columns: Sequence[str] | None, with_row_id: bool = False, with_row_address: bool = False
    ) -> Scan:
        """Plan to read columns of the rows."""
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
        """Return the k rows that a vector search and a text search rank best together, see `datasets.hybrid`.

        Args:
            nearest: the vector, as for `to_table`, without `k`.
            full_text_query: the words, as for `to_table`.
            vector_weight, text_weight, rank_constant: of the formula; not negative, the constant above 0.
            candidates: rows that each search ranks; by default 100, or k if that is more.
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
        """Return the rows with the given `_rowid`s, in that order; ids without a live row are passed over.

        Raises:
            IndexError: row ids are addresses here, and an existing fragment has no such physical row.
            SchemaError: a column does not exist.
        """
        from spark_lance.table.reading.take import take_row_ids

        projection = Projection.of(columns, self.lance_schema)
        return known_table(projection.apply(take_row_ids(self.plan_scan(projection.reads), row_ids)))

    def sample(
        self, num_rows: int, columns: Columns = None, randomize_order: bool = True, *, seed: int | None = None
    ) -> pa.Table:
        """Return rows chosen at random, each at most once; see `datasets.special_reads.sample`."""
        from spark_lance.datasets.special_reads import sample

        return sample(self, num_rows, columns, randomize_order, seed)

    def diff(self, from_version: Reference, to_version: Reference | None = None) -> Changes:
        """Return what changed from one version, exclusive, to another, inclusive.

        See `datasets.special_reads.changes`.
        """
        from spark_lance.datasets.special_reads import changes

        return changes(self, from_version, to_version)

    def delta(
        self,
        compared_against: int | None = None,
        *,
        begin_version: int | None = None,
        end_version: int | None = None,
    ) -> Changes:
        """Return `diff(compared_against)` or `diff(begin_version, end_version)`, by pylance's name."""
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
        """Return the blobs of rows as binary files, None for nulls.

        See `datasets.special_reads.blob_files`.
        """
        from spark_lance.datasets.special_reads import blob_files

        return blob_files(self, blob_column, indices, ids, addresses)

    def to_pyarrow(self) -> Any:
        """Return the table as a `pyarrow.dataset.Dataset`, into which engines push columns and filters.

        DuckDB finds it as a variable: `t = ds.to_pyarrow(); duckdb.sql("select n from t where n > 1")`.
        Its `scanner` takes what `LanceDataset.scanner` takes.
        """
        # It imports pandas where that is installed, half a second that few processes need to spend.
        from spark_lance.datasets.arrow_dataset import ArrowDataset

        return ArrowDataset(self)

    def to_polars(self) -> Any:
        """Return a polars LazyFrame: columns, filters and limits of its queries are pushed down.

        Raises:
            OptionError: polars is not installed.
        """
        from spark_lance.datasets.special_reads import polars_frame

        return polars_frame(self)

    def sql(self, query: str, table_name: str = "dataset") -> pa.Table:
        """Return the result of an SQL query by DuckDB, in which this version is the table `dataset`.

        Args:
            query: SQL as DuckDB has it.
            table_name: the name of the table in it.

        Raises:
            OptionError: DuckDB is not installed, or the query is none that gives rows.
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
        """Commit an operation whose files are written, and return the version it became.

        See `datasets.building.commit`.
        """
        from spark_lance.datasets.building import commit, place_of

        place = place_of(base_uri, storage_options, commit_lock).for_operation(operation)
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
        """Commit appends together, as one version.

        Returns:
            `dataset`, the version, and `merged`, the Transaction.

        Raises:
            OptionError: a transaction is no append.
            CommitError: other writers were in the way; see its subclasses.
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
        """Delete the rows for which a predicate is true; see `rows.delete`."""
        return self.rows.delete(predicate, conflict_retries=conflict_retries, retry_timeout=retry_timeout)

    def update(
        self,
        updates: Mapping[str, Any],
        where: Predicate | None = None,
        conflict_retries: int = 10,
        retry_timeout: timedelta = _TIMEOUT,
    ) -> UpdateResult:
        """Set columns of the rows for which a predicate is true; see `rows.update`."""
        return self.rows.update(updates, where, conflict_retries, retry_timeout)

    def merge_insert(self, on: str | Iterable[str] | None = None) -> MergeInsertBuilder:
        """Return a builder of a merge; see `rows.merge`."""
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
        """Add the columns of other data; see `columns.merge`."""
        return self.columns.merge(data_obj, left_on, right_on, schema)

    def update_columns(
        self,
        data_obj: Any,
        left_on: str = ROW_ID,
        right_on: str | None = None,
        schema: pa.Schema | None = None,
    ) -> LanceDataset:
        """Replace values of columns where a key is the same as in other data; see `columns.update`."""
        return self.columns.update(data_obj, left_on, right_on, schema)

    def alter_columns(self, *alterations: Mapping[str, Any]) -> LanceDataset:
        """Rename columns; see `columns.alter`."""
        return self.columns.alter(*alterations)

    def drop_columns(self, columns: Iterable[str]) -> LanceDataset:
        """Drop columns, or fields of structs ("a.b"), and return the new version; see `columns.drop`."""
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
        """See `indices.create`."""
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
        """See `indices.create_scalar`."""
        return self.indices.create_scalar(column, index_type, name, replace=replace, train=train, **options)

    def index_statistics(self, name: str) -> dict[str, Any]:
        """Return what is known of an index; see `indices.statistics`."""
        return self.indices.statistics(name)

    def describe_indices(self) -> list[IndexDescription]:
        """Return the indices of this version, by name, each with its segments; see `indices.describe`."""
        return self.indices.describe()

    def list_indices(self) -> list[dict[str, Any]]:
        """Return one dict per index segment; see `indices.segments`."""
        return self.indices.segments()

    def drop_index(self, name: str) -> LanceDataset:
        """Take an index out of the table and return the version without it; see `indices.drop`."""
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
        """Build a segment of some fragments; see `indices.create_uncommitted`."""
        return self.indices.create_uncommitted(
            column, index_type, name, fragment_ids=fragment_ids, index_uuid=index_uuid, **options
        )

    def merge_index_metadata(self, index_uuid: str, index_type: str) -> Index:
        """Put the parts of a segment together; see `indices.merge_parts`."""
        return self.indices.merge_parts(index_uuid, index_type)

    def merge_existing_index_segments(self, segments: Sequence[Index]) -> Index:
        """Put segments that are not committed together; see `indices.merge_segments`."""
        return self.indices.merge_segments(segments)

    def commit_existing_index_segments(
        self, index_name: str, column: str, segments: Sequence[Index]
    ) -> LanceDataset:
        """Make segments an index; see `indices.commit_segments`."""
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
        """Delete old versions of this line; see `optimize.cleanup_old_versions`."""
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
        """Move manifests that are not whole aside, and return the newest version; see `optimize.repair`."""
        return self.optimize.repair()

    @property
    def latest_version(self) -> int:
        """The newest version of this line in the store."""
        from spark_lance.table.versions.versions import latest_version

        return latest_version(self.table).version

    def checkout_version(self, version: Reference) -> LanceDataset:
        """Return the table at another version.

        Args:
            version: a number on this line, a tag, or (branch, number); None for the number is the newest,
                None or "main" for the branch is the main line.

        Raises:
            VersionNotFoundError: there is no such version, tag or branch.
        """
        from spark_lance.table.versions.resolve import resolve

        ref = resolve(self.store, self.main_root, version, self.branch)
        manifest = load_version(TableRef(self.store, ref.root), ref.version)
        uri = self.uri if ref.root == self.root else self.store.uri(ref.root)
        return replace(self, uri=uri, table=TableRef(self.store, ref.root), manifest=manifest)

    def checkout_latest(self) -> LanceDataset:
        """Return the table at the newest version of this line."""
        return self.at(load_latest(self.table))

    @property
    def tags(self) -> Tags:
        """The names of versions: list, create, update and delete them."""
        from spark_lance.datasets.versions import version_ref
        from spark_lance.table.versions.tags import Tags

        return Tags(self.store, self.main_root, version_ref(self))

    @property
    def branches(self) -> Branches:
        """The branches: list and delete them, replace their metadata."""
        from spark_lance.table.versions.branches import Branches

        return Branches(self.store, self.main_root)

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
        """Create a table elsewhere that begins as a version of this one, sharing its files, and return it.

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
        """As `shallow_clone`, but with copies of all files, so that the tables have nothing in common."""
        from spark_lance.datasets.versions import clone

        return clone(self, target_path, reference, storage_options, shallow=False)

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions that exist, oldest first; see `history.versions`."""
        return self.history.versions()

    def get_transactions(self, recent_transactions: int = 10) -> list[stored.Transaction | None]:
        """Return what made the newest versions up to this one; see `history.transactions`."""
        return self.history.transactions(recent_transactions)

    def read_transaction(self, version: int) -> stored.Transaction | None:
        """Return the transaction that made a version of this line; see `history.transaction`."""
        return self.history.transaction(version)

    def restore(self) -> LanceDataset:
        """Make this version's content the newest version, and return that; see `history.restore`."""
        return self.history.restore()

    def add_bases(self, new_bases: Sequence[DatasetBasePath]) -> LanceDataset:
        """Add places in which the table may keep files; see `bases.add`."""
        return self.bases.add(new_bases)

    def base_paths(self) -> list[DatasetBasePath]:
        """Return the places in which this version may have files; see `bases.list`."""
        return self.bases.list()

    def migrate_manifest_paths_v2(self) -> None:
        """Rename the manifests of an old table so that the newest is listed first.

        Nobody may use the table meanwhile. An interrupted migration must be run again until it ends.
        """
        from spark_lance.table.versions.versions import migrate_names

        migrate_names(self.table)

    def config(self) -> dict[str, str]:
        """Return the table's settings, without the internal ones of this package; see `settings.get`."""
        return self.settings.get()

    @property
    def metadata(self) -> dict[str, str]:
        """The table's own metadata; that of its schema is `schema.metadata`; see `settings.metadata`."""
        return self.settings.metadata

    def update_config(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set settings of the table and return the new version; see `settings.update`."""
        return self.settings.update(values, replace=replace)

    def delete_config_keys(self, keys: Sequence[str]) -> LanceDataset:
        """Delete settings of the table; see `settings.delete`."""
        return self.settings.delete(keys)

    def update_metadata(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set metadata of the table; see `settings.update_metadata`."""
        return self.settings.update_metadata(values, replace=replace)

    def update_schema_metadata(self, values: Texts, *, replace: bool = False) -> LanceDataset:
        """Set metadata of the schema; see `settings.update_schema_metadata`."""
        return self.settings.update_schema_metadata(values, replace=replace)

    def update_field_metadata(self, updates: Mapping[str, Texts], *, replace: bool = False) -> LanceDataset:
        """Set metadata of fields; see `settings.update_field_metadata`."""
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
        """Give the table a MemWAL and return the version that has it; see `wal.initialize`."""
        return self.wal.initialize(
            maintained_indexes=maintained_indexes,
            bucket_column=bucket_column,
            num_buckets=num_buckets,
            identity_column=identity_column,
            unsharded=unsharded,
            **writer_defaults,
        )

    def mem_wal_index_details(self) -> dict[str, Any] | None:
        """Return how the table's MemWAL spreads rows and what its writers begin with; see `wal.details`."""
        return self.wal.details()

    def mem_wal_writer(self, shard_id: str | uuid.UUID, **settings: Any) -> ShardWriter:
        """Claim a shard and return its writer; see `wal.writer`."""
        return self.wal.writer(shard_id, **settings)

    def upsert_log(self, **settings: Any) -> RoutedWriter:
        """Return a writer that spreads rows over the shards as the MemWAL says; see `wal.upsert_log`."""
        return self.wal.upsert_log(**settings)

    def fresh(self, *, accept_loss: bool = False) -> FreshDataset:
        """Return the newest version of the table together with all rows that are logged; see `wal.fresh`."""
        return self.wal.fresh(accept_loss=accept_loss)
