"""Searches that are answered by tasks.

A plan of a search can be pickled, and opens the table's version by itself. Each task answers with its best
rows; the best of all answers are the answer of the search.

Queries of a large batch are routed: each goes to the index partitions nearest to it, and to all rows without
an index. These places are numbered, so that rows with a query and a place can be brought together by place:
first the partitions of the plan's segments, segment by segment, then its tasks of fragments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from spark_lance.expressions.predicate import compile_predicate
from spark_lance.index.vector.base.metrics import Vectors
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import SearchTask, VectorSearch
from spark_lance.index.vector.top_k import TopK
from spark_lance.table.reading.snapshot import Snapshot, SnapshotRef
from spark_lance.table.reading.system_columns import nameable


@dataclass(frozen=True)
class SearchPlan:
    """A search of one version of a table.

    Attributes:
        table: the version.
        query: what is searched; its vectors are those of `run_task`.
        tasks: the parts of the search.
        filter: SQL; only rows for which it is true are found.
    """

    table: SnapshotRef
    query: VectorQuery
    tasks: tuple[SearchTask, ...]
    filter: str | None

    def open(self) -> VectorSearch:
        """Open the version for searching."""
        return VectorSearch(self.table.load(), self.query.column)


def plan_search(snapshot: Snapshot, query: VectorQuery, filter: str | None = None) -> SearchPlan:
    """Cut a search into tasks: a segment each, and fragments by rows.

    Raises:
        OptionError: the query does not fit the column.
        ExpressionError: the filter does not fit the table.
    """
    search = VectorSearch(snapshot, query.column)
    query = query.fitted(search.kind)
    if filter is not None:
        compile_predicate(filter, nameable(snapshot.schema))
    return SearchPlan(snapshot.ref(), query, tuple(search.plan(query, apart=True)), filter)


def run_task(plan: SearchPlan, task: SearchTask) -> list[TopK]:
    """Return the best rows of one task for each vector of the plan's query.

    Raises:
        FormatError, UnsupportedFormatError: files of the index or the table are damaged or not supported.
    """
    search = plan.open()
    return search.answer(plan.query, task, search.allowed(plan.filter, task))


class Routing:
    """The places of a search, in the process that opens it.

    Args:
        plan: the search; the number of vectors in its query does not matter.
    """

    def __init__(self, plan: SearchPlan) -> None:
        self._plan = plan
        self._search = plan.open()
        self._segments = [
            (task, *pair)
            for task in plan.tasks
            for pair in (self._search.segments(task) if task.segments else [])
        ]
        self._loose = [task for task in plan.tasks if task.fragments]
        counts = [len(content.ivf) for _, _, content in self._segments]
        # The first place of every segment, then that of the first task of fragments.
        self._starts = np.cumsum([0, *counts])

    @property
    def dimension(self) -> int:
        """How many numbers a vector has."""
        return int(self._plan.query.vectors.shape[1])

    def places(self, vectors: Vectors) -> npt.NDArray[np.int64]:
        """Return the places where each of some vectors (q, dim) looks: (q, n)."""
        probes = [
            start + content.ivf.probe(content.ivf.prepared(vectors), self._plan.query.minimum_nprobes)
            for start, (_, _, content) in zip(self._starts, self._segments, strict=False)
        ]
        rest = self._starts[-1] + np.arange(len(self._loose))
        return np.concatenate([*probes, np.broadcast_to(rest, (len(vectors), len(rest)))], axis=1)

    def answer(self, place: int, vectors: Vectors) -> list[TopK]:
        """Return the best rows of a place for each of some vectors (q, dim).

        Raises:
            FormatError, UnsupportedFormatError: files of the index or the table are damaged or not supported.
        """
        search = self._search
        query = replace(self._plan.query, vectors=vectors).fitted(search.kind)
        if place >= self._starts[-1]:
            task = self._loose[place - int(self._starts[-1])]
            return search.answer(query, task, search.allowed(self._plan.filter, task))
        which = int(np.searchsorted(self._starts, place, side="right")) - 1
        task, segment, content = self._segments[which]
        allowed = search.allowed(self._plan.filter, task)
        number = place - int(self._starts[which])
        result = search.in_segment(query, segment, content, allowed).in_partition(number)
        return search.refined(query.vectors, result, task.metric) if task.exactly else result
