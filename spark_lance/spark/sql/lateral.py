"""Searches in LATERAL: one for the vector, the words, or both, of each row of another relation.

When a statement is analysed, these are not known; the search is checked and explained with values that
stand in for them. When it runs, Java hands over the rows, and gets a DataFrame of the rows that are found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import pyspark.sql.functions as F
import pyspark.sql.types as st
from pyspark.sql.classic import dataframe

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.hybrid import HybridQuery
from spark_lance.datasets.searching import DISTANCE
from spark_lance.errors import OptionError
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search_tasks import plan_search
from spark_lance.io.store import open_store
from spark_lance.spark.compat import java_frame, session_of
from spark_lance.spark.options.options import ReadOptions, options_that_choose, read_options
from spark_lance.spark.scan.rows import pin
from spark_lance.spark.sql.catalogs import Question
from spark_lance.spark.sql.search_functions import SEARCH_FUNCTIONS
from spark_lance.spark.table.batch_search import any_vector, nearest_to_each
from spark_lance.spark.table.batch_words import WordsPlan, answers_to_each
from spark_lance.spark.table.expressions import quoted
from spark_lance.spark.table.found_rows import shown_columns
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.resolve import VersionRef
from spark_lance.table.versions.versions import load_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["opened", "search_each", "stand_ins"]

# Options of a search for each row: keys of searches, and options of reads.
_OF_VECTORS = ("metric", "nprobes", "refine_factor", "use_index", "fast_search")
_OF_READS = ("filter", "columns", *options_that_choose("version"), "allowed_bases")
# A row that is searched for, with a number that tells it from others.
_ROW, _NUMBER = "__lance_row", "number"
# Types whose values have no order.
_WITHOUT_ORDER = tuple(
    getattr(st, name)
    for name in ("MapType", "VariantType", "CalendarIntervalType", "GeometryType", "GeographyType")
    if hasattr(st, name)
)


def opened(options: ReadOptions, ref: VersionRef) -> LanceDataset:
    """Return the version of a table that a read is of."""
    store, _ = open_store(options.path, options.storage)
    return LanceDataset(
        options.path, TableRef(store, ref.root), load_version(TableRef(store, ref.root), ref.version)
    )


def stand_ins(
    function: str,
    reads: Mapping[str, str],
    arguments: Mapping[str, Any],
    each: Collection[str],
    argument_names: Collection[str],
) -> dict[str, Any]:
    """Return values that stand in for those of the rows.

    Args:
        function: the search.
        reads: options that lead to the table.
        arguments: the other arguments of the search.
        each: the arguments that every row brings: `vector`, `query`, or both.
        argument_names: the options that the user set.

    Raises:
        OptionError: one has no meaning for many searches at once.
        SchemaError: there is no such column.
    """
    keys = _OF_VECTORS if function == "vector_search" else SEARCH_FUNCTIONS[function].keys
    allowed = (*keys, *_OF_READS)
    strange = [name for name in argument_names if name not in allowed and not name.startswith("storage.")]
    if strange:
        raise OptionError(
            f"{function} for each row has no option {strange[0]!r}: there are {', '.join(allowed)}"
        )
    values: dict[str, Any] = {"query": ""} if "query" in each else {}
    if "vector" in each:
        options = read_options(reads)
        column = arguments["column" if "column" in arguments else "vector_column"]
        values["vector"] = any_vector(opened(options, pin(options)).manifest, column)
    return values


def search_each(question: Question) -> None:
    """Put a DataFrame of what a search finds for each of many rows into the question's subject, as `result`.

    Its columns are those of the rows without the last ones, the `arguments` of the search, and `columns` of
    the search.
    """
    request, subject = question.request, question.subject
    spark = session_of(question.spark, subject["session"])
    rows = dataframe.DataFrame(subject["rows"], spark)
    options = read_options(request["search"])
    dataset = opened(options, pin(options))
    along = rows.schema.fields[: -len(request["arguments"])]
    if options.nearest is not None:
        results = _nearest(dataset, options, rows, request["columns"])
    else:
        results = _answers(dataset, options, rows, request["columns"], tuple(request["arguments"]))
    frame: Any = results.select(
        *(F.col(f"{_ROW}.{field.name}") for field in along),
        *(F.col(quoted(name)) for name in request["columns"]),
    )
    subject["result"] = java_frame(frame)


def _nearest(dataset: LanceDataset, options: ReadOptions, rows: DataFrame, columns: list[str]) -> DataFrame:
    """Return what is nearest to the vector in the last column of each row; `_ROW` holds the other columns."""
    plan = plan_search(dataset.snapshot, VectorQuery.parse(options.nearest or {}), options.filter)
    *along, vector = rows.schema.fields
    # In an order of their own, so that rows of a task that is run again get the numbers that they had.
    order = [vector.name, *(field.name for field in along if _has_order(field.dataType))]
    number = F.monotonically_increasing_id().alias(_NUMBER)
    row = F.struct(number, *(F.col(field.name) for field in along)).alias(_ROW)
    queries = rows.sortWithinPartitions(*order).select(row, vector.name)
    schema = shown_columns(dataset.manifest, columns, DISTANCE)
    return nearest_to_each(plan, dataset.manifest, schema, queries, f"{_ROW}.{_NUMBER}")


def _answers(
    dataset: LanceDataset,
    options: ReadOptions,
    rows: DataFrame,
    columns: list[str],
    query_columns: tuple[str, ...],
) -> DataFrame:
    """Return what answers the words, the vector or both in the last columns of each row; see `_nearest`."""
    text, both = options.full_text_query, options.hybrid_search
    k = text["k"] if text is not None else HybridQuery.parse(dataset.manifest, both or {}).k
    words = None if text is None else {name: value for name, value in text.items() if name != "k"}
    plan = WordsPlan(dataset.snapshot.ref(), words, both, k, options.filter, query_columns)
    along, values = rows.schema.fields[: -len(query_columns)], rows.schema.fields[-len(query_columns) :]
    # A struct has fields, also where nothing comes along.
    row = F.struct(F.lit(0).alias(_NUMBER), *(F.col(field.name) for field in along)).alias(_ROW)
    queries = rows.select(row, *(_as_doubles(field) for field in values))
    return answers_to_each(plan, shown_columns(dataset.manifest, columns, *plan.measures), queries)


def _as_doubles(field: st.StructField) -> Any:
    """Return a vector, or a list of vectors, as numbers that Python compares with; text as it is."""
    kind = field.dataType
    if not isinstance(kind, st.ArrayType):
        return F.col(field.name)
    many = isinstance(kind.elementType, st.ArrayType)
    return F.col(field.name).cast("array<array<double>>" if many else "array<double>").alias(field.name)


def _has_order(kind: st.DataType) -> bool:
    if isinstance(kind, st.ArrayType):
        return _has_order(kind.elementType)
    if isinstance(kind, st.StructType):
        return all(_has_order(field.dataType) for field in kind)
    return not isinstance(kind, _WITHOUT_ORDER)
