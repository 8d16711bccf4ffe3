"""Answers from indexes alone, where their segments cover a whole version.

`exact_rows` returns the rows for which a condition is true, without reading the columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from spark_lance.expressions.expressions import Call, Column, Expression
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.pruner import ScalarPruner, covers_once
from spark_lance.table.format.row_set import Addresses, RowSet, row_addresses
from spark_lance.table.reading.snapshot import Snapshot

# Entries that are looked at together.
LONGEST_RUN = 1 << 18


@dataclass(frozen=True)
class FullCoverageIndex:
    """The segments of one index; together they cover every fragment, each of them once."""

    snapshot: Snapshot
    resolver: RowResolver
    kind: Any
    segments: tuple[Any, ...]

    @property
    def names_addresses(self) -> bool:
        """Whether entries name rows of this version, not values of rows that were changed since."""
        pruner = pruner_of(self.snapshot)
        return pruner is not None and pruner.refers_to_rows(self.segments)

    @cached_property
    def live(self) -> int:
        """The rows of the version."""
        return self.snapshot.live_rows()

    def alive(self, segment: ScalarIndex, numbers: Addresses) -> Addresses:
        """Return the addresses of those entries of a segment that are rows of the version."""
        addresses, counts = self.row_addresses(segment, numbers)
        return addresses[counts]

    def row_addresses(
        self, segment: ScalarIndex, numbers: Addresses
    ) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return the addresses of entries, and which of them are rows of the version."""
        if not len(numbers):
            return np.empty(0, np.uint64), np.empty(0, np.bool_)
        return self.resolver.addresses(numbers, segment.segment.covered, are_addresses=segment.has_addresses)

    def numbers(self, data: bytes) -> Iterator[Addresses]:
        """Yield the entries of a stored set of rows, in pieces."""
        physical = {fragment.id: fragment for fragment in self.snapshot.fragments}
        bounded = self.resolver.bounded(RowSet.from_bytes(data), are_addresses=self.names_addresses)
        for fragment, rows in bounded.items():
            if rows is None and fragment not in physical:
                continue
            numbers = range(self.snapshot.physical_rows(physical[fragment])) if rows is None else rows
            for start in range(0, len(numbers), LONGEST_RUN):
                yield row_addresses(fragment, np.array(numbers[start : start + LONGEST_RUN], np.uint64))


def pruner_of(snapshot: Snapshot) -> ScalarPruner | None:
    """Return the open scalar indices of a version; None if it has no index."""
    return next((pruner for pruner in snapshot.scan([]).pruners if isinstance(pruner, ScalarPruner)), None)


def full_coverage_indices(
    snapshot: Snapshot, path: Sequence[str], kinds: Collection[type[ScalarIndex]]
) -> Iterator[FullCoverageIndex]:
    """Yield the indices of some kinds on a column that cover a whole version.

    Args:
        snapshot: the version.
        path: the column, by a longer path a field in a struct column.
        kinds: classes of indices.
    """
    fields = snapshot.schema.along(path)
    pruner = pruner_of(snapshot)
    # Documents of JSON are read as text, which has another order than their bytes.
    if fields is None or pruner is None or fields[-1].is_json:
        return
    present = BitMap(fragment.id for fragment in snapshot.fragments)
    by_name: dict[tuple[Any, str], list[ScalarIndex]] = {}
    for index in pruner.indices_of(fields[-1].id):
        if type(index) in kinds:
            by_name.setdefault((type(index), index.segment.name), []).append(index)
    for (kind, _), parts in by_name.items():
        if covers_once(parts, present):
            yield FullCoverageIndex(snapshot, pruner.resolver, kind, tuple(parts))


def exact_rows(snapshot: Snapshot, trees: Sequence[Expression], most_bytes: int) -> RowSet | None:
    """Return the live rows for which all of some conditions are true; None if no index knows exactly.

    Args:
        snapshot: the version.
        trees: the conditions, fitted to the version.
        most_bytes: about the most bytes that may be read of the index for one part of a condition.

    Raises:
        FormatError: an index, or the table's deletions, are damaged.
    """
    pruner = pruner_of(snapshot)
    answer = None if pruner is None else pruner.exact_answer(trees, snapshot.fragments, most_bytes)
    if pruner is None or answer is None:
        return None
    fragments = {fragment.id: fragment for fragment in snapshot.fragments}
    whole = [number for number, rows in answer.rows.items() if rows is None]
    with_deletions = [number for number in answer.rows if fragments[number].HasField("deletion_file")]
    sizes = {number: snapshot.physical_rows(fragments[number]) for number in whole}
    deleted = {number: BitMap(pruner.resolver.deletions(number)) for number in with_deletions}
    return answer.rows.with_sizes(sizes) - RowSet(deleted)


def rows_without(snapshot: Snapshot, path: Sequence[str], most_bytes: int) -> RowSet | None:
    """Return the rows that have no value in a column; None if no index knows."""
    return exact_rows(snapshot, [Call("is_null", (Column(tuple(path)),))], most_bytes)
