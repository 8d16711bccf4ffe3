"""Compare the rows of two versions of a table without stable row ids by the primary key.

An update, a merge or a compaction changes the address of a row, but not its key. Rows whose key is in both
versions have changed if a value differs. Memory holds the keys of the rows that differ and about 60 bytes per
row; the values are read piece by piece.

Columns of every type are compared row by row. Two values are equal if a reader cannot tell them apart: nulls
are equal, NaN equals NaN, and 0.0 differs from -0.0, because floats are compared by their bits.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import numpy_type, one_array, pick_rows
from spark_lance.file.base.schema import Field, Schema
from spark_lance.proto import table_pb2
from spark_lance.table.format.row_keys import KeyIndex
from spark_lance.table.format.row_set import (
    Addresses,
    Offsets,
    address_offsets,
    row_addresses,
    runs_by_fragment,
)
from spark_lance.table.reading.compare import ComparedRows, IdentifiedRows, Rows, compare_rows
from spark_lance.table.reading.row_lookup import read_rows
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.schema.keys import primary_key

Flags = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

_BITS = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def equal_values(left: pa.Array | pa.ChunkedArray, right: pa.Array | pa.ChunkedArray) -> Flags:
    """Return a mask of the rows in which two columns of the same length and type have the same value."""
    one, other = _storage_array(one_array(left)), _storage_array(one_array(right))
    valid, valid_other = _valid_mask(one), _valid_mask(other)
    result: Flags = valid == valid_other
    both = valid & valid_other
    if both.any():
        result &= ~both | _equal_non_nulls(one, other, both)
    return result


def _equal_non_nulls(left: pa.Array, right: pa.Array, both: Flags) -> Flags:
    """Compare the rows in which neither value is null; the result is undefined for other rows."""
    kind = left.type
    if pa.types.is_struct(kind):
        result: Flags = np.ones(len(left), np.bool_)
        for place in range(kind.num_fields):
            result &= equal_values(left.field(place), right.field(place))
        return result
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        items = [array.values.slice(array.offset * size, len(array) * size) for array in (left, right)]
        return np.asarray(equal_values(*items).reshape(len(left), size).all(axis=1), np.bool_)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _equal_lists(left, right, both)
    if pa.types.is_floating(kind):
        left, right = (_float_bits(array) for array in (left, right))
    try:
        answer = pc.equal(left, right)
    except pa.ArrowNotImplementedError:
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return np.array([one == other for one, other in pairs], np.bool_)
    return np.asarray(answer.fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def _equal_lists(left: pa.Array, right: pa.Array, both: Flags) -> Flags:
    offsets, others = (array.offsets.to_numpy().astype(np.int64) for array in (left, right))
    lengths = np.diff(offsets)
    result: Flags = both & (lengths == np.diff(others))
    rows = np.flatnonzero(result)
    counts = lengths[rows]
    ends = np.cumsum(counts)
    places = np.arange(int(counts.sum())) - np.repeat(ends - counts, counts)
    items = equal_values(
        _take(left.values, places + np.repeat(offsets[rows], counts)),
        _take(right.values, places + np.repeat(others[rows], counts)),
    )
    # The number of differing items before each item: equal lists have the same number at both ends.
    differing = np.concatenate([np.zeros(1, np.int64), np.cumsum(~items)])
    result[rows] = differing[ends] == differing[ends - counts]
    return result


def _storage_array(array: pa.Array) -> pa.Array:
    """Return an array without extension types and dictionaries."""
    if isinstance(array.type, pa.BaseExtensionType):
        return _storage_array(array.storage)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _valid_mask(array: pa.Array) -> Flags:
    flags: Flags = array.is_valid().to_numpy(zero_copy_only=False)
    return flags


def _float_bits(array: pa.Array) -> pa.Array:
    bits = _BITS[array.type.bit_width]
    mask = array.is_null().to_numpy(zero_copy_only=False)
    numbers = np.array(array.to_numpy(zero_copy_only=False), numpy_type(array.type), copy=True)
    numbers[np.isnan(numbers)] = np.nan
    return pa.array(numbers.view(numpy_type(bits)), bits, mask=mask)


def _take(values: pa.Array, places: Int64Array) -> pa.ChunkedArray:
    return pick_rows(pa.table([values], names=["item"]), places).column(0)


Fragment = table_pb2.DataFragment
RowsOf = Sequence[tuple[Fragment, Rows]]


@dataclass(frozen=True)
class KeyComparison:
    """The differences of the rows of two versions, see `compare_rows`.

    Attributes:
        older, newer: the rows of the two versions. Rows whose key is not unique in a version match no row.
        repeated: a key that is not unique, as text; None if every key is unique.
    """

    older: list[ComparedRows]
    newer: list[ComparedRows]
    repeated: str | None


def shared_key(old: Schema, new: Schema) -> tuple[Field, ...]:
    """Return the primary key of the newer schema if the older schema has the same key; else ()."""
    before, after = primary_key(old), primary_key(new)
    same = [(f.id, f.arrow_type()) for f in before] == [(f.id, f.arrow_type()) for f in after]
    return after if same else ()


def compare_by_key(
    old: Snapshot, new: Snapshot, before: RowsOf, after: RowsOf, modified: Container[int] = ()
) -> KeyComparison:
    """Match rows of two versions by the primary key, which both versions share.

    Args:
        old, new: the versions.
        before, after: fragments of each version with the physical offsets of rows, ascending.
        modified: see `comparison_steps`.

    Raises:
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    before, after = _in_scan_order(old, before), _in_scan_order(new, after)
    keys, old_keys = (_read_keys(at, rows) for at, rows in ((new, after), (old, before)))
    index = KeyIndex(keys)
    codes, old_codes = index.codes, index.lookup(old_keys)
    repeated: str | None = None
    counts, old_counts = (np.bincount(c[c >= 0], minlength=index.size) for c in (codes, old_codes))
    unique = (counts == 1) & (old_counts <= 1)
    if not unique.all():
        row = int(np.flatnonzero(codes == np.flatnonzero(~unique)[0])[0])
        names = [field.name for field in primary_key(new.schema)]
        repeated = ", ".join(f"{n} = {column[row].as_py()!r}" for n, column in zip(names, keys, strict=True))
    # The row position of each code; -1 if no row has it.
    positions, old_positions = (_positions_by_code(c, index.size, unique) for c in (codes, old_codes))
    matched = np.flatnonzero((positions >= 0) & (old_positions >= 0))
    matched = matched[np.argsort(positions[matched])]
    pairs = all_addresses(before)[old_positions[matched]], all_addresses(after)[positions[matched]]
    changed = find_differences(old, new, *pairs, comparison_steps(new.schema.fields, modified))
    ids = np.arange(len(codes), dtype=np.uint64)
    old_ids = np.arange(len(codes), len(codes) + len(old_codes), dtype=np.uint64)
    old_ids[old_positions[matched]] = ids[positions[matched]]
    updated = np.zeros(len(codes), np.uint64)
    updated[positions[matched]] = changed
    older, newer = compare_rows(
        list(_identify(before, old_ids, np.zeros(len(old_codes), np.uint64))),
        _identify(after, ids, updated),
    )
    return KeyComparison(older, newer, repeated)


