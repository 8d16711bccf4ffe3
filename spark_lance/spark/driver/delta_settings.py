"""Settings of a session by the names that Delta Lake gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_lance.errors import OptionError

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
_APPLICATION = f"{_PREFIX}write.txnAppId"
# LanceParser.java reads it for MERGE.
_AUTO_MERGE = f"{_PREFIX}schema.autoMerge.enabled"


def default_properties(spark: SparkSession) -> dict[str, str]:
    """Return the properties of new tables that settings of a session ask for."""
    values = {name: spark.conf.get(f"{_PREFIX}properties.defaults.{name}", None) for name in _DEFAULTS}
    return {f"delta.{name}": value for name, value in values.items() if value is not None}


def merges_schemas(spark: SparkSession) -> bool:
    """Whether merges of a session add columns of the source to the table."""
    return (spark.conf.get(_AUTO_MERGE, None) or "").lower() == "true"


def check_settings(spark: SparkSession) -> None:
    """Refuse a setting without effect on commits, if it can only be meant for Lance tables.

    Raises:
        OptionError: a write must not be repeated, and the session has no Delta Lake; the message has what to
            write.
    """
    if not spark.conf.get(_APPLICATION, None):
        return
    if "delta" not in (spark.conf.get("spark.sql.extensions", None) or ""):
        raise OptionError(
            f"setting {_APPLICATION} has no effect on Lance tables: RESET {_APPLICATION}, and write with "
            "df.write.option('txnAppId', 'job').option('txnVersion', 1)"
        )
