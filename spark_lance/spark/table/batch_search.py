"""The rows nearest to each of many vectors, in Spark jobs.

Every query goes to the index partitions nearest to it (and to all rows without an index), as rows of a
DataFrame that Spark shuffles by partition. A task loads each of its partitions once, for all queries that
came there. Spark keeps the best rows of each query, and tasks fetch their columns, fragment by fragment.

The rows that answer each of many queries of words, or of words and a vector, in Spark jobs.

A task answers the whole of a query, as how rare a word is counts over all rows; it opens the indices once for
all queries that came to it. Then tasks fetch the columns of the rows, fragment by fragment.
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
from spark_lance.spark.table.found_rows import FOUND, Mapper, as_given, fetch_rows, with_measured
from spark_lance.spark.worker.failures import one_line
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.snapshot import Snapshot, SnapshotRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
    rows = queries
    for value in values:
        rows = rows.where(F.col(value.name).isNotNull())
    # Few queries often come as one partition.
    rows = rows.repartition(queries.sparkSession.sparkContext.defaultParallelism)
    last = st.StructField(measure, st.FloatType(), False)
    answer_schema = st.StructType([along, FOUND.fields[0], *before[1:], last])
    best = rows.mapInArrow(_answer_words(plan, arrow_schema(answer_schema)), answer_schema)
    best = best.repartition(F.shiftright(F.col("_address"), 32)).sortWithinPartitions("_address")
    fetch = fetch_rows(plan.table, schema, before, measure)
    return best.mapInArrow(fetch, with_measured(schema, before, measure))


def _answer_words(plan: WordsPlan, schema: pa.Schema) -> Mapper:
    """Return what answers queries."""

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            find: Finder | None = None
            at_once = max(1, _ROWS // plan.k)
            for batch in batches:
                for start in range(0, batch.num_rows, at_once):
                    find = find or _finder(plan)
                    yield _best_rows(plan, find, batch.slice(start, at_once), schema)

    return answer


def _best_rows(plan: WordsPlan, find: Finder, queries: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
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


# Queries that are compared with a partition at once, and that are sent at once.
_BLOCK = 1024
_FETCH = 4096


def any_vector(manifest: Manifest, column: str) -> list[float]:
    """Return a vector as long as those of a column, for plans of searches whose vectors come later.

    Raises:
        SchemaError: there is no such column.
    """
    kind = leaf_field(manifest.schema, column).arrow_type()
    return [0.0] * getattr(vector_kind(kind), "list_size", 1)


def nearest_to_each(
    plan: SearchPlan, manifest: Manifest, schema: st.StructType, queries: DataFrame, key: str
) -> DataFrame:
    """Return the rows nearest to each of many vectors: the first column of the queries, columns, `_distance`.

    Args:
        plan: the search; its vector does not matter.
        manifest: the version that is searched.
        schema: the columns of the table in the result.
        queries: what comes along with the rows, and the vector; those without one are left out.
        key: what tells the queries apart: the first column, or a field of it.
    """
    kind = leaf_field(manifest.schema, plan.query.column).arrow_type()
    best = _answered_whole(plan, queries) if is_multi(kind) else _answered(plan, queries, key)
    fragment = F.shiftright(F.col("_address"), 32)
    identity = (best.schema.fields[0],)
    best = best.repartition(fragment).sortWithinPartitions("_address")
    return best.mapInArrow(fetch_rows(plan.table, schema, identity), with_measured(schema, identity))


def _matrix(vectors: pa.Array, dim: int) -> npt.NDArray[Any]:
    lengths = pc.list_value_length(vectors).to_numpy(zero_copy_only=False)
    wrong = lengths[lengths != dim]
    if len(wrong):
        raise OptionError(f"a query has {int(wrong[0])} values, the vectors of the table have {dim}")
    values: npt.NDArray[Any] = vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    return values


def _answered(plan: SearchPlan, queries: DataFrame, key: str) -> DataFrame:
    """Return the best rows for each of many queries: its id, address and distance.

    Args:
        plan: the search.
        queries: ids and vectors.
        key: what tells them apart.
    """
    identity, vector = queries.schema.fields
    # Queries are compared as floats, and shuffled once for each place where they look.
    is_double = plan.query.vectors.dtype == np.float64
    vectors = st.ArrayType(st.DoubleType() if is_double else st.FloatType())
    vectors_by_id = queries.select(identity.name, F.col(vector.name).cast(vectors).alias("_vector"))
    place = st.StructField("_home", st.LongType(), False)
    task_type = st.StructType([place, identity, st.StructField("_vector", vectors, False)])
    result_type = st.StructType([identity, *FOUND.fields])
    homes = vectors_by_id.where("_vector is not null").mapInArrow(_assign(plan), task_type)
    homes = homes.repartition("_home").sortWithinPartitions("_home")
    results = homes.mapInArrow(_answer(plan, arrow_schema(result_type)), result_type)
    order = Window.partitionBy(F.col(key)).orderBy(DISTANCE, "_address")
    ranked = results.withColumn("_place", F.row_number().over(order))
    return ranked.where(F.col("_place") <= plan.query.k).drop("_place")


def _answered_whole(plan: SearchPlan, queries: DataFrame) -> DataFrame:
    """Return what `_answered` does, for queries of several vectors: a task answers the whole of one."""
    identity, vector = queries.schema.fields
    is_double = plan.query.vectors.dtype == np.float64
    vectors = st.ArrayType(st.ArrayType(st.DoubleType() if is_double else st.FloatType()))
    vectors_by_id = queries.select(identity.name, F.col(vector.name).cast(vectors).alias("_vector"))
    answered = st.StructType([identity, *FOUND.fields])
    schema = arrow_schema(answered)

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            search = plan.open()
            for batch in batches:
                for number, query in enumerate(batch["_vector"]):
                    asking = replace(plan.query, vectors=_one_query(query.values)).fitted(search.kind)
                    parts = [search.answer(asking, t, search.allowed(plan.filter, t)) for t in plan.tasks]
                    (results,) = merged(parts, asking.k)
                    ids = batch.column(0).take(pa.array([number] * len(results.addresses)))
                    columns = [ids, pa.array(results.addresses.view(np.int64)), pa.array(results.distances)]
                    yield pa.RecordBatch.from_arrays(columns, schema=as_given(schema, [ids]))

    return vectors_by_id.where("size(_vector) > 0").mapInArrow(answer, answered)


def _one_query(vectors: pa.Array) -> npt.NDArray[Any]:
    lengths = pc.list_value_length(vectors).to_numpy(zero_copy_only=False)
    if vectors.null_count or len(set(lengths.tolist())) != 1:
        raise OptionError("the vectors of a query must have one length, and none may be null")
    values: npt.NDArray[Any] = vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(vectors), -1)
    return values


def _assign(plan: SearchPlan) -> Mapper:
    """Return what sends every query to the places where it looks."""

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
                    home = pa.array(places.reshape(-1)[start : start + _FETCH].astype(np.int64))
                    columns = [home, batch.column(0).take(some), batch["_vector"].take(some)]
                    names = ["_home", *batch.schema.names]
                    yield pa.RecordBatch.from_arrays(columns, names=names)

    return assign


def _answer(plan: SearchPlan, schema: pa.Schema) -> Mapper:
    """Return what answers the queries of every place; they come sorted by it."""

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            routing = Routing(plan)
            for home, ids, lists in _by_home(batches):
                results = routing.answer(home, _matrix(lists, routing.dimension))
                counts = [len(part.addresses) for part in results]
                rows = pa.array(np.repeat(np.arange(len(results)), counts))
                addresses = np.concatenate([part.addresses for part in results]).view(np.int64)
                scores = np.concatenate([part.distances for part in results]).astype(np.float32)
                columns = [ids.take(rows), pa.array(addresses), pa.array(scores)]
                yield pa.RecordBatch.from_arrays(columns, schema=as_given(schema, [ids]))

    return answer


def _by_home(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Array, pa.Array]]:
    """Yield (place, query ids, vectors) in blocks of one place each."""
    pending: list[pa.RecordBatch] = []

    def block() -> tuple[int, pa.Array, pa.Array]:
        table = pa.Table.from_batches(pending).combine_chunks()
        (whole,) = table.to_batches()
        return int(whole["_home"][0].as_py()), whole.column(1), whole["_vector"]

    for batch in batches:
        homes = batch["_home"].to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(homes)) + 1).tolist(), len(homes)]
        for start, stop in itertools.pairwise(bounds):
            for first in range(start, stop, _BLOCK):
                part = batch.slice(first, min(_BLOCK, stop - first))
                new = bool(pending) and pending[0]["_home"][0].as_py() != part["_home"][0].as_py()
                if pending and (new or sum(b.num_rows for b in pending) >= _BLOCK):
                    yield block()
                    pending = []
                if part.num_rows:
                    pending.append(part)
    if pending:
        yield block()
