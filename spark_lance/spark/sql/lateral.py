"""`vector_search` in LATERAL: a search for the vector of each row of another relation.

When a statement is analysed, the vectors are not known; the search is checked and explained with one that
stands in for them. When it runs, Java hands over the rows, and gets a DataFrame of the rows that are found.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyspark.sql.functions as F
import pyspark.sql.types as st
from pyspark.sql import SparkSession
from pyspark.sql.classic import dataframe

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.index import DISTANCE
from spark_lance.errors import OptionError
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search_tasks import plan_search
from spark_lance.io.store import open_store
from spark_lance.spark.lance_table.batch_search import any_vector, nearest_to_each
from spark_lance.spark.lance_table.expressions import quoted
from spark_lance.spark.lance_table.found_rows import shown_columns
from spark_lance.spark.options.options import ReadOptions, read_options
from spark_lance.spark.scan.rows import pin
from spark_lance.spark.sql.catalogs import Question
from spark_lance.table.versions.resolve import VersionRef
from spark_lance.table.versions.versions import load_version

__all__ = ["opened", "search_each", "stand_in"]

# What a search for each row takes: keys of searches, and options of reads.
_OPTIONS = (
    *("metric", "nprobes", "refine_factor", "use_index", "fast_search"),
    *("filter", "columns", "version", "tag", "asof"),
)
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
    return LanceDataset(options.path, store, ref.root, load_version(store, ref.root, ref.version))


def stand_in(reads: Mapping[str, str], column: str, given: Collection[str]) -> list[float]:
    """Return a vector that stands in for those of the rows.

    Args:
        reads: options that lead to the table.
        column: the column that is searched.
        given: the options that the search was given.

    Raises:
        OptionError: one has no meaning for many searches at once.
        SchemaError: there is no such column.
    """
    strange = [name for name in given if name not in _OPTIONS and not name.startswith("storage.")]
    if strange:
        raise OptionError(
            f"vector_search for each row has no option {strange[0]!r}: there are {', '.join(_OPTIONS)}"
        )
    options = read_options(reads)
    return any_vector(opened(options, pin(options)).manifest, column)


def search_each(question: Question) -> None:
    """Put a DataFrame of what a search finds for each of many rows into the question's subject, as `found`.

    Its columns are those of the rows but the last, which is the vector, and `columns` of what is found.
    """
    asked, subject = question.asked, question.subject
    spark = SparkSession(question.spark._sc, subject["session"])
    rows = dataframe.DataFrame(subject["rows"], spark)
    options = read_options(asked["search"])
    dataset = opened(options, pin(options))
    plan = plan_search(dataset.snapshot, VectorQuery.parse(options.nearest or {}), options.filter)
    *along, vector = rows.schema.fields
    # In an order of their own, so that rows of a task that is run again get the numbers that they had.
    order = [vector.name, *(field.name for field in along if _has_order(field.dataType))]
    number = F.monotonically_increasing_id().alias(_NUMBER)
    row = F.struct(number, *(F.col(field.name) for field in along)).alias(_ROW)
    queries = rows.sortWithinPartitions(*order).select(row, vector.name)
    schema = shown_columns(dataset.manifest, asked["columns"], DISTANCE)
    found = nearest_to_each(plan, dataset.manifest, schema, queries, f"{_ROW}.{_NUMBER}")
    shown: Any = found.select(
        *(F.col(f"{_ROW}.{field.name}") for field in along),
        *(F.col(quoted(name)) for name in asked["columns"]),
    )
    subject["found"] = shown._jdf


def _has_order(kind: st.DataType) -> bool:
    if isinstance(kind, st.ArrayType):
        return _has_order(kind.elementType)
    if isinstance(kind, st.StructType):
        return all(_has_order(field.dataType) for field in kind)
    return not isinstance(kind, _WITHOUT_ORDER)
