"""Searching by vector, by words and by both in Spark jobs: one search, or a join with many.

For one search there is a task per segment of the index, and one per million rows that are not indexed. Each
answers with its best rows. Spark keeps the best of all, and a task fetches their columns.

Many searches: see `batch_search`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyspark.sql.functions as F
import pyspark.sql.types as st

from spark_lance.datasets.hybrid import RELEVANCE, HybridQuery, fuse
from spark_lance.datasets.searching import DISTANCE, SCORE
from spark_lance.index.base.search_rows import allowed_rows
from spark_lance.index.fusion import RANK_CONSTANT
from spark_lance.index.text.search import TextQuery, TextSearch, TextTopK, parse_text_query
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import SearchTask
from spark_lance.index.vector.search_tasks import SearchPlan, plan_search, run_task
from spark_lance.index.vector.top_k import TopK
from spark_lance.spark.driver.jobs import run_to_frame
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.table.base import TableBase
from spark_lance.spark.table.batch_search import any_vector, nearest_to_each
from spark_lance.spark.table.found_rows import FOUND, SCORED, fetch_rows, shown_columns, with_measured
from spark_lance.spark.worker.failures import one_line
from spark_lance.table.reading.snapshot import SnapshotRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_lance.table.reading.snapshot import Snapshot

_QUERY_ID = "query_id"
_PARTS = (st.StructField(DISTANCE, st.FloatType()), st.StructField(SCORE, st.FloatType()))
_RELEVANCE = st.StructField(RELEVANCE, st.FloatType(), False)
_ADDRESS = FOUND.fields[0]
_FUSED = st.StructType([_ADDRESS, *_PARTS, _RELEVANCE])


@dataclass(frozen=True)
class TableSearches:
    """The rows nearest to vectors, and those that answer words."""

    table: TableBase

    def nearest(
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
        table = self.table.dataset()
        query = vector_query(
            vector, column, k, metric, nprobes, refineFactor, ef, fastSearch=fastSearch, useIndex=useIndex
        )
        plan = plan_search(table.snapshot, query, filter if prefilter else None)
        later = None if prefilter else filter
        schema = shown_columns(table.manifest, columns, DISTANCE)
        output = schema if later is None else shown_columns(table.manifest, None, DISTANCE)
        tasks = [(plan, piece) for piece in plan.tasks]
        best = run_to_frame(self.table.spark, tasks, run_search, FOUND).orderBy(DISTANCE, "_address").limit(k)
        results = best.coalesce(1).mapInArrow(fetch_rows(plan.table, output, ()), with_measured(output, ()))
        results = results.orderBy(DISTANCE)
        return results if later is None else results.where(later).select(*schema.names, DISTANCE)

    def batch(
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
        table = self.table.dataset()
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

    def text(
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
        table = self.table.dataset()
        request = {"query": query, "column": column, "operator": operator, "phrase": phrase}
        column, parsed = parse_text_query(table.manifest, {**request, "fast_search": fastSearch}, k)
        TextSearch(table.snapshot, column)
        schema = shown_columns(table.manifest, columns, SCORE)
        plan = TextPlan(table.snapshot.ref(), column, parsed, filter)
        results = run_to_frame(self.table.spark, [plan], answer_text, SCORED)
        fetched = results.coalesce(1).mapInArrow(
            fetch_rows(plan.table, schema, (), SCORE), with_measured(schema, (), SCORE)
        )
        return fetched.orderBy(F.desc(SCORE))

    def hybrid(
        self,
        vector: Sequence[float],
        query: str,
        vectorColumn: str,
        textColumn: str,
        k: int = 10,
        *,
        vectorWeight: float = 1.0,
        textWeight: float = 1.0,
        rankConstant: float = RANK_CONSTANT,
        candidates: int | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refineFactor: int | None = None,
        operator: str = "or",
        phrase: bool = False,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        fastSearch: bool = False,
        useIndex: bool = True,
    ) -> DataFrame:
        """Return the k rows that a vector search and a text search rank best together, best first.

        A row's `_relevance_score` is `vectorWeight / (rankConstant + rank)` of the vector search plus
        `textWeight / (rankConstant + rank)` of the text search. A search that has not ranked the row adds
        nothing, and its `_distance` or `_score` is null.

        Args:
            vector: as many numbers as the column's vectors have.
            query: words.
            vectorColumn, textColumn: the columns that are searched.
            k: rows.
            vectorWeight, textWeight, rankConstant: of the formula; not negative, the constant above 0.
            candidates: rows that each search ranks; by default 100, or k if that is more.
            metric, nprobes, refineFactor, useIndex: of the search by vector, see `search`.
            operator, phrase: of the search by words, see `textSearch`.
            filter: SQL condition on the rows, applied before the searches.
            columns: the columns of the result; all by default.
            fastSearch: leave out rows that are not indexed.

        Raises:
            OptionError: an option cannot be used.
            ExpressionError: the filter does not fit the table.
            SchemaError: a column does not exist, or cannot be searched so.
        """
        table = self.table.dataset()
        near = {"column": vectorColumn, "q": vector, "metric": metric, "nprobes": nprobes}
        near |= {"refine_factor": refineFactor, "fast_search": fastSearch, "use_index": useIndex}
        words = {"query": query, "column": textColumn, "operator": operator, "phrase": phrase}
        request: dict[str, Any] = {
            "nearest": near,
            "full_text_query": {**words, "fast_search": fastSearch},
            "k": k,
        }
        request |= {"vector_weight": vectorWeight, "text_weight": textWeight}
        request |= {"rank_constant": rankConstant, "candidates": candidates}
        schema = shown_columns(table.manifest, columns, DISTANCE, SCORE, RELEVANCE)
        return self._fused(table.snapshot, HybridQuery.parse(table.manifest, request), filter, schema)

    def _fused(
        self, snapshot: Snapshot, query: HybridQuery, filter: str | None, schema: st.StructType
    ) -> DataFrame:
        """Return the rows that both searches rank best, with the columns of `schema`."""
        plan = plan_search(snapshot, query.vector, filter)
        TextSearch(snapshot, query.text_column)  # It refuses a column that has no words.
        by_vector = run_to_frame(self.table.spark, [(plan, piece) for piece in plan.tasks], run_search, FOUND)
        by_vector = by_vector.orderBy(DISTANCE, _ADDRESS.name).limit(query.vector.k)
        text = TextPlan(snapshot.ref(), query.text_column, query.text, filter)
        by_words = run_to_frame(self.table.spark, [text], answer_text, SCORED)
        ranked = by_vector.withColumn(SCORE, F.lit(None).cast("float")).unionByName(
            by_words.withColumn(DISTANCE, F.lit(None).cast("float"))
        )
        fused = ranked.coalesce(1).mapInArrow(_fusing(query), _FUSED)
        fetched = fused.mapInArrow(
            fetch_rows(text.table, schema, _PARTS, RELEVANCE), with_measured(schema, _PARTS, RELEVANCE)
        )
        names = [*schema.names, DISTANCE, SCORE, RELEVANCE]
        return fetched.orderBy(F.desc(RELEVANCE)).select(
            *(F.col(f"`{name.replace('`', '``')}`") for name in names)
        )


@dataclass(frozen=True)
class SearchableTable(TableBase):
    """A table with its searches, as a part and as methods."""

    @property
    def searches(self) -> TableSearches:
        """Searches by vector and by words."""
        return TableSearches(self)

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
        """See `searches.nearest`."""
        return self.searches.nearest(
            vector,
            column,
            k,
            metric,
            nprobes=nprobes,
            refineFactor=refineFactor,
            ef=ef,
            filter=filter,
            prefilter=prefilter,
            columns=columns,
            fastSearch=fastSearch,
            useIndex=useIndex,
        )

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
        """Return the k rows nearest to each of many vectors; see `searches.batch`."""
        return self.searches.batch(
            queries,
            column,
            k,
            metric,
            queryVector=queryVector,
            queryId=queryId,
            nprobes=nprobes,
            refineFactor=refineFactor,
            filter=filter,
            columns=columns,
            fastSearch=fastSearch,
            useIndex=useIndex,
        )

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
        """See `searches.text`."""
        return self.searches.text(
            query,
            column,
            k,
            operator=operator,
            phrase=phrase,
            filter=filter,
            columns=columns,
            fastSearch=fastSearch,
        )

    def hybridSearch(
        self,
        vector: Sequence[float],
        query: str,
        vectorColumn: str,
        textColumn: str,
        k: int = 10,
        *,
        vectorWeight: float = 1.0,
        textWeight: float = 1.0,
        rankConstant: float = RANK_CONSTANT,
        candidates: int | None = None,
        metric: str | None = None,
        nprobes: int | None = None,
        refineFactor: int | None = None,
        operator: str = "or",
        phrase: bool = False,
        filter: str | None = None,
        columns: Sequence[str] | None = None,
        fastSearch: bool = False,
        useIndex: bool = True,
    ) -> DataFrame:
        """See `searches.hybrid`."""
        return self.searches.hybrid(
            vector,
            query,
            vectorColumn,
            textColumn,
            k,
            vectorWeight=vectorWeight,
            textWeight=textWeight,
            rankConstant=rankConstant,
            candidates=candidates,
            metric=metric,
            nprobes=nprobes,
            refineFactor=refineFactor,
            operator=operator,
            phrase=phrase,
            filter=filter,
            columns=columns,
            fastSearch=fastSearch,
            useIndex=useIndex,
        )


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


def _fusing(query: HybridQuery) -> Any:
    """Return what makes one ranking of all candidates."""

    def fusing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            ranked = pa.Table.from_batches(batches, schema=_CANDIDATES)
            near = _ranked(ranked, DISTANCE)
            words = _ranked(ranked, SCORE)
            nearest = TopK.best([TopK(*near)], query.vector.k)
            # The best score comes first, rows of one score by address: as a search for words answers.
            order = np.lexsort((words[0], -words[1]))
            results = fuse(query, nearest, TextTopK(words[0][order], words[1][order]))
            measured = results.measured()
            columns = [pa.array(results.addresses.view(np.int64)), *measured.values()]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema(_FUSED))

    return fusing


_CANDIDATES = arrow_schema(st.StructType([_ADDRESS, *_PARTS]))


def _ranked(candidates: pa.Table, measure: str) -> tuple[Any, Any]:
    """Return the addresses of the rows that one of the searches has found, and what it measured."""
    there = candidates.filter(candidates[measure].is_valid())
    return there[_ADDRESS.name].to_numpy().view(np.uint64), there[measure].to_numpy()
