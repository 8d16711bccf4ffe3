"""The Arrow types that this PySpark version exchanges, by its own word, and Spark types of Arrow columns."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_lance.spark.schema.types import spark_field

__all__ = ["COUNTS_WITHOUT_COLUMNS", "pyspark_schema", "spark_schema"]

# Spark 4.0 loses the rows of batches without columns; pushFilters came with the release that keeps them.
COUNTS_WITHOUT_COLUMNS = hasattr(DataSourceReader, "pushFilters")


def pyspark_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that PySpark expects from a data source."""
    zoned = "timezone" in inspect.signature(to_arrow_schema).parameters
    return to_arrow_schema(schema, timezone="UTC") if zoned else to_arrow_schema(schema)


def spark_schema(fields: Iterable[pa.Field]) -> StructType:
    """Return the Spark schema of Arrow columns."""
    return StructType([spark_field(field) for field in fields])
