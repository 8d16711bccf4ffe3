"""Descriptions of the indexes of a version: names, kinds, coverage, sizes. Index files are not opened here.

Entries with the same name are the segments of one index; each covers some fragments. The type URL of an
entry's details determines its kind. Only the last part of the URL counts, ignoring case. (Lance table format,
index section.)
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from google.protobuf.message import DecodeError, Message
from pyroaring import BitMap

from spark_lance.errors import FormatError
from spark_lance.io.display import size_text
from spark_lance.proto import index_pb2, table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.index_kinds import find_index_kind, index_label
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.indices.fragment_reuse import read_history, with_present_coverage
from spark_lance.table.reading.snapshot import Snapshot

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True)
class IndexSegment:
    """One entry of the index section.

    Attributes:
        uuid: the uuid of the entry and the name of its directory.
        fragment_ids: the fragments of this version that it covers; None if unknown.
        dataset_version_at_last_update: the version that it was built from.
        index_version: version of its file format.
        created_at: when it was built (UTC), if known.
        size_bytes: bytes of its files, if known.
        base_id: the base path of its files; None for the table's own root.
        covering_fields: ids of additional fields whose values the index stores.
    """

    uuid: str
    fragment_ids: frozenset[int] | None
    dataset_version_at_last_update: int
    index_version: int = 0
    created_at: datetime | None = None
    size_bytes: int | None = None
    base_id: int | None = None
    covering_fields: tuple[int, ...] = ()


@dataclass(frozen=True, repr=False)
class IndexDescription:
    """One index with all its segments.

    Attributes:
        name: the name that `drop_index` takes.
        index_type: the kind of index, such as "BTree" or "IVF_PQ".
        type_url: the type of the details.
        fields, field_names: ids and paths of the indexed fields.
        num_rows_indexed: live rows in the covered fragments; None if the coverage of a segment is unknown.
        details: the parameters of the index that this release knows.
        segments: the entries, in the order of the index section.
        total_size_bytes: bytes of all files, if known.
    """

    name: str
    index_type: str
    type_url: str
    fields: tuple[int, ...]
    field_names: tuple[str, ...]
    num_rows_indexed: int | None
    details: Mapping[str, Any] = field(default_factory=dict)
    segments: tuple[IndexSegment, ...] = ()

    def __repr__(self) -> str:
        rows = "an unknown number of" if self.num_rows_indexed is None else f"{self.num_rows_indexed:,}"
        size = size_text(self.total_size_bytes)
        columns = ", ".join(self.field_names)
        return f"IndexDescription({self.name!r}, {self.index_type} on {columns}, {rows} rows indexed, {size})"

    @property
    def total_size_bytes(self) -> int | None:
        """Total size of the files of all segments in bytes; None if the size of a segment is unknown."""
        sizes = [segment.size_bytes for segment in self.segments]
        recorded = [size for size in sizes if size is not None]
        return sum(recorded) if len(recorded) == len(sizes) else None


def describe_indices(snapshot: Snapshot) -> list[IndexDescription]:
    """Return the indexes of a version, sorted by name.

    Raises:
        FormatError: index entries are damaged.
    """
    manifest = with_present_coverage(snapshot)
    by_name: dict[str, list[table_pb2.IndexMetadata]] = {}
    for entry in manifest.indices:
        by_name.setdefault(entry.name, []).append(entry)
    return [_describe(snapshot.bases, manifest, name, by_name[name]) for name in sorted(by_name)]


def list_indices(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return one dict per segment: name, type, uuid, fields (paths), version, fragment_ids, base_id.

    Raises:
        FormatError: index entries are damaged.
    """
    return [
        {
            "name": index.name,
            "type": index.index_type,
            "uuid": segment.uuid,
            "fields": list(index.field_names),
            "version": segment.dataset_version_at_last_update,
            "fragment_ids": segment.fragment_ids,
            "base_id": segment.base_id,
        }
        for index in describe_indices(snapshot)
        for segment in index.segments
    ]


def _describe(
    bases: Bases, manifest: Manifest, name: str, entries: list[table_pb2.IndexMetadata]
) -> IndexDescription:
    first = entries[0]
    present = {fragment.id: fragment for fragment in manifest.fragments}
    segments = tuple(_describe_segment(entry, BitMap(present)) for entry in entries)
    covered: set[int] | None = set()
    for segment in segments:
        covered = None if covered is None or segment.fragment_ids is None else covered | segment.fragment_ids
    rows = None
    if covered is not None:
        rows = sum(
            physical_rows(bases.table, present[number], bases)
            - present[number].deletion_file.num_deleted_rows
            for number in covered
        )
    kind, details = _read_details(bases, first)
    return IndexDescription(
        name=name,
        index_type=kind,
        type_url=first.index_details.type_url,
        fields=tuple(first.fields),
        field_names=tuple(manifest.schema.paths.get(number, str(number)) for number in first.fields),
        num_rows_indexed=rows,
        details=details,
        segments=segments,
    )


