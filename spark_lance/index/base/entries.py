"""Read the entries of the manifest's index section, and write and commit new segments.

An index can have several entries of the same name: its segments. Each segment covers some fragments, and no
fragment is covered twice. A segment's rows count only for fragments that it covers and that still exist in
the version. A column can have several indexes of the same kind. A search uses one of them, see
`newest_index` (vectors) and `first_index` (text). (Lance index format, manifest entry and reader duties.)

The files of a new segment are written first; a commit then adds the segment to the index.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from pyroaring import BitMap

from spark_lance.errors import IndexExistsError, OptionError, UnsupportedFormatError
from spark_lance.file.base.limits import decoding
from spark_lance.index.base.files import IndexFile
from spark_lance.io.locations import join
from spark_lance.io.store import Store
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.commit_rows import delete_on_failure
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.features import check_writable
from spark_lance.table.format.index_kinds import find_index_kind, index_label
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.indices.fragment_reuse import with_present_coverage
from spark_lance.table.operations.create_index import create_index_message
from spark_lance.table.reading.snapshot import Snapshot

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Segment:
    """A usable index segment.

    Attributes:
        entry: its entry in the manifest.
        covered: ids of the version's fragments that it covers.
        store, directory: location of its files.
    """

    entry: table_pb2.IndexMetadata
    covered: BitMap
    store: Store
    directory: str

    @property
    def name(self) -> str:
        """The name of the index."""
        return str(self.entry.name)

    def decoding(self) -> AbstractContextManager[None]:
        """Return a context that turns a `MemoryError` of a search into a `FormatError`."""
        return decoding(self.directory)

    def file(self, name: str) -> IndexFile:
        """Return a file of the segment. The file is opened on first use."""
        sizes = {file.path: int(file.size_bytes) for file in self.entry.files}
        return IndexFile(self.store, f"{self.directory}/{name}", sizes.get(name) or None)


def find_segments(snapshot: Snapshot, label: str, newest: int, field: int | None = None) -> list[Segment]:
    """Return the usable segments of one kind of index.

    Skips segments of a newer format, of an unsupported old format, without coverage, or without a column.
    Their fragments count as not indexed.

    Args:
        snapshot: the version.
        label: a key of `INDEX_KINDS`.
        newest: highest supported `index_version` of this kind.
        field: id of the indexed field; all fields by default.

    Raises:
        FormatError: index entries are damaged.
    """
    current = with_present_coverage(snapshot)
    present = BitMap(fragment.id for fragment in snapshot.fragments)
    result = []
    for entry in current.indices:
        if index_label(entry) != label or entry.index_version > newest:
            continue
        if not entry.fragment_bitmap or not entry.fields:
            continue
        if field is not None and list(entry.fields) != [field]:
            continue
        covered = (covered_fragments(entry) or BitMap()) & present
        store, directory = snapshot.bases.index_dir(entry)
        if _is_outdated(entry, store, directory):
            logger.info("index %s has files of an old kind and is not used", entry.name)
            continue
        result.append(Segment(entry, covered, store, directory))
    return result


def _is_outdated(entry: table_pb2.IndexMetadata, store: Store, directory: str) -> bool:
    """Return whether a segment has the files of an old format, which is not supported."""
    kind = find_index_kind(entry)
    present_file = None if kind is None else kind.present_file
    if present_file is None:
        return False
    if entry.files:
        return all(file.path != present_file for file in entry.files)
    return not store.exists(join(directory, present_file))


def check_extensible(manifest: Manifest, name: str, segments: Iterable[Segment]) -> None:
    """Refuse to extend an index if one of its segments cannot be used here.

    Raises:
        UnsupportedFormatError: a segment cannot be used.
    """
    usable = {segment.entry.uuid.uuid for segment in segments}
    if any(entry.uuid.uuid not in usable for entry in manifest.indices if entry.name == name):
        raise UnsupportedFormatError(
            f"index {name!r} has a segment of another version of Lance that cannot be used here: "
            "build the index again with replace=True"
        )


def group_by_age(segments: Iterable[Segment]) -> list[list[Segment]]:
    """Return the segments of each index: indexes that cover a fragment first, then the newest index first.

    The age of an index is the age of its newest segment. For equal times, the later manifest entry is newer.
    """
    indices: dict[str, list[tuple[int, Segment]]] = {}
    for position, segment in enumerate(segments):
        indices.setdefault(segment.name, []).append((position, segment))

    def rank(parts: Sequence[tuple[int, Segment]]) -> tuple[bool, int, int]:
        newest = max((segment.entry.created_at, position) for position, segment in parts)
        return (any(segment.covered for _, segment in parts), *newest)

    ranked = sorted(indices.values(), key=rank, reverse=True)
    return [[segment for _, segment in parts] for parts in ranked]


def newest_index(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments of the newest index that covers a fragment.

    Coverage does not overlap: a fragment that several segments list belongs to the last of them.
    """
    ranked = group_by_age(segments)
    return _remove_overlap(ranked[0]) if ranked else []


