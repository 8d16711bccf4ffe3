"""Fragment reuse: translate old row addresses in indexes after fragments were rewritten.

An entry `__lance_frag_reuse` in the index section records, for each rewrite, where rows moved:

    entry      no fields, no files; bitmap: the new fragments of all rewrites; details as follows
    details    inline, or beyond 200 KB a file `details.binpb` in the entry's own directory `_indices/{uuid}/`
    version    one rewrite: the version it was built on, and its groups
    group      old and new fragments as digests (id, physical rows, deleted rows), and a Roaring treemap
               of the old addresses of the rows that still exist

The k-th of these addresses is the k-th row of the concatenated new fragments. (Fragments are in the order of
the digests, offsets ascending.) Any other old address was deleted. Index files do not change; their readers
translate the addresses. The bitmaps of the indexes contain either the old fragments, which substitute the new
ones, or the new fragments. (Lance table format, fragment reuse.)
"""

from __future__ import annotations

import struct
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from pyroaring import BitMap

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.io.locations import join
from spark_lance.io.stored_names import check_message
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import INDICES_DIR
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE, MEM_WAL
from spark_lance.table.operations.next_version import ReuseEntry
from spark_lance.table.reading.snapshot import Snapshot

Details = table_pb2.FragmentReuseIndexDetails
Content = table_pb2.FragmentReuseIndexDetails.InlineContent

MAX_INLINE_DETAILS = 200 * 1024
DETAILS_NAME = "details.binpb"
# A 64-bit treemap: the number of 32-bit bitmaps, then each after the high half of its values, ascending.
_TREEMAP_COUNT = struct.Struct("<Q")
_TREEMAP_KEY = struct.Struct("<I")
_TYPE_URL = "/lance.table.FragmentReuseIndexDetails"


def find_reuse_entry(manifest: Manifest) -> table_pb2.IndexMetadata | None:
    """Return the fragment-reuse entry of a version, None if it has none.

    Raises:
        FormatError: the index section cannot be decoded.
    """
    return next((entry for entry in manifest.indices if entry.name == FRAGMENT_REUSE), None)


def read_history(bases: Bases, entry: table_pb2.IndexMetadata) -> Content:
    """Return the content of a fragment-reuse entry, from its file if it has one.

    Raises:
        FormatError: the details are damaged, or their file is missing.
    """
    try:
        details = Details.FromString(entry.index_details.value)
        check_message(details)
        arm = details.WhichOneof("content")
        if arm == "inline":
            return details.inline
        if arm is None:
            raise FormatError("a fragment-reuse entry without content", place=FRAGMENT_REUSE)
        store, directory = bases.index_dir(entry)
        path = join(directory, details.external.path)
        try:
            (data,) = store.read_ranges(path, [(details.external.offset, details.external.size)])
        except FileNotFoundError:
            raise FormatError("the details of the fragment-reuse entry are missing", path=path) from None
        return Content.FromString(bytes(data))
    except DecodeError as error:
        raise FormatError(f"undecodable fragment-reuse details: {error}", place=FRAGMENT_REUSE) from error


