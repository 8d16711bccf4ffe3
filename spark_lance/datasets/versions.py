"""Versions of a table: history, restore, base paths, branches and clones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.datasets.show import HISTORY_COLUMNS, history_rows
from spark_lance.errors import OptionTypeError
from spark_lance.io.base_options import Location
from spark_lance.io.display import TableRepr
from spark_lance.io.locations import uri_text
from spark_lance.io.store import Store, open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.bases import BasePath
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.format.upkeep import log_errors
from spark_lance.table.inserts.clone import create_branch, deep_clone, shallow_clone
from spark_lance.table.metadata import metadata_table
from spark_lance.table.versions.resolve import Reference, VersionRef, resolve
from spark_lance.table.versions.versions import (
    list_versions,
    load_newest,
    load_version,
    move_torn_manifests,
    read_whole,
)

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset


def version_summary(manifest: table_pb2.Manifest) -> dict[str, str]:
    """Return counts of rows, files and fragments of a version as texts, with pylance's names."""
    fragments = manifest.fragments
    files = [file for fragment in fragments for file in fragment.files]
    deletions = [f.deletion_file for f in fragments if f.HasField("deletion_file")]
    physical_rows = sum(fragment.physical_rows for fragment in fragments)
    deleted = sum(deletion.num_deleted_rows for deletion in deletions)
    counts = {
        "total_data_file_rows": physical_rows,
        "total_data_files": len(files),
        "total_deletion_file_rows": deleted,
        "total_deletion_files": len(deletions),
        "total_files_size": sum(file.file_size_bytes for file in files),
        "total_fragments": len(fragments),
        "total_rows": physical_rows - deleted,
    }
    return {name: str(count) for name, count in counts.items()}


@dataclass(frozen=True)
class DatasetBasePath:
    """An additional base path for a table's files.

    Attributes:
        path: URI or absolute path.
        name: optional name.
        is_dataset_root: whether the path is the root of a table, with data files in its folder `data`.
        id: number of the base path; 0 lets the commit choose it.
    """

    path: str
    name: str | None = None
    is_dataset_root: bool = False
    id: int = 0

    def to_base_path(self) -> BasePath:
        """Return the base path as a manifest stores it."""
        path = os.fspath(self.path)
        return BasePath(self.id, self.is_dataset_root, path, self.name, path)


_LISTED_VERSIONS = 20


@dataclass(frozen=True, repr=False)
class DatasetHistory(TableRepr):
    """The versions of a branch, and their transactions."""

    dataset: LanceDataset

    def __call__(self, limit: int | None = None) -> pa.Table:
        """Return a table with one row per version, newest first, in Delta's columns.

        Args:
            limit: number of versions to return. Default: all.
        """
        if limit is not None and not hasattr(limit, "__index__"):
            raise OptionTypeError(
                f"limit is a whole number, such as 10 for the newest ten versions, not {limit!r}"
            )
        return metadata_table("history").to_arrow(self.dataset.snapshot, limit=limit)

    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        rows = history_rows(self.dataset, _LISTED_VERSIONS)
        return f"history of {self.dataset.uri}, newest first", HISTORY_COLUMNS, rows

    def versions(self) -> list[dict[str, Any]]:
        """Return a dict per version, oldest first: `version`, `timestamp` (UTC) and `metadata`.

        The values of `metadata` are texts: `total_rows`, `total_fragments`, `total_data_files`,
        `total_data_file_rows`, `total_files_size`, `total_deletion_files` and `total_deletion_file_rows`.
        """
        result = []
        for file in list_versions(self.dataset.table):
            manifest = read_whole(self.dataset.store, file.path, file.naming)
            if manifest is None:
                continue
            row = {"version": file.version, "timestamp": manifest.timestamp}
            result.append({**row, "metadata": version_summary(manifest.message)})
        return result

    def transactions(self, recent_transactions: int = 10) -> list[Transaction | None]:
        """Return the transactions of this and earlier versions, newest first; None if one is not stored."""
        numbers = [file.version for file in list_versions(self.dataset.table)]
        recent = [number for number in numbers if number <= self.dataset.version][-recent_transactions:]
        return [self.transaction(number) for number in reversed(recent)]

    def transaction(self, version: int) -> Transaction | None:
        """Return the transaction of a version of this branch, or None if it is not stored.

        Raises:
            VersionNotFoundError: the version does not exist.
            FormatError: the stored transaction is damaged.
        """
        return read_transaction(
            self.dataset.table,
            load_version(self.dataset.table, version),
        )

    def restore(self) -> LanceDataset:
        """Commit this version's content as the newest version, and return it.

        This restores schema, rows, indexes, config and metadata, but not files that a cleanup has deleted.
        Torn manifests of newer versions are moved to `_torn/`.

        Raises:
            CommitError: the commit failed; see its subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot write.
        """
        operation = transaction_pb2.Transaction.Restore(version=self.dataset.version)
        newest = load_newest(self.dataset.table)
        latest = newest.manifest.version
        restored = commit_operation(self.dataset.table, operation, read_version=latest)
        if newest.highest_number > latest:
            with log_errors(f"version {restored.version} was committed, but torn manifests were not moved"):
                move_torn_manifests(self.dataset.table)
        return self.dataset.at(restored)


