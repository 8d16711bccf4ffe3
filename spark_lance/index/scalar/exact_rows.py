"""The rows of a version for which a condition is true, where indices know them without a look at the rows."""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from spark_lance.expressions.expressions import Call, Column, Expression
from spark_lance.index.scalar.full_coverage import pruner_of
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.snapshot import Snapshot


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
