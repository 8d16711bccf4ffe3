"""The entries of the index section, as those see them who build indices and search them.

An index of a name may have several entries, its segments; each covers some fragments, and no fragment is
covered twice. What counts of a segment are the rows of the fragments that it covers and that the version
still has. (Lance index format, manifest entry and reader duties.)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyroaring import BitMap

from spark_lance.errors import FormatError, IndexExistsError, OptionError
from spark_lance.index.files import IndexFile
from spark_lance.io.store import Store
from spark_lance.proto import table_pb2
from spark_lance.table.bases import Bases
from spark_lance.table.maintenance.fragment_reuse import with_present_coverage
from spark_lance.table.manifest import Manifest

__all__ = ["Segment", "check_name", "index_directory", "label_of", "new_entry", "segments_of"]


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

    def file(self, name: str) -> IndexFile:
        """Return one of its files, not opened yet."""
        sizes = {file.path: int(file.size_bytes) for file in self.entry.files}
        return IndexFile(self.store, f"{self.directory}/{name}", sizes.get(name) or None)


def label_of(entry: table_pb2.IndexMetadata) -> str:
    """Return the last part of the type of an entry's details, in lower case; such as "btreeindexdetails"."""
    return str(entry.index_details.type_url).rpartition(".")[2].lower()


def segments_of(
    store: Store, root: str, manifest: Manifest, label: str, newest: int, field: int | None = None
) -> list[Segment]:
    """Return the usable segments of one kind of index.

    Segments of a newer format, or of unknown coverage, are left out: their fragments count as not indexed.

    Args:
        store, root, manifest: the version.
        label: the kind, see `label_of`.
        newest: highest `index_version` of the kind that is known here.
        field: id of the indexed field; every one by default.

    Raises:
        FormatError: index entries are damaged.
    """
    current = with_present_coverage(store, root, manifest)
    bases = Bases.of(store, root, manifest.message)
    present = BitMap(fragment.id for fragment in manifest.fragments)
    found = []
    for entry in current.indices:
        if label_of(entry) != label or entry.index_version > newest or not entry.fragment_bitmap:
            continue
        if field is not None and list(entry.fields) != [field]:
            continue
        try:
            covered = BitMap.deserialize(entry.fragment_bitmap) & present
        except (ValueError, IndexError) as error:
            raise FormatError(f"undecodable fragment bitmap of index {entry.name!r}: {error}") from error
        found.append(Segment(entry, covered, *bases.index_dir(entry)))
    return found


def check_name(manifest: Manifest, name: str, field: int, replace: bool) -> None:
    """Refuse a name that is taken: by the format, by another column, or at all unless it may be replaced.

    Raises:
        OptionError: the name cannot be used.
    """
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
