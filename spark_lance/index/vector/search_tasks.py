"""A search whose tasks are answered by tasks: it can be pickled, and opens the table's version by itself.

Each task answers with its best rows; the best of all answers are the answer of the search.
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import SearchTask, VectorSearch
from spark_lance.index.vector.top_k import TopK
from spark_lance.table.predicates.predicate import compile_predicate
from spark_lance.table.reading.snapshot import Snapshot, SnapshotRef
from spark_lance.table.reading.system_columns import nameable

__all__ = ["SearchPlan", "plan_search", "run_task"]


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
