"""Settings of a session by the names that Delta Lake gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX = "spark.databricks.delta."
# Properties that a new table gets from `spark.databricks.delta.properties.defaults.<name>`.
_DEFAULTS = (
    "appendOnly",
    "enableChangeDataFeed",
    "enableRowTracking",
    "logRetentionDuration",
    "deletedFileRetentionDuration",
)
# LanceParser.java reads it for MERGE.
_AUTO_MERGE = f"{_PREFIX}schema.autoMerge.enabled"


def default_properties(spark: SparkSession) -> dict[str, str]:
    """Return the properties of new tables that settings of a session ask for."""
    values = {name: spark.conf.get(f"{_PREFIX}properties.defaults.{name}", None) for name in _DEFAULTS}
    return {f"delta.{name}": value for name, value in values.items() if value is not None}


def merges_schemas(spark: SparkSession) -> bool:
    """Whether merges of a session add columns of the source to the table."""
    return (spark.conf.get(_AUTO_MERGE, None) or "").lower() == "true"
