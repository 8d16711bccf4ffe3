"""Leave out rows that a version wrote again with the values that they had.

An upsert or update writes each matching row again, whether or not a value differs. Rows of the two versions
are paired by stable row id, or else by a digest of their flat values, and all values of a pair are compared.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import one_array
from spark_lance.arrow.murmur3 import hash_bytes
from spark_lance.file.base.schema import Field
from spark_lance.proto import table_pb2
from spark_lance.table.format.row_set import Addresses, row_addresses
from spark_lance.table.reading.compare import ComparedRows, IdentifiedRows, Rows
from spark_lance.table.reading.compare_keys import (
    all_addresses,
    comparison_steps,
    find_differences,
    offsets_by_fragment,
)
from spark_lance.table.reading.row_lookup import read_rows
from spark_lance.table.reading.snapshot import Snapshot

Fragment = table_pb2.DataFragment
RowsOf = Sequence[tuple[Fragment, Rows]]
Digests = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

_NULL = np.uint64(0x51ED270B)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def without_equal_rows(
    versions: tuple[Snapshot, Snapshot],
    before: tuple[Sequence[IdentifiedRows], Sequence[ComparedRows]],
    after: tuple[Sequence[IdentifiedRows], Sequence[ComparedRows]],
    modified: Container[int],
) -> tuple[list[ComparedRows], list[ComparedRows]]:
    """Return the differences of rows without the changed rows that have the same values in both versions.

    Args:
        versions: the older and the newer version.
        before, after: the rows of each version with their ids, and their differences from `compare_rows`. The
            fragments of `after` are in scan order.
        modified: see `comparison_steps`.

    Raises:
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    old_ids, old_addresses = _changed_rows(*before)
    ids, addresses = _changed_rows(*after)
    order = np.argsort(old_ids, kind="stable")
    old_addresses = old_addresses[order[np.searchsorted(old_ids[order], ids)]]
    steps = comparison_steps(versions[1].schema.fields, modified)
    equal = ~find_differences(*versions, old_addresses, addresses, steps)
    return _without(before[1], old_addresses[equal]), _without(after[1], addresses[equal])


def _changed_rows(
    identified: Sequence[IdentifiedRows], compared: Sequence[ComparedRows]
) -> tuple[Digests, Addresses]:
    ids, addresses = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for rows, differences in zip(identified, compared, strict=True):
        changed = np.isin(rows.offsets, differences.changed, assume_unique=True)
        ids.append(rows.ids[changed])
        addresses.append(row_addresses(rows.fragment.id, rows.offsets[changed]))
    return np.concatenate(ids), np.concatenate(addresses)


def _without(compared: Sequence[ComparedRows], equal: Addresses) -> list[ComparedRows]:
    return [
        ComparedRows(rows.fragment, rows.alone, _other_rows(rows.fragment, rows.changed, equal))
        for rows in compared
    ]


def _other_rows(fragment: Fragment, offsets: Rows, equal: Addresses) -> Rows:
    return offsets[~np.isin(row_addresses(fragment.id, offsets), equal, assume_unique=True)]


def remove_equal_rows(
    versions: tuple[Snapshot, Snapshot], removed: RowsOf, added: RowsOf, modified: Container[int]
) -> tuple[list[Rows], list[Rows]] | None:
    """Return the offsets of removed and added rows without pairs of equal rows; None if there is no pair.

    Memory holds about 32 bytes per row; values are read piece by piece. Rows that agree in all flat columns
    are paired in their order. If no removed row agrees with an added row in the modified flat columns, no
    other column is read.

    Args:
        versions: the older and the newer version.
        removed, added: fragments of each version with the physical offsets of rows, ascending, in scan order.
        modified: see `comparison_steps`.

    Raises:
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    old, new = versions
    types = {field.id: field.arrow_type() for field in old.schema.fields}
    shared = [field for field in new.schema.fields if types.get(field.id) == field.arrow_type()]
    first, _, others, _ = comparison_steps(shared, modified)
    if not first and not others:
        return None
    old_addresses, addresses = all_addresses(removed), all_addresses(added)
    if first and others:
        old_digests, digests = _digests(old, old_addresses, first), _digests(new, addresses, first)
        old_addresses = old_addresses[np.isin(old_digests, digests)]
        addresses = addresses[np.isin(digests, old_digests)]
    if not len(addresses):
        return None
    flat = [*first, *others]
    places, new_places = _pair_equal(_digests(old, old_addresses, flat), _digests(new, addresses, flat))
    old_addresses, addresses = old_addresses[places], addresses[new_places]
    steps = comparison_steps(new.schema.fields, modified)
    equal = ~find_differences(old, new, old_addresses, addresses, steps)
    if not equal.any():
        return None
    return (
        [_other_rows(fragment, offsets, old_addresses[equal]) for fragment, offsets in removed],
        [_other_rows(fragment, offsets, addresses[equal]) for fragment, offsets in added],
    )


def _pair_equal(old: Digests, new: Digests) -> tuple[Places, Places]:
    """Return the positions of pairs of equal digests, each row in one pair; those in `new` ascend."""
    order, old_order = np.argsort(new, kind="stable"), np.argsort(old, kind="stable")
    values, old_values = new[order], old[old_order]
    rank = np.arange(len(values)) - np.searchsorted(values, values)
    places = np.searchsorted(old_values, values) + rank
    is_pair = places < len(old_values)
    is_pair[is_pair] = old_values[places[is_pair]] == values[is_pair]
    others = order[is_pair]
    ascending = np.argsort(others, kind="stable")
    return old_order[places[is_pair]][ascending], others[ascending]


def _digests(at: Snapshot, addresses: Addresses, fields: Sequence[Field]) -> Digests:
    """Return a digest of the values of each row, given the fields of any version."""
    by_id = {field.id: field for field in at.schema.fields}
    parts = [np.empty(0, np.uint64)]
    for _, _, table in read_rows(at, offsets_by_fragment(addresses), [by_id[field.id] for field in fields]):
        digest: Digests = np.zeros(table.num_rows, np.uint64)
        for column in table.columns:
            with np.errstate(over="ignore"):
                digest = (digest ^ _column_digests(one_array(column))) * _FACTOR
                digest ^= digest >> np.uint64(29)
        parts.append(digest)
    return np.concatenate(parts)


def _column_digests(column: pa.Array) -> Digests:
    """Return a number for each value, equal for equal values; 0 for values of a type without a digest."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    result: Digests
    if pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
        result = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy().view(np.uint64).copy()
    elif pa.types.is_integer(column.type) or pa.types.is_temporal(column.type):
        if pa.types.is_temporal(column.type):
            column = column.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
        result = pc.fill_null(column, 0).to_numpy().astype(np.int64, casting="unsafe").view(np.uint64)
    elif _is_text(column.type):
        texts = pc.fill_null(column.cast(pa.large_binary()), b"")
        low, high = (hash_bytes(texts, seed).astype(np.uint64) for seed in (0, 1))
        result = low | high << np.uint64(32)
    else:
        return np.zeros(len(column), np.uint64)
    result[nulls] = _NULL
    return result


def _is_text(kind: pa.DataType) -> bool:
    """Return whether values are strings or bytes of any length."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )
