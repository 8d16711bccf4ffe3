"""The versions of a table: which there are, their names, going to one, and going back to one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.datasets.show import HISTORY_COLUMNS, history_rows
from spark_lance.io.base_options import Location
from spark_lance.io.display import TableRepr
from spark_lance.io.locations import uri_text
from spark_lance.io.store import Store, open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.bases import BasePath
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction, read_transaction
from spark_lance.table.format.upkeep import only_logged
from spark_lance.table.inserts.clone import create_branch, deep_clone, shallow_clone
from spark_lance.table.metadata import metadata_table
from spark_lance.table.versions.resolve import Reference, VersionRef, resolve
from spark_lance.table.versions.versions import (
    list_versions,
    load_newest,
    load_version,
    read_whole,
    set_aside,
)

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset


def version_summary(manifest: table_pb2.Manifest) -> dict[str, str]:
    """Return the counts of a version as texts, by the names that pylance gives them."""
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
    """One more place for a table's files.

    Attributes:
        path: its URI or absolute path.
        name: a name for it.
        is_dataset_root: whether it is the root of a table, with its files under `data`.
        id: its number; 0 lets the commit choose.
    """

    path: str
    name: str | None = None
    is_dataset_root: bool = False
    id: int = 0

    def stored(self) -> BasePath:
        """Return it as a manifest has it."""
        path = os.fspath(self.path)
        return BasePath(self.id, self.is_dataset_root, path, self.name, path)


_LISTED_VERSIONS = 20


@dataclass(frozen=True, repr=False)
class DatasetHistory(TableRepr):
    """The versions of the line of a version, and the transactions that made them."""

    dataset: LanceDataset

    def __call__(self, limit: int | None = None) -> pa.Table:
        """Return what made the versions, newest first, in Delta's columns.

        Args:
            limit: how many of the newest versions; all by default.
        """
        return metadata_table("history").to_arrow(self.dataset.snapshot, limit=limit)

    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        rows = history_rows(self.dataset, _LISTED_VERSIONS)
        return f"history of {self.dataset.uri}, newest first", HISTORY_COLUMNS, rows

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions that exist, oldest first: dicts of `version`, `timestamp` (UTC), `metadata`.

        The metadata are texts: `total_rows`, `total_fragments`, `total_data_files`, `total_data_file_rows`,
        `total_files_size`, `total_deletion_files` and `total_deletion_file_rows`.
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
        """Return what made the newest versions up to this one, newest first; None where no record is left."""
        numbers = [file.version for file in list_versions(self.dataset.table)]
        recent = [number for number in numbers if number <= self.dataset.version][-recent_transactions:]
        return [self.transaction(number) for number in reversed(recent)]

    def transaction(self, version: int) -> Transaction | None:
        """Return the transaction that made a version of this line, None if no record of it is left.

        Raises:
            VersionNotFoundError: there is no such version.
            FormatError: the record is damaged.
        """
        return read_transaction(
            self.dataset.table,
            load_version(self.dataset.table, version),
        )

    def restore(self) -> LanceDataset:
        """Make this version's content the newest version, and return that.

        Schema, rows, indices, config and metadata come back as they were here; files that a clean-up has
        deleted do not. Manifests of newer versions that are not whole are moved to `_torn/`.

        Raises:
            CommitError: the commit failed; see its subclasses.
            UnsupportedFormatError: the table uses a feature that is not written here.
        """
        operation = transaction_pb2.Transaction.Restore(version=self.dataset.version)
        newest = load_newest(self.dataset.table)
        latest = newest.manifest.version
        restored = commit_operation(self.dataset.table, operation, read_version=latest)
        if newest.highest_number > latest:
            with only_logged(f"version {restored.version} was committed, but torn manifests were not moved"):
                set_aside(self.dataset.table)
        return self.dataset.at(restored)


@dataclass(frozen=True)
class DatasetBases:
    """The places, next to its own root, in which a table may keep files."""

    dataset: LanceDataset

    def add(self, new_bases: Sequence[DatasetBasePath]) -> LanceDataset:
        """Add places in which the table may keep files, and return the new version.

        Raises:
            OptionError: a name, path or id is taken; two places without a name count as of one name.
            IncompatibleConflictError: another writer has taken it meanwhile.
            CommitError: the commit failed; see its subclasses.
        """
        messages = [base.stored().message() for base in new_bases]
        operation = transaction_pb2.Transaction.UpdateBases(new_bases=messages)
        manifest = commit_operation(self.dataset.table, operation, read_version=self.dataset.version)
        store = self.dataset.store.with_bases([message.path for message in messages])
        return replace(self.dataset, table=TableRef(store, self.dataset.root), manifest=manifest)

    def list(self) -> list[DatasetBasePath]:
        """Return the places in which this version may have files, besides its own root."""
        return [
            DatasetBasePath(
                base.path, base.name if base.HasField("name") else None, base.is_dataset_root, base.id
            )
            for base in self.dataset.manifest.message.base_paths
        ]


def begin_branch(dataset: LanceDataset, branch: str, reference: Reference | None = None) -> LanceDataset:
    """Create a branch and return it.

    Args:
        branch: its name; slashes may part it.
        reference: the version it begins with, as for `checkout_version`; this version by default.

    Raises:
        BranchExistsError: the branch exists.
        VersionNotFoundError: there is no such version.
        OptionError: the name cannot be used.
        CommitError: the commit failed; see its subclasses.
    """
    create_branch(dataset.store, dataset.main_root, branch, version_ref(dataset, reference))
    return dataset.checkout_version((branch, None))


def clone(
    dataset: LanceDataset,
    target_path: str | os.PathLike[str],
    reference: Reference | None,
    storage_options: Mapping[str, Any] | None,
    *,
    shallow: bool,
) -> LanceDataset:
    """Create a table elsewhere that begins as a version of this one, sharing its files, and return it.

    This table must stay where it is, and its clean-up does not know of the clone: tag the version.

    Args:
        target_path: where the clone is to be.
        reference: the version, as for `checkout_version`; this one by default.
        storage_options: those of the clone; this table's by default if the clone is in the same bucket or
            on the same host.

    Raises:
        TableExistsError: there is a table already.
        VersionNotFoundError: there is no such version.
        CommitError: the commit failed; see its subclasses.
    """
    store, root = clone_target(dataset, target_path, storage_options)
    if shallow:
        # Whoever clones a table has said that its files may be read, and with which options.
        source = dataset.store.uri(dataset.main_root)
        store = store.with_bases([source], {source: dataset.store.options})
        store = replace(store, bases=store.bases.and_also(dataset.store.bases))
    make = shallow_clone if shallow else deep_clone
    manifest = make(dataset.store, version_ref(dataset, reference), store, root)
    return replace(dataset, uri=os.fspath(target_path), table=TableRef(store, root), manifest=manifest)


def clone_target(
    dataset: LanceDataset, path: str | os.PathLike[str], options: Mapping[str, Any] | None
) -> tuple[Store, str]:
    """Return the store and root of a clone; this table's options count in this table's store only."""
    if options is not None:
        return open_store(path, options)
    location = Location.of(uri_text(path))
    account = str(dataset.store.options.get("account_name", ""))
    shares = location.is_in_store_of(dataset.store.location(dataset.root), account)
    return open_store(path, dataset.store.storage_options if shares else None)


def version_ref(dataset: LanceDataset, reference: Reference | None = None) -> VersionRef:
    """Return a version by its reference, this version by default."""
    if reference is None:
        return VersionRef(dataset.root, dataset.branch, dataset.version)
    return resolve(dataset.store, dataset.main_root, reference, dataset.branch)
