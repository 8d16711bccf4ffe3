"""Scalar indices of tables: building and extending their segments without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.errors import ColumnTypeError, IndexNotFoundError
from spark_lance.file.schema import Field, Schema
from spark_lance.index.building import Numbers, Rows, SegmentTarget
from spark_lance.index.columns import column_values, leaf_field, top_column
from spark_lance.index.commit import commit_segments, new_segment
from spark_lance.index.entries import check_extensible, check_name, index_directory, new_entry, segments_of
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.kinds import SCALAR_INDICES, scalar_kind
from spark_lance.io.progress import report
from spark_lance.proto import table_pb2
from spark_lance.table.manifest import Manifest
from spark_lance.table.predicates.geometries import extension_of
from spark_lance.table.predicates.values import plain
from spark_lance.table.reading.scan import ROW_ADDRESS, ROW_ID
from spark_lance.table.reading.snapshot import Snapshot

__all__ = [
    "build_segment",
    "create_scalar_index",
    "extend_scalar_index",
    "indexed_field",
    "write_segment",
]

_WINDOW_BYTES = 32 << 20


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
        column: a column, or with dots a field in a struct column.
        kind: a key of `SCALAR_INDICES`.
        name: of the index, `{column}_idx` by default.
        replace: whether an index of the name may be replaced; if not, one is an OptionError.
        options: of INVERTED and JSON.
        train: false makes an index of no rows, for `extend_scalar_index` to fill.

    Raises:
        SchemaError: the column does not exist, or cannot be indexed so.
        OptionError: there is no such kind or option, or the name is taken.
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


def indexed_field(schema: Schema, column: str, index: type[ScalarIndex]) -> Field:
    """Return the field of a column that is to be indexed.

    Raises:
        SchemaError: it does not exist, or its type cannot be indexed so.
    """
    field = leaf_field(schema, column)
    kind = plain(pa.chunked_array([], field.arrow_type())).type
    if not index.fits_field(field, kind):
        raise ColumnTypeError(
            f"column {column!r} is {field.read_field().type}: that cannot have an index {index.name}"
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
    """Write a segment that covers some fragments, and return its entry; nothing is committed.

    If that fails, no files are left.
    """
    with new_segment(snapshot.store, snapshot.root, number) as made:
        directory = index_directory(snapshot.root, made)
        return write_segment(snapshot, column, index, name, fragments, made, directory, options)


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
    """Write the files of a segment into a folder, and return its entry."""
    field = indexed_field(snapshot.schema, column, index)
    version = index.index_version(snapshot.manifest.uses_stable_row_ids)
    by_address = index.built_by_address(snapshot.manifest.uses_stable_row_ids, options or {})
    number_column = ROW_ADDRESS if by_address else ROW_ID
    kind = plain(pa.chunked_array([], field.arrow_type())).type
    physical = {f.id: snapshot.physical_rows(f) for f in fragments}
    pieces = partial(_pieces, snapshot, fragments, column, number_column)
    rows = Rows(pieces, kind, physical, extension_of(field.arrow_field()))
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


def _pieces(
    snapshot: Snapshot, fragments: Sequence[table_pb2.DataFragment], column: str, number: str
) -> Iterator[tuple[pa.Array, Numbers]]:
    scan = snapshot.scan([top_column(snapshot.schema, column), number], fragments=fragments)
    total = sum(scan.live_rows(fragment) for fragment in fragments)
    done = 0
    for table in scan.tables(target_bytes=_WINDOW_BYTES):
        done += table.num_rows
        report("reading values", done, total, "rows")
        values = plain(column_values(table, column))
        rows = table.column(number).to_numpy()
        first = 0
        for chunk in values.chunks:
            yield chunk, rows[first : first + len(chunk)].astype(np.uint64, copy=False)
            first += len(chunk)


def _not_usable(snapshot: Snapshot, name: str) -> IndexNotFoundError:
    """Return why an index is not among those that are used."""
    for entry in snapshot.manifest.indices:
        if entry.name == name and entry.fields:
            column = snapshot.schema.path_of(int(entry.fields[0]))
            return IndexNotFoundError(
                f"index {name!r} of column {column!r} has a form that is not read here, old or new: drop it "
                f"with drop_index({name!r}), and build it anew"
            )
    return IndexNotFoundError(f"there is no scalar index {name!r} here")


def extend_scalar_index(snapshot: Snapshot, name: str, *, merge: int | None = None) -> Manifest:
    """Index the fragments that an index does not cover yet.

    Args:
        snapshot: the version.
        name: of the index.
        merge: how many of the newest segments become one with the new rows: their fragments are read again.
            0 adds a segment, None merges all, and so does a segment that cannot stand beside new ones.

    Raises:
        IndexNotFoundError: there is no scalar index of the name.
        CommitError: the commit failed; see its subclasses.
    """
    for index in SCALAR_INDICES.values():
        segments = [
            segment for segment in segments_of(snapshot, index.label, index.newest) if segment.name == name
        ]
        if segments:
            break
    else:
        raise _not_usable(snapshot, name)
    check_extensible(snapshot.manifest, name, segments)
    covered = BitMap().union(*(segment.covered for segment in segments))
    fresh = [fragment for fragment in snapshot.fragments if fragment.id not in covered]
    merged = segments if merge is None else segments[max(len(segments) - merge, 0) :]
    if fresh and not all(index(segment).stands_beside() for segment in segments):
        merged = segments
    if not fresh and len(merged) < 2:
        return snapshot.manifest
    again = BitMap().union(*(segment.covered for segment in merged)) if merged else BitMap()
    fragments = [f for f in snapshot.fragments if f.id in again or f.id not in covered]
    column = snapshot.schema.path_of(int(segments[-1].entry.fields[0]))
    options = index(segments[-1]).options()
    entry = build_segment(snapshot, column, index, name, fragments, options)
    return commit_segments(snapshot, [entry], [segment.entry for segment in merged])
