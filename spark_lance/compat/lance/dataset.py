"""pylance's `LanceDataset`, with reads, tags, branches and vector index partitions.

Unlike `spark_lance.LanceDataset`, this dataset changes in place.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.dataset

import spark_lance.datasets.dataset as values
from spark_lance.compat.lance.answers import transaction_or_none, version_dict, writing_options
from spark_lance.compat.lance.base import DatasetBase
from spark_lance.compat.lance.blob import BLOB_BUFFER_BYTES, with_blob_bytes
from spark_lance.compat.lance.changes import Changes, IndexConfig, MergeInsertBuilder
from spark_lance.compat.lance.fragment import LanceFragment
from spark_lance.compat.lance.optimize import DatasetOptimizer
from spark_lance.compat.lance.progress import listener
from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.compat.lance.scanning import (
    LanceScanner,
    ScannerBuilder,
    exact_rows,
    scan_arguments,
    search_scope,
)
from spark_lance.compat.lance.sql import SqlQueryBuilder
from spark_lance.datasets.building import commit as commit_at
from spark_lance.datasets.building import locate_table, merge_appends
from spark_lance.datasets.operations import Index, IndexFile, LanceOperation, Operation, Transaction
from spark_lance.datasets.scan_request import ColumnOrdering
from spark_lance.datasets.show import DataStatistics, FieldStatistics, LanceStats
from spark_lance.datasets.special_reads import blobs_by_address
from spark_lance.datasets.versions import DatasetBasePath
from spark_lance.errors import (
    IndexNotFoundError,
    OptionError,
    OptionTypeError,
    RowNotFoundError,
    TableNotFoundError,
)
from spark_lance.index.base.entries import Segment, find_segments
from spark_lance.index.vector.create import open_segment
from spark_lance.index.vector.kinds import VECTOR_LABEL, VECTOR_NEWEST
from spark_lance.io.store import open_store
from spark_lance.table.commits.commit_options import COMMIT_MESSAGE as LANCE_COMMIT_MESSAGE_KEY
from spark_lance.table.commits.commit_options import commit_options
from spark_lance.table.format.index_kinds import index_label
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.blobs import BlobFile, read_blobs
from spark_lance.table.versions.branches import Branches as _Branches
from spark_lance.table.versions.drop import drop_table
from spark_lance.table.versions.tags import Tags as _Tags
from spark_lance.table.writing.write import reporting_fragments

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
    "IndexConfig",
    "IndexFile",
    "LanceDataset",
    "LanceOperation",
    "LanceScanner",
    "LanceStats",
    "MergeInsertBuilder",
    "ReadMethods",
    "ScannerBuilder",
    "SqlQueryBuilder",
    "Tags",
    "Transaction",
    "VectorIndexReader",
    "dataset",
    "write_dataset",
]


@raises_os_errors
class ReadMethods(DatasetBase):
    """The methods that read a dataset."""

    def scanner(self, columns: Any = None, filter: Any = None, *args: Any, **options: Any) -> LanceScanner:
        """Return a scanner."""
        names = ("limit", "offset", "nearest", "batch_size")
        arguments = {"columns": columns, "filter": filter, **dict(zip(names, args, strict=False)), **options}
        defaults = self._default_scan_options or {}
        arguments = {**defaults, **{name: value for name, value in arguments.items() if value is not None}}
        value = search_scope(self.value, arguments)
        scanner = value.scanner(**scan_arguments(arguments))
        return LanceScanner(scanner, self, exact_rows(arguments), arguments.get("scan_stats_callback"))

    def to_table(self, columns: Any = None, filter: Any = None, *args: Any, **options: Any) -> pa.Table:
        """Return rows as an Arrow table."""
        return self.scanner(columns, filter, *args, **options).to_table()

    def to_batches(
        self, columns: Any = None, filter: Any = None, *args: Any, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Stream rows."""
        return self.scanner(columns, filter, *args, **options).to_batches()

    def to_pandas(self, columns: Any = None, filter: Any = None, **options: Any) -> Any:
        """Return rows as a pandas DataFrame."""
        options.pop("blob_mode", None)
        return self.to_table(columns, filter, **options).to_pandas()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """Return the first rows."""
        return self.scanner(**options).head(num_rows)

    def count_rows(self, filter: Any = None, **options: Any) -> int:
        """Return the number of rows."""
        if filter is None and not options:
            return self.value.count_rows()
        return self.scanner(filter=filter, **options).count_rows()

    def take(self, indices: Any, columns: Any = None) -> pa.Table:
        """Return rows by position. A column that is named twice is returned twice."""
        return _read_repeated(columns, lambda names: self.value.take(indices, names))

    def _take_rows(self, row_ids: Any, columns: Any = None, **_: Any) -> pa.Table:
        return _read_repeated(columns, lambda names: self.value.take_rows(row_ids, names))

    def take_blobs(
        self,
        blob_column: str,
        ids: Any = None,
        addresses: Any = None,
        indices: Any = None,
        *,
        buffer_size: int = BLOB_BUFFER_BYTES,
    ) -> list[Any]:
        """Return blobs as binary file objects, None for a null. `buffer_size` is ignored."""
        if isinstance(buffer_size, bool) or not isinstance(buffer_size, int):
            raise TypeError(f"buffer_size must be an int, got {type(buffer_size).__name__}")
        if buffer_size < 0:
            raise ValueError("buffer_size must be non-negative")
        return self._blobs(blob_column, ids, addresses, indices)[1]

    def read_blobs(
        self,
        blob_column: str,
        ids: Any = None,
        addresses: Any = None,
        indices: Any = None,
        *,
        io_buffer_size: int | None = None,
        preserve_order: bool | None = None,
    ) -> list[tuple[int, bytes | None]]:
        """Return pairs of a row address and the bytes of its blob, None for a null."""
        rows, files = self._blobs(blob_column, ids, addresses, indices)
        return list(zip(rows, read_blobs(files), strict=True))

    def _blobs(
        self, blob_column: str, ids: Any, addresses: Any, indices: Any
    ) -> tuple[list[int], list[BlobFile | None]]:
        """Return the addresses of rows, and their blobs."""
        if sum(numbers is not None for numbers in (ids, addresses, indices)) != 1:
            raise ValueError("Exactly one of ids, indices, or addresses must be specified")
        try:
            return blobs_by_address(self.value, blob_column, indices, ids, addresses)
        except RowNotFoundError as error:
            if indices is not None:
                raise
            raise NotImplementedError(
                f"A take operation that includes row addresses must not target deleted rows: {error}"
            ) from error

    def get_ivf_model(self, index_name: str) -> Any:
        """Return the `IvfModel` of the newest segment of a vector index.

        Raises:
            IndexNotFoundError: no vector index has this name.
        """
        segments = find_segments(self.value.snapshot, VECTOR_LABEL, VECTOR_NEWEST)
        for segment in reversed(segments):
            if segment.name == index_name:
                content = open_segment(segment)
                model = import_module("spark_lance.compat.lance.indices.ivf").IvfModel
                return model(_as_arrow(content.ivf.centroids), content.metric)
        raise IndexNotFoundError(f"there is no vector index {index_name!r} here")

    def centroids(self, *, index_name: str | None = None, column: str | None = None) -> pa.Array:
        """Return the centroids of a vector index, named by its name or its column.

        Raises:
            OptionError: neither an index nor a column is named.
            IndexNotFoundError: the vector index does not exist.
        """
        if index_name is not None:
            return self.get_ivf_model(index_name).centroids
        if column is None:
            raise OptionError("centroids() needs index_name or column")
        snapshot = self.value.snapshot
        for segment in find_segments(snapshot, VECTOR_LABEL, VECTOR_NEWEST):
            if snapshot.schema.field_path(int(segment.entry.fields[0])).lower() == column.lower():
                return self.get_ivf_model(segment.name).centroids
        raise IndexNotFoundError(f"column {column!r} has no vector index: create one with create_index()")

    def sample(self, num_rows: int, columns: Any = None, randomize_order: bool = True, **_: Any) -> pa.Table:
        """Return random rows without repetition."""
        return self.value.sample(num_rows, columns, randomize_order)

    def sql(self, sql: str) -> SqlQueryBuilder:
        """Return a query builder."""
        return SqlQueryBuilder(self.value, sql)

    def join(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("Versioning not yet supported")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:
        """Not supported."""
        raise NotImplementedError("Cannot replace the schema of a dataset")

    def filter(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported: pass filters to `scanner` or `to_table`."""
        raise NotImplementedError("give the filter to scanner() or to_table()")

    def sort_by(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported: pass order_by to `scanner` or `to_table`."""
        raise NotImplementedError("give order_by to scanner() or to_table()")

    join_asof = join

    def get_fragments(self, filter: Any = None) -> list[LanceFragment]:
        """Return the fragments."""
        if filter is not None:
            raise ValueError("get_fragments() does not support filter yet")
        return [LanceFragment(self, None, fragment=each) for each in self.value.get_fragments()]

    def get_fragment(self, fragment_id: int) -> LanceFragment | None:
        """Return the fragment with an id, or None."""
        fragment = self.value.get_fragment(fragment_id)
        return None if fragment is None else LanceFragment(self, None, fragment=fragment)

    def fragment_ids(self) -> set[int]:
        """Return the ids of the fragments."""
        return {fragment.fragment_id for fragment in self.value.get_fragments()}


def _read_repeated(columns: Any, read: Callable[[Any], pa.Table]) -> pa.Table:
    """Return the result of `read` for columns that may be repeated."""
    if not isinstance(columns, list | tuple) or len(set(columns)) == len(columns):
        return read(columns)
    return read(list(dict.fromkeys(columns))).select(list(columns))


@raises_os_errors
class Tags:
    """The tags of a table."""

    def __init__(self, tags: _Tags) -> None:
        self._tags = tags

    def list(self) -> dict[str, dict[str, Any]]:
        """Return the tags by name."""
        return self._tags.list()

    def list_ordered(self, order: str | None = None) -> Sequence[tuple[str, dict[str, Any]]]:
        """Return names and tags sorted by version: "desc" (default) or "asc"."""
        return sorted(self.list().items(), key=lambda item: item[1]["version"], reverse=order != "asc")

    def get_version(self, tag: str) -> int:
        """Return the version number of a tag."""
        return self._tags.get_version(tag)

    def create(self, tag: str, reference: Any = None) -> None:
        """Create a tag for a version."""
        self._tags.create_with_any_name(tag, reference)

    def update(self, tag: str, reference: Any = None) -> None:
        """Move a tag to another version."""
        self._tags.update(tag, reference)

    def delete(self, tag: str) -> None:
        """Delete a tag."""
        self._tags.delete(tag)


@raises_os_errors
class Branches:
    """The branches of a table."""

    def __init__(self, branches: _Branches) -> None:
        self._branches = branches

    def list(self) -> dict[str, Any]:
        """Return the branches by name."""
        return self._branches.list()

    def list_ordered(self, order: str | None = None) -> Sequence[tuple[str, Any]]:
        """Return names and branches sorted by their start version: "desc" (default) or "asc"."""
        key = lambda item: item[1]["parent_version"]  # noqa: E731
        return sorted(self.list().items(), key=key, reverse=order != "asc")

    def delete(self, branch: str) -> None:
        """Delete a branch."""
        self._branches.delete(branch)

    def replace_metadata(self, branch: str, metadata: dict[str, str]) -> None:
        """Replace the metadata of a branch."""
        self._branches.replace_metadata(branch, metadata)


@raises_os_errors
class VectorIndexReader:
    """Reads the partitions of a vector index across all its segments.

    Args:
        dataset: the dataset.
        index_name: name of the index.

    Raises:
        OptionError: the index is not a vector index.
        IndexNotFoundError: the index does not exist.
    """

    def __init__(self, dataset: Any, index_name: str) -> None:
        value = dataset.value
        entries = [entry for entry in value.manifest.indices if entry.name == index_name]
        if not entries:
            raise IndexNotFoundError(f"there is no index {index_name!r}")
        if any(index_label(entry) != VECTOR_LABEL for entry in entries):
            raise OptionError(f"{index_name} is not vector index")
        segments: Iterable[Segment] = find_segments(value.snapshot, VECTOR_LABEL, VECTOR_NEWEST)
        self._segments = [open_segment(segment) for segment in segments if segment.name == index_name]

    def num_partitions(self) -> int:
        """Return the number of partitions, the largest of all segments."""
        return max((len(segment.lengths) for segment in self._segments), default=0)

    def read_partition(self, partition_id: int, *, with_vector: bool = False) -> pa.Table:
        """Return the row ids of a partition, and with `with_vector` its stored codes.

        Raises:
            RowNotFoundError: the partition does not exist.
        """
        if not 0 <= partition_id < self.num_partitions():
            raise RowNotFoundError(f"partition {partition_id} is out of range: {self.num_partitions()}")
        parts = []
        for segment in self._segments:
            if partition_id >= len(segment.lengths):
                continue
            partition = segment.partition(partition_id)
            columns = {"_rowid": pa.array(partition.row_ids, pa.uint64())}
            if with_vector:
                columns |= {name: _as_arrow(np.asarray(codes)) for name, codes in partition.codes.items()}
            parts.append(pa.table(columns))
        return pa.concat_tables(parts)


def _as_arrow(values: np.ndarray[Any, Any]) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


class AutoCleanupConfig(dict[str, int]):
    """`interval`, and `older_than_seconds` or `retain_versions` or both."""


@raises_os_errors
class LanceDataset(ReadMethods, Changes):
    """A table at a version. Methods that change the table move the object to the new version."""

    def insert(self, data: Any, *, mode: str = "append", **options: Any) -> None:
        """Write data to the table."""
        self.value = write_dataset(data, self, mode=mode, **options).value

    @property
    def version(self) -> int:
        """The version number."""
        return self.value.version

    @property
    def latest_version(self) -> int:
        """The number of the newest version."""
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
        """Commit this version's content as the newest version."""
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
        """Create a table that references the files of a version."""
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
        """Return the changes between versions."""
        return self.value.delta(compared_against, begin_version=begin_version, end_version=end_version)

    diff = delta

    def read_transaction(self, version: int) -> Transaction | None:
        """Return the transaction of a version."""
        return transaction_or_none(lambda: self.value.read_transaction(version))

    def get_transactions(self, recent_transactions: int = 10) -> list[Transaction | None]:
        """Return the transactions of the newest versions."""
        transactions = self.value.get_transactions(recent_transactions)
        return [None if each is None else Transaction.of(each) for each in transactions]

    def add_bases(
        self, new_bases: Sequence[DatasetBasePath], transaction_properties: Any = None
    ) -> LanceDataset:
        """Register base paths for files."""
        with commit_options(properties=transaction_properties):
            self.value = self.value.add_bases(new_bases)
        return self

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
        """Delete a table with all its files. For a symbolic link, delete only the link."""
        table = TableRef(*open_store(base_uri, storage_options))
        try:
            values.dataset(base_uri, storage_options=storage_options)
        except TableNotFoundError:
            if ignore_not_found:
                return
            raise
        drop_table(table)

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
        """Commit an operation whose files are already written."""
        place = locate_table(base_uri, storage_options, commit_lock).for_operation(operation)
        manifest = commit_at(
            place,
            operation,
            read_version,
            max_retries=max_retries,
            commit_message=commit_message,
            enable_stable_row_ids=enable_stable_row_ids,
            commit_timeout=commit_timeout,
            detached=bool(detached),
        )
        return LanceDataset.of(values.LanceDataset(place.uri, place.table, manifest))

    @staticmethod
    def commit_batch(
        dest: Any, transactions: Sequence[Transaction], commit_lock: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Commit several appends as one version."""
        merged = merge_appends(transactions)
        committed = LanceDataset.commit(dest, merged, commit_lock=commit_lock, **options)
        return {"dataset": committed, "merged": merged}


@raises_os_errors
def dataset(
    uri: str | os.PathLike[str] | None = None,
    version: Any = None,
    asof: datetime | str | None = None,
    block_size: int | None = None,  # noqa: ARG001
    commit_lock: Any = None,
    index_cache_size: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    default_scan_options: Mapping[str, Any] | None = None,
    namespace_client: Any = None,
    table_id: list[str] | None = None,
    base_store_params: Mapping[str, Mapping[str, str]] | None = None,
    allowed_bases: Sequence[str] | None = None,
    **_: Any,
) -> LanceDataset:
    """Open a table at its newest or a given version, by its URI or by its name in a namespace."""
    uri, storage_options = _locate(uri, storage_options, namespace_client, table_id, None)
    if index_cache_size is not None:
        warnings.warn(
            "index_cache_size is ignored: the environment variable SPARK_LANCE_CACHE_BYTES limits all caches",
            DeprecationWarning,
            stacklevel=2,
        )
    value = values.dataset(
        uri,
        version,
        storage_options,
        asof=asof,
        commit_lock=commit_lock,
        allowed_bases=allowed_bases,
        base_store_params=base_store_params,
    )
    return LanceDataset.of(value, default_scan_options)


@raises_os_errors
def write_dataset(
    data_obj: Any,
    uri: Any = None,
    schema: pa.Schema | None = None,
    mode: str = "create",
    **options: Any,
) -> LanceDataset:
    """Write a table and return its new version. An open dataset moves to the new version.

    Each `memory://` URI creates a separate location.
    """
    by_name = options.get("namespace_client"), options.get("table_id")
    if uri is None or by_name[0] is not None:
        uri, options["storage_options"] = _locate(uri, options.get("storage_options"), *by_name, mode)
    open_dataset = uri if isinstance(uri, LanceDataset) else None
    if isinstance(uri, str) and uri.startswith("memory://"):
        uri = f"memory://{uuid.uuid4()}/{uri.removeprefix('memory://')}"
    target = open_dataset.value if open_dataset is not None else uri
    options.setdefault("enable_stable_row_ids", False)  # as pylance, also with a primary key
    data_obj, schema = with_blob_bytes(data_obj, schema, target, options)
    with reporting_fragments(listener(options.get("progress"))):
        value = values.write_dataset(data_obj, target, mode, schema=schema, **writing_options(options))
    if open_dataset is not None:
        open_dataset.value = value
        return open_dataset
    return LanceDataset.of(value)


def _locate(
    uri: Any,
    storage_options: Mapping[str, str] | None,
    client: Any,
    table_id: list[str] | None,
    mode: str | None,
) -> tuple[Any, Mapping[str, str] | None]:
    """Return the location of a table to read, or to write in a mode, and its storage options.

    Raises:
        OptionTypeError: the arguments are neither a URI nor both parts of a name, or they are both.
    """
    if client is None and table_id is None and uri is not None:
        return uri, storage_options
    if client is None or table_id is None or uri is not None:
        raise OptionTypeError("a table is named by its uri, or else by namespace_client and table_id")
    names = import_module("spark_lance.compat.lance.namespace")  # Only then its package is needed.
    location, vended = (
        names.read_location(client, table_id)
        if mode is None
        else names.declare_location(client, table_id, mode)
    )
    return location, {**(storage_options or {}), **vended} or None
