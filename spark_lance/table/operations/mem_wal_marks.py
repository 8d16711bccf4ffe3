"""Update the MemWAL entry of a table after an operation: the compacted SSTables of each shard.

The entry `__lance_mem_wal` has two lists. For every shard with SSTables that were compacted into the table,
it has the highest of these generations (`compacted_sstables`). For every index, it has the generations whose
rows are in the index (`index_catchup`). Both change in the same commit as the rows or the index. A changed
entry gets a new uuid, the new version and its time; its position in the list does not change. (MemWAL,
compaction.)

Pure functions on a serialized IndexSection; they return the same bytes if nothing changes.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from spark_lance.errors import FormatError, IncompatibleConflictError
from spark_lance.proto import index_pb2, table_pb2
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE, MEM_WAL
from spark_lance.table.operations.next_version import CommitContext

_MILLIS = 1_000_000


def mem_wal_details(entries: Iterable[table_pb2.IndexMetadata]) -> index_pb2.MemWalIndexDetails | None:
    """Return the details of a version's MemWAL entry; None if it has none.

    Raises:
        FormatError: the entry cannot be decoded.
    """
    entry = next((entry for entry in entries if entry.name == MEM_WAL), None)
    return None if entry is None else _parse_details(entry)


def mark_compacted(
    section: bytes, marks: Sequence[index_pb2.CompactedSsTable], version: int, context: CommitContext
) -> bytes:
    """Return the section with SSTables recorded as compacted into the table.

    Args:
        section: the serialized IndexSection of the version before.
        marks: the highest compacted generation of each shard.
        version: the number of the new version.
        context: the values of the commit.

    Raises:
        IncompatibleConflictError: present is no MemWAL entry, or the generation of a shard, or a later one,
            was compacted by another writer.
        FormatError: the section or the entry cannot be decoded.
    """
    if not marks:
        return section
    parsed, entry = _find_entry(section)
    if entry is None:
        raise IncompatibleConflictError(
            "the table no longer has a MemWAL, so the compacted SSTables cannot be recorded"
        )
    details = _parse_details(entry)
    recorded_marks = {mark.shard_id.uuid: mark for mark in details.compacted_sstables}
    for mark in marks:
        recorded = recorded_marks.get(mark.shard_id.uuid)
        if recorded is not None and recorded.generation >= mark.generation:
            raise IncompatibleConflictError(
                f"another writer compacted generation {mark.generation} of shard "
                f"{uuid.UUID(bytes=mark.shard_id.uuid)}: the table has generation {recorded.generation}"
            )
        if recorded is None:
            recorded = details.compacted_sstables.add()
            recorded_marks[mark.shard_id.uuid] = recorded
        recorded.CopyFrom(mark)
    return _pack_changed(parsed, entry, details, version, context)


def with_catchup(
    section: bytes, fragments: Iterable[table_pb2.DataFragment], version: int, context: CommitContext
) -> bytes:
    """Return the section after an index build: indexes that cover every fragment have all compacted rows.

    Raises:
        FormatError: the section, the entry or a bitmap cannot be decoded.
    """
    parts = _parse_section(section)
    if parts is None:
        return section
    parsed, entry, details = parts
    if not details.compacted_sstables:
        return section
    complete = _complete_indices(parsed, fragments)
    credits = {progress.index_name: progress for progress in details.index_catchup}
    changed = False
    for name in complete:
        progress = credits.get(name)
        if progress is not None and list(progress.caught_up_generations) == list(details.compacted_sstables):
            continue
        if progress is None:
            progress = details.index_catchup.add(index_name=name)
        progress.ClearField("caught_up_generations")
        progress.caught_up_generations.extend(details.compacted_sstables)
        changed = True
    return _pack_changed(parsed, entry, details, version, context) if changed else section


def without_catchup(
    section: bytes, fragments: Iterable[table_pb2.DataFragment], version: int, context: CommitContext
) -> bytes:
    """Return the section after rows moved: remove the catch-up of indexes that no longer cover all rows.

    Raises:
        FormatError: the section, the entry or a bitmap cannot be decoded.
    """
    parts = _parse_section(section)
    if parts is None:
        return section
    parsed, entry, details = parts
    complete = set(_complete_indices(parsed, fragments))
    remaining = [progress for progress in details.index_catchup if progress.index_name in complete]
    if len(remaining) == len(details.index_catchup):
        return section
    copies = index_pb2.MemWalIndexDetails(index_catchup=remaining)
    details.ClearField("index_catchup")
    details.index_catchup.MergeFrom(copies.index_catchup)
    return _pack_changed(parsed, entry, details, version, context)


def _parse_section(
    section: bytes,
) -> tuple[table_pb2.IndexSection, table_pb2.IndexMetadata, index_pb2.MemWalIndexDetails] | None:
    """Return a section, its MemWAL entry, and the entry's details; None if it has none."""
    if MEM_WAL.encode() not in section:
        return None
    parsed, entry = _find_entry(section)
    return None if entry is None else (parsed, entry, _parse_details(entry))


def _find_entry(section: bytes) -> tuple[table_pb2.IndexSection, table_pb2.IndexMetadata | None]:
    try:
        parsed = table_pb2.IndexSection.FromString(section)
    except DecodeError as error:
        raise FormatError(f"undecodable index section: {error}") from error
    return parsed, next((entry for entry in parsed.indices if entry.name == MEM_WAL), None)


def _parse_details(entry: table_pb2.IndexMetadata) -> index_pb2.MemWalIndexDetails:
    try:
        return index_pb2.MemWalIndexDetails.FromString(entry.index_details.value)
    except DecodeError as error:
        raise FormatError(f"undecodable details of the index entry {MEM_WAL}: {error}") from error


def _pack_changed(
    parsed: table_pb2.IndexSection,
    entry: table_pb2.IndexMetadata,
    details: index_pb2.MemWalIndexDetails,
    version: int,
    context: CommitContext,
) -> bytes:
    entry.index_details.value = details.SerializeToString(deterministic=True)
    # Derived from the commit, so that building the same commit again returns the same bytes.
    entry.uuid.uuid = uuid.uuid5(uuid.NAMESPACE_OID, f"{context.transaction_file}/{MEM_WAL}").bytes
    entry.dataset_version = version
    entry.created_at = context.time_ns // _MILLIS
    return parsed.SerializeToString()


def _complete_indices(
    parsed: table_pb2.IndexSection, fragments: Iterable[table_pb2.DataFragment]
) -> list[str]:
    """Return the names of the indexes whose segments cover every fragment, in the order of the entries."""
    present = BitMap([fragment.id for fragment in fragments])
    covered: dict[str, BitMap] = defaultdict(BitMap)
    for index in parsed.indices:
        if index.name in (FRAGMENT_REUSE, MEM_WAL) or not index.fragment_bitmap:
            continue
        covered[index.name] |= covered_fragments(index) or BitMap()
    return [name for name, address_fragments in covered.items() if present <= address_fragments]
