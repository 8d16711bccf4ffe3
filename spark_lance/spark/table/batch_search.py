"""Searches with many queries in Spark jobs.

Vector search: Spark shuffles each query to its nearest index partitions (and to all unindexed rows). A task
loads each of its partitions once for all queries. Spark keeps the best rows of each query, and tasks fetch
their columns, fragment by fragment.

Full-text and hybrid search: one task answers a whole query, because word frequencies are computed over all
rows. It opens the indexes once for all its queries. Then tasks fetch the columns, fragment by fragment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
import pyspark.sql.types as st
from pyspark.sql.window import Window

from spark_lance.datasets.hybrid import RELEVANCE, HybridQuery, fuse
from spark_lance.datasets.searching import DISTANCE, SCORE
from spark_lance.errors import OptionError
from spark_lance.index.base.columns import leaf_field
from spark_lance.index.base.search_rows import allowed_rows
from spark_lance.index.text.search import TextSearch, parse_text_query
from spark_lance.index.vector.kinds import is_multi, vector_kind
from spark_lance.index.vector.search import VectorSearch
from spark_lance.index.vector.search_tasks import Routing, SearchPlan
from spark_lance.index.vector.top_k import merged
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.table.search_results import (
    DISTANCE_ROWS,
    Mapper,
    fetch_rows,
    search_result_schema,
    with_input_types,
)
from spark_lance.spark.worker.failures import one_line
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.snapshot import Snapshot, SnapshotRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Approximate number of result rows of the queries that are answered in one batch.
_ROWS = 1 << 16
_QUERY, _VECTOR = "query", "vector"

# The values of one query -> row addresses, best first, and their distances and scores by column.
Finder = Callable[[Mapping[str, Any]], "tuple[Any, dict[str, pa.Array]]"]


@dataclass(frozen=True)
class TextSearchPlan:
    """Full-text or hybrid searches of one version that differ in their words, their vector, or both.

    Attributes:
        table: the version.
        text: a full-text search, as option `full_text_query`; None for hybrid searches.
        both: a hybrid search, as option `hybrid_search`.
        k: number of rows per query.
        filter: SQL condition on the rows.
        query_keys: `query`, `vector` or both: the keys of the search that each query row sets.
    """

    table: SnapshotRef
    text: Mapping[str, Any] | None
    both: Mapping[str, Any] | None
    k: int
    filter: str | None
    query_keys: tuple[str, ...]

    @property
    def measure_columns(self) -> tuple[str, ...]:
        """The columns of distances and scores; the last one is never null."""
        return (SCORE,) if self.both is None else (DISTANCE, SCORE, RELEVANCE)


def search_each_text(plan: TextSearchPlan, schema: st.StructType, queries: DataFrame) -> DataFrame:
    """Return the best rows of each query: query id, table columns, distances and scores.

    Args:
        plan: the searches.
        schema: table columns of the result.
        queries: the query id, then the values of `plan.query_keys`. Queries with a null value are skipped.
    """
    along, *values = queries.schema.fields
    *parts, measure = plan.measure_columns
    before = (along, *(st.StructField(name, st.FloatType()) for name in parts))
    rows = queries
    for value in values:
        rows = rows.where(F.col(value.name).isNotNull())
    # A few queries are often in one partition.
    rows = rows.repartition(queries.sparkSession.sparkContext.defaultParallelism)
    last = st.StructField(measure, st.FloatType(), False)
    answer_schema = st.StructType([along, DISTANCE_ROWS.fields[0], *before[1:], last])
    best = rows.mapInArrow(_answer_words(plan, arrow_schema(answer_schema)), answer_schema)
    best = best.repartition(F.shiftright(F.col("_address"), 32)).sortWithinPartitions("_address")
    fetch = fetch_rows(plan.table, schema, before, measure)
    return best.mapInArrow(fetch, search_result_schema(schema, before, measure))


def _answer_words(plan: TextSearchPlan, schema: pa.Schema) -> Mapper:
    """Return a `mapInArrow` function that answers queries."""

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            find: Finder | None = None
            at_once = max(1, _ROWS // plan.k)
            for batch in batches:
                for start in range(0, batch.num_rows, at_once):
                    find = find or _open_finder(plan)
                    yield _best_rows(plan, find, batch.slice(start, at_once), schema)

    return answer


def _best_rows(
    plan: TextSearchPlan, find: Finder, queries: pa.RecordBatch, schema: pa.Schema
) -> pa.RecordBatch:
    values = [column.to_pylist() for column in queries.columns[1:]]
    results = [find(dict(zip(plan.query_keys, query, strict=True))) for query in zip(*values, strict=True)]
    rows = np.repeat(np.arange(len(results)), [len(addresses) for addresses, _ in results])
    along = queries.column(0).take(pa.array(rows))
    addresses = pa.array(np.concatenate([addresses for addresses, _ in results]).view(np.int64))
    measured = [pa.concat_arrays([by_name[name] for _, by_name in results]) for name in plan.measure_columns]
    return pa.RecordBatch.from_arrays([along, addresses, *measured], schema=with_input_types(schema, [along]))


def _open_finder(plan: TextSearchPlan) -> Finder:
    snapshot = plan.table.load()
    allowed = allowed_rows(snapshot, plan.filter)
    return (
        _text_finder(plan, snapshot, allowed)
        if plan.both is None
        else _hybrid_finder(plan.both, snapshot, allowed)
    )


def _text_finder(plan: TextSearchPlan, snapshot: Snapshot, allowed: Any) -> Finder:
    template = dict(plan.text or {})
    column, _ = parse_text_query(snapshot.manifest, template, plan.k)
    search = TextSearch(snapshot, column)

    def find(values: Mapping[str, Any]) -> tuple[Any, dict[str, pa.Array]]:
        _, query = parse_text_query(snapshot.manifest, {**template, **values}, plan.k)
        result = search.run(query, allowed)
        return result.addresses, {SCORE: pa.array(result.scores)}

    return find


def _hybrid_finder(template: Mapping[str, Any], snapshot: Snapshot, allowed: Any) -> Finder:
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
        return result.addresses, result.measure_columns()

    return find


# Number of queries per block of a partition, and per batch to shuffle.
_BLOCK = 1024
_FETCH = 4096


def zero_vector(manifest: Manifest, column: str) -> list[float]:
    """Return a zero vector with the dimension of a column, to plan searches before their vectors are known.

    Raises:
        SchemaError: the column does not exist.
    """
    kind = leaf_field(manifest.schema, column).arrow_type()
    return [0.0] * getattr(vector_kind(kind), "list_size", 1)


def search_each_vector(
    plan: SearchPlan, manifest: Manifest, schema: st.StructType, queries: DataFrame, key: str
) -> DataFrame:
    """Return the nearest rows of each query vector: the query id, table columns, and `_distance`.

    Args:
        plan: the search; its vector is ignored.
        manifest: the version to search.
        schema: table columns of the result.
        queries: the query id and the vector. Queries with a null vector are skipped.
        key: the unique id of a query: the first column, or a field of it.
    """
    kind = leaf_field(manifest.schema, plan.query.column).arrow_type()
    best = _answer_multi_vector(plan, queries) if is_multi(kind) else _answer_by_partition(plan, queries, key)
    fragment = F.shiftright(F.col("_address"), 32)
    identity = (best.schema.fields[0],)
    best = best.repartition(fragment).sortWithinPartitions("_address")
    return best.mapInArrow(fetch_rows(plan.table, schema, identity), search_result_schema(schema, identity))


def _matrix(vectors: pa.Array, dim: int) -> npt.NDArray[Any]:
    lengths = pc.list_value_length(vectors).to_numpy(zero_copy_only=False)
    wrong = lengths[lengths != dim]
    if len(wrong):
        raise OptionError(f"a query vector has {int(wrong[0])} values, but the table's vectors have {dim}")
    values: npt.NDArray[Any] = vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    return values


def _answer_by_partition(plan: SearchPlan, queries: DataFrame, key: str) -> DataFrame:
    """Return query id, row address and distance of the best rows of each query.

    Args:
        plan: the search.
        queries: ids and vectors.
        key: the unique id of a query.
    """
    identity, vector = queries.schema.fields
    # Queries are cast to floats, and shuffled once per partition to search.
    is_double = plan.query.vectors.dtype == np.float64
    vectors = st.ArrayType(st.DoubleType() if is_double else st.FloatType())
    vectors_by_id = queries.select(identity.name, F.col(vector.name).cast(vectors).alias("_vector"))
    place = st.StructField("_partition", st.LongType(), False)
    task_type = st.StructType([place, identity, st.StructField("_vector", vectors, False)])
    result_type = st.StructType([identity, *DISTANCE_ROWS.fields])
    tasks = vectors_by_id.where("_vector is not null").mapInArrow(_assign(plan), task_type)
    tasks = tasks.repartition("_partition").sortWithinPartitions("_partition")
    results = tasks.mapInArrow(_answer(plan, arrow_schema(result_type)), result_type)
    order = Window.partitionBy(F.col(key)).orderBy(DISTANCE, "_address")
    ranked = results.withColumn("_place", F.row_number().over(order))
    return ranked.where(F.col("_place") <= plan.query.k).drop("_place")


def _answer_multi_vector(plan: SearchPlan, queries: DataFrame) -> DataFrame:
    """Do the same as `_answer_by_partition` for queries of several vectors; a task answers a whole query."""
    identity, vector = queries.schema.fields
    is_double = plan.query.vectors.dtype == np.float64
    vectors = st.ArrayType(st.ArrayType(st.DoubleType() if is_double else st.FloatType()))
    vectors_by_id = queries.select(identity.name, F.col(vector.name).cast(vectors).alias("_vector"))
    answered = st.StructType([identity, *DISTANCE_ROWS.fields])
    schema = arrow_schema(answered)

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            search = plan.open()
            for batch in batches:
                for number, query in enumerate(batch["_vector"]):
                    asking = replace(plan.query, vectors=_one_query(query.values)).cast_to(search.kind)
                    parts = [search.answer(asking, t, search.allowed(plan.filter, t)) for t in plan.tasks]
                    (results,) = merged(parts, asking.k)
                    ids = batch.column(0).take(pa.array([number] * len(results.addresses)))
                    columns = [ids, pa.array(results.addresses.view(np.int64)), pa.array(results.distances)]
                    yield pa.RecordBatch.from_arrays(columns, schema=with_input_types(schema, [ids]))

    return vectors_by_id.where("size(_vector) > 0").mapInArrow(answer, answered)


def _one_query(vectors: pa.Array) -> npt.NDArray[Any]:
    lengths = pc.list_value_length(vectors).to_numpy(zero_copy_only=False)
    if vectors.null_count or len(set(lengths.tolist())) != 1:
        raise OptionError("the vectors of a query must have the same length and not be null")
    values: npt.NDArray[Any] = vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(vectors), -1)
    return values


def _assign(plan: SearchPlan) -> Mapper:
    """Return a `mapInArrow` function that assigns each query to the partitions to search."""

    def assign(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            routing = Routing(plan)
            for batch in batches:
                if not batch.num_rows:
                    continue
                places = routing.places(_matrix(batch["_vector"], routing.dimension))
                rows = pa.array(np.repeat(np.arange(len(places)), places.shape[1]))
                for start in range(0, len(rows), _FETCH):
                    some = rows.slice(start, _FETCH)
                    partition = pa.array(places.reshape(-1)[start : start + _FETCH].astype(np.int64))
                    columns = [partition, batch.column(0).take(some), batch["_vector"].take(some)]
                    names = ["_partition", *batch.schema.names]
                    yield pa.RecordBatch.from_arrays(columns, names=names)

    return assign


def _answer(plan: SearchPlan, schema: pa.Schema) -> Mapper:
    """Return a `mapInArrow` function that answers queries, which must be sorted by partition."""

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            routing = Routing(plan)
            for partition, ids, lists in _partition_blocks(batches):
                results = routing.answer(partition, _matrix(lists, routing.dimension))
                counts = [len(part.addresses) for part in results]
                rows = pa.array(np.repeat(np.arange(len(results)), counts))
                addresses = np.concatenate([part.addresses for part in results]).view(np.int64)
                scores = np.concatenate([part.distances for part in results]).astype(np.float32)
                columns = [ids.take(rows), pa.array(addresses), pa.array(scores)]
                yield pa.RecordBatch.from_arrays(columns, schema=with_input_types(schema, [ids]))

    return answer


def _partition_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Array, pa.Array]]:
    """Yield (partition, query ids, vectors) in blocks of one partition each."""
    pending: list[pa.RecordBatch] = []

    def block() -> tuple[int, pa.Array, pa.Array]:
        table = pa.Table.from_batches(pending).combine_chunks()
        (whole,) = table.to_batches()
        return int(whole["_partition"][0].as_py()), whole.column(1), whole["_vector"]

    for batch in batches:
        numbers = batch["_partition"].to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, stop in itertools.pairwise(bounds):
            for first in range(start, stop, _BLOCK):
                part = batch.slice(first, min(_BLOCK, stop - first))
                new = bool(pending) and pending[0]["_partition"][0].as_py() != part["_partition"][0].as_py()
                if pending and (new or sum(b.num_rows for b in pending) >= _BLOCK):
                    yield block()
                    pending = []
                if part.num_rows:
                    pending.append(part)
    if pending:
        yield block()
