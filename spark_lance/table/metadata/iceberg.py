"""Metadata tables with Iceberg's names and columns; columns without a value in Lance are null.

    snapshots       a row for each version              refs        branches and tags, with main
    manifests       the version's manifest              partitions  see `metadata.partitions`
    files           files of any role, with our columns and Iceberg's
    data_files      data files of the version           delete_files   files that mark deleted rows
    entries         data files, with their status       position_deletes  the deleted rows
    metadata_log_entries   the manifests of versions
    all_data_files, all_delete_files, all_files, all_entries, all_manifests    the same for all versions

A snapshot's id is the version number. The ancestors of a version are the earlier versions of its line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from spark_lance.errors import TableNotFoundError
from spark_lance.proto import table_pb2
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.metadata.columns import TEXT_MAP, TIME, Column, MetadataTable
from spark_lance.table.metadata.contents import FILES
from spark_lance.table.metadata.operations import live_rows
from spark_lance.table.metadata.partitions import PARTITIONS, fragment_partition
from spark_lance.table.metadata.versions import VersionRow, version_metrics, version_rows, version_time
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.branches import Branches, branch_line
from spark_lance.table.versions.ref_files import list_tags
from spark_lance.table.versions.retention import MAX_AGE_MS, MAX_REF_AGE_MS, MIN_VERSIONS
from spark_lance.table.versions.versions import latest_version

_DATA, _POSITION_DELETES = 0, 1
_EXISTING, _ADDED = 0, 1
_LONGS = pa.list_(pa.int64())
_COUNTS = pa.map_(pa.int32(), pa.int64())
_BOUNDS = pa.map_(pa.int32(), pa.binary())
_PARTITION = "partition of the fragment; null if it has rows of several partitions"

# Lance's operation -> Iceberg's operation of the snapshot. Other operations change no rows.
_OPERATIONS = {
    "append": "append",
    "overwrite": "overwrite",
    "delete": "delete",
    "update": "overwrite",
    "restore": "overwrite",
    "rewrite": "replace",
}
# Delta's name of a count -> its name in the summary of a snapshot.
_SUMMARY = {
    "numAddedFiles": "added-data-files",
    "numRemovedFiles": "deleted-data-files",
    "numOutputRows": "added-records",
    "numInsertedRows": "added-records",
    "numDeletedRows": "deleted-records",
}


def _operation(row: VersionRow) -> str | None:
    transaction = row.transaction
    if transaction is None or transaction.name is None:
        return None
    if transaction.name == "overwrite" and not transaction.read_version:
        return "append"
    return _OPERATIONS.get(transaction.name, "replace")


def _summary(row: VersionRow) -> dict[str, str] | None:
    manifest = row.manifest
    if manifest is None:
        return None
    counts = version_metrics(row) or {}
    summary = {name: counts[count] for count, name in _SUMMARY.items() if count in counts}
    rows = [live_rows(fragment) for fragment in manifest.fragments]
    if None not in rows:
        summary["total-records"] = str(sum(count for count in rows if count is not None))
    summary["total-data-files"] = str(sum(len(fragment.files) for fragment in manifest.fragments))
    properties = {} if row.transaction is None else dict(row.transaction.properties)
    return {**summary, **properties}


def _manifest_path(row: VersionRow) -> str | None:
    return None if row.manifest is None else row.snapshot.store.uri(row.manifest.path)


SNAPSHOTS = MetadataTable(
    (
        Column("committed_at", TIME, version_time, "commit time"),
        Column("snapshot_id", pa.int64(), lambda row: row.number, "version number"),
        Column(
            "parent_id",
            pa.int64(),
            lambda row: None if row.older is None else row.older.number,
            "previous version",
        ),
        Column("operation", pa.string(), _operation, "`append`, `overwrite`, `delete` or `replace`"),
        Column("manifest_list", pa.string(), _manifest_path, "the version's manifest"),
        Column("summary", TEXT_MAP, _summary, "counts, and properties of the commit"),
    ),
    version_rows,
    reads=True,
)

METADATA_LOG_ENTRIES = MetadataTable(
    (
        Column("timestamp", TIME, version_time, "commit time"),
        Column("file", pa.string(), _manifest_path, "the version's manifest"),
        Column("latest_snapshot_id", pa.int64(), lambda row: row.number, "version number"),
        Column("latest_schema_id", pa.int32(), lambda row: None, "always null"),
        Column("latest_sequence_number", pa.int64(), lambda row: row.number, "version number"),
    ),
    lambda snapshot: iter(list(version_rows(snapshot))[::-1]),
    reads=True,
)


@dataclass(frozen=True)
class _Ref:
    name: str
    kind: str
    version: int | None
    metadata: dict[str, Any]

    def number(self, key: str) -> int | None:
        value = self.metadata.get(key)
        return None if value is None else int(value)


def _refs(snapshot: Snapshot) -> Iterator[_Ref]:
    main = snapshot.main_line
    yield _Ref("main", "BRANCH", latest_version(main).version, {})
    for name, record in Branches(main).list().items():
        try:
            newest = latest_version(branch_line(main, name)).version
        except TableNotFoundError:
            continue  # the branch has just been deleted
        yield _Ref(name, "BRANCH", newest, record["metadata"])
    for name, tag in list_tags(main).items():
        yield _Ref(name, "TAG", tag["version"], tag["metadata"])


REFS = MetadataTable(
    (
        Column("name", pa.string(), lambda row: row.name, "the branch or tag"),
        Column("type", pa.string(), lambda row: row.kind, "`BRANCH` or `TAG`"),
        Column("snapshot_id", pa.int64(), lambda row: row.version, "its version; of a branch, the newest"),
        Column(
            "max_reference_age_in_ms",
            pa.int64(),
            lambda row: row.number(MAX_REF_AGE_MS),
            "age at which clean-ups drop it",
        ),
        Column(
            "min_snapshots_to_keep",
            pa.int32(),
            lambda row: row.number(MIN_VERSIONS),
            "versions of the branch that clean-ups keep",
        ),
        Column(
            "max_snapshot_age_in_ms",
            pa.int64(),
            lambda row: row.number(MAX_AGE_MS),
            "age at which clean-ups delete the branch's versions",
        ),
    ),
    _refs,
)


@dataclass(frozen=True)
class _Version:
    """A version, with the data files of the previous version; None if that version no longer exists."""

    snapshot: Snapshot
    before: frozenset[str] | None

    @property
    def manifest(self) -> Manifest:
        return self.snapshot.manifest

    @cached_property
    def spec(self) -> PartitionSpec:
        return PartitionSpec.of_config(self.manifest.config).present(self.snapshot.schema)

    def status(self, path: str) -> int:
        return _EXISTING if self.before is not None and path in self.before else _ADDED


def _version(snapshot: Snapshot) -> _Version:
    rows = version_rows(snapshot)
    own = next(rows)
    older = None if own.older is None else own.older.manifest
    paths = None if older is None else frozenset(f.path for part in older.fragments for f in part.files)
    return _Version(snapshot, paths)


@dataclass(frozen=True)
class _File:
    """A data file or a deletion file."""

    version: _Version
    content: int
    fragment: table_pb2.DataFragment
    data: table_pb2.DataFile | None = None

    @property
    def place(self) -> str:
        bases = self.version.snapshot.bases
        if self.data is not None:
            store, path = bases.data_file(self.data)
        else:
            store, path = bases.deletion_file(self.fragment.id, self.fragment.deletion_file)
        return str(store.uri(path))

    @property
    def format(self) -> str:
        return "LANCE" if self.data is not None else self.place.rpartition(".")[2].upper()

    @property
    def records(self) -> int:
        bases = self.version.snapshot.bases
        if self.data is None:
            return int(self.fragment.deletion_file.num_deleted_rows)
        return physical_rows(bases.table, self.fragment, bases)

    @property
    def partition(self) -> dict[str, str | None] | None:
        snapshot = self.version.snapshot
        return fragment_partition(self.version.spec, snapshot, self.fragment)

    @property
    def size(self) -> int | None:
        return None if self.data is None else self.data.file_size_bytes or None

    @property
    def status(self) -> int:
        return _ADDED if self.data is None else self.version.status(self.data.path)


def _files(version: _Version) -> Iterator[_File]:
    for fragment in version.manifest.fragments:
        for data in fragment.files:
            yield _File(version, _DATA, fragment, data)
        if fragment.HasField("deletion_file"):
            yield _File(version, _POSITION_DELETES, fragment)


def _files_with_content(*contents: int) -> Callable[[Snapshot], Iterator[_File]]:
    return lambda snapshot: (row for row in _files(_Version(snapshot, None)) if row.content in contents)


def _snapshots(snapshot: Snapshot) -> Iterator[Snapshot]:
    for row in version_rows(snapshot):
        if row.manifest is not None:
            yield Snapshot(snapshot.table, row.manifest)


def _all_files_with_content(*contents: int) -> Callable[[Snapshot], Iterator[_File]]:
    """Return a function that yields the distinct files of all versions."""

    def rows(snapshot: Snapshot) -> Iterator[_File]:
        paths: set[str] = set()
        for version in _snapshots(snapshot):
            for row in _files_with_content(*contents)(version):
                if row.place not in paths:
                    paths.add(row.place)
                    yield row

    return rows


_FILE_COLUMNS = (
    Column("content", pa.int32(), lambda row: row.content, "0: data file; 1: deletion file"),
    Column("file_path", pa.string(), lambda row: row.place, "URI of the file"),
    Column("file_format", pa.string(), lambda row: row.format, "`LANCE`, or the kind of a deletion file"),
    Column("spec_id", pa.int32(), lambda row: 0, "always 0"),
    Column("partition", TEXT_MAP, lambda row: row.partition, _PARTITION),
    Column("record_count", pa.int64(), lambda row: row.records, "rows or deleted rows"),
    Column("file_size_in_bytes", pa.int64(), lambda row: row.size, "size"),
    Column("column_sizes", _COUNTS, lambda row: None, "always null"),
    Column("value_counts", _COUNTS, lambda row: None, "always null"),
    Column("null_value_counts", _COUNTS, lambda row: None, "always null"),
    Column("nan_value_counts", _COUNTS, lambda row: None, "always null"),
    Column("lower_bounds", _BOUNDS, lambda row: None, "always null"),
    Column("upper_bounds", _BOUNDS, lambda row: None, "always null"),
    Column("key_metadata", pa.binary(), lambda row: None, "always null"),
    Column("split_offsets", _LONGS, lambda row: None, "always null"),
    Column("equality_ids", pa.list_(pa.int32()), lambda row: None, "always null"),
    Column("sort_order_id", pa.int32(), lambda row: None, "always null"),
    Column("readable_metrics", TEXT_MAP, lambda row: None, "always null"),
)
# The columns of the file in a row of `entries`.
_DATA_FILE_COLUMNS = _FILE_COLUMNS[:7]
_DATA_FILE = pa.struct([(column.name, column.type) for column in _DATA_FILE_COLUMNS])

_ENTRY_COLUMNS = (
    Column("status", pa.int32(), lambda row: row.status, "0: the previous version has it; 1: it is new"),
    Column(
        "snapshot_id",
        pa.int64(),
        lambda row: row.version.manifest.version if row.status == _ADDED else None,
        "version that added it; null if `status` is 0",
    ),
    Column("sequence_number", pa.int64(), lambda row: None, "always null"),
    Column("file_sequence_number", pa.int64(), lambda row: None, "always null"),
    Column(
        "data_file",
        _DATA_FILE,
        lambda row: {column.name: column.value(row) for column in _DATA_FILE_COLUMNS},
        "the file",
    ),
    Column("readable_metrics", TEXT_MAP, lambda row: None, "always null"),
)


def _all_entries(snapshot: Snapshot) -> Iterator[_File]:
    return (row for version in _snapshots(snapshot) for row in _files(_version(version)))


def _manifest_counts(version: _Version, content: int, status: int) -> int:
    return sum(row.content == content and row.status == status for row in _files(version))


def _count(content: int, status: int | None) -> Callable[[_Version], int]:
    return lambda row: 0 if status is None else _manifest_counts(row, content, status)


_MANIFEST_COLUMNS = (
    Column("content", pa.int32(), lambda row: _DATA, "always 0"),
    Column("path", pa.string(), lambda row: row.snapshot.store.uri(row.manifest.path), "URI of the manifest"),
    Column("length", pa.int64(), lambda row: row.snapshot.store.size(row.manifest.path), "its size in bytes"),
    Column("partition_spec_id", pa.int32(), lambda row: 0, "always 0"),
    Column("added_snapshot_id", pa.int64(), lambda row: row.manifest.version, "version number"),
    Column("added_data_files_count", pa.int32(), _count(_DATA, _ADDED), "new data files"),
    Column(
        "existing_data_files_count",
        pa.int32(),
        _count(_DATA, _EXISTING),
        "data files of older versions",
    ),
    Column("deleted_data_files_count", pa.int32(), _count(_DATA, None), "always 0"),
    Column("added_delete_files_count", pa.int32(), _count(_POSITION_DELETES, _ADDED), "deletion files"),
    Column("existing_delete_files_count", pa.int32(), _count(_POSITION_DELETES, None), "always 0"),
    Column("deleted_delete_files_count", pa.int32(), _count(_POSITION_DELETES, None), "always 0"),
    Column("partition_summaries", pa.list_(TEXT_MAP), lambda row: [], "always empty"),
)


def _position_deletes(snapshot: Snapshot) -> Iterator[tuple[_File, int]]:
    bases = snapshot.bases
    for row in _files_with_content(_POSITION_DELETES)(snapshot):
        rows = physical_rows(bases.table, row.fragment, bases)
        for position in read_deletions(bases.table, row.fragment, rows, bases):
            yield row, int(position)


def _first_file(row: tuple[_File, int]) -> str | None:
    files = row[0].fragment.files
    return _File(row[0].version, _DATA, row[0].fragment, files[0]).place if files else None


POSITION_DELETES = MetadataTable(
    (
        Column("file_path", pa.string(), _first_file, "the first data file of the row's fragment"),
        Column("pos", pa.int64(), lambda row: row[1], "physical offset of the row in the fragment"),
        Column("row", TEXT_MAP, lambda row: None, "always null"),
        Column("partition", TEXT_MAP, lambda row: row[0].partition, _PARTITION),
        Column("spec_id", pa.int32(), lambda row: 0, "always 0"),
        Column("delete_file_path", pa.string(), lambda row: row[0].place, "the deletion file"),
    ),
    _position_deletes,
)


def _all_roles(snapshot: Snapshot) -> Iterator[tuple[Any, _File | None]]:
    """Yield (file, Iceberg's view of the file); only data files and deletion files have a view."""
    version = _Version(snapshot, None)
    fragments = {fragment.id: fragment for fragment in version.manifest.fragments}
    for row in FILES.rows(snapshot):
        if row.role == "data":
            yield row, _File(version, _DATA, fragments[row.fragment], row.message)
        elif row.role == "deletion":
            yield row, _File(version, _POSITION_DELETES, fragments[row.fragment])
        else:
            yield row, None


def _combined_columns() -> tuple[Column, ...]:
    """Return the columns of `files`: our columns, and Iceberg's, which are null for other roles."""

    def first(column: Column) -> Column:
        return replace(column, value=lambda row: column.value(row[0]))

    def second(column: Column) -> Column:
        return replace(column, value=lambda row: None if row[1] is None else column.value(row[1]))

    return (*map(first, FILES.columns), *map(second, _FILE_COLUMNS))


def _make_table(columns: tuple[Column, ...], rows: Callable[[Snapshot], Iterator[Any]]) -> MetadataTable:
    return MetadataTable(columns, rows, reads=True)


ICEBERG_TABLES = {
    "snapshots": SNAPSHOTS,
    "refs": REFS,
    "metadata_log_entries": METADATA_LOG_ENTRIES,
    "manifests": _make_table(_MANIFEST_COLUMNS, lambda snapshot: iter([_version(snapshot)])),
    "files": _make_table(_combined_columns(), _all_roles),
    "partitions": PARTITIONS,
    "entries": _make_table(_ENTRY_COLUMNS, lambda snapshot: _files(_version(snapshot))),
    "data_files": _make_table(_FILE_COLUMNS, _files_with_content(_DATA)),
    "delete_files": _make_table(_FILE_COLUMNS, _files_with_content(_POSITION_DELETES)),
    "position_deletes": POSITION_DELETES,
    "all_data_files": _make_table(_FILE_COLUMNS, _all_files_with_content(_DATA)),
    "all_delete_files": _make_table(_FILE_COLUMNS, _all_files_with_content(_POSITION_DELETES)),
    "all_files": _make_table(_FILE_COLUMNS, _all_files_with_content(_DATA, _POSITION_DELETES)),
    "all_entries": _make_table(_ENTRY_COLUMNS, _all_entries),
    "all_manifests": _make_table(
        (
            *_MANIFEST_COLUMNS,
            Column(
                "reference_snapshot_id",
                pa.int64(),
                lambda row: row.manifest.version,
                "version that has the manifest",
            ),
        ),
        lambda snapshot: (_version(version) for version in _snapshots(snapshot)),
    ),
}
