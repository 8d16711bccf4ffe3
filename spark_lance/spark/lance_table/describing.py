"""Description of a table: rows, history, versions and their names, branches, settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError
from spark_lance.spark.lance_table.base import TableBase
from spark_lance.spark.options.moments import SESSION_ZONE, in_zone
from spark_lance.table.metadata.detail import table_detail
from spark_lance.table.versions.branches import branch_root
from spark_lance.table.versions.resolve import MAIN, Reference, version_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Describing", "TableBranches", "TableTags"]

_Same = TypeVar("_Same", bound="Describing")

_DETAIL = (
    "format string, id string, name string, description string, location string, createdAt timestamp, "
    "lastModified timestamp, partitionColumns array<string>, clusteringColumns array<string>, "
    "numFiles bigint, sizeInBytes bigint, properties map<string, string>, minReaderVersion int, "
    "minWriterVersion int, tableFeatures array<string>, version bigint, branch string, numVersions bigint, "
    "numRows bigint, numDeletedRows bigint, numFragments bigint, dataStorageVersion string, "
    "stableRowIds boolean, primaryKey array<string>, indices array<string>"
)
_RESTORED = (
    "table_size_after_restore bigint, num_of_files_after_restore bigint, num_removed_files bigint, "
    "num_restored_files bigint, removed_files_size bigint, restored_files_size bigint"
)


class Describing(TableBase):
    """Looking at a table, and going to its versions."""

    def toDF(self, version: Reference | None = None) -> DataFrame:
        """Return the rows of a version as a DataFrame, under the table's alias if it has one.

        Args:
            version: a number on this line, a tag, or (branch, number), where None is the newest. The newest
                version of the table by default.

        Raises:
            VersionNotFoundError: there is no such version, tag or branch.
        """
        if version is None:
            frame = self._read()
        else:
            dataset = self._dataset().checkout_version(version)
            frame = replace(self, path=dataset.uri)._read(version=dataset.version)
        return frame if self.aliased is None else frame.alias(self.aliased)

    def alias(self: _Same, aliasName: str) -> _Same:
        """Return the same table under a name for conditions and expressions, such as `t` in `t.id = s.id`."""
        return replace(self, aliased=aliasName)

    def detail(self) -> DataFrame:
        """Return one row about the newest version.

        The first columns are Delta's; a column without a counterpart in Lance is null or empty. The others
        are `version`, `branch`, `numVersions`, `numRows`, `numDeletedRows`, `numFragments`,
        `dataStorageVersion`, `stableRowIds`, `primaryKey` and `indices`.
        """
        dataset = self._dataset()
        details = table_detail(dataset.snapshot)
        features = list(dict.fromkeys([*details.reader_features, *details.writer_features]))
        row = {
            "format": "lance",
            "description": details.description,
            "location": details.location,
            "createdAt": details.created_at,
            "lastModified": details.last_modified,
            "partitionColumns": [],
            "clusteringColumns": [],
            "numFiles": details.num_files,
            "sizeInBytes": details.size_bytes,
            "properties": details.properties,
            "tableFeatures": features,
            "version": details.version,
            "branch": details.branch,
            "numVersions": details.num_versions,
            "numRows": details.num_rows,
            "numDeletedRows": details.num_deleted_rows,
            "numFragments": details.num_fragments,
            "dataStorageVersion": details.data_storage_version,
            "stableRowIds": details.stable_row_ids,
            "primaryKey": list(details.primary_key),
            "indices": list(details.indices),
        }
        names = _names(_DETAIL)
        return self.spark.createDataFrame([tuple(row.get(name) for name in names)], _DETAIL)

    def history(self, limit: int | None = None) -> DataFrame:
        """Return what made the versions, newest first, in Delta's columns.

        `version`, `timestamp`, `operation`, `operationParameters`, `readVersion`, `isBlindAppend`,
        `operationMetrics`, `userMetadata`, and more; see option `table` = `history` of the data source.

        Args:
            limit: how many of the newest versions; all by default.
        """
        frame = self._read(table="history")
        return frame if limit is None else frame.limit(limit)

    @property
    def version(self) -> int:
        """The number of the newest version."""
        return self._dataset().version

    def restoreToVersion(self, version: int) -> DataFrame:
        """Make the content of a version the newest version.

        Returns:
            One row of numbers of files and bytes, as Delta's.

        Raises:
            VersionNotFoundError: there is no such version.
            CommitError: the commit failed; see its subclasses.
        """
        return self._restore(version)

    def restoreToTimestamp(self, timestamp: datetime | str) -> DataFrame:
        """Make the content of the version that was the newest at a time the newest version.

        Args:
            timestamp: a time, or its ISO 8601 text; without a zone it is in the session's zone,
                `spark.sql.session.timeZone`.

        Raises:
            VersionNotFoundError: every version is younger.
            OptionError: the text is not a time.
            CommitError: the commit failed; see its subclasses.
        """
        dataset = self._dataset()
        moment = in_zone(timestamp, self.spark.conf.get(SESSION_ZONE))
        return self._restore(version_at(dataset.store, dataset.root, moment))

    def restoreToTag(self, tag: str) -> DataFrame:
        """Make the content of a tagged version of this line the newest version.

        Raises:
            TagNotFoundError: there is no such tag.
            OptionError: the tag is on another line.
            CommitError: the commit failed; see its subclasses.
        """
        dataset = self._dataset()
        tagged = dataset.tags.list()
        branch = tagged[tag]["branch"] if tag in tagged else dataset.branch
        if branch != dataset.branch:
            raise OptionError(f"tag {tag!r} is on the line {branch or MAIN}, not on {dataset.branch or MAIN}")
        return self._restore(dataset.tags.get_version(tag))

    def _restore(self, version: int) -> DataFrame:
        dataset = self._dataset()
        before = _files(dataset)
        after = _files(dataset.checkout_version(version).restore())
        gone, back = before.keys() - after.keys(), after.keys() - before.keys()
        row = (
            sum(after.values()),
            len(after),
            len(gone),
            len(back),
            sum(before[name] for name in gone),
            sum(after[name] for name in back),
        )
        return self.spark.createDataFrame([row], _RESTORED)

    @property
    def tags(self) -> TableTags:
        """The names of versions."""
        return TableTags(self)

    @property
    def branches(self) -> TableBranches:
        """The branches of the table."""
        return TableBranches(self)

    def clone(self: _Same, target: str, isShallow: bool = True, *, version: Reference | None = None) -> _Same:
        """Create a table elsewhere that begins as a version of this one, and return it.

        A shallow clone shares the files of this table, which must stay where it is and whose clean-up does
        not know of the clone: tag the version that was cloned. A deep one copies all files, in this process.

        Args:
            target: where the clone is to be.
            isShallow: whether files are shared.
            version: as for `toDF`.

        Raises:
            TableExistsError: there is a table already.
            VersionNotFoundError: there is no such version.
            CommitError: the commit failed; see its subclasses.
        """
        dataset = self._dataset()
        make = dataset.shallow_clone if isShallow else dataset.deep_clone
        make(replace(self, path=target)._parsed.path, version)
        return replace(self, path=target)

    @property
    def config(self) -> dict[str, str]:
        """The table's settings, without the internal ones of this package."""
        return self._dataset().config()

    def setConfig(self, values: Mapping[str, str | None]) -> None:
        """Set settings of the table; None deletes one. Keys beginning with `lance.` belong to the format.

        Raises:
            OptionError: a key is internal.
            IncompatibleConflictError: another writer has updated one of the keys meanwhile.
            CommitError: the commit failed; see its subclasses.
        """
        self._dataset().update_config(values)


