"""Correct missing and wrong manifest entries of old writers when a version is loaded.

    no writer_version              `physical_rows` and `num_deleted_rows` may be wrong: both are counted again
    physical_rows = 0              not recorded: counted in a data file
    num_deleted_rows = 0           not recorded: counted in the deletion file
    no data_format, or "0.1"       the version that all data files have, if that is 2.0 or newer
    index entry without details    its kind is derived from the files of the index

The next version stores the corrections, as in other engines, except the kinds of indexes. Index coverage may
also be unreliable (see `doubtful_indices`). The next writer corrects it from the rows of the index. If it
cannot, no version may be built on such a version. The same applies if two files of a fragment have the same
field. (Lance table format, writer version.)
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
# Before this version of Lance, the coverage of an index could lack fragments whose rows are in the index.
_LIBRARY, _SOUND_COVERAGE = "lance", (0, 8, 15)
# Before this version, compaction could leave segments of one index with overlapping coverage.
_SEPARATE_SEGMENTS = (1, 0, 0)
_SYSTEM_PREFIX = "__lance_"

_BITMAP, _LABEL_LIST = INDEX_KINDS["bitmapindexdetails"], INDEX_KINDS["labellistindexdetails"]


def repair_manifest(table: TableRef, manifest: Manifest) -> Manifest:
    """Return a version with corrected entries; the same object if nothing needs a correction.

    If a correction needs a missing data file, the entry stays unchanged: reading the rows raises the error.

    Args:
        table: the table.
        manifest: the stored version.

    Raises:
        FormatError, UnsupportedFormatError: a file that a correction needs is damaged or not supported.
    """
    message = manifest.message
    uncounted = _find_uncounted(manifest)
    version = _find_file_version(manifest)
    if uncounted or version is not None:
        message = table_pb2.Manifest()
        message.CopyFrom(manifest.message)
        if version is not None:
            message.data_format.file_format = "lance"
            message.data_format.version = version
        bases = Bases.of(table, message)
        recount = not message.HasField("writer_version")

        def count(place: int) -> None:
            _count_rows(bases, message.fragments[place], recount)

        _run_parallel(count, uncounted)
        manifest = replace(manifest, message=message)
    if inferred := _infer_kinds(table, manifest):
        manifest = replace(manifest, inferred=inferred)
    return manifest


def _run_parallel(do: Callable[[int], None], places: Sequence[int]) -> None:
    if len(places) == 1:
        do(places[0])
    elif places:
        with ThreadPoolExecutor(min(_PARALLEL, len(places))) as pool:
            for _ in pool.map(do, places):
                pass


def _find_uncounted(manifest: Manifest) -> list[int]:
    """Return the list positions of fragments without a number of rows or of deleted rows."""
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


def _count_rows(bases: Bases, fragment: table_pb2.DataFragment, recount: bool) -> None:
    """Count the rows and the deleted rows of a fragment: missing numbers, or both with `recount`."""
    if recount or not fragment.physical_rows:
        undescribed = table_pb2.DataFragment()
        undescribed.CopyFrom(fragment)
        undescribed.physical_rows = 0
        try:
            fragment.physical_rows = physical_rows(bases.table, undescribed, bases)
        except FormatError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return
            raise
    if fragment.HasField("deletion_file") and (recount or not fragment.deletion_file.num_deleted_rows):
        fragment.deletion_file.num_deleted_rows = 0
        deleted = read_deletions(bases.table, fragment, bases=bases)
        fragment.deletion_file.num_deleted_rows = len(deleted)


def _find_file_version(manifest: Manifest) -> str | None:
    """Return the version of the data files if the manifest does not have it or is wrong; else None."""
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


def _infer_kinds(table: TableRef, manifest: Manifest) -> dict[bytes, str]:
    """Return uuid -> type URL for index entries without details whose files identify the kind."""
    if not manifest.index_section:
        return {}
    try:
        undescribed = [entry for entry in manifest.indices if not entry.HasField("index_details")]
    except FormatError:
        # Reading the indexes raises this error again. The rows can be read without indexes.
        return {}
    bases = Bases.of(table, manifest.message)
    fields = {field.id: field.logical_type for field in manifest.message.fields}
    kinds = {}
    for entry in undescribed:
        if entry.name.startswith(_SYSTEM_PREFIX):
            continue
        place, directory = bases.index_dir(entry)
        kind = _kind_of_files(place.list(directory))
        if kind is _BITMAP and any("list" in fields.get(number, "") for number in entry.fields):
            kind = _LABEL_LIST
        if kind is not None:
            kinds[entry.uuid.uuid] = kind.type_url
    return kinds


def _kind_of_files(files: Sequence[str]) -> IndexKind | None:
    """Return the index kind that is identified by one of the file names; None if there is none."""
    own = ((kind, kind.own_file) for kind in INDEX_KINDS.values())
    return next((kind for kind, file in own if file is not None and any(map(file.fullmatch, files))), None)


def check_successor(base: Manifest, successor: Manifest, repaired: Collection[bytes] = ()) -> None:
    """Refuse a new version whose base has errors of old writers that this package does not correct.

    Args:
        base: the base version.
        successor: the version built on `base`. Indexes that it does not have are not checked.
        repaired: uuids of index entries whose coverage was corrected from their rows.

    Raises:
        UnsupportedFormatError: two files have the same field, or the coverage of an index is unreliable.
    """
    if base.facts.has_pairs and (field := _find_duplicate_field(base.message)) is not None:
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


def _find_duplicate_field(message: table_pb2.Manifest) -> int | None:
    """Return the id of a leaf field that two files of the same fragment have; None if there is none."""
    parents = {field.id for field in message.fields if field.logical_type.startswith(_PARENTS)}
    for fragment in message.fragments:
        if len(fragment.files) > 1:
            field_ids: set[int] = set()
            for number in (number for file in fragment.files for number in file.fields):
                if number >= 0 and number in field_ids and number not in parents:
                    return number
                field_ids.add(number)
    return None


def doubtful_indices(base: Manifest) -> Iterator[bytes]:
    """Yield the uuids of index entries whose recorded coverage may be wrong.

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
                yield from _find_overlapping(segments)


def _is_older(message: table_pb2.Manifest, release: tuple[int, int, int]) -> bool:
    """Return whether a release of Lance before `release`, or an unknown one, wrote a version."""
    if not message.HasField("writer_version"):
        return True
    if message.writer_version.library != _LIBRARY:
        return False
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", message.writer_version.version)
    return numbers is None or tuple(map(int, numbers.groups())) < release


def _find_overlapping(segments: Sequence[table_pb2.IndexMetadata]) -> Iterator[bytes]:
    covered = BitMap()
    overlap = BitMap()
    parsed = []
    for segment in segments:
        own_coverage = covered_fragments(segment) or BitMap()
        parsed.append((segment, own_coverage))
        overlap |= covered & own_coverage
        covered |= own_coverage
    yield from (segment.uuid.uuid for segment, own_coverage in parsed if own_coverage.intersect(overlap))
