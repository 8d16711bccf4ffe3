"""The metadata tables of named objects: tags, branches, indexes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_lance.errors import TableNotFoundError
from spark_lance.table.indices.describe import IndexDescription, describe_indices
from spark_lance.table.metadata.columns import TEXT_MAP, TEXTS, TIME, Column, MetadataTable, history_version
from spark_lance.table.metadata.operations import live_rows
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.branches import Branches, branch_line
from spark_lance.table.versions.ref_files import list_tags
from spark_lance.table.versions.versions import latest_version

_NamedRecord = tuple[str, dict[str, Any]]


def _tags(snapshot: Snapshot) -> Iterator[_NamedRecord]:
    return iter(list_tags(snapshot.main_line).items())


def _texts(metadata: dict[str, Any]) -> dict[str, str]:
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}


TAGS = MetadataTable(
    (
        Column("name", pa.string(), lambda row: row[0], "the tag"),
        Column("branch", pa.string(), lambda row: row[1]["branch"], "branch of the version; null: main"),
        Column("version", pa.int64(), lambda row: row[1]["version"], "version of the tag"),
        Column("created_at", TIME, lambda row: row[1]["created_at"], "creation time"),
        Column("updated_at", TIME, lambda row: row[1]["updated_at"], "when it was last moved"),
        Column("metadata", TEXT_MAP, lambda row: _texts(row[1]["metadata"]), "metadata of the tag, as text"),
    ),
    _tags,
)


@dataclass(frozen=True)
class _Branch:
    snapshot: Snapshot
    name: str
    record: dict[str, Any]

    @property
    def latest(self) -> int | None:
        """The newest version; None if the branch has just been deleted."""
        try:
            return latest_version(branch_line(self.snapshot.main_line, self.name)).version
        except TableNotFoundError:
            return None


def _branches(snapshot: Snapshot) -> Iterator[_Branch]:
    branches = Branches(snapshot.main_line).list()
    return (_Branch(snapshot, name, record) for name, record in branches.items())


BRANCHES = MetadataTable(
    (
        Column("name", pa.string(), lambda row: row.name, "the branch"),
        Column(
            "parent_branch",
            pa.string(),
            lambda row: row.record["parent_branch"],
            "branch on which it began; null: main",
        ),
        Column(
            "parent_version",
            pa.int64(),
            lambda row: row.record["parent_version"],
            "version at which it began",
        ),
        Column("latest_version", pa.int64(), lambda row: row.latest, "its newest version"),
        Column("created_at", TIME, lambda row: row.record["created_at"], "creation time"),
        Column(
            "metadata",
            TEXT_MAP,
            lambda row: _texts(row.record["metadata"]),
            "metadata of the branch, as text",
        ),
    ),
    _branches,
    reads=True,
)


@dataclass(frozen=True)
class _Index:
    """An index, and the number of live rows of each fragment of the version."""

    index: IndexDescription
    rows: dict[int, int | None]

    @property
    def covered(self) -> frozenset[int] | None:
        """The fragments that it covers; None if a segment has no list of fragments."""
        ids: frozenset[int] = frozenset()
        for segment in self.index.segments:
            if segment.fragment_ids is None:
                return None
            ids |= segment.fragment_ids
        return ids

    @property
    def uncovered(self) -> frozenset[int] | None:
        covered = self.covered
        return None if covered is None else frozenset(self.rows) - covered

    def count(self, fragments: frozenset[int] | None) -> int | None:
        """Return the number of live rows of fragments; None if it is unknown."""
        counts = None if fragments is None else [self.rows[number] for number in fragments]
        recorded = [count for count in counts or () if count is not None]
        return sum(recorded) if counts is not None and len(recorded) == len(counts) else None


def _indices(snapshot: Snapshot) -> Iterator[_Index]:
    rows = {fragment.id: live_rows(fragment) for fragment in snapshot.manifest.fragments}
    descriptions = describe_indices(snapshot)
    return (_Index(index, rows) for index in descriptions)


def _count_fragments(fragments: frozenset[int] | None) -> int | None:
    return None if fragments is None else len(fragments)


def _segments(row: _Index) -> list[dict[str, Any]]:
    return [
        {
            "uuid": segment.uuid,
            "dataset_version": history_version(segment.dataset_version_at_last_update),
            "index_version": segment.index_version,
            "created_at": segment.created_at,
            "bytes": segment.size_bytes,
            "base": segment.base_id,
            "fragments": None if segment.fragment_ids is None else sorted(segment.fragment_ids),
        }
        for segment in row.index.segments
    ]


_SEGMENT = pa.struct(
    [
        ("uuid", pa.string()),
        ("dataset_version", pa.int64()),
        ("index_version", pa.int64()),
        ("created_at", TIME),
        ("bytes", pa.int64()),
        ("base", pa.int64()),
        ("fragments", pa.list_(pa.int64())),
    ]
)

INDICES = MetadataTable(
    (
        Column("name", pa.string(), lambda row: row.index.name, "name of the index"),
        Column("type", pa.string(), lambda row: row.index.index_type, "its type"),
        Column("fields", TEXTS, lambda row: list(row.index.field_names), "paths of its columns"),
        Column(
            "indexed_rows",
            pa.int64(),
            lambda row: row.count(row.covered),
            "live rows that it covers",
        ),
        Column(
            "unindexed_rows",
            pa.int64(),
            lambda row: row.count(row.uncovered),
            "other live rows; queries scan them",
        ),
        Column(
            "indexed_fragments",
            pa.int64(),
            lambda row: _count_fragments(row.covered),
            "fragments that it covers",
        ),
        Column(
            "unindexed_fragments",
            pa.int64(),
            lambda row: _count_fragments(row.uncovered),
            "other fragments",
        ),
        Column("bytes", pa.int64(), lambda row: row.index.total_size_bytes, "size of its files"),
        Column(
            "details",
            pa.string(),
            lambda row: json.dumps(row.index.details, default=str),
            "its settings, as JSON",
        ),
        Column("segments", pa.list_(_SEGMENT), _segments, "its segments, with the fragments of each"),
    ),
    _indices,
)