@dataclass(frozen=True)
class TableTags:
    """The names of versions, as `LanceTable.tags`."""

    table: TableBase

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all tags by name: dicts of `branch`, `version` and times."""
        return self.table._dataset().tags.list()

    def toDF(self) -> DataFrame:
        """Return the tags as a DataFrame."""
        return self.table._read(table="tags")

    def create(self, tag: str, reference: Reference | None = None) -> None:
        """Give a version a name.

        Args:
            tag: the name.
            reference: a version number, another tag, or (branch, number); the newest version by default.

        Raises:
            TagExistsError: the tag exists.
            VersionNotFoundError: the version does not exist.
            OptionError: the name cannot be used.
        """
        self.table._dataset().tags.create(tag, reference)

    def update(self, tag: str, reference: Reference | None = None) -> None:
        """Move a tag to another version; arguments as for `create`.

        Raises:
            TagNotFoundError: there is no such tag.
            VersionNotFoundError: the version does not exist.
        """
        self.table._dataset().tags.update(tag, reference)

    def delete(self, tag: str) -> None:
        """Delete a tag; its version stays.

        Raises:
            TagNotFoundError: there is no such tag.
        """
        self.table._dataset().tags.delete(tag)


@dataclass(frozen=True)
class TableBranches:
    """The branches of a table, as `LanceTable.branches`."""

    table: Describing

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all branches by name: dicts of `parent_branch`, `parent_version`, `created_at` and more."""
        return self.table._dataset().branches.list()

    def toDF(self) -> DataFrame:
        """Return the branches as a DataFrame."""
        return self.table._read(table="branches")

    def create(self, branch: str, reference: Reference | None = None) -> Describing:
        """Create a branch that begins with a version, and return it as a table.

        Args:
            branch: its name.
            reference: a version number, a tag, or (branch, number); the newest version by default.

        Raises:
            BranchExistsError: the branch exists.
            VersionNotFoundError: the version does not exist.
            OptionError: the name cannot be used.
            CommitError: the commit failed; see its subclasses.
        """
        created = self.table._dataset().create_branch(branch, reference)
        return replace(self.table, path=created.uri)

    def get(self, branch: str) -> Describing:
        """Return a branch as a table of its own, to read, write and change it.

        Raises:
            BranchNotFoundError: there is no such branch.
        """
        dataset = self.table._dataset()
        if branch == MAIN:
            return replace(self.table, path=dataset.store.uri(dataset.main_root))
        dataset.branches.get(branch)
        return replace(self.table, path=dataset.store.uri(branch_root(dataset.main_root, branch)))

    def delete(self, branch: str) -> None:
        """Delete a branch with its versions and the files that only they use.

        Raises:
            BranchNotFoundError: there is no such branch.
            BranchInUseError: tags or other branches stand on it.
        """
        self.table._dataset().branches.delete(branch)


def _names(columns: str) -> list[str]:
    """Return the names of columns that are described as SQL."""
    return [column.split()[0] for column in columns.replace("map<string, string>", "map").split(", ")]


def _files(dataset: LanceDataset) -> dict[str, int]:
    """Return the data files of a version with their sizes."""
    files = (file for fragment in dataset.manifest.fragments for file in fragment.files)
    return {f"{file.base_id}/{file.path}": file.file_size_bytes for file in files}
