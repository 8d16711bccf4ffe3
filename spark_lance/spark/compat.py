"""Differences between releases of Spark, and all code that rests on Spark's internals.

Features that a release lacks compared with the newest supported release, 4.3:

    4.0    Batches without columns lose their number of rows, so a query that needs no column reads one.
           Streams hand over no Arrow batches, so `writeStream` is refused. No types TIME, GEOMETRY and
           GEOGRAPHY. Sources in the JVM get no expressions of Spark's own, only predicates of connectors, so
           conditions on JSON documents save no reading (`LanceScan`). Also what 4.1 lacks.
    4.1    Streams ask for offsets without limits and have no `Trigger.AvailableNow` for such sources: a
           micro-batch takes all there is.
    4.2    Nothing that is used here. But 4.2.0 waits for ever for plain Python UDFs over a source that hands
           over columns, Parquet files too (`avoid_waiting_udfs`); 4.2.1 does not.

The code checks for names, not for numbers of releases, because distributions of Spark backport features.
A missing name leads to the behaviour in this table, and is an error only where something needs it.
"""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

import pyspark.sql.types as st
from pyspark.sql.datasource import DataSourceReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:  # Spark 4.0
        DataSourceStreamArrowWriter = None
    try:
        from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
    except ImportError:  # Spark 4.0 and 4.1
        ReadLimit = ReadMaxFiles = None

        class SupportsTriggerAvailableNow:
            """Stands in for Spark's class."""


__all__ = [
    "KEEPS_ROWS_WITHOUT_COLUMNS",
    "DataSourceStreamArrowWriter",
    "GeographyType",
    "GeometryType",
    "ReadLimit",
    "ReadMaxFiles",
    "SupportsTriggerAvailableNow",
    "TimeType",
    "avoid_waiting_udfs",
    "socket_stream",
]

# Spark 4.0 takes batches without columns for empty ones. The release that put it right brought pushFilters.
KEEPS_ROWS_WITHOUT_COLUMNS = hasattr(DataSourceReader, "pushFilters")

# None in Spark 4.0.
GeometryType: type[st.DataType] | None = getattr(st, "GeometryType", None)
GeographyType: type[st.DataType] | None = getattr(st, "GeographyType", None)
TimeType: type[st.DataType] | None = getattr(st, "TimeType", None)

# Whether Python UDFs get columns as they are.
_COLUMNS_TO_UDFS = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"


def avoid_waiting_udfs(spark: SparkSession) -> None:
    """Let Python UDFs of a session get rows where Spark would wait for ever, unless it has been set."""
    if spark.version == "4.2.0" and spark.conf.get(_COLUMNS_TO_UDFS, None) is None:
        spark.conf.set(_COLUMNS_TO_UDFS, "false")


def socket_stream() -> IO[bytes] | None:
    """Return what the caller's batches are written to, by a serializer of Spark's that calls it, or None.

    It keeps small batches back, and nothing but the serializer has it.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "dump_stream":
            stream = frame.f_locals.get("stream")
            if callable(getattr(stream, "flush", None)):
                result: IO[bytes] = stream
                return result
        frame = frame.f_back
    return None