def extend_history(
    snapshot: Snapshot,
    version: int,
    groups: Sequence[Details.Group],
) -> ReuseEntry:
    """Return a version's fragment-reuse entry with one more rewrite; write large details to a file.

    Rewrites that no index needs any more are removed.

    Args:
        snapshot: the version whose entry, if there is one, is extended.
        version: the version on which the rewrite is built.
        groups: the old and new fragments of the rewrite.

    Raises:
        UnsupportedFormatError: the existing entry has transitions, which this release does not write.
        FormatError: the existing entry is damaged.
    """
    present = find_reuse_entry(snapshot.manifest)
    content = Content()
    if present is not None:
        content.CopyFrom(read_history(snapshot.bases, present))
        if present.index_version or content.transitions:
            raise UnsupportedFormatError("a fragment-reuse entry with transitions is not extended here")
        _remove_old_rewrites(content, snapshot.manifest)
    content.versions.add(dataset_version=version, groups=groups)
    all_groups = (group for rewrite in content.versions for group in rewrite.groups)
    covered = BitMap(digest.id for group in all_groups for digest in group.new_fragments)
    name = uuid.uuid4()
    entry = table_pb2.IndexMetadata(
        uuid=table_pb2.UUID(uuid=name.bytes),
        name=FRAGMENT_REUSE,
        dataset_version=version,
        fragment_bitmap=covered.serialize(),
        index_version=0,
        created_at=time.time_ns() // 1_000_000,
    )
    entry.index_details.type_url = _TYPE_URL
    details = Details(inline=content)
    data = content.SerializeToString()
    if len(data) > MAX_INLINE_DETAILS:
        snapshot.store.put(join(snapshot.root, INDICES_DIR, str(name), DETAILS_NAME), data)
        details = Details(external=Details.ExternalFile(path=DETAILS_NAME, size=len(data)))
    entry.index_details.value = details.SerializeToString()
    return ReuseEntry(entry, b"" if present is None else present.uuid.uuid)


def _remove_old_rewrites(content: Content, manifest: Manifest) -> None:
    """Remove rewrites that are older than every index: no index has addresses from before them."""
    built = [
        entry.dataset_version for entry in manifest.indices if entry.name not in (FRAGMENT_REUSE, MEM_WAL)
    ]
    rewrites = [rewrite for rewrite in content.versions if any(b <= rewrite.dataset_version for b in built)]
    copies = Content(versions=rewrites)
    content.ClearField("versions")
    content.versions.extend(copies.versions)


def pack_addresses(survivors: Iterable[tuple[int, int, npt.NDArray[np.uint32]]]) -> bytes:
    """Return the serialized treemap of the addresses of live rows.

    Args:
        survivors: for each fragment its id, its number of physical rows, and its deleted offsets, ascending.
    """
    parts = []
    for fragment_id, rows, deleted in sorted(survivors, key=lambda survivor: survivor[0]):
        alive = BitMap()
        alive.add_range(0, rows)
        alive -= BitMap(deleted)
        if alive:
            alive.run_optimize()
            parts.append(_TREEMAP_KEY.pack(fragment_id) + alive.serialize())
    return _TREEMAP_COUNT.pack(len(parts)) + b"".join(parts)


def with_present_coverage(snapshot: Snapshot) -> Manifest:
    """Return the version with index bitmaps that contain new fragments in place of rewritten ones.

    Writers call this before they build the next version, because an operation that removes a fragment from
    the bitmaps must find it there. If nothing changes, the same object is returned.

    Raises:
        FormatError: index entries are damaged.
    """
    entry = find_reuse_entry(snapshot.manifest)
    if entry is None:
        return snapshot.manifest
    history = read_history(snapshot.bases, entry)
    steps = [
        (BitMap(d.id for d in group.old_fragments), BitMap(d.id for d in group.new_fragments))
        for version in history.versions
        for group in version.groups
    ]
    steps += [
        (BitMap(d.id for d in change.sources), BitMap(d.id for d in change.destinations))
        for change in history.transitions
    ]
    section = table_pb2.IndexSection.FromString(snapshot.manifest.index_section)
    changed = False
    for index in section.indices:
        if index.name in (FRAGMENT_REUSE, MEM_WAL) or not index.fragment_bitmap:
            continue
        covered = follow(index, steps)
        if covered is not None:
            index.fragment_bitmap = covered.serialize()
            changed = True
    if not changed:
        return snapshot.manifest
    return replace(snapshot.manifest, index_section=section.SerializeToString())


def follow(index: table_pb2.IndexMetadata, steps: Sequence[tuple[BitMap, BitMap]]) -> BitMap | None:
    """Return an index's coverage after its fragments were rewritten; None if it does not change.

    A partly covered group is no longer covered.
    """
    covered = covered_fragments(index)
    if covered is None:
        return None
    changed = False
    for old, new in steps:
        if covered.intersect(old):
            whole = old.issubset(covered)
            covered -= old
            if whole:
                covered |= new
            changed = True
    return covered if changed else None