def _in_scan_order(at: Snapshot, rows: RowsOf) -> RowsOf:
    places = {fragment.id: place for place, fragment in enumerate(at.fragments)}
    return sorted(rows, key=lambda item: places[item[0].id])


def _positions_by_code(codes: Int64Array, size: int, unique: Flags) -> Int64Array:
    places: Int64Array = np.full(size, -1, np.int64)
    rows = np.flatnonzero(codes >= 0)
    places[codes[rows]] = rows
    places[~unique] = -1
    return places


def _identify(
    rows: RowsOf, ids: npt.NDArray[np.uint64], updated: npt.NDArray[np.uint64]
) -> Iterator[IdentifiedRows]:
    first = 0
    for fragment, offsets in rows:
        part = slice(first, first + len(offsets))
        yield IdentifiedRows(fragment, offsets, ids[part], updated[part])
        first = part.stop


def _read_keys(at: Snapshot, rows: RowsOf) -> list[pa.ChunkedArray]:
    """Return the columns of the primary key, with rows in the order of `rows`."""
    paths = [_path_to_leaf(at.schema, field) for field in primary_key(at.schema)]
    tops = list({path[0].id: path[0] for path in paths}.values())
    tables = [table for _, _, table in read_rows(at, _by_fragment(rows), tops)]
    types = [path[-1].arrow_type() for path in paths]
    if not tables:
        return [pa.chunked_array([], kind) for kind in types]
    table = pa.concat_tables(tables)
    columns = []
    for path in paths:
        column = table.column(path[0].name)
        for field in path[1:]:
            column = pc.struct_field(column, field.name)
        columns.append(column)
    return columns