@dataclass(frozen=True)
class DatasetBases:
    """The base paths of a table in addition to its own root."""

    dataset: LanceDataset

    def add(self, new_bases: Sequence[DatasetBasePath]) -> LanceDataset:
        """Register base paths in which the table may store files, and return the new version.

        Raises:
            OptionError: a name, path or id is taken. Two base paths without a name count as equal names.
            IncompatibleConflictError: another writer has taken the name, path or id concurrently.
            CommitError: the commit failed; see its subclasses.
        """
        messages = [base.to_base_path().message() for base in new_bases]
        operation = transaction_pb2.Transaction.UpdateBases(new_bases=messages)
        manifest = commit_operation(self.dataset.table, operation, read_version=self.dataset.version)
        store = self.dataset.store.with_bases([message.path for message in messages])
        return replace(self.dataset, table=TableRef(store, self.dataset.root), manifest=manifest)

    def list(self) -> list[DatasetBasePath]:
        """Return the base paths of this version, without its own root."""
        return [
            DatasetBasePath(
                base.path, base.name if base.HasField("name") else None, base.is_dataset_root, base.id
            )
            for base in self.dataset.manifest.message.base_paths
        ]


def begin_branch(dataset: LanceDataset, branch: str, reference: Reference | None = None) -> LanceDataset:
    """Create a branch and return it.

    Args:
        dataset: a version of the table.
        branch: name of the branch, which may contain slashes.
        reference: the version to start from, as for `checkout_version`. Default: this version.

    Raises:
        BranchExistsError: the branch exists.
        VersionNotFoundError: the version does not exist.
        OptionError: the name is not allowed.
        CommitError: the commit failed; see its subclasses.
    """
    create_branch(dataset.main_line, branch, version_ref(dataset, reference))
    return dataset.checkout_version((branch, None))


def clone(
    dataset: LanceDataset,
    target_path: str | os.PathLike[str],
    reference: Reference | None,
    storage_options: Mapping[str, Any] | None,
    *,
    shallow: bool,
) -> LanceDataset:
    """Create a copy of a version as a table at another path, and return it.

    A shallow clone references the files of this table, so this table must not move. Cleanup of this table
    does not check for clones: tag the cloned version to keep its files.

    Args:
        dataset: a version of the table.
        target_path: path or URI of the clone.
        reference: the version to clone, as for `checkout_version`. Default: this version.
        storage_options: storage options of the clone. Default: this table's options if the clone is in the
            same bucket or on the same host.
        shallow: whether the clone references this table's files (True) or copies them (False).

    Raises:
        TableExistsError: the target already has a table.
        VersionNotFoundError: the version does not exist.
        CommitError: the commit failed; see its subclasses.
    """
    store, root = clone_target(dataset, target_path, storage_options)
    if shallow:
        # Cloning a table grants access to its files, with its storage options.
        source = dataset.main_line.uri
        store = store.with_bases([source], {source: dataset.store.options})
        store = replace(store, bases=store.bases.and_also(dataset.store.bases))
    make = shallow_clone if shallow else deep_clone
    target = TableRef(store, root)
    manifest = make(dataset.store, version_ref(dataset, reference), target)
    return replace(dataset, uri=os.fspath(target_path), table=target, manifest=manifest)


def clone_target(
    dataset: LanceDataset, path: str | os.PathLike[str], options: Mapping[str, Any] | None
) -> tuple[Store, str]:
    """Return the store and root of a clone. This table's options apply only in this table's store."""
    if options is not None:
        return open_store(path, options)
    location = Location.of(uri_text(path))
    account = str(dataset.store.options.get("account_name", ""))
    shares = location.shares_store(dataset.store.location(dataset.root), account)
    return open_store(path, dataset.store.storage_options if shares else None)


def version_ref(dataset: LanceDataset, reference: Reference | None = None) -> VersionRef:
    """Resolve a reference to a version. Default: this version."""
    if reference is None:
        return VersionRef(dataset.root, dataset.branch, dataset.version)
    return resolve(dataset.main_line, reference, dataset.branch)
