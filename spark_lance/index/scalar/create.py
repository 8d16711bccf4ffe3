"""Build and extend scalar indexes without Spark, as a whole or in parts.

Several processes can each build a part, and the parts are then merged. A part is an uncommitted segment that
covers some fragments. Parts of one segment share the segment's directory, each in its own subdirectory until
the merge:

    {root}/_indices/{uuid}/parts/{digest of its fragments}/    its files, then, written last,
                                                     part.pb   its manifest entry

If a retried task builds a part twice, both have the same digest, so the part counts once.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from pyroaring import BitMap

from spark_lance.errors import ColumnTypeError, FormatError, IndexNotFoundError, OptionError
from spark_lance.expressions.geo_functions import extension_name
from spark_lance.expressions.values import plain
from spark_lance.file.base.schema import Field, Schema
from spark_lance.index.base.building import Numbers, Rows, SegmentTarget
from spark_lance.index.base.columns import column_values, leaf_field, top_column
from spark_lance.index.base.entries import (
    Segment,
    check_extensible,
    check_name,
    commit_segments,
    find_segments,
    index_directory,
    new_entry,
    new_segment,
)
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.kinds import SCALAR_INDICES, scalar_kind
from spark_lance.io.progress import report
from spark_lance.proto import table_pb2
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.index_kinds import INDEX_KINDS, index_label
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS

_WINDOW_BYTES = 32 << 20
_ENTRY = "part.pb"


def create_scalar_index(
    snapshot: Snapshot,
    column: str,
    kind: str,
    *,
    name: str | None = None,
    replace: bool = True,
    options: Mapping[str, Any] | None = None,
    train: bool = True,
) -> Manifest:
    """Build an index over all rows of a version and commit it.

    Args:
        snapshot: the version.
        column: a column, or the dotted path of a field in a struct column.
        kind: a key of `SCALAR_INDICES`.
        name: index name, `{column}_idx` by default.
        replace: whether to replace an index of the same name; if False, its existence is an error.
        options: options of the index kind.
        train: False creates an empty index, for `extend_scalar_index` to fill.

    Raises:
        SchemaError: the column does not exist, or its type does not fit this kind of index.
        OptionError: the kind or an option is unknown, or the name is reserved.
        IndexExistsError: the name exists and `replace` is False.
        CommitError: the commit failed; see its subclasses.
    """
    index = scalar_kind(kind)
    field = indexed_field(snapshot.schema, column, index)
    name = name or f"{column}_idx"
    check_name(snapshot.manifest, name, field.id, replace)
    index.check(options or {})
    fragments = snapshot.fragments if train else []
    entry = build_segment(snapshot, column, index, name, fragments, options)
    removed = [old for old in snapshot.manifest.indices if old.name == name]
    return commit_segments(snapshot, [entry], removed)


def _other_index(field: Field, column: str) -> str:
    """Return what to index or build instead, if there is something."""
    if pa.types.is_fixed_size_list(field.arrow_type()):
        return f"; for vectors write create_index({column!r}, 'IVF_PQ')"
    if pa.types.is_struct(field.arrow_type()) and field.children:
        return f"; index one of its fields, such as {f'{column}.{field.children[0].name}'!r}"
    return ""


def indexed_field(schema: Schema, column: str, index: type[ScalarIndex]) -> Field:
    """Return the field of a column to index.

    Raises:
        SchemaError: the column does not exist, or its type does not fit this kind of index.
    """
    field = leaf_field(schema, column)
    kind = plain(pa.chunked_array([], field.arrow_type())).type
    if not index.fits_field(field, kind):
        raise ColumnTypeError(
            f"column {column!r} is {field.read_field().type}: that cannot have an index {index.name}"
            f"{_other_index(field, column)}"
        )
    return field


def build_segment(
    snapshot: Snapshot,
    column: str,
    index: type[ScalarIndex],
    name: str,
    fragments: Sequence[table_pb2.DataFragment],
    options: Mapping[str, Any] | None = None,
    number: uuid.UUID | None = None,
) -> table_pb2.IndexMetadata:
    """Write a segment that covers the given fragments, and return its manifest entry, uncommitted.

    Leaves no files if it fails.
    """
    with new_segment(snapshot.table, number) as segment:
        directory = index_directory(snapshot.root, segment)
        return write_segment(snapshot, column, index, name, fragments, segment, directory, options)


def write_segment(
    snapshot: Snapshot,
    column: str,
    index: type[ScalarIndex],
    name: str,
    fragments: Sequence[table_pb2.DataFragment],
    number: uuid.UUID,
    directory: str,
    options: Mapping[str, Any] | None = None,
) -> table_pb2.IndexMetadata:
    """Write the files of a segment into a directory, and return its manifest entry."""
    field = indexed_field(snapshot.schema, column, index)
    version = index.index_version(snapshot.manifest.uses_stable_row_ids)
    by_address = index.built_by_address(snapshot.manifest.uses_stable_row_ids, options or {})
    number_column = ROW_ADDRESS if by_address else ROW_ID
    kind = plain(pa.chunked_array([], field.arrow_type())).type
    physical = {f.id: snapshot.physical_rows(f) for f in fragments}
    pieces = partial(_read_pieces, snapshot, fragments, column, number_column)
    rows = Rows(pieces, kind, physical, extension_name(field.arrow_field()))
    target = SegmentTarget(snapshot.store, directory, snapshot.manifest.file_version, options or {})
    files = index.build(rows, target)
    covered = BitMap(fragment.id for fragment in fragments)
    return new_entry(
        name,
        number,
        [field.id],
        snapshot.version,
        covered,
        index.type_url,
        index.details(options or {}),
        version,
        files,
    )


def _read_pieces(
    snapshot: Snapshot, fragments: Sequence[table_pb2.DataFragment], column: str, number: str
) -> Iterator[tuple[pa.Array, Numbers]]:
    scan = snapshot.scan([top_column(snapshot.schema, column), number], fragments=fragments)
    total = sum(scan.live_rows(fragment) for fragment in fragments)
    offset = 0
    for table in scan.tables(target_bytes=_WINDOW_BYTES):
        offset += table.num_rows
        report("reading values", offset, total, "rows")
        values = plain(column_values(table, column))
        rows = table.column(number).to_numpy()
        first = 0
        for chunk in values.chunks:
            yield chunk, rows[first : first + len(chunk)].astype(np.uint64, copy=False)
            first += len(chunk)


def _unusable_index_error(snapshot: Snapshot, name: str) -> IndexNotFoundError:
    """Return the error for an index that does not exist or cannot be used."""
    for entry in snapshot.manifest.indices:
        if entry.name == name and entry.fields:
            column = snapshot.schema.field_path(int(entry.fields[0]))
            return IndexNotFoundError(
                f"index {name!r} of column {column!r} has a form that is not read here, old or new: drop it "
                f"with drop_index({name!r}), and build it anew"
            )
    return IndexNotFoundError(f"there is no scalar index {name!r} here")


def extend_scalar_index(
    snapshot: Snapshot, name: str, *, merge: int | None = None, rebuild: bool = False
) -> Manifest:
    """Index the fragments that an index does not cover yet.

    Args:
        snapshot: the version.
        name: index name.
        merge: how many of the newest segments to rebuild together with the new rows. 0 adds a segment. None
            merges all segments, as does a segment that cannot coexist with new ones.
        rebuild: whether to build one segment of all rows, even if the index covers all rows.

    Raises:
        IndexNotFoundError: no scalar index has this name.
        CommitError: the commit failed; see its subclasses.
    """
    for index in SCALAR_INDICES.values():
        segments = [
            segment for segment in find_segments(snapshot, index.label, index.newest) if segment.name == name
        ]
        if segments:
            break
    else:
        raise _unusable_index_error(snapshot, name)
    check_extensible(snapshot.manifest, name, segments)
    covered = BitMap().union(*(segment.covered for segment in segments))
    new_fragments = [fragment for fragment in snapshot.fragments if fragment.id not in covered]
    merged = segments if merge is None or rebuild else segments[max(len(segments) - merge, 0) :]
    if new_fragments and not all(index(segment).can_add_segments() for segment in segments):
        merged = segments
    if not new_fragments and len(merged) < 2 and not rebuild:
        return snapshot.manifest
    rebuilt_ids = BitMap().union(*(segment.covered for segment in merged)) if merged else BitMap()
    fragments = [f for f in snapshot.fragments if f.id in rebuilt_ids or f.id not in covered]
    column = snapshot.schema.field_path(int(segments[-1].entry.fields[0]))
    options = index(segments[-1]).options()
    entry = build_segment(snapshot, column, index, name, fragments, options)
    return commit_segments(snapshot, [entry], [segment.entry for segment in merged])


def write_part(
    snapshot: Snapshot,
    column: str,
    index: type[ScalarIndex],
    name: str,
    fragments: Sequence[table_pb2.DataFragment],
    number: uuid.UUID,
    options: Mapping[str, Any] | None = None,
) -> table_pb2.IndexMetadata:
    """Write the part of segment `number` that covers the given fragments, and return its manifest entry.

    Raises:
        SchemaError: the column does not exist, or its type does not fit this kind of index.
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
    """Merge the parts of a segment, and return the segment's manifest entry, uncommitted.

    Raises:
        IndexNotFoundError: the segment has no parts.
        OptionError: two parts cover the same fragment.
        FormatError: a part is damaged.
    """
    folder = f"{index_directory(snapshot.root, number)}/parts"
    objects = [item.path for item in snapshot.store.list_objects(folder, recursive=True)]
    segments = []
    for path in sorted(path for path in objects if path.endswith(f"/{_ENTRY}")):
        try:
            entry = table_pb2.IndexMetadata.FromString(snapshot.store.read(path))
            covered = covered_fragments(entry) or BitMap()
        except DecodeError as error:
            raise FormatError(f"undecodable part of an index: {error}", path) from error
        except FormatError as error:
            raise error.at(path=path) from error
        segments.append(Segment(entry, covered, snapshot.store, path.rpartition("/")[0]))
    if not segments:
        raise IndexNotFoundError(f"there are no parts of an index {number} to merge")
    merged = _merge(snapshot, segments, number)
    snapshot.store.delete_many(objects, snapshot.root)
    return merged


