"""Update the index entries of a table after an operation: pure functions on a serialized IndexSection.

They return the same bytes if nothing changes. Otherwise they keep fields that this release does not know.

Entries with the same name are the segments of one index. A segment's bitmap (Roaring, 32 bit) contains the
fragments that it covers. It may contain removed fragments, which are ignored. Without a bitmap the coverage
is unknown, and such a segment is never dropped for covering nothing. (Lance table format, index metadata.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2
from spark_lance.table.format.bitmaps import covered_fragments


def remove_fragments_from_bitmaps(
    section: bytes, fragment_ids: Collection[int], field_ids: Collection[int]
) -> bytes:
    """Return the section without the fragments in the coverage of indexes on the fields.

    Use it after values of these fields were replaced in place. Entries without a bitmap do not change.

    Raises:
        FormatError: the section or a bitmap cannot be decoded.
    """
    if not section or not fragment_ids or not field_ids:
        return section
    message = _parse(section)
    removed_ids, fields = BitMap(fragment_ids), set(field_ids)
    changed = False
    for index in message.indices:
        if not fields.intersection(index.fields):
            continue
        covered = covered_fragments(index)
        if covered is not None and covered.intersect(removed_ids):
            index.fragment_bitmap = (covered - removed_ids).serialize()
            changed = True
    return message.SerializeToString() if changed else section


def drop_indices_without_fields(section: bytes, schema_field_ids: Collection[int]) -> bytes:
    """Return the section without indexes on fields that the schema does not have.

    Raises:
        FormatError: the section cannot be decoded.
    """
    if not section:
        return section
    field_ids = set(schema_field_ids)
    return _filter_entries(section, lambda index: field_ids.issuperset(index.fields))


def retain(section: bytes, fragments: Iterable[table_pb2.DataFragment]) -> bytes:
    """Return the section without segments that no longer cover any fragment.

    If no segment of an index covers a fragment, the oldest is kept (by `dataset_version`, then by position),
    so that the index is not lost with its rows.

    Args:
        section: the serialized IndexSection.
        fragments: the fragments of the new version.

    Raises:
        FormatError: the section or a bitmap cannot be decoded.
    """
    if not section:
        return section
    message = _parse(section)
    segments = defaultdict(list)
    for position, index in enumerate(message.indices):
        covered = covered_fragments(index)
        if covered is not None:
            segments[index.name].append((position, covered))
    shared = {name: parts for name, parts in segments.items() if len(parts) > 1}
    if not shared:
        return section
    existing = BitMap([fragment.id for fragment in fragments])
    dropped = set()
    for parts in shared.values():
        idle = [position for position, covered in parts if not covered.intersect(existing)]
        if len(idle) == len(parts):
            idle.remove(min(idle, key=lambda position: (message.indices[position].dataset_version, position)))
        dropped.update(idle)
    if not dropped:
        return section
    remaining = [index for position, index in enumerate(message.indices) if position not in dropped]
    return _replace_entries(message, remaining)


def keep_relevant(section: bytes, message: table_pb2.Manifest) -> bytes:
    """Return the section with only the entries that a new version with these fields and fragments needs.

    Delete, update, merge and project use it. The other operations do not change the entries.

    Raises:
        FormatError: the section or a bitmap cannot be decoded.
    """
    if not section:
        return section
    fitting = drop_indices_without_fields(section, {field.id for field in message.fields})
    return retain(fitting, message.fragments)


def _filter_entries(section: bytes, predicate: Callable[[table_pb2.IndexMetadata], bool]) -> bytes:
    message = _parse(section)
    remaining = [index for index in message.indices if predicate(index)]
    return section if len(remaining) == len(message.indices) else _replace_entries(message, remaining)


def _replace_entries(message: table_pb2.IndexSection, indices: list[table_pb2.IndexMetadata]) -> bytes:
    """Return the serialized section with only the given entries; empty bytes without entries."""
    copies = table_pb2.IndexSection(indices=indices)
    message.ClearField("indices")
    message.indices.MergeFrom(copies.indices)
    return message.SerializeToString()


def _parse(section: bytes) -> table_pb2.IndexSection:
    try:
        return table_pb2.IndexSection.FromString(section)
    except DecodeError as error:
        raise FormatError(f"undecodable index section: {error}") from error
