"""Correct omissions and mistakes of old writers in manifests when a version is loaded.

    no writer_version              `physical_rows` and `num_deleted_rows` may be wrong: both are counted
    physical_rows = 0              not recorded: counted in a data file
    num_deleted_rows = 0           not recorded: counted in the deletion file
    no data_format, or "0.1"       the version that all data files have, if that is 2.0 or newer
    index entry without details    its kind is derived from the files of the index

Corrections go into the next version, as in other engines; only the kinds of indices do not. The next writer
corrects unreliable coverage if the rows of the index show it (see `doubtful_indices`). If they do not, no
version may be built on such a version. The same holds if two files of a fragment provide one field. (Lance
table format, writer version.)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pyroaring import BitMap

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.version import FileVersion
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.features import MIXED_FILE_VERSIONS
from spark_lance.table.format.index_kinds import INDEX_KINDS, IndexKind
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef

_PARALLEL = 16
_LEGACY = FileVersion.V0_1.text
_PARENTS = ("struct", "list", "large_list", "map", "fixed_size_list:struct")
# Until this version of Lance, index entries could lack fragments although the index has rows of them.
_LIBRARY, _SOUND_COVERAGE = "lance", (0, 8, 15)
# Until this one, compaction could leave segments of one index that say that they cover the same fragment.
_SEPARATE_SEGMENTS = (1, 0, 0)
_SYSTEM_PREFIX = "__lance_"

_BITMAP, _LABEL_LIST = INDEX_KINDS["bitmapindexdetails"], INDEX_KINDS["labellistindexdetails"]


def repair_manifest(table: TableRef, manifest: Manifest) -> Manifest:
    """Return a version with everything that its writer should have recorded; the same object if all is there.

    A value that only a missing data file contains stays as it is: reading its rows raises the error.

    Args:
        table: the table.
        manifest: the version as it is stored.

    Raises:
        FormatError, UnsupportedFormatError: a file that is needed for it is damaged or not supported.
    """
    message = manifest.message
    uncounted = _uncounted(manifest)
    version = _real_version(manifest)
    if uncounted or version is not None:
        message = table_pb2.Manifest()
        message.CopyFrom(manifest.message)
        if version is not None:
            message.data_format.file_format = "lance"
            message.data_format.version = version
        bases = Bases.of(table, message)
        recount = not message.HasField("writer_version")

        def count(place: int) -> None:
            _count(bases, message.fragments[place], recount)

        _in_parallel(count, uncounted)
        manifest = replace(manifest, message=message)
    if inferred := _kinds(table, manifest):
        manifest = replace(manifest, inferred=inferred)
    return manifest


def _in_parallel(do: Callable[[int], None], places: Sequence[int]) -> None:
    if len(places) == 1:
        do(places[0])
    elif places:
        with ThreadPoolExecutor(min(_PARALLEL, len(places))) as pool:
            for _ in pool.map(do, places):
                pass


def _uncounted(manifest: Manifest) -> list[int]:
    """Return the places of the fragments that do not say how many rows they have, or lack."""
    message = manifest.message
    if not message.HasField("writer_version"):
        return [place for place, each in enumerate(message.fragments) if each.files]
    if manifest.facts.is_counted:
        return []
    return [
        place
        for place, each in enumerate(message.fragments)
        if (
            each.HasField("deletion_file") and not each.deletion_file.num_deleted_rows
            if each.physical_rows
            else each.files
        )
    ]


def _count(bases: Bases, fragment: table_pb2.DataFragment, recount: bool) -> None:
    """Set how many rows a fragment has and how many are deleted: what is not known, or all of it."""
    if recount or not fragment.physical_rows:
        silent = table_pb2.DataFragment()
        silent.CopyFrom(fragment)
        silent.physical_rows = 0
        try:
            fragment.physical_rows = physical_rows(bases.table, silent, bases)
        except FormatError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return
            raise
    if fragment.HasField("deletion_file") and (recount or not fragment.deletion_file.num_deleted_rows):
        fragment.deletion_file.num_deleted_rows = 0
        deleted = read_deletions(bases.table, fragment, bases=bases)
        fragment.deletion_file.num_deleted_rows = len(deleted)


def _real_version(manifest: Manifest) -> str | None:
    """Return the version of the data files if the manifest is silent or wrong about it."""
    message = manifest.message
    declared_version = message.data_format.version
    if declared_version and (
        declared_version != _LEGACY or message.reader_feature_flags & MIXED_FILE_VERSIONS
    ):
        return None
    versions = {
        FileVersion.from_manifest(file.file_major_version, file.file_minor_version)
        for fragment in message.fragments
        for file in fragment.files
    }
    if len(versions) == 1:
        (version,) = versions
        return version.text if version.text != declared_version else None
    return None if declared_version or versions else manifest.file_version.text


def _kinds(table: TableRef, manifest: Manifest) -> dict[bytes, str]:
    """Return types of details for index entries that have none, if their files show the type."""
    if not manifest.index_section:
        return {}
    try:
        silent = [entry for entry in manifest.indices if not entry.HasField("index_details")]
    except FormatError:
        # Reading the indices raises this again; the rows can be read without them.
        return {}
    bases = Bases.of(table, manifest.message)
    fields = {field.id: field.logical_type for field in manifest.message.fields}
    kinds = {}
    for entry in silent:
        if entry.name.startswith(_SYSTEM_PREFIX):
            continue
        place, directory = bases.index_dir(entry)
        kind = _kind_with(place.list(directory))
        if kind is _BITMAP and any("list" in fields.get(number, "") for number in entry.fields):
            kind = _LABEL_LIST
        if kind is not None:
            kinds[entry.uuid.uuid] = kind.type_url
    return kinds


def _kind_with(files: Sequence[str]) -> IndexKind | None:
    """Return the kind of index that has one of some files to itself."""
    own = ((kind, kind.own_file) for kind in INDEX_KINDS.values())
    return next((kind for kind, file in own if file is not None and any(map(file.fullmatch, files))), None)


def check_successor(base: Manifest, successor: Manifest, repaired: Collection[bytes] = ()) -> None:
    """Refuse to build a version on one with mistakes of old writers that are not put right here.

    Args:
        base: the version that was built on.
        successor: what was made of it; an index that it does not have any more does no harm.
        repaired: uuids of index entries whose coverage was read from their rows.

    Raises:
        UnsupportedFormatError: a field is provided twice, or the coverage of an index cannot be believed.
    """
    if base.facts.has_pairs and (field := _doubled_field(base.message)) is not None:
        raise UnsupportedFormatError(
            f"two files of one fragment provide field {field}, a mistake of Lance before 0.10.6: the table "
            "is only read here; any change by pylance puts it right",
            base.path,
        )
    if not base.index_section:
        return
    doubtful = set(doubtful_indices(base)) - set(repaired)
    for entry in successor.indices:
        if entry.uuid.uuid in doubtful:
            raise UnsupportedFormatError(
                f"index {entry.name!r} does not say reliably which fragments it covers, a mistake of old "
                f"versions of Lance: drop it with drop_index({entry.name!r}) and build it anew",
                base.path,
            )


def _doubled_field(message: table_pb2.Manifest) -> int | None:
    """Return a field with values of its own that two files of a fragment provide."""
    parents = {field.id for field in message.fields if field.logical_type.startswith(_PARENTS)}
    for fragment in message.fragments:
        if len(fragment.files) > 1:
            seen: set[int] = set()
            for number in (number for file in fragment.files for number in file.fields):
                if number >= 0 and number in seen and number not in parents:
                    return number
                seen.add(number)
    return None


def doubtful_indices(base: Manifest) -> Iterator[bytes]:
    """Yield the uuids of entries that may cover other fragments than they say, if they say which.

    Raises:
        FormatError: the index section is damaged.
    """
    if not base.index_section:
        return
    entries = [each for each in base.indices if each.fragment_bitmap and each.fields]
    if _is_older(base.message, _SOUND_COVERAGE):
        yield from (entry.uuid.uuid for entry in entries)
    elif _is_older(base.message, _SEPARATE_SEGMENTS):
        by_name: dict[str, list[table_pb2.IndexMetadata]] = defaultdict(list)
        for entry in entries:
            by_name[entry.name].append(entry)
        for segments in by_name.values():
            if len(segments) > 1:
                yield from _overlapping(segments)


def _is_older(message: table_pb2.Manifest, release: tuple[int, int, int]) -> bool:
    """Whether Lance wrote a version before one of its releases, or did not say which it was."""
    if not message.HasField("writer_version"):
        return True
    if message.writer_version.library != _LIBRARY:
        return False
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", message.writer_version.version)
    return numbers is None or tuple(map(int, numbers.groups())) < release


def _overlapping(segments: Sequence[table_pb2.IndexMetadata]) -> Iterator[bytes]:
    covered = BitMap()
    doubled = BitMap()
    parsed = []
    for segment in segments:
        mine = covered_fragments(segment) or BitMap()
        parsed.append((segment, mine))
        doubled |= covered & mine
        covered |= mine
    yield from (segment.uuid.uuid for segment, mine in parsed if mine.intersect(doubled))
