"""Details of a table, restore, tags and branches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.io.display import TableRepr
from spark_lance.spark.options.table_properties import clustering_columns
from spark_lance.spark.schema.sort_keys import valid_sort_keys
from spark_lance.spark.table.base import TableBase
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.metadata.detail import table_detail
from spark_lance.table.versions.branches import branch_line
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
            path[-1]
            for path, _, _ in valid_sort_keys(clustering_columns(details.properties), dataset.lance_schema)
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
    names = _column_names(_DETAIL)
    return table.spark.createDataFrame([tuple(row.get(name) for name in names)], _DETAIL)


def restore_version(table: TableBase, version: int) -> DataFrame:
    """Commit a new version with the content of an old one; see `LanceTable.restoreToVersion`."""
    dataset = table.dataset()
    before = _file_sizes(dataset)
    after = _file_sizes(dataset.checkout_version(version).restore())
    removed, restored = before.keys() - after.keys(), after.keys() - before.keys()
    row = (
        sum(after.values()),
        len(after),
        len(removed),
        len(restored),
        sum(before[name] for name in removed),
        sum(after[name] for name in restored),
    )
    return table.spark.createDataFrame([row], _RESTORED)


@dataclass(frozen=True, repr=False)
class TableTags(TableRepr):
    """The tags of a table. Get it as `LanceTable.tags`."""

    table: LanceTable

    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        return self.table.dataset().tags._repr_rows()

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all tags: name -> dict with `branch`, `version` and times."""
        return self.table.dataset().tags.list()

    def toDF(self) -> DataFrame:
        """Return the tags as a DataFrame."""
        return self.table.read(table="tags")

    def create(self, tag: str, reference: Reference | None = None) -> None:
        """Create a tag for a version.

        Args:
            tag: name of the tag.
            reference: a version number, another tag, or (branch, number). Default: the newest version.

        Raises:
            TagExistsError: the tag exists.
            VersionNotFoundError: the version does not exist.
            OptionError: the name cannot be used.
        """
        self.table.dataset().tags.create(tag, reference)

    def update(self, tag: str, reference: Reference | None = None) -> None:
        """Move a tag to another version; arguments as for `create`.

        Raises:
            TagNotFoundError: the tag does not exist.
            VersionNotFoundError: the version does not exist.
        """
        self.table.dataset().tags.update(tag, reference)

    def delete(self, tag: str) -> None:
        """Delete a tag. Its version is kept until it is vacuumed.

        Raises:
            TagNotFoundError: the tag does not exist.
        """
        self.table.dataset().tags.delete(tag)


@dataclass(frozen=True, repr=False)
class TableBranches(TableRepr):
    """The branches of a table. Get it as `LanceTable.branches`."""

    table: LanceTable

    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        return self.table.dataset().branches._repr_rows()

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all branches: name -> dict with `parent_branch`, `parent_version`, `created_at` and more."""
        return self.table.dataset().branches.list()

    def toDF(self) -> DataFrame:
        """Return the branches as a DataFrame."""
        return self.table.read(table="branches")

    def create(self, branch: str, reference: Reference | None = None) -> LanceTable:
        """Create a branch that starts from a version, and return it as a table.

        Args:
            branch: name of the branch.
            reference: a version number, a tag, or (branch, number). Default: the newest version.

        Raises:
            BranchExistsError: the branch exists.
            VersionNotFoundError: the version does not exist.
            OptionError: the name cannot be used.
            CommitError: the commit failed; see its subclasses.
        """
        created = self.table.dataset().create_branch(branch, reference)
        return replace(self.table, path=created.uri)

    def get(self, branch: str) -> LanceTable:
        """Return a branch as a table that you can read, write and change.

        Raises:
            BranchNotFoundError: the branch does not exist.
        """
        dataset = self.table.dataset()
        if branch == MAIN:
            return replace(self.table, path=dataset.main_line.uri)
        dataset.branches.get(branch)
        return replace(self.table, path=branch_line(dataset.main_line, branch).uri)

    def delete(self, branch: str) -> None:
        """Delete a branch, its versions, and the files that only these versions use.

        Raises:
            BranchNotFoundError: the branch does not exist.
            BranchInUseError: tags or other branches refer to its versions.
        """
        self.table.dataset().branches.delete(branch)


def _column_names(columns: str) -> list[str]:
    """Return the column names of an SQL schema."""
    return [column.split()[0] for column in columns.replace("map<string, string>", "map").split(", ")]


def _file_sizes(dataset: LanceDataset) -> dict[str, int]:
    """Return the data files of a version: path with base id -> size in bytes."""
    files = (file for fragment in dataset.manifest.fragments for file in fragment.files)
    return {f"{file.base_id}/{file.path}": file.file_size_bytes for file in files}
