"""The entries of the index section, as builders and searches of indexes see them, and new segments.

An index of a name may have several entries, its segments; each covers some fragments, and no fragment is
covered twice. A segment's rows count only for fragments that it covers and that still exist in the version.
Several indices of one kind may be on one column: a search uses one of them, see `newest_index` (vectors) and
`first_index` (text).
(Lance index format, manifest entry and reader duties.)

The files of a new segment exist while it is built; a commit makes segments an index.
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
from spark_lance.table.format.index_kinds import kind_of, label_of
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.indices.fragment_reuse import with_present_coverage
from spark_lance.table.operations.create_index import create_index_message
from spark_lance.table.reading.snapshot import Snapshot

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Segment:
    """A segment that can be used.

    Attributes:
        entry: what the manifest says of it.
        covered: ids of the version's fragments that it covers.
        store, directory: where its files are.
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
        """Return a context that turns a lack of memory in a search into a `FormatError`."""
        return decoding(self.directory)

    def file(self, name: str) -> IndexFile:
        """Return one of its files, not opened yet."""
        sizes = {file.path: int(file.size_bytes) for file in self.entry.files}
        return IndexFile(self.store, f"{self.directory}/{name}", sizes.get(name) or None)


def segments_of(snapshot: Snapshot, label: str, newest: int, field: int | None = None) -> list[Segment]:
    """Return the usable segments of one kind of index.

    Segments of a newer format, of an old one that is not read here, of unknown coverage or of no column are
    left out: their fragments count as not indexed.

    Args:
        snapshot: the version.
        label: a key of `INDEX_KINDS`.
        newest: highest `index_version` of the kind that is known here.
        field: id of the indexed field; every one by default.

    Raises:
        FormatError: index entries are damaged.
    """
    current = with_present_coverage(snapshot)
    present = BitMap(fragment.id for fragment in snapshot.fragments)
    result = []
    for entry in current.indices:
        if label_of(entry) != label or entry.index_version > newest:
            continue
        if not entry.fragment_bitmap or not entry.fields:
            continue
        if field is not None and list(entry.fields) != [field]:
            continue
        covered = (covered_fragments(entry) or BitMap()) & present
        place, directory = snapshot.bases.index_dir(entry)
        if _is_outdated(entry, place, directory):
            logger.info("index %s has files of an old kind and is not used", entry.name)
            continue
        result.append(Segment(entry, covered, place, directory))
    return result


def _is_outdated(entry: table_pb2.IndexMetadata, store: Store, directory: str) -> bool:
    """Whether a segment lacks the file that came with the kind of files that are read here."""
    kind = kind_of(entry)
    present_file = None if kind is None else kind.present_file
    if present_file is None:
        return False
    if entry.files:
        return all(file.path != present_file for file in entry.files)
    return not store.exists(join(directory, present_file))


def check_extensible(manifest: Manifest, name: str, segments: Iterable[Segment]) -> None:
    """Refuse to extend an index if one of its segments cannot be used here.

    Raises:
        UnsupportedFormatError: there is such a segment.
    """
    usable = {segment.entry.uuid.uuid for segment in segments}
    if any(entry.uuid.uuid not in usable for entry in manifest.indices if entry.name == name):
        raise UnsupportedFormatError(
            f"index {name!r} has a segment of another version of Lance that cannot be used here: "
            "build the index anew, with replace=True"
        )


def by_age(segments: Iterable[Segment]) -> list[list[Segment]]:
    """Return the segments of each index: those that cover something first, and of them the newest first.

    An index is as old as its newest segment; among those of one time the later in the manifest is newer.
    """
    indices: dict[str, list[tuple[int, Segment]]] = {}
    for place, segment in enumerate(segments):
        indices.setdefault(segment.name, []).append((place, segment))

    def rank(parts: Sequence[tuple[int, Segment]]) -> tuple[bool, int, int]:
        newest = max((segment.entry.created_at, place) for place, segment in parts)
        return (any(segment.covered for _, segment in parts), *newest)

    ranked = sorted(indices.values(), key=rank, reverse=True)
    return [[segment for _, segment in parts] for parts in ranked]


def newest_index(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments of the one index that answers a search: the newest that covers something.

    Its fragments are covered once: a fragment that several segments name counts in the last of them.
    """
    ranked = by_age(segments)
    return _once_covered(ranked[0]) if ranked else []


def first_index(segments: Iterable[Segment]) -> list[Segment]:
    """Return the segments of the index that stands first in the manifest, of those that cover something.

    Fragments are covered once, as by `newest_index`.
    """
    indices: dict[str, list[Segment]] = {}
    for segment in segments:
        indices.setdefault(segment.name, []).append(segment)
    covering = [parts for parts in indices.values() if any(segment.covered for segment in parts)]
    return _once_covered(next(iter(covering or indices.values()), []))


def _once_covered(segments: Sequence[Segment]) -> list[Segment]:
    """Return segments without overlap: a fragment that several have belongs to the last of them."""
    result: list[Segment] = []
    fragment_ids = BitMap()
    for segment in reversed(segments):
        result.append(replace(segment, covered=segment.covered - fragment_ids))
        fragment_ids |= segment.covered
    return result[::-1]


def check_name(manifest: Manifest, name: str, field: int, replace: bool) -> None:
    """Refuse a name that is taken: by the format, by another column, or at all unless it may be replaced.

    Raises:
        OptionError: the name cannot be used.
        UnsupportedFormatError: the version is not written to here, and so gets no index.
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
    """Return the entry of a segment that was built.

    Args:
        name: of the index.
        segment: names the directory of its files.
        fields: ids of the indexed fields.
        version: of the table, from which it was built.
        fragments: what it covers.
        type_url, details: the kind, and its message.
        index_version: of the file format.
        files: file name -> bytes.
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
    """Lend the id of a new segment while its files are written; if that fails, they are deleted.

    Args:
        table: the table.
        number: its id, if that is chosen already.

    Raises:
        Exception: whatever the block raises.
    """
    segment = number or uuid.uuid4()
    directory = index_directory(table.root, segment)
    with delete_on_failure(partial(_empty, table, directory), Exception), decoding(directory):
        yield segment


def _empty(table: TableRef, directory: str) -> None:
    table.store.delete_many(
        [item.path for item in table.store.list_to_delete(directory, table.root)], table.root
    )


def commit_segments(
    snapshot: Snapshot,
    entries: Sequence[table_pb2.IndexMetadata],
    removed: Iterable[table_pb2.IndexMetadata],
) -> Manifest:
    """Commit new segments and return the version that has them. Their files go if the commit fails for sure.

    Args:
        snapshot: the version that the segments were built from.
        entries: of the new segments.
        removed: of the segments that they take the place of.

    Raises:
        CommitOutcomeUnknownError: the version may exist; no file was deleted.
        CommitError: the commit failed; see its subclasses.
    """
    operation = create_index_message(entries, removed)
    with delete_on_failure(partial(delete_segments, snapshot.table, entries)):
        return commit_operation(snapshot.table, operation, read_version=snapshot.version)


def delete_segments(table: TableRef, entries: Iterable[table_pb2.IndexMetadata]) -> None:
    """Delete the files of segments that no version names."""
    paths = [
        f"{index_directory(table.root, uuid.UUID(bytes=entry.uuid.uuid))}/{file.path}"
        for entry in entries
        for file in entry.files
    ]
    table.store.delete_many(paths, table.root)
