"""Searching by vector in Spark jobs: one search, or a join with many.

One search: a task per segment of the index, and one per million rows without it, answers with its best rows;
Spark keeps the best of all, and a task fetches their columns.

Many searches: every query goes to the index partitions nearest to it (and to all rows without an index), as
rows of a DataFrame that Spark shuffles by partition. A task loads each of its partitions once, for all
queries that came there. Spark keeps the best rows of each query, and tasks fetch their columns, fragment by
fragment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.functions as F
import pyspark.sql.types as st
from pyspark.sql.window import Window

from spark_lance.datasets.index import DISTANCE, SCORE
from spark_lance.errors import OptionError
from spark_lance.index.columns import leaf_field
from spark_lance.index.search_rows import allowed_rows
from spark_lance.index.text.search import TextQuery, TextSearch, parse_text_query
from spark_lance.index.vector.kinds import is_multi, vector_kind
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.routing import Routing
from spark_lance.index.vector.search import SearchTask
from spark_lance.index.vector.search_tasks import SearchPlan, plan_search, run_task
from spark_lance.index.vector.top_k import merged
from spark_lance.spark.failures import one_line
from spark_lance.spark.jobs import scatter
from spark_lance.spark.lance_table.base import TableBase
from spark_lance.spark.options.projection import Projection
from spark_lance.spark.schema.blobs import taken_with_sources
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.read_schema import resolve_projection, spark_schema_of
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.table.manifest import Manifest
from spark_lance.table.reading.snapshot import SnapshotRef
from spark_lance.table.reading.take import take_addresses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = [
    "FOUND",
    "SCORED",
    "Searching",
    "TextPlan",
    "answer_text",
    "fetch_rows",
    "run_search",
    "shown_columns",
    "vector_query",
    "with_measured",
]

_QUERY_ID = "query_id"
# Queries that are compared with a partition at once, and rows that are fetched at once.
_BLOCK = 1024
_FETCH = 4096


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
        wanted = schema if later is None else shown_columns(table.manifest, None, DISTANCE)
        tasks = [(plan, piece) for piece in plan.tasks]
        best = scatter(self.spark, tasks, run_search, FOUND).orderBy(DISTANCE, "_address").limit(k)
        found = best.coalesce(1).mapInArrow(fetch_rows(plan, wanted, ()), with_measured(wanted, ()))
        found = found.orderBy(DISTANCE)
        return found if later is None else found.where(later).select(*schema.names, DISTANCE)

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
        kind = leaf_field(table.manifest.schema, column).arrow_type()
        dimension = getattr(vector_kind(kind), "list_size", 1)
        query = vector_query(
            [0.0] * dimension,
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
        answered = _answered_whole if is_multi(kind) else _answered
        best = answered(plan, queries.select(F.col(queryId).alias(_QUERY_ID), F.col(queryVector)))
        fragment = F.shiftright(F.col("_address"), 32)
        best = best.repartition(fragment).sortWithinPartitions("_address")
        identity = (best.schema[_QUERY_ID],)
        return best.mapInArrow(fetch_rows(plan, schema, identity), with_measured(schema, identity))

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
        asked = {"query": query, "column": column, "operator": operator, "phrase": phrase}
        column, parsed = parse_text_query(table.manifest, {**asked, "fast_search": fastSearch}, k)
        TextSearch(table.snapshot, column)
        schema = shown_columns(table.manifest, columns, SCORE)
        plan = TextPlan(table.snapshot.ref(), column, parsed, filter)
        found = scatter(self.spark, [plan], answer_text, SCORED)
        fetched = found.coalesce(1).mapInArrow(
            fetch_rows(plan, schema, (), SCORE), with_measured(schema, (), SCORE)
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
    found = TextSearch(snapshot, plan.column).run(plan.query, allowed_rows(snapshot, plan.filter))
    yield _batch(found.addresses, found.scores, SCORED)


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
    (found,) = run_task(*task)
    yield _batch(found.addresses, found.distances, FOUND)


def _batch(
    addresses: npt.NDArray[np.uint64], values: npt.NDArray[np.float32], schema: st.StructType
) -> pa.RecordBatch:
    columns = [pa.array(addresses.view(np.int64)), pa.array(values)]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))


def _measured(name: str) -> st.StructType:
    """Return the schema of rows by address with what was measured of them."""
    return st.StructType(
        [st.StructField("_address", st.LongType(), False), st.StructField(name, st.FloatType(), False)]
    )


FOUND, SCORED = _measured(DISTANCE), _measured(SCORE)


def shown_columns(manifest: Manifest, columns: Sequence[str] | None, *made: str) -> st.StructType:
    """Return the Spark schema of the table's columns in a result, less those that a search hides."""
    names = [field.name for field in manifest.schema.fields] if columns is None else columns
    stored = tuple(name for name in names if name not in made)
    return spark_schema_of(manifest.schema, Projection(stored))


