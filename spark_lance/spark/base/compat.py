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
    "SESSION_CATALOG",
    "DataSourceStreamArrowWriter",
    "GeographyType",
    "GeometryType",
    "ReadLimit",
    "ReadMaxFiles",
    "SupportsTriggerAvailableNow",
    "TimeType",
    "avoid_waiting_udfs",
    "has_jvm",
    "is_stopped",
    "java_class",
    "java_context",
    "java_data_source",
    "java_exception",
    "java_frame",
    "java_function",
    "java_session",
    "jvm_view",
    "session_of",
    "socket_stream",
    "start_callbacks",
    "type_of_ddl",
    "type_of_json",
]

# Spark 4.0 takes batches without columns for empty ones. The release that put it right brought pushFilters.
KEEPS_ROWS_WITHOUT_COLUMNS = hasattr(DataSourceReader, "pushFilters")

# The name of Spark's own catalog.
SESSION_CATALOG = "spark_catalog"

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


# PySpark's private names. Workers load this module, so what only a driver needs is imported by the functions.


def has_jvm(spark: Any) -> bool:
    """Return whether a session belongs to a JVM of this process, and not to Spark Connect."""
    return hasattr(spark, "_jvm")


def jvm_view(spark: Any) -> Any:
    """Return Py4J's view of the JVM of a classic session."""
    return spark._jvm


def java_class(jvm: Any, name: str) -> Any:
    """Return a class of the JVM by its whole name, without a question whether it is one."""
    from py4j.java_gateway import JavaClass

    return JavaClass(name, jvm._gateway_client)


def java_session(spark: Any) -> Any:
    """Return the Java object of a classic session."""
    return spark._jsparkSession


def java_frame(frame: Any) -> Any:
    """Return the Java object of a classic DataFrame."""
    return frame._jdf


def java_context(context: Any) -> Any:
    """Return the Scala object of a Spark context."""
    return context._jsc.sc()


def is_stopped(spark: Any) -> bool:
    """Return whether a session, classic or of Spark Connect, was stopped."""
    context = getattr(spark, "_sc", None)
    return bool(getattr(spark, "is_stopped", False)) if context is None else context._jsc is None


def session_of(spark: Any, session: Any) -> SparkSession:
    """Return the Python session of a Java session, in the context of another Python session."""
    from pyspark.sql import SparkSession

    return SparkSession(spark._sc, session)


def start_callbacks(spark: Any) -> None:
    """Let the JVM of a classic session call Python objects."""
    from pyspark import java_gateway

    ensure: Any = java_gateway.ensure_callback_server_started
    ensure(spark._sc._gateway)


def java_exception(error: Any) -> Any:
    """Return the Java exception that PySpark converted."""
    return error._origin


def java_function(function: Any) -> Any:
    """Return the Java object of a Python function."""
    return function._judf


def java_data_source(context: Any, source: type) -> Any:
    """Return a Python data source in the form in which Spark keeps it."""
    from pyspark.sql.udf import _wrap_function

    kind = "org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource"
    return java_class(context._jvm, kind)(_wrap_function(context, source))


def type_of_ddl(text: str) -> st.DataType:
    """Return a type by its name in SQL."""
    return st._parse_datatype_string(text)


def type_of_json(value: Any) -> st.DataType:
    """Return a type by its JSON value."""
    return st._parse_datatype_json_value(value)
