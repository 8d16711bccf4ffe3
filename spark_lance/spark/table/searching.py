"""Vector, full-text and hybrid search in Spark jobs.

A single vector search has one task per index segment, and one task per million unindexed rows. Each task
returns its best rows. Spark keeps the best rows of all tasks, and one task fetches their columns.

`batch_search` runs many vector searches as a join.
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
from spark_lance.datasets.spelling import suggest_arguments
from spark_lance.errors import ColumnNotFoundError
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
from spark_lance.spark.table.batch_search import search_each_vector, zero_vector
from spark_lance.spark.table.search_results import (
    DISTANCE_ROWS,
    SCORE_ROWS,
    fetch_rows,
    result_columns,
    search_result_schema,
)
from spark_lance.spark.worker.failures import one_line
from spark_lance.table.reading.snapshot import SnapshotRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_lance.table.reading.snapshot import Snapshot

_QUERY_ID = "query_id"
_PARTS = (st.StructField(DISTANCE, st.FloatType()), st.StructField(SCORE, st.FloatType()))
_RELEVANCE = st.StructField(RELEVANCE, st.FloatType(), False)
_ADDRESS = DISTANCE_ROWS.fields[0]
_FUSED = st.StructType([_ADDRESS, *_PARTS, _RELEVANCE])


@dataclass(frozen=True)
class TableSearches:
    """Vector, full-text and hybrid search. Get it as `LanceTable.searches`."""

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
            vector: the query vector, with the dimension of the column; a list of vectors for a column of
                vector lists.
            column: a vector column.
            k: number of rows.
            metric: l2, cosine, dot or hamming. Default: the metric of the index, or l2 without an index. An
                index with another metric is not used.
            nprobes: number of index partitions to search. Default: 20, and more until k rows are found.
            refineFactor: take `refineFactor * k` rows from the index and compute their exact distances.
            ef: number of candidates in an HNSW search.
            filter: SQL condition on the rows.
            prefilter: True applies the filter before the search, which returns k matching rows. False applies
                the filter to the k nearest rows.
            columns: columns of the result. Default: all columns.
            fastSearch: skip rows that are not indexed.
            useIndex: False computes the exact distance of every row.

        Raises:
            OptionError: the query does not fit the column, or an option has a bad value.
            ExpressionError: the filter cannot be evaluated on the table's columns.
            SchemaError: a column does not exist.
        """
        table = self.table.dataset()
        query = vector_query(
            vector, column, k, metric, nprobes, refineFactor, ef, fastSearch=fastSearch, useIndex=useIndex
        )
        plan = plan_search(table.snapshot, query, filter if prefilter else None)
        later = None if prefilter else filter
        schema = result_columns(table.manifest, columns, DISTANCE)
        output = schema if later is None else result_columns(table.manifest, None, DISTANCE)
        tasks = [(plan, piece) for piece in plan.tasks]
        best = (
            run_to_frame(self.table.spark, tasks, run_search, DISTANCE_ROWS)
            .orderBy(DISTANCE, "_address")
            .limit(k)
        )
        results = best.coalesce(1).mapInArrow(
            fetch_rows(plan.table, output, ()), search_result_schema(output, ())
        )
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
        """Return the k rows nearest to each query vector: `query_id`, the columns, and `_distance`.

        Args:
            queries: a DataFrame with query vectors and their ids.
            column: a vector column.
            k: number of rows per query.
            metric: see `search`.
            queryVector: column of `queries` with the vectors, or with vector lists for a column of vector
                lists. Rows with a null vector are skipped.
            queryId: column of `queries` with the query ids.
            nprobes: number of partitions per segment to search. Default: 20.
            refineFactor, fastSearch, useIndex: see `search`.
            filter: SQL condition on the rows, applied before the search.
            columns: table columns of the result. Default: all columns.

        Raises:
            OptionError: an option has a bad value.
            SchemaError: a column does not exist.
        """
        table = self.table.dataset()
        query = vector_query(
            zero_vector(table.manifest, column),
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
        schema = result_columns(table.manifest, columns, DISTANCE, _QUERY_ID)
        for argument, name in (("queryId", queryId), ("queryVector", queryVector)):
            top = name.partition(".")[0].strip("`").lower()
            if name not in queries.columns and top not in (each.lower() for each in queries.columns):
                raise ColumnNotFoundError(
                    f"the queries have no column {name!r}, but {', '.join(queries.columns)}: set {argument}="
                )
        vectors = queries.select(F.col(queryId).alias(_QUERY_ID), F.col(queryVector))
        return search_each_vector(plan, table.manifest, schema, vectors, _QUERY_ID)

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
        """Return the k best rows of a full-text search, best first, with the column `_score` (BM25).

        One task searches the column's index, and the text of unindexed rows.

        Args:
            query: words, which are tokenized like the index.
            column: a text column.
            k: number of rows.
            operator: "or" if a row needs one of the words, "and" if it needs all of them.
            phrase: whether the words must be adjacent and in this order.
            filter: SQL condition on the rows, applied before the search.
            columns: columns of the result. Default: all columns.
            fastSearch: skip rows that are not indexed.

        Raises:
            OptionError: an option has a bad value.
            SchemaError: a column does not exist, or is not a text column.
        """
        table = self.table.dataset()
        request = {"query": query, "column": column, "operator": operator, "phrase": phrase}
        column, parsed = parse_text_query(table.manifest, {**request, "fast_search": fastSearch}, k)
        TextSearch(table.snapshot, column)
        schema = result_columns(table.manifest, columns, SCORE)
        plan = TextPlan(table.snapshot.ref(), column, parsed, filter)
        results = run_to_frame(self.table.spark, [plan], answer_text, SCORE_ROWS)
        fetched = results.coalesce(1).mapInArrow(
            fetch_rows(plan.table, schema, (), SCORE), search_result_schema(schema, (), SCORE)
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
        """Return the k best rows by the combined ranks of a vector search and a full-text search.

        A row's `_relevance_score` is `vectorWeight / (rankConstant + rank)` of the vector search plus
        `textWeight / (rankConstant + rank)` of the full-text search. The rows are sorted by it, best first. A
        search that does not rank the row adds nothing, and its `_distance` or `_score` is null.

        Args:
            vector: the query vector, with the dimension of the column.
            query: words.
            vectorColumn, textColumn: the columns to search.
            k: number of rows.
            vectorWeight, textWeight: weights of the two ranks, at least 0.
            rankConstant: constant of the formula, above 0.
            candidates: number of rows that each search ranks. Default: the larger of 100 and k.
            metric, nprobes, refineFactor, useIndex: options of the vector search; see `search`.
            operator, phrase: options of the full-text search; see `textSearch`.
            filter: SQL condition on the rows, applied before the searches.
            columns: columns of the result. Default: all columns.
            fastSearch: skip rows that are not indexed.

        Raises:
            OptionError: an option has a bad value.
            ExpressionError: the filter cannot be evaluated on the table's columns.
            SchemaError: a column does not exist, or its type does not fit the search.
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
        schema = result_columns(table.manifest, columns, DISTANCE, SCORE, RELEVANCE)
        return self._run_hybrid(table.snapshot, HybridQuery.parse(table.manifest, request), filter, schema)

    def _run_hybrid(
        self, snapshot: Snapshot, query: HybridQuery, filter: str | None, schema: st.StructType
    ) -> DataFrame:
        """Return the best rows by both ranks, with the columns of `schema`."""
        plan = plan_search(snapshot, query.vector, filter)
        TextSearch(snapshot, query.text_column)  # Raises an error if the column has no text.
        by_vector = run_to_frame(
            self.table.spark, [(plan, piece) for piece in plan.tasks], run_search, DISTANCE_ROWS
        )
        by_vector = by_vector.orderBy(DISTANCE, _ADDRESS.name).limit(query.vector.k)
        text = TextPlan(snapshot.ref(), query.text_column, query.text, filter)
        by_words = run_to_frame(self.table.spark, [text], answer_text, SCORE_ROWS)
        ranked = by_vector.withColumn(SCORE, F.lit(None).cast("float")).unionByName(
            by_words.withColumn(DISTANCE, F.lit(None).cast("float"))
        )
        fused = ranked.coalesce(1).mapInArrow(_fuse_candidates(query), _FUSED)
        fetched = fused.mapInArrow(
            fetch_rows(text.table, schema, _PARTS, RELEVANCE), search_result_schema(schema, _PARTS, RELEVANCE)
        )
        names = [*schema.names, DISTANCE, SCORE, RELEVANCE]
        return fetched.orderBy(F.desc(RELEVANCE)).select(
            *(F.col(f"`{name.replace('`', '``')}`") for name in names)
        )


@dataclass(frozen=True)
class SearchableTable(TableBase):
    """The search methods of a table."""

    @property
    def searches(self) -> TableSearches:
        """Vector, full-text and hybrid search."""
        return TableSearches(self)

    @suggest_arguments()
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
        """Return the k rows nearest to a vector; see `searches.nearest`."""
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

    @suggest_arguments()
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
        """Return the k rows nearest to each query vector; see `searches.batch`."""
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

    @suggest_arguments()
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
        """Return the k best rows of a full-text search; see `searches.text`."""
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

    @suggest_arguments()
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
        """Return the k best rows of a combined vector and full-text search; see `searches.hybrid`."""
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
    """A full-text search in one version of a table."""

    table: SnapshotRef
    column: str
    query: TextQuery
    filter: str | None


def answer_text(plan: TextPlan) -> Iterator[pa.RecordBatch]:
    """Yield the addresses and scores of the rows of a full-text search, best first."""
    snapshot = plan.table.load()
    results = TextSearch(snapshot, plan.column).run(plan.query, allowed_rows(snapshot, plan.filter))
    yield _batch(results.addresses, results.scores, SCORE_ROWS)


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
    """Return a vector query from the arguments of `LanceTable.search`."""
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
    yield _batch(results.addresses, results.distances, DISTANCE_ROWS)


def _batch(
    addresses: npt.NDArray[np.uint64], values: npt.NDArray[np.float32], schema: st.StructType
) -> pa.RecordBatch:
    columns = [pa.array(addresses.view(np.int64)), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))


def _fuse_candidates(query: HybridQuery) -> Any:
    """Return a `mapInArrow` function that fuses the ranks of all candidates."""

    def fuse_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            ranked = pa.Table.from_batches(batches, schema=_CANDIDATES)
            near = _select_measured(ranked, DISTANCE)
            words = _select_measured(ranked, SCORE)
            nearest = TopK.best([TopK(*near)], query.vector.k)
            # Sort by score, ties by address, as a full-text search does.
            order = np.lexsort((words[0], -words[1]))
            results = fuse(query, nearest, TextTopK(words[0][order], words[1][order]))
            measured = results.measure_columns()
            columns = [pa.array(results.addresses.view(np.int64)), *measured.values()]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema(_FUSED))

    return fuse_batches


_CANDIDATES = arrow_schema(st.StructType([_ADDRESS, *_PARTS]))


def _select_measured(candidates: pa.Table, measure: str) -> tuple[Any, Any]:
    """Return the addresses of the rows that one of the searches ranks, and their distances or scores."""
    measured = candidates.filter(candidates[measure].is_valid())
    return measured[_ADDRESS.name].to_numpy().view(np.uint64), measured[measure].to_numpy()