def first_index(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments of the first index in the manifest that covers a fragment.

    Coverage does not overlap, as in `newest_index`.
    """
    indices: dict[str, list[Segment]] = {}
    for segment in segments:
        indices.setdefault(segment.name, []).append(segment)
    covering = [parts for parts in indices.values() if any(segment.covered for segment in parts)]
    return _remove_overlap(next(iter(covering or indices.values()), []))


def _remove_overlap(segments: Sequence[Segment]) -> list[Segment]:
    """Return segments without overlap: a shared fragment belongs to the last segment that lists it."""
    result: list[Segment] = []
    fragment_ids = BitMap()
    for segment in reversed(segments):
        result.append(replace(segment, covered=segment.covered - fragment_ids))
        fragment_ids |= segment.covered
    return result[::-1]


def check_name(manifest: Manifest, name: str, field: int, replace: bool) -> None:
    """Check that an index name is free, or used by this column's index and `replace` is set.

    Raises:
        OptionError: the name is reserved for the format.
        IndexExistsError: an index of this name exists and may not be replaced.
        UnsupportedFormatError: we cannot write to this table.
    """
    check_writable(manifest.message, manifest.path, manifest.facts)
    if name.startswith("__lance_"):
        raise OptionError(f"index names that begin with __lance_ belong to the format: {name!r}")
    for entry in manifest.indices:
        if entry.name == name and (not replace or list(entry.fields) != [field]):
            raise IndexExistsError(f"there is an index {name!r} already: drop it, or give another name")


def index_directory(root: str, name: uuid.UUID) -> str:
    """Return the directory of a segment's files."""
    return f"{root}/_indices/{name}"


def new_entry(
    name: str,
    segment: uuid.UUID,
    fields: Iterable[int],
    version: int,
    fragments: BitMap,
    type_url: str,
    details: bytes,
    index_version: int,
    files: Mapping[str, int],
) -> table_pb2.IndexMetadata:
    """Return the manifest entry of a new segment.

    Args:
        name: index name.
        segment: segment id; also the name of its directory.
        fields: ids of the indexed fields.
        version: the table version that the segment was built from.
        fragments: ids of the covered fragments.
        type_url, details: type URL and encoded message of the index kind.
        index_version: version of the index file format.
        files: file name -> size in bytes.
    """
    entry = table_pb2.IndexMetadata(
        uuid=table_pb2.UUID(uuid=segment.bytes),
        fields=fields,
        name=name,
        dataset_version=version,
        fragment_bitmap=fragments.serialize(),
        index_version=index_version,
        created_at=time.time_ns() // 1_000_000,
        files=[table_pb2.IndexFile(path=path, size_bytes=size) for path, size in files.items()],
    )
    entry.index_details.type_url = type_url
    entry.index_details.value = details
    return entry


@contextmanager
def new_segment(table: TableRef, number: uuid.UUID | None = None) -> Iterator[uuid.UUID]:
    """Yield the id of a new segment while the block writes its files; delete the files if the block fails.

    Args:
        table: the table.
        number: the segment's id; random by default.

    Raises:
        Exception: whatever the block raises.
    """
    segment = number or uuid.uuid4()
    directory = index_directory(table.root, segment)
    with delete_on_failure(partial(_delete_files, table, directory), Exception), decoding(directory):
        yield segment


def _delete_files(table: TableRef, directory: str) -> None:
    table.store.delete_many(
        [item.path for item in table.store.list_to_delete(directory, table.root)], table.root
    )


def commit_segments(
    snapshot: Snapshot,
    entries: Sequence[table_pb2.IndexMetadata],
    removed: Iterable[table_pb2.IndexMetadata],
) -> Manifest:
    """Commit new segments and return the new version. Their files are deleted if the commit certainly failed.

    Args:
        snapshot: the version that the segments were built from.
        entries: entries of the new segments.
        removed: entries of the segments that they replace.

    Raises:
        CommitOutcomeUnknownError: the version may exist, so no file was deleted.
        CommitError: the commit failed; see its subclasses.
    """
    operation = create_index_message(entries, removed)
    with delete_on_failure(partial(delete_segments, snapshot.table, entries)):
        return commit_operation(snapshot.table, operation, read_version=snapshot.version)


def delete_segments(table: TableRef, entries: Iterable[table_pb2.IndexMetadata]) -> None:
    """Delete the files of segments that no version refers to."""
    paths = [
        f"{index_directory(table.root, uuid.UUID(bytes=entry.uuid.uuid))}/{file.path}"
        for entry in entries
        for file in entry.files
    ]
    table.store.delete_many(paths, table.root)
