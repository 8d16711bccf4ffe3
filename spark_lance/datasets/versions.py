"""The versions of a table: which there are, their names, going to one, and going back to one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from spark_lance.datasets.base import DatasetBase
from spark_lance.io.base_options import Location
from spark_lance.io.locations import uri_text
from spark_lance.io.store import Store, open_store
from spark_lance.late import late
from spark_lance.proto import transaction_pb2
from spark_lance.table.bases import BasePath
from spark_lance.table.upkeep import only_logged
from spark_lance.table.versions.torn import read_whole, set_aside
from spark_lance.table.versions.versions import load_latest, load_newest, load_version

if TYPE_CHECKING:
    from spark_lance.table.commits.commit import commit_operation
    from spark_lance.table.inserts.clone import create_branch, deep_clone, shallow_clone
    from spark_lance.table.transaction import Transaction, read_transaction
    from spark_lance.table.versions.branches import Branches
    from spark_lance.table.versions.naming import migrate_names
    from spark_lance.table.versions.resolve import Reference, VersionRef, resolve
    from spark_lance.table.versions.summary import version_summary
    from spark_lance.table.versions.tags import Tags
    from spark_lance.table.versions.versions import latest_version, list_versions
else:
    commit_operation = late("spark_lance.table.commits.commit", "commit_operation")
    create_branch = late("spark_lance.table.inserts.clone", "create_branch")
    deep_clone = late("spark_lance.table.inserts.clone", "deep_clone")
    shallow_clone = late("spark_lance.table.inserts.clone", "shallow_clone")
    read_transaction = late("spark_lance.table.transaction", "read_transaction")
    Branches = late("spark_lance.table.versions.branches", "Branches")
    migrate_names = late("spark_lance.table.versions.naming", "migrate_names")
    VersionRef = late("spark_lance.table.versions.resolve", "VersionRef")
    resolve = late("spark_lance.table.versions.resolve", "resolve")
    version_summary = late("spark_lance.table.versions.summary", "version_summary")
    Tags = late("spark_lance.table.versions.tags", "Tags")
    latest_version = late("spark_lance.table.versions.versions", "latest_version")
    list_versions = late("spark_lance.table.versions.versions", "list_versions")

__all__ = ["DatasetBasePath", "VersionsMixin"]

_Same = TypeVar("_Same", bound="VersionsMixin")


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


class VersionsMixin(DatasetBase):
    """The versions around one version, and the lines they are on."""

    @property
    def latest_version(self) -> int:
        """The newest version of this line in the store."""
        return latest_version(self.store, self.root).version

    def checkout_version(self: _Same, version: Reference) -> _Same:
        """Return the table at another version.

        Args:
            version: a number on this line, a tag, or (branch, number); None for the number is the newest,
                None or "main" for the branch is the main line.

        Raises:
            VersionNotFoundError: there is no such version, tag or branch.
        """
        ref = resolve(self.store, self.main_root, version, self.branch)
        manifest = load_version(self.store, ref.root, ref.version)
        uri = self.uri if ref.root == self.root else self.store.uri(ref.root)
        return replace(self, uri=uri, root=ref.root, manifest=manifest)

    def checkout_latest(self: _Same) -> _Same:
        """Return the table at the newest version of this line."""
        return self._at(load_latest(self.store, self.root))

    @property
    def tags(self) -> Tags:
        """The names of versions: list, create, update and delete them."""
        return Tags(self.store, self.main_root, self._ref())

    @property
    def branches(self) -> Branches:
        """The branches: list and delete them, replace their metadata."""
        return Branches(self.store, self.main_root)

    def create_branch(self: _Same, branch: str, reference: Reference | None = None) -> _Same:
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
        create_branch(self.store, self.main_root, branch, self._ref(reference))
        return self.checkout_version((branch, None))

    def shallow_clone(
        self: _Same,
        target_path: str | os.PathLike[str],
        reference: Reference | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> _Same:
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
        return self._clone(target_path, reference, storage_options, shallow=True)

    def deep_clone(
        self: _Same,
        target_path: str | os.PathLike[str],
        reference: Reference | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> _Same:
        """As `shallow_clone`, but with copies of all files, so that the tables have nothing in common."""
        return self._clone(target_path, reference, storage_options, shallow=False)

    def _clone(
        self: _Same,
        target_path: str | os.PathLike[str],
        reference: Reference | None,
        storage_options: Mapping[str, Any] | None,
        *,
        shallow: bool,
    ) -> _Same:
        store, root = self._target(target_path, storage_options)
        if shallow:
            # Whoever clones a table has said that its files may be read, and with which options.
            source = self.store.uri(self.main_root)
            store = store.with_bases([source], {source: self.store.options})
            store = replace(store, bases=store.bases.and_also(self.store.bases))
        make = shallow_clone if shallow else deep_clone
        manifest = make(self.store, self._ref(reference), store, root)
        return replace(self, uri=os.fspath(target_path), store=store, root=root, manifest=manifest)

    def _target(self, path: str | os.PathLike[str], options: Mapping[str, Any] | None) -> tuple[Store, str]:
        """Return the store and root of a clone; this table's options count in this table's store only."""
        if options is not None:
            return open_store(path, options)
        location = Location.of(uri_text(path))
        account = str(self.store.options.get("account_name", ""))
        shares = location.is_in_store_of(self.store.location(self.root), account)
        return open_store(path, self.store.storage_options if shares else None)

    def _ref(self, reference: Reference | None = None) -> VersionRef:
        if reference is None:
            return VersionRef(self.root, self.branch, self.version)
        return resolve(self.store, self.main_root, reference, self.branch)

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions that exist, oldest first: dicts of `version`, `timestamp` (UTC), `metadata`.

        The metadata are texts: `total_rows`, `total_fragments`, `total_data_files`, `total_data_file_rows`,
        `total_files_size`, `total_deletion_files` and `total_deletion_file_rows`.
        """
        result = []
        for file in list_versions(self.store, self.root):
            manifest = read_whole(self.store, file.path, file.naming)
            if manifest is None:
                continue
            row = {"version": file.version, "timestamp": manifest.timestamp}
            result.append({**row, "metadata": version_summary(manifest.message)})
        return result

    def get_transactions(self, recent_transactions: int = 10) -> list[Transaction | None]:
        """Return what made the newest versions up to this one, newest first; None where no record is left."""
        numbers = [file.version for file in list_versions(self.store, self.root)]
        recent = [number for number in numbers if number <= self.version][-recent_transactions:]
        return [self.read_transaction(number) for number in reversed(recent)]

    def read_transaction(self, version: int) -> Transaction | None:
        """Return the transaction that made a version of this line, None if no record of it is left.

        Raises:
            VersionNotFoundError: there is no such version.
            FormatError: the record is damaged.
        """
        return read_transaction(self.store, self.root, load_version(self.store, self.root, version))

    def restore(self: _Same) -> _Same:
        """Make this version's content the newest version, and return that.

        Schema, rows, indices, config and metadata come back as they were here; files that a clean-up has
        deleted do not. Manifests of newer versions that are not whole are moved to `_torn/`.

        Raises:
            CommitError: the commit failed; see its subclasses.
            UnsupportedFormatError: the table uses a feature that is not written here.
        """
        operation = transaction_pb2.Transaction.Restore(version=self.version)
        newest = load_newest(self.store, self.root)
        latest = newest.manifest.version
        restored = commit_operation(self.store, self.root, operation, read_version=latest)
        if newest.highest_number > latest:
            with only_logged(f"version {restored.version} was committed, but torn manifests were not moved"):
                set_aside(self.store, self.root)
        return self._at(restored)

    def add_bases(self: _Same, new_bases: Sequence[DatasetBasePath]) -> _Same:
        """Add places in which the table may keep files, and return the new version.

        Raises:
            OptionError: a name, path or id is taken; two places without a name count as of one name.
            IncompatibleConflictError: another writer has taken it meanwhile.
            CommitError: the commit failed; see its subclasses.
        """
        messages = [base.stored().message() for base in new_bases]
        operation = transaction_pb2.Transaction.UpdateBases(new_bases=messages)
        manifest = commit_operation(self.store, self.root, operation, read_version=self.version)
        store = self.store.with_bases([message.path for message in messages])
        return replace(self, store=store, manifest=manifest)

    def base_paths(self) -> list[DatasetBasePath]:
        """Return the places in which this version may have files, besides its own root."""
        return [
            DatasetBasePath(
                base.path, base.name if base.HasField("name") else None, base.is_dataset_root, base.id
            )
            for base in self.manifest.message.base_paths
        ]

    def migrate_manifest_paths_v2(self) -> None:
        """Rename the manifests of an old table so that the newest is listed first.

        Nobody may use the table meanwhile. An interrupted migration must be run again until it ends.
        """
        migrate_names(self.store, self.root)