def with_measured(
    schema: st.StructType, before: tuple[st.StructField, ...], name: str = DISTANCE
) -> st.StructType:
    """Return the schema of what `fetch_rows` makes: what comes along, the table's columns, a measure."""
    return st.StructType([*before, *schema.fields, _measured(name).fields[1]])


_Mapper = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def fetch_rows(
    plan: SearchPlan | TextPlan,
    schema: st.StructType,
    before: tuple[st.StructField, ...],
    measure: str = DISTANCE,
) -> _Mapper:
    """Return what puts the columns of rows in the place of their addresses."""

    def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            snapshot = plan.table.load()
            names, _ = resolve_projection(snapshot.schema, schema)
            scan = snapshot.scan(names)
            convert: BatchConverter | None = None
            target = arrow_schema(with_measured(schema, before, measure))
            for batch in batches:
                for start in range(0, batch.num_rows, _FETCH):
                    part = batch.slice(start, _FETCH)
                    addresses = part["_address"].to_numpy().view(np.uint64)
                    done = 0
                    # Without columns there are no batches, but rows.
                    taken = take_addresses(scan, addresses)
                    taken = taken_with_sources(taken, addresses, schema, snapshot.manifest, scan.bases)
                    convert = convert or BatchConverter.plan(taken.schema, arrow_schema(schema))
                    for rows in taken.to_batches() or [None]:
                        these = part if rows is None else part.slice(done, rows.num_rows)
                        values = [] if rows is None else convert(rows).columns
                        columns = [*(these[field.name] for field in before), *values, these[measure]]
                        yield pa.RecordBatch.from_arrays(columns, schema=target)
                        done += len(these)

    return fetch


def _matrix(vectors: pa.Array, dim: int) -> npt.NDArray[Any]:
    lengths = pc.list_value_length(vectors).to_numpy(zero_copy_only=False)
    wrong = lengths[lengths != dim]
    if len(wrong):
        raise OptionError(f"a query has {int(wrong[0])} values, the vectors of the table have {dim}")
    values: npt.NDArray[Any] = vectors.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    return values


def _answered(plan: SearchPlan, queries: DataFrame) -> DataFrame:
    """Return the best rows for each of many queries: its id, address and distance.

    Args:
        plan: the search.
        queries: ids and vectors.
    """
    identity, given = queries.schema.fields
    # Queries are compared as floats, and shuffled once for each place where they look.
    is_double = plan.query.vectors.dtype == np.float64
    vectors = st.ArrayType(st.DoubleType() if is_double else st.FloatType())
    asked = queries.select(_QUERY_ID, F.col(given.name).cast(vectors).alias("_vector"))
    place = st.StructField("_home", st.LongType(), False)
    sent = st.StructType([place, identity, st.StructField("_vector", vectors, False)])
    answered = st.StructType([identity, *FOUND.fields])
    homes = asked.where("_vector is not null").mapInArrow(_assign(plan), sent)
    homes = homes.repartition("_home").sortWithinPartitions("_home")
    found = homes.mapInArrow(_answer(plan, arrow_schema(answered)), answered)
    order = Window.partitionBy(_QUERY_ID).orderBy(DISTANCE, "_address")
    ranked = found.withColumn("_place", F.row_number().over(order))
    return ranked.where(F.col("_place") <= plan.query.k).drop("_place")