def _path_to_leaf(schema: Schema, leaf: Field) -> list[Field]:
    """Return the fields from a top-level column down to a leaf."""

    def visit(field: Field) -> list[Field] | None:
        if field.id == leaf.id:
            return [field]
        below = next((path for path in map(visit, field.children) if path), None)
        return None if below is None else [field, *below]

    return next(path for path in map(visit, schema.fields) if path)


def _by_fragment(rows: RowsOf) -> Mapping[int, Offsets]:
    return {fragment.id: offsets.astype(np.uint32) for fragment, offsets in rows if len(offsets)}


def find_differences(
    old: Snapshot,
    new: Snapshot,
    old_addresses: Addresses,
    addresses: Addresses,
    steps: Sequence[Sequence[Field]],
) -> Flags:
    """Return a mask of pairs of rows in which a value differs.

    Args:
        old, new: the versions.
        old_addresses, addresses: the row of each version, pair by pair. The fragments of `addresses` are in
            scan order.
        steps: the fields of the newer version to compare, see `comparison_steps`. A step reads only the pairs
            in which no field of an earlier step differs.

    Raises:
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    result: Flags = np.zeros(len(addresses), np.bool_)
    for fields in steps:
        rest = np.flatnonzero(~result)
        if fields and len(rest):
            result[rest] = _differences_in(old, new, old_addresses[rest], addresses[rest], fields)
    return result


def comparison_steps(fields: Iterable[Field], modified: Container[int] = ()) -> list[list[Field]]:
    """Return top-level fields in the order in which to compare them: those that probably differ first.

    Args:
        fields: the fields.
        modified: ids of the fields whose values an update assigned, as far as its writer lists them.

    Returns:
        Modified flat fields, modified wide fields, other flat fields, and other wide fields.
    """
    steps: list[list[Field]] = [[], [], [], []]
    for field in fields:
        is_modified = any(node.id in modified for node in field.walk())
        steps[(0 if is_modified else 2) + (0 if is_flat(field) else 1)].append(field)
    return steps


def is_flat(field: Field) -> bool:
    """Return whether a column has neither nested values nor blobs."""
    return not field.children and not field.is_blob and not pa.types.is_nested(field.arrow_type())


def _differences_in(
    old: Snapshot, new: Snapshot, old_addresses: Addresses, addresses: Addresses, fields: Sequence[Field]
) -> Flags:
    result: Flags = np.zeros(len(addresses), np.bool_)
    old_by_id = {field.id: field for field in old.schema.fields}
    old_fields = [old_by_id[field.id] for field in fields if field.id in old_by_id]
    start = 0
    for _, offsets, table in read_rows(new, offsets_by_fragment(addresses), fields):
        stop = start + len(offsets)
        for field in fields:
            if field.id not in old_by_id:
                result[start:stop] |= table.column(field.name).is_valid().to_numpy()
        pieces = _read_in_pieces(old, old_addresses[start:stop], old_fields) if old_fields else ()
        for places, old_table in pieces:
            rows = pick_rows(table, places)
            for field in fields:
                if field.id in old_by_id:
                    old_column = old_table.column(old_by_id[field.id].name)
                    result[start + places] |= ~_equal_columns(old_column, rows.column(field.name))
        start = stop
    return result


def _equal_columns(old_column: pa.ChunkedArray, column: pa.ChunkedArray) -> Flags:
    if old_column.type != column.type:
        try:
            old_column = old_column.cast(column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            pairs = zip(old_column.to_pylist(), column.to_pylist(), strict=True)
            return np.array([one == other for one, other in pairs], np.bool_)
    return equal_values(old_column, column)


def all_addresses(rows: RowsOf) -> Addresses:
    """Return the addresses of the rows of fragments, one fragment after another."""
    parts = [row_addresses(fragment.id, offsets) for fragment, offsets in rows]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def offsets_by_fragment(addresses: Addresses) -> dict[int, Offsets]:
    """Return fragment id -> physical offsets of addresses, which are grouped by fragment."""
    """Return fragment id -> physical offsets; the addresses must be grouped by fragment."""
    return {number: address_offsets(addresses[part]) for number, part in runs_by_fragment(addresses)}


def _read_in_pieces(
    at: Snapshot, addresses: Addresses, fields: Sequence[Field]
) -> Iterator[tuple[Int64Array, pa.Table]]:
    """Yield the rows at addresses in pieces, each with the positions of its rows in `addresses`."""
    order = np.argsort(addresses, kind="stable")
    ascending = addresses[order]
    for number, offsets, table in read_rows(at, offsets_by_fragment(ascending), fields):
        places = np.searchsorted(ascending, row_addresses(number, offsets.astype(np.int64)))
        yield order[places], table
