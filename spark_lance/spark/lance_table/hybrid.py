"""Searching by a vector and by words in one Spark job: tasks rank candidates, one task fuses the rankings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyspark.sql.functions as F
import pyspark.sql.types as st

from spark_lance.datasets.hybrid import RELEVANCE, HybridQuery, fuse
from spark_lance.datasets.searching import DISTANCE, SCORE
from spark_lance.index.fusion import RANK_CONSTANT
from spark_lance.index.text.search import TextSearch, TextTopK
from spark_lance.index.vector.search_tasks import plan_search
from spark_lance.index.vector.top_k import TopK
from spark_lance.spark.failures import one_line
from spark_lance.spark.jobs import scatter
from spark_lance.spark.lance_table.found_rows import FOUND, SCORED, fetch_rows, shown_columns, with_measured
from spark_lance.spark.lance_table.searching import Searching, TextPlan, answer_text, run_search
from spark_lance.spark.schema.types import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_lance.table.reading.snapshot import Snapshot

__all__ = ["HybridSearching"]

_PARTS = (st.StructField(DISTANCE, st.FloatType()), st.StructField(SCORE, st.FloatType()))
_RELEVANCE = st.StructField(RELEVANCE, st.FloatType(), False)
_ADDRESS = FOUND.fields[0]
_FUSED = st.StructType([_ADDRESS, *_PARTS, _RELEVANCE])


class HybridSearching(Searching):
    """The rows that a vector and words rank best together."""

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
        table = self._dataset()
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
        return self._found(table.snapshot, HybridQuery.parse(table.manifest, request), filter, schema)

    def _found(
        self, snapshot: Snapshot, query: HybridQuery, filter: str | None, schema: st.StructType
    ) -> DataFrame:
        """Return the rows that both searches rank best, with the columns of `schema`."""
        plan = plan_search(snapshot, query.vector, filter)
        TextSearch(snapshot, query.text_column)  # It refuses a column that has no words.
        by_vector = scatter(self.spark, [(plan, piece) for piece in plan.tasks], run_search, FOUND)
        by_vector = by_vector.orderBy(DISTANCE, _ADDRESS.name).limit(query.vector.k)
        text = TextPlan(snapshot.ref(), query.text_column, query.text, filter)
        by_words = scatter(self.spark, [text], answer_text, SCORED)
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
