"""A search cut into shares that run anywhere: some segments of the index, or some fragments without one.

Each share answers with its best rows; the best of all answers are the answer of the search. A share can be
pickled, and opens the version of the table by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyroaring import BitMap

from spark_lance.index.columns import leaf_field
from spark_lance.index.entries import Segment
from spark_lance.index.vector.best import Found, merged
from spark_lance.index.vector.metrics import Metric
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import VectorSearch
from spark_lance.index.vector.storage import VectorSegment
from spark_lance.proto import table_pb2
from spark_lance.table.predicates.predicate import compile_predicate
from spark_lance.table.reading.snapshot import Snapshot, SnapshotRef
from spark_lance.table.reading.system_columns import nameable

__all__ = ["SearchPlan", "Share", "chosen_segments", "plan_search", "run_share"]

# Rows of fragments without an index that one task compares.
_SHARE_ROWS = 1 << 20


@dataclass(frozen=True)
class Share:
    """A part of the rows that are searched: segments by uuid, or fragments by id."""

    segments: tuple[bytes, ...] = ()
    fragments: tuple[int, ...] = ()


@dataclass(frozen=True)
class SearchPlan:
    """A search of one version of a table.

    Attributes:
        table: the version.
        query: what is searched; its vectors are those of `run_share`.
        metric: by which rows are compared.
        exactly: whether candidates of the index are compared exactly.
        filter: SQL; only rows for which it is true are found.
        shares: the parts of the search.
    """

    table: SnapshotRef
    query: VectorQuery
    metric: Metric
    exactly: bool
    filter: str | None
    shares: tuple[Share, ...]

    def open(self) -> VectorSearch:
        """Open the version for searching."""
        return VectorSearch(self.table.load(), self.query.column)


def plan_search(snapshot: Snapshot, query: VectorQuery, filter: str | None = None) -> SearchPlan:
    """Cut a search into shares: a segment each, and fragments by rows.

    Raises:
        OptionError: the query does not fit the column.
        ExpressionError: the filter does not fit the table.
    """
    search = VectorSearch(snapshot, query.column)
    query = query.fitted(leaf_field(snapshot.schema, query.column).arrow_type())
    if filter is not None:
        compile_predicate(filter, nameable(snapshot.schema))
    metric = search.metric(query)
    used = search.used_segments(query, metric)
    covered = BitMap().union(*(pair[0].covered for pair in used)) if used else BitMap()
    loose = [fragment for fragment in snapshot.fragments if fragment.id not in covered]
    if used and query.fast_search:
        loose = []
    shares = [Share(segments=(segment.entry.uuid.uuid,)) for segment, _ in used]
    shares += [Share(fragments=tuple(f.id for f in part)) for part in _by_rows(loose)]
    exactly = query.refine_factor is not None or bool(used and loose)
    return SearchPlan(snapshot.ref(), query, metric, exactly, filter, tuple(shares))


def _by_rows(fragments: Sequence[table_pb2.DataFragment]) -> list[list[table_pb2.DataFragment]]:
    parts: list[list[table_pb2.DataFragment]] = []
    room = 0
    for fragment in fragments:
        if fragment.physical_rows > room or not parts:
            parts.append([])
            room = _SHARE_ROWS
        parts[-1].append(fragment)
        room -= fragment.physical_rows
    return parts


def run_share(plan: SearchPlan, share: Share) -> list[Found]:
    """Return the best rows of one share for each vector of the plan's query.

    Raises:
        FormatError, UnsupportedFormatError: files of the index or the table are damaged or not supported.
    """
    search = plan.open()
    query = plan.query
    if share.fragments:
        chosen = search.fragments(share.fragments)
        allowed = search.allowed(plan.filter, share.fragments)
        return search.exact(query.vectors, chosen, plan.metric, query.k, allowed)
    found = [
        search.in_segment(query, segment, stored, search.allowed(plan.filter, segment.covered))
        for segment, stored in chosen_segments(search, plan, share)
    ]
    best = merged(found, query.wanted)
    if plan.exactly:
        best = search.refined(query.vectors, best, plan.metric)
    return [Found.best([part], query.k) for part in best]


def chosen_segments(
    search: VectorSearch, plan: SearchPlan, share: Share
) -> list[tuple[Segment, VectorSegment]]:
    """Return the segments of a share."""
    used = search.used_segments(plan.query, plan.metric)
    return [pair for pair in used if pair[0].entry.uuid.uuid in share.segments]
