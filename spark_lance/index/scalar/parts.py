"""Indices of single values that are built in parts, by several processes, and then put together.

A part is a segment of some fragments that no version names yet. Parts that are to become one segment may
share its folder; each lies in a folder of its own there until they are merged:

    {root}/_indices/{uuid}/parts/{digest of its fragments}/    its files, and at last
                                                     part.pb   its manifest entry

A part that is built twice, by a task that was tried again, has one digest and counts once.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from pyroaring import BitMap

from spark_lance.errors import FormatError, IndexNotFoundError, OptionError
from spark_lance.index.building import SegmentTarget
from spark_lance.index.commit import new_segment
from spark_lance.index.entries import Segment, index_directory, new_entry
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.create import build_segment, indexed_field, write_segment
from spark_lance.index.scalar.kinds import SCALAR_INDICES
from spark_lance.proto import table_pb2
from spark_lance.table.index_kinds import INDEX_KINDS, label_of
from spark_lance.table.predicates.values import plain
from spark_lance.table.reading.snapshot import Snapshot

__all__ = ["fill_entry", "merge_parts", "merge_segments", "part_segment", "write_part"]

_ENTRY = "part.pb"


def write_part(
    snapshot: Snapshot,
    column: str,
    index: type[ScalarIndex],
    name: str,
    fragments: Sequence[table_pb2.DataFragment],
    number: uuid.UUID,
    options: Mapping[str, Any] | None = None,
) -> table_pb2.IndexMetadata:
    """Write a part of the segment `number` that covers some fragments, and return its entry.

    Raises:
        SchemaError: the column does not exist, or cannot be indexed so.
    """
    covered = BitMap(fragment.id for fragment in fragments)
    directory = _part_directory(snapshot.root, number, covered)
    entry = write_segment(snapshot, column, index, name, fragments, number, directory, options)
    snapshot.store.put(f"{directory}/{_ENTRY}", entry.SerializeToString())
    return entry


def _part_directory(root: str, number: uuid.UUID, covered: BitMap) -> str:
    digest = hashlib.sha256(covered.serialize()).hexdigest()[:16]
    return f"{index_directory(root, number)}/parts/{digest}"


def merge_parts(snapshot: Snapshot, number: uuid.UUID) -> table_pb2.IndexMetadata:
    """Put the parts of a segment together, and return its entry; nothing is committed.

    Raises:
        IndexNotFoundError: it has no parts.
        OptionError: two of them cover one fragment.
        FormatError: a part is damaged.
    """
    folder = f"{index_directory(snapshot.root, number)}/parts"
    objects = [found.path for found in snapshot.store.list_objects(folder, recursive=True)]
    segments = []
    for path in sorted(path for path in objects if path.endswith(f"/{_ENTRY}")):
        try:
            entry = table_pb2.IndexMetadata.FromString(snapshot.store.read(path))
            covered = BitMap.deserialize(entry.fragment_bitmap)
        except (DecodeError, ValueError, IndexError) as error:
            raise FormatError(f"undecodable part of an index: {error}", path) from error
        segments.append(Segment(entry, covered, snapshot.store, path.rpartition("/")[0]))
    if not segments:
        raise IndexNotFoundError(f"there are no parts of an index {number} to merge")
    merged = _merged(snapshot, segments, number)
    snapshot.store.delete_many(objects)
    return merged


def fill_entry(snapshot: Snapshot, entry: table_pb2.IndexMetadata) -> None:
    """Give the entry of a segment what its builder left out, as far as its files tell it: files and kind."""
    store, directory = snapshot.bases.index_dir(entry)
    if not entry.files:
        sizes = {name: store.size(f"{directory}/{name}") for name in store.list(directory)}
        entry.files.extend(table_pb2.IndexFile(path=path, size_bytes=size) for path, size in sizes.items())
    if entry.index_details.type_url:
        return
    for index in SCALAR_INDICES.values():
        own = INDEX_KINDS[index.label].own_file
        if own is None or not any(own.fullmatch(file.path) for file in entry.files):
            continue
        entry.index_version = index.index_version(snapshot.manifest.uses_stable_row_ids)
        entry.index_details.type_url = index.type_url
        entry.index_details.value = index.details(index(part_segment(snapshot, entry)).options())
        return


def part_segment(snapshot: Snapshot, entry: table_pb2.IndexMetadata) -> Segment:
    """Return a segment that is written and not committed."""
    store, directory = snapshot.bases.index_dir(entry)
    return Segment(entry, BitMap.deserialize(entry.fragment_bitmap), store, directory)


def merge_segments(snapshot: Snapshot, entries: Sequence[table_pb2.IndexMetadata]) -> table_pb2.IndexMetadata:
    """Put segments that are not committed together, and return the entry of a new one; theirs stay.

    Raises:
        OptionError: they are no segments of one index, or two of them cover one fragment.
    """
    return _merged(snapshot, [part_segment(snapshot, entry) for entry in entries], None)


def _merged(
    snapshot: Snapshot, segments: Sequence[Segment], number: uuid.UUID | None
) -> table_pb2.IndexMetadata:
    first = segments[0].entry
    covered = BitMap()
    for segment in segments:
        entry = segment.entry
        if (label_of(entry), list(entry.fields)) != (label_of(first), list(first.fields)):
            raise OptionError("only segments of one kind of index over one column can be merged")
        if covered & segment.covered:
            raise OptionError(f"two parts cover fragment {min(covered & segment.covered)}: build one of them")
        covered |= segment.covered
    kinds = {index.label: index for index in SCALAR_INDICES.values()}
    index = kinds.get(label_of(first))
    if index is None:
        raise OptionError(f"segments of an index {label_of(first)!r} cannot be merged here")
    column = snapshot.schema.path_of(int(first.fields[0]))
    field = indexed_field(snapshot.schema, column, index)
    kind = plain(pa.chunked_array([], field.arrow_type())).type
    opened = [index(segment, kind) for segment in segments]
    options = opened[0].options()
    if any(other.options() != options for other in opened):
        raise OptionError("the parts of an index were built with different options")
    with new_segment(snapshot.store, snapshot.root, number) as made:
        directory = index_directory(snapshot.root, made)
        version = snapshot.manifest.file_version
        target = SegmentTarget(snapshot.store, directory, version, options)
        files = index.merge(segments, kind, target)
        if files is None:
            fragments = [each for each in snapshot.fragments if each.id in covered]
            if len(fragments) < len(covered):
                raise OptionError(
                    "fragments of the parts are gone: open the version that they were built from"
                )
            return build_segment(snapshot, column, index, first.name, fragments, options, made)
    return new_entry(
        first.name,
        made,
        list(first.fields),
        min(segment.entry.dataset_version for segment in segments),
        covered,
        index.type_url,
        index.details(options),
        first.index_version,
        files,
    )
