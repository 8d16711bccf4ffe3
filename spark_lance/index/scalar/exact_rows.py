"""The exact rows of a version for which a condition is true, where indices find them without reading rows.

The condition is a tree of "and" and "or", whose other parts are each about one column. A BTREE or a BITMAP
answers such a part if it covers the whole version and refers to rows by address. It compares the values that
it holds, which are the rows' values, by the same code as a scan. Deleted rows are left out. If a result is
not certain, there is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from spark_lance.errors import ExpressionError
from spark_lance.expressions.expressions import Call, Column, Expression
from spark_lance.index.resolve import RowResolver
from spark_lance.index.scalar.bitmap import Bitmap
from spark_lance.index.scalar.btree import BTree
from spark_lance.index.scalar.covering import LONGEST_RUN, Covering, coverings
from spark_lance.index.scalar.probe import Probe, conjuncts, probe_of
from spark_lance.table.addresses import Addresses, fragments_of, offsets_of, row_addresses, rows_by_fragment
from spark_lance.table.reading.snapshot import Snapshot

__all__ = ["RowsOfVersion", "can_tell", "exact_rows", "rows_without"]

_EXACT = (BTree, Bitmap)


@dataclass(frozen=True)
class RowsOfVersion:
    """Some rows of a version, none of them deleted, by fragment."""

    by_fragment: Mapping[int, BitMap]

    def __len__(self) -> int:
        return sum(map(len, self.by_fragment.values()))

    def has(self, addresses: Addresses) -> npt.NDArray[np.bool_]:
        """Return which addresses are among the rows."""
        result = np.zeros(len(addresses), np.bool_)
        homes, offsets = fragments_of(addresses), offsets_of(addresses)
        for fragment in np.unique(homes).tolist():
            rows = self.by_fragment.get(fragment)
            if rows:
                mine = np.flatnonzero(homes == fragment)
                here = offsets[mine].astype(np.uint32)
                result[mine] = np.isin(here, np.array(rows & BitMap(here), np.uint32))
        return result

    def __and__(self, other: RowsOfVersion) -> RowsOfVersion:
        both = self.by_fragment.keys() & other.by_fragment.keys()
        return RowsOfVersion({key: self.by_fragment[key] & other.by_fragment[key] for key in both})

    def __or__(self, other: RowsOfVersion) -> RowsOfVersion:
        either = dict(self.by_fragment)
        for key, rows in other.by_fragment.items():
            either[key] = either[key] | rows if key in either else rows
        return RowsOfVersion(either)


def exact_rows(snapshot: Snapshot, tree: Expression, most_bytes: int) -> RowsOfVersion | None:
    """Return the rows for which a condition is true; None if no index tells exactly.

    Args:
        snapshot: the version.
        tree: the condition, fitted to the version.
        most_bytes: what may be read of the index for one part of the condition, about.

    Raises:
        FormatError: an index, or the table's deletions, are damaged.
    """
    result: RowsOfVersion | None = None
    for conjunct in conjuncts([tree]):
        part = _part_rows(snapshot, conjunct, most_bytes)
        if part is None:
            return None
        result = part if result is None else result & part
    return result


def _part_rows(snapshot: Snapshot, tree: Expression, most_bytes: int) -> RowsOfVersion | None:
    """Return the same of one of the `conjuncts` of a condition."""
    if isinstance(tree, Call) and tree.function == "or" and tree.arguments:
        result: RowsOfVersion | None = None
        for argument in tree.arguments:
            part = exact_rows(snapshot, argument, most_bytes)
            if part is None:
                return None
            result = part if result is None else result | part
        return result
    inner = tree.arguments[0] if isinstance(tree, Call) and tree.function == "not" else None
    if isinstance(inner, Call) and inner.function == "is_null":
        # Spark adds it to every comparison. It is true or false, never unknown.
        without = exact_rows(snapshot, inner, most_bytes)
        return None if without is None else _others(snapshot, without)
    probe = probe_of(tree)
    if probe is None:
        return None
    for index in coverings(snapshot, probe.path, _EXACT):
        if index.names_addresses and (rows := _found(index, probe, most_bytes)) is not None:
            return rows
    return None


def can_tell(snapshot: Snapshot, tree: Expression) -> bool:
    """Return whether there is an index for every part of a condition; `exact_rows` may have no answer yet."""
    if isinstance(tree, Call) and tree.function in ("and", "or", "not") and tree.arguments:
        return all(can_tell(snapshot, argument) for argument in tree.arguments)
    probe = probe_of(tree)
    return probe is not None and any(
        index.names_addresses for index in coverings(snapshot, probe.path, _EXACT)
    )


def rows_without(snapshot: Snapshot, path: Sequence[str], most_bytes: int) -> RowsOfVersion | None:
    """Return the rows that have no value in a column; None if no index tells."""
    return exact_rows(snapshot, Call("is_null", (Column(tuple(path)),)), most_bytes)


def _others(snapshot: Snapshot, rows: RowsOfVersion) -> RowsOfVersion:
    """Return the other rows of a version, but for deleted ones."""
    resolver = RowResolver(snapshot)
    result = {}
    for fragment in snapshot.fragments:
        every = BitMap(range(snapshot.physical_rows(fragment)))
        every -= BitMap(resolver.deletions(fragment.id))
        result[fragment.id] = every - rows.by_fragment.get(fragment.id, BitMap())
    return RowsOfVersion(result)


def _found(index: Covering, probe: Probe, most_bytes: int) -> RowsOfVersion | None:
    by_fragment: dict[int, BitMap] = {}
    for segment in index.segments:
        try:
            size = segment.find_bytes(probe)
            with segment.segment.decoding():
                rows = None if size is None or size > most_bytes else segment.find(probe)
        except ExpressionError:
            return None  # the scan says what is wrong with the condition
        if rows is None:
            return None
        for fragment, here in rows.items():
            for address, live_rows in _alive(index, segment, fragment, here).items():
                by_fragment[address] = (
                    by_fragment[address] | live_rows if address in by_fragment else live_rows
                )
    return RowsOfVersion(by_fragment)


def _alive(
    index: Covering, segment: BTree | Bitmap, fragment: int, rows: BitMap | None
) -> Mapping[int, BitMap]:
    """Return those of the rows that a segment names which are rows of the version."""
    present = {each.id: each for each in index.snapshot.fragments}
    if rows is None:
        if fragment not in present:
            return {}
        rows = BitMap(range(index.snapshot.physical_rows(present[fragment])))
    if not index.resolver.has_moves:
        if fragment not in present or fragment not in segment.segment.covered:
            return {}
        index.resolver.check({fragment: rows})
        return {fragment: rows - BitMap(index.resolver.deletions(fragment))}
    result: dict[int, BitMap] = {}
    for start in range(0, len(rows), LONGEST_RUN):
        numbers = row_addresses(fragment, np.array(rows[start : start + LONGEST_RUN], np.uint64))
        for home, here in rows_by_fragment(index.alive(segment, numbers)).items():
            result[home] = result[home] | here if home in result else here
    return result
