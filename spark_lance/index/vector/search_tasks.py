"""Run searches as distributed tasks.

A search plan can be pickled, and opens the table version by itself. Each task returns its best rows; the
result of the search is the best rows of all tasks.

Queries of a large batch are routed: each query goes to its nearest index partitions and to all unindexed
fragments. These places are numbered, so that (query, place) rows can be grouped by place. Places are first
the partitions of the plan's segments, segment by segment, then the fragment tasks.
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
from spark_lance.table.reading.system_columns import filterable_schema


@dataclass(frozen=True)
class SearchPlan:
    """A search of one version of a table.

    Attributes:
        table: the version.
        query: the query. `run_task` searches for its vectors.
        tasks: the parts of the search.
        filter: SQL condition; only rows that match are returned.
    """

    table: SnapshotRef
    query: VectorQuery
    tasks: tuple[SearchTask, ...]
    filter: str | None

    def open(self) -> VectorSearch:
        """Open the version for search."""
        return VectorSearch(self.table.load(), self.query.column)


def plan_search(snapshot: Snapshot, query: VectorQuery, filter: str | None = None) -> SearchPlan:
    """Split a search into one task per segment, and tasks of unindexed fragments by rows.

    Raises:
        OptionError: the query does not fit the column.
        ExpressionError: the filter does not fit the table.
    """
    search = VectorSearch(snapshot, query.column)
    query = query.cast_to(search.kind)
    if filter is not None:
        compile_predicate(filter, filterable_schema(snapshot.schema))
    return SearchPlan(snapshot.ref(), query, tuple(search.plan(query, apart=True)), filter)


def run_task(plan: SearchPlan, task: SearchTask) -> list[TopK]:
    """Return the best rows of one task for each vector of the plan's query.

    Raises:
        FormatError, UnsupportedFormatError: files of the index or the table are damaged or not supported.
    """
    search = plan.open()
    return search.answer(plan.query, task, search.allowed(plan.filter, task))


class Routing:
    """Maps query vectors to the places of a search, and searches a place.

    Args:
        plan: the search. The number of vectors in its query does not matter.
    """

    def __init__(self, plan: SearchPlan) -> None:
        self._plan = plan
        self._search = plan.open()
        self._segments = [
            (task, *pair)
            for task in plan.tasks
            for pair in (self._search.segments(task) if task.segments else [])
        ]
        self._fragment_tasks = [task for task in plan.tasks if task.fragments]
        counts = [len(content.ivf) for _, _, content in self._segments]
        # The first place of each segment, then the place of the first fragment task.
        self._starts = np.cumsum([0, *counts])

    @property
    def dimension(self) -> int:
        """Number of values of a vector."""
        return int(self._plan.query.vectors.shape[1])

    def places(self, vectors: Vectors) -> npt.NDArray[np.int64]:
        """Return the places (q, n) to search for each vector (q, dim)."""
        probes = [
            start + content.ivf.probe(content.ivf.prepared(vectors), self._plan.query.minimum_nprobes)
            for start, (_, _, content) in zip(self._starts, self._segments, strict=False)
        ]
        fragment_places = self._starts[-1] + np.arange(len(self._fragment_tasks))
        return np.concatenate(
            [*probes, np.broadcast_to(fragment_places, (len(vectors), len(fragment_places)))], axis=1
        )

    def answer(self, place: int, vectors: Vectors) -> list[TopK]:
        """Return the best rows of a place for each vector (q, dim).

        Raises:
            FormatError, UnsupportedFormatError: files of the index or the table are damaged or not supported.
        """
        search = self._search
        query = replace(self._plan.query, vectors=vectors).cast_to(search.kind)
        if place >= self._starts[-1]:
            task = self._fragment_tasks[place - int(self._starts[-1])]
            return search.answer(query, task, search.allowed(self._plan.filter, task))
        segment_index = int(np.searchsorted(self._starts, place, side="right")) - 1
        task, segment, content = self._segments[segment_index]
        allowed = search.allowed(self._plan.filter, task)
        number = place - int(self._starts[segment_index])
        result = search.search_segment(query, segment, content, allowed).search_partition(number)
        return search.refined(query.vectors, result, task.metric) if task.exactly else result
