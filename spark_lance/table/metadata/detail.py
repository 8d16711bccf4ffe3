"""The summary of a version for `LanceTable.detail()` and `python -m spark_lance inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.features import feature_names
from spark_lance.table.format.manifest import read_manifest
from spark_lance.table.format.reserved_names import visible_settings
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.schema.keys import primary_key
from spark_lance.table.versions.versions import list_versions


@dataclass(frozen=True)
class TableDetail:
    """The facts about a version that can be determined without reading data.

    Attributes:
        location: the URI of the table.
        branch: the branch; None for the main line.
        version: the version number.
        description: the table's comment (schema metadata `comment`).
        created_at: the time of version 1; None if version 1 no longer exists, or the line is a branch or
            clone.
        last_modified: the time of this version.
        num_versions: the number of existing versions of the line.
        num_rows, num_deleted_rows: the numbers of live rows and of deleted rows.
        num_fragments, num_files: the numbers of fragments and of data files.
        size_bytes: the total size of the data files; None if the manifest lacks a size.
        data_storage_version: the version of the data files.
        stable_row_ids: whether the table has stable row ids.
        primary_key: the columns of the primary key.
        indices: the names of the indexes.
        properties: the table's config.
        reader_features, writer_features: the features that readers and writers must support.
    """

    location: str
    branch: str | None
    version: int
    description: str | None
    created_at: datetime | None
    last_modified: datetime
    num_versions: int
    num_rows: int
    num_deleted_rows: int
    num_fragments: int
    num_files: int
    size_bytes: int | None
    data_storage_version: str
    stable_row_ids: bool
    primary_key: tuple[str, ...]
    indices: tuple[str, ...]
    properties: dict[str, str]
    reader_features: tuple[str, ...]
    writer_features: tuple[str, ...]


def table_detail(snapshot: Snapshot) -> TableDetail:
    """Return the summary of a version.

    Raises:
        FormatError: a manifest is damaged.
    """
    manifest = snapshot.manifest
    message = manifest.message
    fragments = manifest.fragments
    files = [file for fragment in fragments for file in fragment.files]
    sizes = [file.file_size_bytes for file in files]
    physical = sum(physical_rows(snapshot.table, f, snapshot.bases) for f in fragments)
    deleted = sum(fragment.deletion_file.num_deleted_rows for fragment in fragments)
    versions = list_versions(snapshot.table)
    first = versions[0] if versions and versions[0].version == 1 and not message.branch else None
    return TableDetail(
        location=snapshot.store.uri(snapshot.root),
        branch=message.branch or None,
        version=manifest.version,
        description=manifest.schema.metadata.get("comment"),
        created_at=read_manifest(snapshot.store, first.path, first.naming).timestamp if first else None,
        last_modified=manifest.timestamp,
        num_versions=len(versions),
        num_rows=physical - deleted,
        num_deleted_rows=deleted,
        num_fragments=len(fragments),
        num_files=len(files),
        size_bytes=None if 0 in sizes else sum(sizes),
        data_storage_version=manifest.file_version.text,
        stable_row_ids=manifest.uses_stable_row_ids,
        primary_key=tuple(field.name for field in primary_key(manifest.schema)),
        indices=tuple(sorted({entry.name for entry in manifest.indices if entry.fields})),
        properties=visible_settings(manifest.config),
        reader_features=feature_names(message.reader_feature_flags),
        writer_features=feature_names(message.writer_feature_flags),
    )
