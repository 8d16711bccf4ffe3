"""Description of a table: rows, history, versions and their names, branches, settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.io.display import TableRepr
from spark_lance.spark.options.table_properties import CLUSTERING, sort_key, split_names
from spark_lance.spark.table.base import TableBase
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.metadata.detail import table_detail
from spark_lance.table.versions.branches import branch_root
from spark_lance.table.versions.resolve import MAIN, Reference

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_lance.spark.table.table import LanceTable

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


def detail_frame(table: TableBase) -> DataFrame:
    """Return one row about the newest version; see `LanceTable.detail`."""
    dataset = table.dataset()
    details = table_detail(dataset.snapshot)
    features = list(dict.fromkeys([*details.reader_features, *details.writer_features]))
    row = {
        "format": "lance",
        "description": details.description,
        "location": details.location,
        "createdAt": details.created_at,
        "lastModified": details.last_modified,
        "partitionColumns": [
            field.sql
            for field in PartitionSpec.of_config(dataset.config()).present(dataset.lance_schema).fields
        ],
        "clusteringColumns": [
            sort_key(name, dataset.lance_schema)[0][-1]
            for name in split_names(details.properties.get(CLUSTERING, ""))
        ],
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
    return table.spark.createDataFrame([tuple(row.get(name) for name in names)], _DETAIL)


def restore_version(table: TableBase, version: int) -> DataFrame:
    """Make the content of a version the newest version; see `LanceTable.restoreToVersion`."""
    dataset = table.dataset()
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
    return table.spark.createDataFrame([row], _RESTORED)


@dataclass(frozen=True, repr=False)
class TableTags(TableRepr):
    """The names of versions, as `LanceTable.tags`."""

    table: LanceTable

    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        return self.table.dataset().tags._repr_rows()

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all tags by name: dicts of `branch`, `version` and times."""
        return self.table.dataset().tags.list()

    def toDF(self) -> DataFrame:
        """Return the tags as a DataFrame."""
        return self.table.read(table="tags")

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
        self.table.dataset().tags.create(tag, reference)

    def update(self, tag: str, reference: Reference | None = None) -> None:
        """Move a tag to another version; arguments as for `create`.

        Raises:
            TagNotFoundError: there is no such tag.
            VersionNotFoundError: the version does not exist.
        """
        self.table.dataset().tags.update(tag, reference)

    def delete(self, tag: str) -> None:
        """Delete a tag; its version stays.

        Raises:
            TagNotFoundError: there is no such tag.
        """
        self.table.dataset().tags.delete(tag)


@dataclass(frozen=True, repr=False)
class TableBranches(TableRepr):
    """The branches of a table, as `LanceTable.branches`."""

    table: LanceTable

    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        return self.table.dataset().branches._repr_rows()

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all branches by name: dicts of `parent_branch`, `parent_version`, `created_at` and more."""
        return self.table.dataset().branches.list()

    def toDF(self) -> DataFrame:
        """Return the branches as a DataFrame."""
        return self.table.read(table="branches")

    def create(self, branch: str, reference: Reference | None = None) -> LanceTable:
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
        created = self.table.dataset().create_branch(branch, reference)
        return replace(self.table, path=created.uri)

    def get(self, branch: str) -> LanceTable:
        """Return a branch as a table of its own, to read, write and change it.

        Raises:
            BranchNotFoundError: there is no such branch.
        """
        dataset = self.table.dataset()
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
        self.table.dataset().branches.delete(branch)


def _names(columns: str) -> list[str]:
    """Return the names of columns that are described as SQL."""
    return [column.split()[0] for column in columns.replace("map<string, string>", "map").split(", ")]


def _files(dataset: LanceDataset) -> dict[str, int]:
    """Return the data files of a version with their sizes."""
    files = (file for fragment in dataset.manifest.fragments for file in fragment.files)
    return {f"{file.base_id}/{file.path}": file.file_size_bytes for file in files}