def _describe_segment(entry: table_pb2.IndexMetadata, present: BitMap) -> IndexSegment:
    fragments = covered_fragments(entry)
    covered = None if fragments is None else frozenset(fragments & present)
    created = _EPOCH + timedelta(milliseconds=entry.created_at) if entry.HasField("created_at") else None
    return IndexSegment(
        uuid=str(uuid.UUID(bytes=entry.uuid.uuid)),
        fragment_ids=covered,
        dataset_version_at_last_update=entry.dataset_version,
        index_version=entry.index_version,
        created_at=created,
        size_bytes=sum(file.size_bytes for file in entry.files) if entry.files else None,
        base_id=entry.base_id if entry.HasField("base_id") else None,
        covering_fields=tuple(entry.covering_fields),
    )


def _read_details(bases: Bases, entry: table_pb2.IndexMetadata) -> tuple[str, dict[str, Any]]:
    """Return the kind of an index and its known parameters."""
    kind, parse = find_index_kind(entry), _PARSERS.get(index_label(entry))
    if kind is None:
        unknown = entry.index_details.type_url.rpartition(".")[2]
        return unknown.removesuffix("IndexDetails") or "Unknown", {}
    if parse is None:
        return kind.name, {}
    try:
        return parse(bases, entry)
    except DecodeError as error:
        raise FormatError(f"undecodable details of index {entry.name!r}: {error}") from error


def _vector(bases: Bases, entry: table_pb2.IndexMetadata) -> tuple[str, dict[str, Any]]:
    if not entry.index_details.value:
        return "Vector", {}
    message = index_pb2.VectorIndexDetails.FromString(entry.index_details.value)
    metric = index_pb2.VectorMetricType.Name(message.metric_type).removeprefix("METRIC_")
    details: dict[str, Any] = {"metric_type": metric}
    if message.target_partition_size:
        details["target_partition_size"] = message.target_partition_size
    if message.HasField("hnsw_index_config"):
        details["hnsw"] = _to_python(message.hnsw_index_config)
    arm = message.WhichOneof("compression") or "flat"
    if arm != "flat":
        details["compression"] = {"type": arm, **_to_python(getattr(message, arm))}
    if message.HasField("rq"):
        rotation = index_pb2.VectorIndexDetails.RabitQuantization.RotationType
        details["compression"]["rotation_type"] = rotation.Name(message.rq.rotation_type).lower()
    if message.runtime_hints:
        details["runtime_hints"] = dict(message.runtime_hints)
    graph = "HNSW_" if "hnsw" in details else ""
    return f"IVF_{graph}{arm.upper()}", details


def _zone_map(bases: Bases, entry: table_pb2.IndexMetadata) -> tuple[str, dict[str, Any]]:
    return "ZoneMap", _to_python(index_pb2.ZoneMapIndexDetails.FromString(entry.index_details.value))


def _mem_wal(bases: Bases, entry: table_pb2.IndexMetadata) -> tuple[str, dict[str, Any]]:
    return "MemWal", _to_python(index_pb2.MemWalIndexDetails.FromString(entry.index_details.value))


def _fragment_reuse(bases: Bases, entry: table_pb2.IndexMetadata) -> tuple[str, dict[str, Any]]:
    history = read_history(bases, entry)
    versions = [
        {
            "dataset_version": version.dataset_version,
            "groups": [
                {
                    "old_fragments": [_to_python(digest) for digest in group.old_fragments],
                    "new_fragments": [_to_python(digest) for digest in group.new_fragments],
                }
                for group in version.groups
            ],
        }
        for version in history.versions
    ]
    return "FragmentReuse", {"versions": versions}


def _to_python(message: Message) -> dict[str, Any]:
    """Return the set fields of a message as Python values."""
    out: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
            out[descriptor.name] = dict(value)
        elif isinstance(value, table_pb2.UUID):
            out[descriptor.name] = str(uuid.UUID(bytes=value.uuid))
        elif isinstance(value, Message):
            out[descriptor.name] = _to_python(value)
        elif descriptor.is_repeated:
            out[descriptor.name] = [_to_python(item) if isinstance(item, Message) else item for item in value]
        else:
            out[descriptor.name] = value
    return out


_Parse = Callable[[Bases, table_pb2.IndexMetadata], tuple[str, dict[str, Any]]]

# Label of a kind -> the function that reads its details, for kinds whose details say something.
_PARSERS: dict[str, _Parse] = {
    "zonemapindexdetails": _zone_map,
    "vectorindexdetails": _vector,
    "fragmentreuseindexdetails": _fragment_reuse,
    "memwalindexdetails": _mem_wal,
}