def fill_entry(snapshot: Snapshot, entry: table_pb2.IndexMetadata) -> None:
    """Fill the missing files and index kind of a segment's entry, based on the files in its directory."""
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
    """Return the segment of an uncommitted entry."""
    store, directory = snapshot.bases.index_dir(entry)
    return Segment(entry, covered_fragments(entry) or BitMap(), store, directory)


def merge_segments(snapshot: Snapshot, entries: Sequence[table_pb2.IndexMetadata]) -> table_pb2.IndexMetadata:
    """Merge uncommitted segments into a new one, and return its manifest entry. The inputs keep their files.

    Raises:
        OptionError: the segments belong to different indexes, or two of them cover the same fragment.
    """
    return _merge(snapshot, [part_segment(snapshot, entry) for entry in entries], None)


def _merge(
    snapshot: Snapshot, segments: Sequence[Segment], number: uuid.UUID | None
) -> table_pb2.IndexMetadata:
    first = segments[0].entry
    covered = BitMap()
    for segment in segments:
        entry = segment.entry
        if (index_label(entry), list(entry.fields)) != (index_label(first), list(first.fields)):
            raise OptionError("only segments of one kind of index over one column can be merged")
        if covered & segment.covered:
            raise OptionError(f"two parts cover fragment {min(covered & segment.covered)}: build one of them")
        covered |= segment.covered
    kinds = {index.label: index for index in SCALAR_INDICES.values()}
    index = kinds.get(index_label(first))
    if index is None:
        raise OptionError(f"segments of an index {index_label(first)!r} cannot be merged here")
    column = snapshot.schema.field_path(int(first.fields[0]))
    field = indexed_field(snapshot.schema, column, index)
    kind = plain(pa.chunked_array([], field.arrow_type())).type
    indices = [index(segment, kind) for segment in segments]
    options = indices[0].options()
    if any(other.options() != options for other in indices):
        raise OptionError("the parts of an index were built with different options")
    with new_segment(snapshot.table, number) as new_part:
        directory = index_directory(snapshot.root, new_part)
        version = snapshot.manifest.file_version
        target = SegmentTarget(snapshot.store, directory, version, options)
        by_address = indices[0].has_addresses or not snapshot.manifest.uses_stable_row_ids
        existing_rows = partial(RowResolver(snapshot).existing_rows, are_addresses=by_address)
        files = index.merge(segments, kind, target, existing_rows)
        if files is None:
            fragments = [each for each in snapshot.fragments if each.id in covered]
            if len(fragments) < len(covered):
                raise OptionError(
                    "fragments of the parts are gone: open the version that they were built from"
                )
            return build_segment(snapshot, column, index, first.name, fragments, options, new_part)
    return new_entry(
        first.name,
        new_part,
        list(first.fields),
        min(segment.entry.dataset_version for segment in segments),
        covered,
        index.type_url,
        index.details(options),
        first.index_version,
        files,
    )
