"""Compare the rows of two versions of a table without stable row ids by the primary key.

An update, a merge or a compaction changes the address of a row, but not its key. Rows whose key is in both
versions have changed if a value differs. Memory holds the keys of the rows that differ and about 60 bytes per
row; the values are read piece by piece.

Columns of every type are compared row by row. Two values are equal if a reader cannot tell them apart: nulls
are equal, NaN equals NaN, and 0.0 differs from -0.0, because floats are compared by their bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


def compare_by_key(old: Snapshot, new: Snapshot, before: RowsOf, after: RowsOf) -> KeyComparison:
    """Match rows of two versions by the primary key, which both versions share.

    Args:
        old, new: the versions.
        before, after: fragments of each version with the physical offsets of rows, ascending.

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
    changed = _find_changes(old, new, (before, old_positions[matched]), (after, positions[matched]))
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


def _find_changes(
    old: Snapshot, new: Snapshot, before: tuple[RowsOf, Int64Array], after: tuple[RowsOf, Int64Array]
) -> Flags:
    """Return a mask of the pairs of rows with the same key in which a value differs.

    Args:
        old, new: the versions.
        before, after: rows, and for each pair the position of its row among them. The positions of `after`
            ascend.
    """
    result: Flags = np.zeros(len(after[1]), np.bool_)
    addresses, old_addresses = (_addresses(rows)[places] for rows, places in (after, before))
    fields = list(new.schema.fields)
    old_by_id = {field.id: field for field in old.schema.fields}
    old_fields = [old_by_id[field.id] for field in fields if field.id in old_by_id]
    start = 0
    for _, offsets, table in read_rows(new, _offsets_by_fragment(addresses), fields):
        stop = start + len(offsets)
        old_table = _take_rows(old, old_addresses[start:stop], old_fields)
        for field in fields:
            if field.id in old_by_id:
                old_column = old_table.column(old_by_id[field.id].name)
                result[start:stop] |= ~_equal_columns(old_column, table.column(field.name))
            else:
                result[start:stop] |= table.column(field.name).is_valid().to_numpy()
        start = stop
    return result


def _equal_columns(old_column: pa.ChunkedArray, column: pa.ChunkedArray) -> Flags:
    if old_column.type != column.type:
        try:
            old_column = old_column.cast(column.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pairs = zip(old_column.to_pylist(), column.to_pylist(), strict=True)
            return np.array([one == other for one, other in pairs], np.bool_)
    return equal_values(old_column, column)


def _addresses(rows: RowsOf) -> Addresses:
    parts = [row_addresses(fragment.id, offsets) for fragment, offsets in rows]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _offsets_by_fragment(addresses: Addresses) -> dict[int, Offsets]:
    """Return fragment id -> physical offsets; the addresses must be grouped by fragment."""
    return {number: address_offsets(addresses[part]) for number, part in runs_by_fragment(addresses)}


def _take_rows(at: Snapshot, addresses: Addresses, fields: Sequence[Field]) -> pa.Table:
    """Return the rows at addresses, in the order of `addresses`."""
    order = np.argsort(addresses, kind="stable")
    ascending = addresses[order]
    tables, row_addresses_read = [], []
    for number, offsets, table in read_rows(at, _offsets_by_fragment(ascending), fields):
        tables.append(table)
        row_addresses_read.append(row_addresses(number, offsets.astype(np.int64)))
    everything = pa.concat_tables(tables)
    read = np.concatenate(row_addresses_read)
    places = np.argsort(read, kind="stable")
    return pick_rows(everything, places[np.searchsorted(read[places], addresses)].astype(np.int64))