def _answered_whole(plan: SearchPlan, queries: DataFrame) -> DataFrame:
    """Return what `_answered` does, for queries of several vectors: a task answers the whole of one."""
    identity, given = queries.schema.fields
    is_double = plan.query.vectors.dtype == np.float64
    vectors = st.ArrayType(st.ArrayType(st.DoubleType() if is_double else st.FloatType()))
    asked = queries.select(_QUERY_ID, F.col(given.name).cast(vectors).alias("_vector"))
    answered = st.StructType([identity, *FOUND.fields])
    schema = arrow_schema(answered)

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            search = plan.open()
            for batch in batches:
                for number, query in enumerate(batch["_vector"]):
                    asking = replace(plan.query, vectors=_one_query(query.values)).fitted(search.kind)
                    parts = [search.answer(asking, t, search.allowed(plan.filter, t)) for t in plan.tasks]
                    (found,) = merged(parts, asking.k)
                    ids = batch[_QUERY_ID].take(pa.array([number] * len(found.addresses)))
                    columns = [ids, pa.array(found.addresses.view(np.int64)), pa.array(found.distances)]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return asked.where("size(_vector) > 0").mapInArrow(answer, answered)


def _one_query(vectors: pa.Array) -> npt.NDArray[Any]:
    lengths = pc.list_value_length(vectors).to_numpy(zero_copy_only=False)
    if vectors.null_count or len(set(lengths.tolist())) != 1:
        raise OptionError("the vectors of a query must have one length, and none may be null")
    values: npt.NDArray[Any] = vectors.flatten().to_numpy(zero_copy_only=False).reshape(len(vectors), -1)
    return values


def _assign(plan: SearchPlan) -> _Mapper:
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
                    columns = {"_home": home, _QUERY_ID: batch[_QUERY_ID].take(some)}
                    yield pa.RecordBatch.from_pydict({**columns, "_vector": batch["_vector"].take(some)})

    return assign


def _answer(plan: SearchPlan, schema: pa.Schema) -> _Mapper:
    """Return what answers the queries of every place; they come sorted by it."""

    def answer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line():
            routing = Routing(plan)
            for home, ids, lists in _by_home(batches):
                found = routing.answer(home, _matrix(lists, routing.dimension))
                counts = [len(part.addresses) for part in found]
                rows = pa.array(np.repeat(np.arange(len(found)), counts))
                addresses = np.concatenate([part.addresses for part in found]).view(np.int64)
                scores = np.concatenate([part.distances for part in found]).astype(np.float32)
                columns = [ids.take(rows), pa.array(addresses), pa.array(scores)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return answer


def _by_home(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Array, pa.Array]]:
    """Yield (place, query ids, vectors) in blocks of one place each."""
    held: list[pa.RecordBatch] = []

    def block() -> tuple[int, pa.Array, pa.Array]:
        table = pa.Table.from_batches(held).combine_chunks()
        (whole,) = table.to_batches()
        return int(whole["_home"][0].as_py()), whole[_QUERY_ID], whole["_vector"]

    for batch in batches:
        homes = batch["_home"].to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(homes)) + 1).tolist(), len(homes)]
        for start, stop in itertools.pairwise(bounds):
            for first in range(start, stop, _BLOCK):
                part = batch.slice(first, min(_BLOCK, stop - first))
                new = bool(held) and held[0]["_home"][0].as_py() != part["_home"][0].as_py()
                if held and (new or sum(b.num_rows for b in held) >= _BLOCK):
                    yield block()
                    held = []
                if part.num_rows:
                    held.append(part)
    if held:
        yield block()
