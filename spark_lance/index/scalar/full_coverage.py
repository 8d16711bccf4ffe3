"""Answer queries from indexes alone, if an index covers every fragment of a version.

`exact_rows` returns the rows that match a condition without reading the columns.
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

# Maximum index entries per batch.
LONGEST_RUN = 1 << 18


@dataclass(frozen=True)
class FullCoverageIndex:
    """The segments of one index that covers every fragment of a version exactly once."""

    snapshot: Snapshot
    resolver: RowResolver
    kind: Any
    segments: tuple[Any, ...]

    @property
    def names_addresses(self) -> bool:
        """Whether entries refer to rows by address. A row id may belong to a row updated since."""
        pruner = find_pruner(self.snapshot)
        return pruner is not None and pruner.refers_to_rows(self.segments)

    @cached_property
    def live(self) -> int:
        """Number of live rows of the version."""
        return self.snapshot.live_rows()

    def live_addresses(self, segment: ScalarIndex, numbers: Addresses) -> Addresses:
        """Return the addresses of a segment's entries that are live rows of the version."""
        addresses, counts = self.row_addresses(segment, numbers)
        return addresses[counts]

    def row_addresses(
        self, segment: ScalarIndex, numbers: Addresses
    ) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return the addresses of entries, and the mask of entries that are live rows of the version."""
        if not len(numbers):
            return np.empty(0, np.uint64), np.empty(0, np.bool_)
        return self.resolver.addresses(numbers, segment.segment.covered, are_addresses=segment.has_addresses)

    def numbers(self, data: bytes) -> Iterator[Addresses]:
        """Yield the row numbers of an encoded set, in batches of at most `LONGEST_RUN`."""
        physical = {fragment.id: fragment for fragment in self.snapshot.fragments}
        existing_rows = self.resolver.existing_rows(
            RowSet.from_bytes(data), are_addresses=self.names_addresses
        )
        for fragment, rows in existing_rows.items():
            if rows is None and fragment not in physical:
                continue
            numbers = range(self.snapshot.physical_rows(physical[fragment])) if rows is None else rows
            for start in range(0, len(numbers), LONGEST_RUN):
                yield row_addresses(fragment, np.array(numbers[start : start + LONGEST_RUN], np.uint64))


def find_pruner(snapshot: Snapshot) -> ScalarPruner | None:
    """Return the pruner of a version's scalar indexes; None if the version has no index."""
    return next((pruner for pruner in snapshot.scan([]).pruners if isinstance(pruner, ScalarPruner)), None)


def full_coverage_indices(
    snapshot: Snapshot, path: Sequence[str], kinds: Collection[type[ScalarIndex]]
) -> Iterator[FullCoverageIndex]:
    """Yield the indexes of a column that cover every fragment of a version.

    Args:
        snapshot: the version.
        path: the column, or the path of a field in a struct column.
        kinds: index classes to consider.
    """
    fields = snapshot.schema.find_path(path)
    pruner = find_pruner(snapshot)
    # Scans read JSON documents as text, which sorts differently from their bytes.
    if fields is None or pruner is None or fields[-1].is_json:
        return
    present = BitMap(fragment.id for fragment in snapshot.fragments)
    by_name: dict[tuple[Any, str], list[ScalarIndex]] = {}
    for index in pruner.find_indexes(fields[-1].id):
        if type(index) in kinds:
            by_name.setdefault((type(index), index.segment.name), []).append(index)
    for (kind, _), parts in by_name.items():
        if covers_once(parts, present):
            yield FullCoverageIndex(snapshot, pruner.resolver, kind, tuple(parts))


def exact_rows(snapshot: Snapshot, trees: Sequence[Expression], most_bytes: int) -> RowSet | None:
    """Return the live rows that match all conditions; None if no index can answer exactly.

    Args:
        snapshot: the version.
        trees: the conditions, bound to the version's schema.
        most_bytes: approximate limit of index bytes to read for one part of a condition.

    Raises:
        FormatError: an index or a deletion file is damaged.
    """
    pruner = find_pruner(snapshot)
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
    """Return the rows where a column is null; None if no index can answer exactly."""
    return exact_rows(snapshot, [Call("is_null", (Column(tuple(path)),))], most_bytes)
