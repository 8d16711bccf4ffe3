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
# LanceParser.java reads it for MERGE.
_AUTO_MERGE = f"{_PREFIX}schema.autoMerge.enabled"


def default_properties(spark: SparkSession) -> dict[str, str]:
    """Return the properties that a session's settings give to new tables."""
    values = {name: spark.conf.get(f"{_PREFIX}properties.defaults.{name}", None) for name in _DEFAULTS}
    return {f"delta.{name}": value for name, value in values.items() if value is not None}


def merges_schemas(spark: SparkSession) -> bool:
    """Return whether MERGE statements of a session add the source's columns to the table."""
    return (spark.conf.get(_AUTO_MERGE, None) or "").lower() == "true"


# Bridge.java reads it for SQL.
_JOB = f"{_PREFIX}write.txnAppId"


def check_repeatable(spark: SparkSession) -> None:
    """Check that a session does not rely on Delta's setting against repeated writes.

    Raises:
        OptionError: the session has the setting, and no Delta Lake that uses it.
    """
    if spark.conf.get(_JOB, None) is not None and "delta" not in (
        spark.conf.get("spark.sql.extensions", None) or ""
    ):
        raise change_setting_error(_JOB)


def append_setting_error(setting: str) -> OptionError:
    """Return the error for a write by a session with Delta's setting against repeated writes."""
    return OptionError(
        f"setting {setting} has no effect on Lance tables: write df.write.option('txnAppId', "
        "'job').option('txnVersion', 1).mode('append').saveAsTable('t')"
    )


def change_setting_error(setting: str) -> OptionError:
    """Return the error for a DELETE, UPDATE or MERGE by a session with this setting."""
    return OptionError(
        f"setting {setting} has no effect on Lance tables, so a repeated DELETE, UPDATE or MERGE runs again: "
        f"call spark.conf.unset('{setting}')"
    )
