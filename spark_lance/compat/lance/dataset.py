"""Datasets that change in place, with pylance's arguments and answers, over values of this package."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.dataset

import spark_lance.datasets.dataset as values
from spark_lance.compat.lance.answers import transaction_or_none, version_dict, writing_options
from spark_lance.compat.lance.changes import Changes
from spark_lance.compat.lance.merging import MergeInsertBuilder
from spark_lance.compat.lance.optimize import DatasetOptimizer
from spark_lance.compat.lance.progress import FragmentWriteProgress
from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.compat.lance.reading import Reading
from spark_lance.compat.lance.references import Branches, Tags
from spark_lance.compat.lance.scanning import LanceScanner, ScannerBuilder
from spark_lance.compat.lance.sql import SqlQueryBuilder
from spark_lance.compat.lance.vector_reader import VectorIndexReader
from spark_lance.datasets.building import commit as commit_at
from spark_lance.datasets.building import merge_appends, place_of
from spark_lance.datasets.index_segment import Index, IndexFile
from spark_lance.datasets.operations import LanceOperation, Operation
from spark_lance.datasets.ordering import ColumnOrdering
from spark_lance.datasets.stats import DataStatistics, FieldStatistics, LanceStats
from spark_lance.datasets.transaction import Transaction
from spark_lance.datasets.versions import DatasetBasePath
from spark_lance.errors import OptionTypeError, TableNotFoundError
from spark_lance.io.store import open_store
from spark_lance.table.commits.commit_options import COMMIT_MESSAGE as LANCE_COMMIT_MESSAGE_KEY
from spark_lance.table.commits.commit_options import commit_options
from spark_lance.table.versions.drop import drop_table

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


@raises_os_errors
class LanceDataset(Reading, Changes):
    """A table at a version; what changes the table moves the object to the version that it makes."""

    def insert(self, data: Any, *, mode: str = "append", **options: Any) -> None:
        """Write data to the table."""
        self.value = write_dataset(data, self, mode=mode, **options).value

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
        transactions = self.value.get_transactions(recent_transactions)
        return [None if each is None else Transaction.of(each) for each in transactions]

    def add_bases(
        self, new_bases: Sequence[DatasetBasePath], transaction_properties: Any = None
    ) -> LanceDataset:
        """Add places for files."""
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
        """Delete a table with all its files; of a place that is a link, the link goes and the table stays."""
        store, root = open_store(base_uri, storage_options)
        try:
            values.dataset(base_uri, storage_options=storage_options)
        except TableNotFoundError:
            if ignore_not_found:
                return
            raise
        drop_table(store, root)

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
        place = place_of(base_uri, storage_options, commit_lock).for_operation(operation)
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
        return LanceDataset.of(values.LanceDataset(place.uri, place.store, place.root, manifest))

    @staticmethod
    def commit_batch(
        dest: Any, transactions: Sequence[Transaction], commit_lock: Any = None, **options: Any
    ) -> dict[str, Any]:
        """Commit appends together."""
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
    """Open a table at its latest or a given version, by its uri or by its name in a namespace."""
    uri, storage_options = _place(uri, storage_options, namespace_client, table_id, None)
    if index_cache_size is not None:
        warnings.warn(
            "index_cache_size says nothing: the caches of indices are as large as index_cache_size_bytes "
            "says there, and of a size of their own here",
            DeprecationWarning,
            stacklevel=2,
        )
    opened = values.dataset(
        uri,
        version,
        storage_options,
        asof=asof,
        commit_lock=commit_lock,
        allowed_bases=allowed_bases,
        base_store_params=base_store_params,
    )
    return LanceDataset.of(opened, default_scan_options)


@raises_os_errors
def write_dataset(
    data_obj: Any,
    uri: Any = None,
    schema: pa.Schema | None = None,
    mode: str = "create",
    **options: Any,
) -> LanceDataset:
    """Write a table and return it at its new version; an open dataset that is given moves to it.

    A URI of memory names a place of its own each time. `progress` gets the fragments after the commit.
    """
    by_name = options.get("namespace_client"), options.get("table_id")
    if uri is None or by_name[0] is not None:
        uri, options["storage_options"] = _place(uri, options.get("storage_options"), *by_name, mode)
    progress: FragmentWriteProgress | None = options.get("progress")
    opened = uri if isinstance(uri, LanceDataset) else None
    if isinstance(uri, str) and uri.startswith("memory://"):
        uri = f"memory://{uuid.uuid4()}/{uri.removeprefix('memory://')}"
    target = opened.value if opened is not None else uri
    options.setdefault("enable_stable_row_ids", False)  # as pylance, also with a primary key
    written = values.write_dataset(data_obj, target, mode, schema=schema, **writing_options(options))
    if progress is not None:
        transaction = transaction_or_none(lambda: written.read_transaction(written.version))
        for fragment in getattr(getattr(transaction, "operation", None), "fragments", ()):
            progress._do_begin(fragment)
            progress._do_complete(fragment)
    if opened is not None:
        opened.value = written
        return opened
    return LanceDataset.of(written)


def _place(
    uri: Any,
    storage_options: Mapping[str, str] | None,
    client: Any,
    table_id: list[str] | None,
    mode: str | None,
) -> tuple[Any, Mapping[str, str] | None]:
    """Return where a table is, or is to be written in a mode, and the options of its store.

    Raises:
        OptionTypeError: neither a uri nor both parts of a name are given, or both are.
    """
    if client is None and table_id is None and uri is not None:
        return uri, storage_options
    if client is None or table_id is None or uri is not None:
        raise OptionTypeError("a table is named by its uri, or else by namespace_client and table_id")
    names = import_module("spark_lance.compat.lance.namespace")  # Only then its package is needed.
    location, vended = (
        names.location_of(client, table_id) if mode is None else names.place_for(client, table_id, mode)
    )
    return location, {**(storage_options or {}), **vended} or None
