"""Datasets that change in place, with pylance's arguments and answers, over values of this package."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.dataset

import spark_lance.datasets.dataset as values
from spark_lance.compat.lance.answers import transaction_or_none, version_dict, writing_options
from spark_lance.compat.lance.fragment import LanceFragment
from spark_lance.compat.lance.indices import IndexConfig
from spark_lance.compat.lance.merging import MergeInsertBuilder
from spark_lance.compat.lance.optimize import DatasetOptimizer
from spark_lance.compat.lance.references import Branches, Tags
from spark_lance.compat.lance.scanning import LanceScanner, ScannerBuilder, scan_arguments
from spark_lance.compat.lance.sql import SqlQueryBuilder
from spark_lance.compat.lance.vector_reader import VectorIndexReader
from spark_lance.datasets.building import commit as commit_at
from spark_lance.datasets.building import merge_appends, place_of
from spark_lance.datasets.lance_schema import LanceSchema
from spark_lance.datasets.operations import Index, IndexFile, LanceOperation, Operation, Transaction
from spark_lance.datasets.ordering import ColumnOrdering
from spark_lance.datasets.stats import DataStatistics, FieldStatistics, LanceStats
from spark_lance.datasets.versions import DatasetBasePath
from spark_lance.errors import OptionTypeError, TableNotFoundError
from spark_lance.io.store import open_store
from spark_lance.table.commits.commit_options import COMMIT_MESSAGE as LANCE_COMMIT_MESSAGE_KEY
from spark_lance.table.commits.commit_options import commit_options
from spark_lance.table.versions.cleanup import CleanupStats
from spark_lance.table.versions.versions import load_version

__all__ = [
    "LANCE_COMMIT_MESSAGE_KEY",
    "AutoCleanupConfig",
    "Branches",
    "ColumnOrdering",
    "DataStatistics",
    "DatasetBasePath",
    "DatasetOptimizer",
    "FieldStatistics",
    "Index",
    "IndexFile",
    "LanceDataset",
    "LanceOperation",
    "LanceScanner",
    "LanceStats",
    "MergeInsertBuilder",
    "ScannerBuilder",
    "SqlQueryBuilder",
    "Tags",
    "Transaction",
    "VectorIndexReader",
    "dataset",
    "write_dataset",
]


class AutoCleanupConfig(dict[str, int]):
    """`interval`, and `older_than_seconds` or `retain_versions` or both."""


class LanceDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """A table at a version; what changes the table moves the object to the version that it makes.

    Attributes:
        value: the `spark_lance.LanceDataset` of the present version.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        version: int | str | None = None,
        block_size: int | None = None,
        index_cache_size: int | None = None,
        metadata_cache_size: int | None = None,
        commit_lock: Any = None,
        storage_options: Mapping[str, str] | None = None,
        serialized_manifest: bytes | None = None,
        default_scan_options: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        opened = values.dataset(uri, version, storage_options, commit_lock=commit_lock)
        self._take(opened, default_scan_options)

    def _take(self, value: values.LanceDataset, scan_options: Mapping[str, Any] | None = None) -> None:
        self.value = value
        self._default_scan_options: Mapping[str, Any] | None = scan_options

    @classmethod
    def of(cls, value: values.LanceDataset, scan_options: Mapping[str, Any] | None = None) -> LanceDataset:
        """Return a dataset at a version that is open."""
        made = cls.__new__(cls)
        made._take(value, scan_options)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.value, self._default_scan_options)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.value, self._default_scan_options

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._take(*state)

    def __copy__(self) -> LanceDataset:
        return LanceDataset.of(self.value, self._default_scan_options)

    def __len__(self) -> int:
        return self.count_rows()

    def __repr__(self) -> str:
        return repr(self.value)

    def _repr_html_(self) -> str:
        return self.value._repr_html_()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all rows by Arrow's C stream interface."""
        return self.value.__arrow_c_stream__(requested_schema)

    # What it is.

    @property
    def uri(self) -> str:
        """Where the table is."""
        return self.value.uri

    @property
    def store(self) -> Any:
        """The store it is in."""
        return self.value.store

    @property
    def root(self) -> str:
        """Its root path in the store."""
        return self.value.root

    @property
    def _ds(self) -> LanceDataset:
        return self

    @property
    def initial_storage_options(self) -> dict[str, Any] | None:
        """The options of its store."""
        return dict(self.value.store.options) or None

    def latest_storage_options(self) -> dict[str, Any] | None:
        """Return the options of its store."""
        return self.initial_storage_options

    @property
    def schema(self) -> pa.Schema:
        """The schema of what a scan without arguments gives."""
        return self.scanner().projected_schema if self._default_scan_options else self.value.schema

    @property
    def schema_metadata(self) -> dict[str, str]:
        """The metadata of the schema."""
        return dict(self.value.lance_schema.metadata)

    @property
    def lance_schema(self) -> LanceSchema:
        """The schema with field ids."""
        return LanceSchema(self.value.lance_schema)

    @property
    def data_storage_version(self) -> str:
        """The version of the format of data files."""
        return self.value.data_storage_version

    @property
    def max_field_id(self) -> int:
        """The highest id that a field has or had."""
        return self.value.max_field_id

    @property
    def has_stable_row_ids(self) -> bool:
        """Whether rows keep their ids when they move."""
        return self.value.has_stable_row_ids

    @property
    def partition_expression(self) -> NoReturn:
        """Not there."""
        raise NotImplementedError("partitioning not yet supported")

    @property
    def stats(self) -> LanceStats:
        """Figures."""
        return LanceStats(self.value)

    def validate(self) -> None:
        """Read the version as a whole and check it."""
        self.value.validate()

    def get_fragments(self, filter: Any = None) -> list[LanceFragment]:
        """Return the fragments."""
        if filter is not None:
            raise ValueError("get_fragments() does not support filter yet")
        return [LanceFragment(self, None, fragment=each) for each in self.value.get_fragments()]

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """Return the fragment of an id."""
        found = self.value.get_fragment(fragment_id)
        return None if found is None else LanceFragment(self, None, fragment=found)

    def fragment_ids(self) -> set[int]:
        """Return the ids of the fragments."""
        return {fragment.fragment_id for fragment in self.value.get_fragments()}

    def base_paths(self) -> dict[int, DatasetBasePath]:
        """Return the base paths by id."""
        return {base.id: base for base in self.value.base_paths()}

    # Reading.

    def scanner(self, columns: Any = None, filter: Any = None, *args: Any, **options: Any) -> LanceScanner:
        """Describe a read."""
        names = ("limit", "offset", "nearest", "batch_size")
        given = {"columns": columns, "filter": filter, **dict(zip(names, args, strict=False)), **options}
        defaults = self._default_scan_options or {}
        given = {**defaults, **{name: value for name, value in given.items() if value is not None}}
        return LanceScanner(self.value.scanner(**scan_arguments(given)), self)

    def to_table(self, columns: Any = None, filter: Any = None, *args: Any, **options: Any) -> pa.Table:
        """Read rows into memory."""
        return self.scanner(columns, filter, *args, **options).to_table()

    def to_batches(
        self, columns: Any = None, filter: Any = None, *args: Any, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Stream rows."""
        return self.scanner(columns, filter, *args, **options).to_batches()

    def to_pandas(self, columns: Any = None, filter: Any = None, **options: Any) -> Any:
        """Read rows into a DataFrame."""
        options.pop("blob_mode", None)
        return self.to_table(columns, filter, **options).to_pandas()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """Read the first rows."""
        return self.scanner(**options).head(num_rows)

    def count_rows(self, filter: Any = None, **options: Any) -> int:
        """Count rows."""
        if filter is None and not options:
            return self.value.count_rows()
        return self.scanner(filter=filter, **options).count_rows()

    def take(self, indices: Any, columns: Any = None) -> pa.Table:
        """Return rows by position."""
        return self.value.take(indices, columns)

    def _take_rows(self, row_ids: Any, columns: Any = None, **_: Any) -> pa.Table:
        return self.value.take_rows(row_ids, columns)

    def take_blobs(
        self, blob_column: str, ids: Any = None, addresses: Any = None, indices: Any = None
    ) -> list[Any]:
        """Return blobs as files; nulls are left out."""
        found = self.value.take_blobs(blob_column, indices, ids=ids, addresses=addresses)
        return [blob for blob in found if blob is not None]

    def sample(self, num_rows: int, columns: Any = None, randomize_order: bool = True, **_: Any) -> pa.Table:
        """Return rows chosen at random."""
        return self.value.sample(num_rows, columns, randomize_order)

    def sql(self, sql: str) -> SqlQueryBuilder:
        """Return a query in the making."""
        return SqlQueryBuilder(self.value, sql)

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Not there."""
        raise NotImplementedError("Versioning not yet supported")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Not there."""
        raise NotImplementedError("Cannot replace the schema of a dataset")

    def filter(self, *_: Any, **__: Any) -> NoReturn:
        """Not there: `scanner` and `to_table` take filters."""
        raise NotImplementedError("give the filter to scanner() or to_table()")

    def sort_by(self, *_: Any, **__: Any) -> NoReturn:
        """Not there: `scanner` and `to_table` take order_by."""
        raise NotImplementedError("give order_by to scanner() or to_table()")

    join_asof = join

    # Changing rows.

    def insert(self, data: Any, *, mode: str = "append", **options: Any) -> None:
        """Write data to the table."""
        self.value = write_dataset(data, self, mode=mode, **options).value

    def delete(
        self, predicate: Any, *, conflict_retries: int = 10, retry_timeout: timedelta = timedelta(seconds=30)
    ) -> dict[str, int]:
        """Delete rows; tell how many."""
        self.value = self.value.delete(
            predicate, conflict_retries=conflict_retries, retry_timeout=retry_timeout
        )
        before = load_version(self.store, self.root, self.version - 1)
        rows = self.value._at(before).count_rows() - self.value.count_rows()
        return {"num_deleted_rows": rows}

    def truncate_table(self) -> None:
        """Delete all rows."""
        self.delete("true")

    def update(
        self,
        updates: Mapping[str, str],
        where: str | None = None,
        conflict_retries: int = 10,
        retry_timeout: timedelta = timedelta(seconds=30),
    ) -> dict[str, int]:
        """Set columns; tell of how many rows."""
        if isinstance(where, pa.compute.Expression):
            where = str(where)
        done = self.value.update(updates, where, conflict_retries, retry_timeout)
        self.value = done.dataset
        return {"num_rows_updated": done.num_rows_updated}

    def merge_insert(self, on: str | Iterable[str] | None = None) -> MergeInsertBuilder:
        """Return a builder of a merge."""
        return MergeInsertBuilder(self, on)

    # Changing columns.

    def add_columns(
        self,
        transforms: Any,
        read_columns: list[str] | None = None,
        reader_schema: pa.Schema | None = None,
        batch_size: int | None = None,
    ) -> None:
        """Add columns."""
        self.value = self.value.add_columns(transforms, read_columns, reader_schema, batch_size)

    def drop_columns(self, columns: list[str]) -> None:
        """Drop columns."""
        self.value = self.value.drop_columns(columns)

    def alter_columns(self, *alterations: Mapping[str, Any]) -> None:
        """Rename columns, change their types or whether they may be null."""
        self.value = self.value.alter_columns(*alterations)

    def merge(
        self, data_obj: Any, left_on: str, right_on: str | None = None, schema: pa.Schema | None = None
    ) -> None:
        """Add the columns of other data by key."""
        self.value = self.value.merge(data_obj, left_on, right_on, schema)

    # Indices.

    @property
    def has_index(self) -> bool:
        """Whether there is an index."""
        return self.value.has_index

    def list_indices(self) -> list[dict[str, Any]]:
        """Return the segments of indices."""
        return self.value.list_indices()

    def describe_indices(self) -> list[Any]:
        """Return the indices."""
        return self.value.describe_indices()

    def index_statistics(self, index_name: str) -> dict[str, Any]:
        """Return what is known of an index."""
        return self.value.index_statistics(index_name)

    def create_scalar_index(
        self, column: str, index_type: Any, name: str | None = None, *, replace: bool = True, **options: Any
    ) -> None:
        """Build an index of values."""
        if isinstance(index_type, IndexConfig):
            index_type, options = index_type.index_type, {**options, **index_type.parameters}
        for hint in ("train", "progress_callback", "format_version"):
            options.pop(hint, None)
        self.value = self.value.create_scalar_index(
            _only(column), index_type, name, replace=replace, **options
        )

    def create_index(
        self, column: str | list[str], index_type: str, name: str | None = None, **options: Any
    ) -> LanceDataset:
        """Build an index of vectors."""
        given = {key: value for key, value in options.items() if value is not None}
        self.value = self.value.create_index(_only(column), index_type, name, **{"replace": False, **given})
        return self

    def drop_index(self, name: str) -> None:
        """Drop an index."""
        self.value = self.value.drop_index(name)

    def prewarm_index(self, name: str, **_: Any) -> None:
        """Look whether there is such an index; what searches open, the dataset keeps."""
        self.value.index_statistics(name)

    @property
    def optimize(self) -> DatasetOptimizer:
        """Compaction, and upkeep of indices."""
        return DatasetOptimizer(self)

    def cleanup_old_versions(
        self, older_than: timedelta | None = None, retain_versions: int | None = None, **options: Any
    ) -> CleanupStats:
        """Delete old versions."""
        options.pop("delete_concurrency", None)
        return self.value.cleanup_old_versions(older_than, retain_versions, **options)

    # Config and metadata.

    def config(self) -> dict[str, str]:
        """Return the settings."""
        return self.value.config()

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the table."""
        return self.value.metadata

    def update_config(self, upsert_values: Any, *, replace: bool = False) -> Any:
        """Set settings."""
        self.value = self.value.update_config(upsert_values, replace=replace)
        return self.config()

    def delete_config_keys(self, keys: list[str]) -> None:
        """Delete settings."""
        self.value = self.value.delete_config_keys(keys)

    def update_metadata(self, updates: Any, *, replace: bool = False) -> Any:
        """Set metadata of the table."""
        self.value = self.value.update_metadata(updates, replace=replace)
        return self.metadata

    def update_schema_metadata(self, updates: Any, *, replace: bool = False) -> Any:
        """Set metadata of the schema."""
        self.value = self.value.update_schema_metadata(updates, replace=replace)
        return dict(self.value.lance_schema.metadata)

    def replace_schema_metadata(self, new_metadata: Mapping[str, str]) -> None:
        """Replace the metadata of the schema."""
        self.value = self.value.update_schema_metadata(dict(new_metadata), replace=True)

    def update_field_metadata(
        self, field: str | Mapping[str, Any], updates: Any = None, **options: Any
    ) -> Any:
        """Set metadata of fields."""
        given = field if isinstance(field, Mapping) else {field: updates}
        self.value = self.value.update_field_metadata(given, **options)
        return None

    def replace_field_metadata(self, field_name: str, new_metadata: Mapping[str, str]) -> None:
        """Replace the metadata of a field."""
        self.value = self.value.update_field_metadata({field_name: dict(new_metadata)}, replace=True)

    # Versions.

    @property
    def version(self) -> int:
        """The version."""
        return self.value.version

    @property
    def latest_version(self) -> int:
        """The newest version."""
        return self.value.latest_version

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions."""
        return [version_dict(version) for version in self.value.versions()]

    def checkout_version(self, version: Any) -> LanceDataset:
        """Return the table at another version."""
        return LanceDataset.of(self.value.checkout_version(version), self._default_scan_options)

    def checkout_latest(self) -> None:
        """Move to the newest version."""
        self.value = self.value.checkout_latest()

    def restore(self) -> None:
        """Make this version the newest."""
        self.value = self.value.restore()

    @property
    def tags(self) -> Tags:
        """The tags."""
        return Tags(self.value.tags)

    @property
    def branches(self) -> Branches:
        """The branches."""
        return Branches(self.value.branches)

    def create_branch(
        self,
        branch: str,
        reference: Any = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> LanceDataset:
        """Create a branch and return it."""
        return LanceDataset.of(self.value.create_branch(branch, reference))

    def shallow_clone(
        self, target_path: Any, reference: Any = None, storage_options: Any = None, **_: Any
    ) -> LanceDataset:
        """Create a table that begins as a version of this one and shares its files."""
        return LanceDataset.of(self.value.shallow_clone(target_path, reference, storage_options))

    def deep_clone(
        self, target_path: Any, reference: Any = None, storage_options: Any = None, **_: Any
    ) -> LanceDataset:
        """Create a table with copies of the files of a version."""
        return LanceDataset.of(self.value.deep_clone(target_path, reference, storage_options))

    def delta(
        self,
        compared_against: int | None = None,
        *,
        begin_version: int | None = None,
        end_version: int | None = None,
    ) -> Any:
        """Return what changed between versions."""
        return self.value.delta(compared_against, begin_version=begin_version, end_version=end_version)

    diff = delta

    def read_transaction(self, version: int) -> Transaction | None:
        """Return what made a version."""
        return transaction_or_none(lambda: self.value.read_transaction(version))

    def get_transactions(self, recent_transactions: int = 10) -> list[Transaction | None]:
        """Return what made the newest versions."""
        found = self.value.get_transactions(recent_transactions)
        return [None if each is None else Transaction.of(each) for each in found]

    def add_bases(
        self, new_bases: Sequence[DatasetBasePath], transaction_properties: Any = None
    ) -> LanceDataset:
        """Add places for files."""
        with commit_options(properties=transaction_properties):
            return LanceDataset.of(self.value.add_bases(new_bases))

    def migrate_manifest_paths_v2(self) -> None:
        """Rename the manifests of an old table."""
        self.value.migrate_manifest_paths_v2()
        self.checkout_latest()

    @staticmethod
    def drop(
        base_uri: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        ignore_not_found: bool | None = None,
    ) -> None:
        """Delete a table with all its files."""
        store, root = open_store(base_uri, storage_options)
        try:
            values.dataset(base_uri, storage_options=storage_options)
        except TableNotFoundError:
            if ignore_not_found:
                return
            raise
        files = [found.path for found in store.list_objects(root, recursive=True)]
        store.delete_many(files)

    @staticmethod
    def commit(
        base_uri: Any,
        operation: Operation | Transaction,
        read_version: int | None = None,
        commit_lock: Any = None,
        storage_options: Mapping[str, str] | None = None,
        enable_v2_manifest_paths: bool | None = None,  # noqa: ARG004
        detached: bool | None = False,
        max_retries: int = 20,
        *,
        commit_message: str | None = None,
        enable_stable_row_ids: bool | None = None,
        commit_timeout: timedelta | None = None,
        **_: Any,
    ) -> LanceDataset:
        """Commit an operation whose files are written."""
        if detached:
            raise NotImplementedError("detached versions are not written here")
        place = place_of(base_uri, storage_options, commit_lock)
        manifest = commit_at(
            place,
            operation,
            read_version,
            max_retries=max_retries,
            commit_message=commit_message,
            enable_stable_row_ids=enable_stable_row_ids,
            commit_timeout=commit_timeout,
        )
        return LanceDataset.of(values.LanceDataset(place.uri, place.store, place.root, manifest))

    @staticmethod
    def commit_batch(
        dest: Any, transactions: Sequence[Transaction], commit_lock: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Commit appends together."""
        merged = merge_appends(transactions)
        found = LanceDataset.commit(dest, merged, commit_lock=commit_lock, **options)
        return {"dataset": found, "merged": merged}


def _only(column: str | Sequence[str]) -> str:
    """Return the one column of an index.

    Raises:
        NotImplementedError: there are several.
    """
    if isinstance(column, str):
        return column
    if len(column) != 1:
        raise NotImplementedError("Creating multi-column indices is not supported")
    return column[0]


def _reopened(value: values.LanceDataset, scan_options: Mapping[str, Any] | None) -> LanceDataset:
    return LanceDataset.of(value, scan_options)


def dataset(
    uri: str | os.PathLike[str] | None = None,
    version: Any = None,
    asof: datetime | str | None = None,
    block_size: int | None = None,  # noqa: ARG001
    commit_lock: Any = None,
    index_cache_size: int | None = None,  # noqa: ARG001
    storage_options: Mapping[str, str] | None = None,
    default_scan_options: Mapping[str, Any] | None = None,
    **_: Any,
) -> LanceDataset:
    """Open a table at its latest or a given version."""
    if uri is None:
        raise OptionTypeError("a table is opened by its uri; namespaces are not taken here")
    opened = values.dataset(uri, version, storage_options, asof=asof, commit_lock=commit_lock)
    return LanceDataset.of(opened, default_scan_options)


def write_dataset(
    data_obj: Any,
    uri: Any = None,
    schema: pa.Schema | None = None,
    mode: str = "create",
    **options: Any,
) -> LanceDataset:
    """Write a table and return it at its new version; an open dataset that is given moves to it.

    A URI of memory names a place of its own each time.
    """
    if uri is None:
        raise OptionTypeError("a table is written to a uri; namespaces are not taken here")
    progress: Callable[..., Any] | None = options.get("progress")
    if progress is not None:
        raise NotImplementedError("progress is told by LanceFragment.create and write_fragments only")
    opened = uri if isinstance(uri, LanceDataset) else None
    if isinstance(uri, str) and uri.startswith("memory://"):
        uri = f"memory://{uuid.uuid4()}/{uri.removeprefix('memory://')}"
    target = opened.value if opened is not None else uri
    written = values.write_dataset(data_obj, target, mode, schema=schema, **writing_options(options))
    if opened is not None:
        opened.value = written
        return opened
    return LanceDataset.of(written)
