"""Searching by vector in Spark jobs: one search, or a join with many.

For one search there is a task per segment of the index, and one per million rows that are not indexed. Each
answers with its best rows. Spark keeps the best of all, and a task fetches their columns.

Many searches: see `batch_search`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyspark.sql.functions as F
import pyspark.sql.types as st

from spark_lance.datasets.searching import DISTANCE, SCORE
from spark_lance.index.search_rows import allowed_rows
from spark_lance.index.text.search import TextQuery, TextSearch, parse_text_query
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import SearchTask
from spark_lance.index.vector.search_tasks import SearchPlan, plan_search, run_task
from spark_lance.spark.jobs import scatter
from spark_lance.spark.lance_table.base import TableBase
from spark_lance.spark.lance_table.batch_search import any_vector, nearest_to_each
from spark_lance.spark.lance_table.found_rows import FOUND, SCORED, fetch_rows, shown_columns, with_measured
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.table.reading.snapshot import SnapshotRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Searching", "TextPlan", "answer_text", "run_search", "vector_query"]

_QUERY_ID = "query_id"


class Searching(TableBase):
    """The rows nearest to vectors, and those that answer words."""

    def search(
        self,
        vector: Sequence[float] | Sequence[Sequence[float]],
        column: str,
        k: int = 10,
        metric: str | None = None,
        *,
        nprobes: int | None = None,
        refineFactor: int | None = None,
        ef: int | None = None,
        filter: str | None = None,
        prefilter: bool = True,
        columns: Sequence[str] | None = None,
        fastSearch: bool = False,
        useIndex: bool = True,
    ) -> DataFrame:
        """Return the k rows nearest to a vector, nearest first, with the column `_distance`.

        Args:
            vector: as many numbers as the column's vectors have; a list of such for a column of lists of
                vectors.
            column: a column of vectors.
            k: rows.
            metric: by default that of the index, l2 without one. An index of another metric is not used.
            nprobes: partitions of the index that are looked at; by default 20, and more until there are k
                rows.
            refineFactor: this many times k rows are fetched from the index and compared exactly.
            ef: effort in graphs.
            filter: SQL condition on the rows.
            prefilter: whether the filter comes before the search, so that k of its rows come, or is applied
                to the k nearest rows.
            columns: the columns of the result; all by default.
            fastSearch: leave out rows that are not indexed.
            useIndex: False compares every row exactly.

        Raises:
            OptionError: the query does not fit the column.
            ExpressionError: the filter does not fit the table.
            SchemaError: a column does not exist.
        """
        table = self._dataset()
        query = vector_query(
            vector, column, k, metric, nprobes, refineFactor, ef, fastSearch=fastSearch, useIndex=useIndex
        )
        plan = plan_search(table.snapshot, query, filter if prefilter else None)
        later = None if prefilter else filter
        schema = shown_columns(table.manifest, columns, DISTANCE)
        output = schema if later is None else shown_columns(table.manifest, None, DISTANCE)
        tasks = [(plan, piece) for piece in plan.tasks]
        best = scatter(self.spark, tasks, run_search, FOUND).orderBy(DISTANCE, "_address").limit(k)
        results = best.coalesce(1).mapInArrow(fetch_rows(plan.table, output, ()), with_measured(output, ()))
        results = results.orderBy(DISTANCE)
        return results if later is None else results.where(later).select(*schema.names, DISTANCE)

    def searchBatch(
        self,
        queries: DataFrame,
        column: str,
        k: int = 10,
        metric: str | None = None,
        *,
        queryVector: str = "vector",
        queryId: str = "id",
        nprobes: int | None = None,
        refineFactor: int | None = None,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        fastSearch: bool = False,
        useIndex: bool = True,
    ) -> DataFrame:
        """Return the k rows nearest to each of many vectors: `query_id`, the columns, `_distance`.

        Args:
            queries: a DataFrame of vectors and their ids.
            column: a column of vectors.
            k: rows per query.
            metric: see `search`.
            queryVector: the column of `queries` with the vectors, or with lists of them for a column of such;
                rows without one are left out.
            queryId: the column of `queries` that tells them apart.
            nprobes: partitions of each segment that a query looks at, 20 by default.
            refineFactor, filter, fastSearch, useIndex: see `search`; the filter comes before the search.
            columns: the columns of the table in the result; all by default.

        Raises:
            OptionError: an option cannot be used.
            SchemaError: a column does not exist.
        """
        table = self._dataset()
        query = vector_query(
            any_vector(table.manifest, column),
            column,
            k,
            metric,
            nprobes,
            refineFactor,
            None,
            fastSearch=fastSearch,
            useIndex=useIndex,
        )
        plan = plan_search(table.snapshot, query, filter)
        schema = shown_columns(table.manifest, columns, DISTANCE, _QUERY_ID)
        vectors = queries.select(F.col(queryId).alias(_QUERY_ID), F.col(queryVector))
        return nearest_to_each(plan, table.manifest, schema, vectors, _QUERY_ID)

    def textSearch(
        self,
        query: str,
        column: str,
        k: int = 10,
        *,
        operator: str = "or",
        phrase: bool = False,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        fastSearch: bool = False,
    ) -> DataFrame:
        """Return the k rows that answer a query of words best, best first, with the column `_score` (BM25).

        One task looks the words up in the index of the column, and in the texts of rows without one.

        Args:
            query: words; they are cut as the index cuts its texts.
            column: a column of text.
            k: rows.
            operator: whether a row needs one of the words ("or") or all of them ("and").
            phrase: whether the words must stand side by side.
            filter: SQL condition on the rows, applied before the search.
            columns: the columns of the result; all by default.
            fastSearch: leave out rows that are not indexed.

        Raises:
            OptionError: an option cannot be used.
            SchemaError: a column does not exist, or holds no text.
        """
        table = self._dataset()
        request = {"query": query, "column": column, "operator": operator, "phrase": phrase}
        column, parsed = parse_text_query(table.manifest, {**request, "fast_search": fastSearch}, k)
        TextSearch(table.snapshot, column)
        schema = shown_columns(table.manifest, columns, SCORE)
        plan = TextPlan(table.snapshot.ref(), column, parsed, filter)
        results = scatter(self.spark, [plan], answer_text, SCORED)
        fetched = results.coalesce(1).mapInArrow(
            fetch_rows(plan.table, schema, (), SCORE), with_measured(schema, (), SCORE)
        )
        return fetched.orderBy(F.desc(SCORE))


@dataclass(frozen=True)
class TextPlan:
    """A search for words in one version of a table."""

    table: SnapshotRef
    column: str
    query: TextQuery
    filter: str | None


def answer_text(plan: TextPlan) -> Iterator[pa.RecordBatch]:
    """Yield the addresses and scores of the rows that a search for words finds, best first."""
    snapshot = plan.table.load()
    results = TextSearch(snapshot, plan.column).run(plan.query, allowed_rows(snapshot, plan.filter))
    yield _batch(results.addresses, results.scores, SCORED)


def vector_query(
    vector: Sequence[float] | Sequence[Sequence[float]],
    column: str,
    k: int,
    metric: str | None,
    nprobes: int | None,
    refine: int | None,
    ef: int | None,
    *,
    fastSearch: bool,
    useIndex: bool,
) -> VectorQuery:
    """Return what is searched, with the arguments of `Searching.search`."""
    return VectorQuery.parse(
        {
            "column": column,
            "q": vector,
            "k": k,
            "metric": metric,
            "nprobes": nprobes,
            "refine_factor": refine,
            "ef": ef,
            "fast_search": fastSearch,
            "use_index": useIndex,
        }
    )


def run_search(task: tuple[SearchPlan, SearchTask]) -> Iterator[pa.RecordBatch]:
    """Yield the addresses and distances of the best rows of one task."""
    (results,) = run_task(*task)
    yield _batch(results.addresses, results.distances, FOUND)


def _batch(
    addresses: npt.NDArray[np.uint64], values: npt.NDArray[np.float32], schema: st.StructType
) -> pa.RecordBatch:
    columns = [pa.array(addresses.view(np.int64)), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))
