"""The rows that answer each of many queries of words, or of words and a vector, in Spark jobs.

A task answers the whole of a query, as how rare a word is counts over all rows; it opens the indices once for
all queries that came to it. Then tasks fetch the columns of the rows, fragment by fragment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyspark.sql.functions as F
import pyspark.sql.types as st

from spark_lance.datasets.hybrid import RELEVANCE, HybridQuery, fuse
from spark_lance.datasets.searching import DISTANCE, SCORE
from spark_lance.index.base.search_rows import allowed_rows
from spark_lance.index.text.search import TextSearch, parse_text_query
from spark_lance.index.vector.search import VectorSearch
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.table.found_rows import FOUND, Mapper, as_given, fetch_rows, with_measured
from spark_lance.spark.worker.failures import one_line
from spark_lance.table.reading.snapshot import Snapshot, SnapshotRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["WordsPlan", "answers_to_each"]

# Rows of queries that are answered at once hold about this many rows that were found.
_ROWS = 1 << 16
_QUERY, _VECTOR = "query", "vector"

# The values of one query -> addresses of rows, best first, and what was measured of them, by column.
Finder = Callable[[Mapping[str, Any]], "tuple[Any, dict[str, pa.Array]]"]


@dataclass(frozen=True)
class WordsPlan:
    """Searches of one version of a table that differ in their words, their vector, or both.

    Attributes:
        table: the version.
        text: a search for words, as option `full_text_query`; None for searches by both.
        both: a search by words and vector, as option `hybrid_search`.
        k: rows for each query.
        filter: SQL; only rows for which it is true are found.
        query_keys: `query`, `vector` or both: the keys of the search that each row of the queries replaces.
    """

    table: SnapshotRef
    text: Mapping[str, Any] | None
    both: Mapping[str, Any] | None
    k: int
    filter: str | None
    query_keys: tuple[str, ...]

    @property
    def measures(self) -> tuple[str, ...]:
        """The columns of what is measured; the last is never null."""
        return (SCORE,) if self.both is None else (DISTANCE, SCORE, RELEVANCE)


def answers_to_each(plan: WordsPlan, schema: st.StructType, queries: DataFrame) -> DataFrame:
    """Return the rows that answer each of many queries best: what comes along, columns, what was measured.

    Args:
        plan: the searches.
        schema: the columns of the table in the result.
        queries: what comes along with the rows, and then the values that the plan says are given; queries
            that lack one of them are left out.
    """
    along, *values = queries.schema.fields
    *parts, measure = plan.measures
    before = (along, *(st.StructField(name, st.FloatType()) for name in parts))
    chosen = queries
    for value in values:
        chosen = chosen.where(F.col(value.name).isNotNull())
    # Few queries often come as one partition.
    chosen = chosen.repartition(queries.sparkSession.sparkContext.defaultParallelism)
    last = st.StructField(measure, st.FloatType(), False)
    answer_schema = st.StructType([along, FOUND.fields[0], *before[1:], last])
    best = chosen.mapInArrow(_answer(plan, arrow_schema(answer_schema)), answer_schema)
    best = best.repartition(F.shiftright(F.col("_address"), 32)).sortWithinPartitions("_address")
    fetch = fetch_rows(plan.table, schema, before, measure)
    return best.mapInArrow(fetch, with_measured(schema, before, measure))


def _answer(plan: WordsPlan, schema: pa.Schema) -> Mapper:
    """Return what answers queries."""

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            find: Finder | None = None
            at_once = max(1, _ROWS // plan.k)
            for batch in batches:
                for start in range(0, batch.num_rows, at_once):
                    find = find or _finder(plan)
                    yield _answered(plan, find, batch.slice(start, at_once), schema)

    return answer


def _answered(plan: WordsPlan, find: Finder, queries: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    values = [column.to_pylist() for column in queries.columns[1:]]
    results = [find(dict(zip(plan.query_keys, query, strict=True))) for query in zip(*values, strict=True)]
    rows = np.repeat(np.arange(len(results)), [len(addresses) for addresses, _ in results])
    along = queries.column(0).take(pa.array(rows))
    addresses = pa.array(np.concatenate([addresses for addresses, _ in results]).view(np.int64))
    measured = [pa.concat_arrays([by_name[name] for _, by_name in results]) for name in plan.measures]
    return pa.RecordBatch.from_arrays([along, addresses, *measured], schema=as_given(schema, [along]))


def _finder(plan: WordsPlan) -> Finder:
    snapshot = plan.table.load()
    allowed = allowed_rows(snapshot, plan.filter)
    return _by_words(plan, snapshot, allowed) if plan.both is None else _by_both(plan.both, snapshot, allowed)


def _by_words(plan: WordsPlan, snapshot: Snapshot, allowed: Any) -> Finder:
    template = dict(plan.text or {})
    column, _ = parse_text_query(snapshot.manifest, template, plan.k)
    search = TextSearch(snapshot, column)

    def find(values: Mapping[str, Any]) -> tuple[Any, dict[str, pa.Array]]:
        _, query = parse_text_query(snapshot.manifest, {**template, **values}, plan.k)
        result = search.run(query, allowed)
        return result.addresses, {SCORE: pa.array(result.scores)}

    return find


def _by_both(template: Mapping[str, Any], snapshot: Snapshot, allowed: Any) -> Finder:
    example = HybridQuery.parse(snapshot.manifest, template)
    near = VectorSearch(snapshot, example.vector.column)
    words = TextSearch(snapshot, example.text_column)

    def find(values: Mapping[str, Any]) -> tuple[Any, dict[str, pa.Array]]:
        vector = {"q": values[_VECTOR]} if _VECTOR in values else {}
        text = {_QUERY: values[_QUERY]} if _QUERY in values else {}
        one = {"nearest": {**template["nearest"], **vector}}
        one["full_text_query"] = {**template["full_text_query"], **text}
        query = HybridQuery.parse(snapshot.manifest, {**template, **one})
        (by_vector,) = near.run(query.vector, allowed)
        result = fuse(query, by_vector, words.run(query.text, allowed))
        return result.addresses, result.measured()

    return find
