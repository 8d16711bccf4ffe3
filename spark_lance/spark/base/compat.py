"""Differences between releases of Spark, and all code that depends on Spark's internals.

Features that a release lacks compared with the newest supported release, 4.3:

    4.0    Batches without columns lose their row count, so a query that needs no column reads one.
           Streams pass no Arrow batches, so `writeStream` is refused. No types TIME, GEOMETRY and
           GEOGRAPHY. Sources in the JVM get connector predicates, but no Catalyst expressions, so
           conditions on JSON documents skip no data (`LanceScan`). Also all that 4.1 lacks.
    4.1    Streams request offsets without limits and have no `Trigger.AvailableNow` for such sources: a
           micro-batch contains all available data.
    4.2    Lacks nothing that we use. But 4.2.0 hangs on plain Python UDFs over a columnar source, also over
           Parquet files (`avoid_waiting_udfs`); 4.2.1 does not.

The code checks for names, not for release numbers, because distributions of Spark backport features.
If a name is missing, the code behaves as in this table. It raises an error only where it needs the name.
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
            """Placeholder for Spark's class."""


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
    "geometry_type",
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
    "python_session",
    "socket_stream",
    "spatial_reference",
    "start_callbacks",
    "type_of_ddl",
    "type_of_json",
]

# Spark 4.0 treats batches without columns as empty. The release that fixed this also added pushFilters.
KEEPS_ROWS_WITHOUT_COLUMNS = hasattr(DataSourceReader, "pushFilters")

# The name of Spark's own catalog.
SESSION_CATALOG = "spark_catalog"

# None in Spark 4.0.
GeometryType: type[st.DataType] | None = getattr(st, "GeometryType", None)
GeographyType: type[st.DataType] | None = getattr(st, "GeographyType", None)
TimeType: type[st.DataType] | None = getattr(st, "TimeType", None)

# Whether Spark passes columnar input to Python UDFs without converting it to rows.
_COLUMNS_TO_UDFS = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"


def avoid_waiting_udfs(spark: SparkSession) -> None:
    """Turn off columnar input of Python UDFs in Spark 4.2.0, where it hangs, unless the user has set it."""
    if spark.version == "4.2.0" and spark.conf.get(_COLUMNS_TO_UDFS, None) is None:
        spark.conf.set(_COLUMNS_TO_UDFS, "false")


def socket_stream() -> IO[bytes] | None:
    """Return the stream to which Spark's serializer writes the caller's batches; None if there is none.

    The stream buffers small batches. Only a local variable of the serializer's frame refers to it.
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


# PySpark's private names. Workers load this module too, so functions import what only a driver needs.


def has_jvm(spark: Any) -> bool:
    """Return whether a session belongs to a JVM of this process, and not to Spark Connect."""
    return hasattr(spark, "_jvm")


def jvm_view(spark: Any) -> Any:
    """Return Py4J's view of the JVM of a classic session."""
    return spark._jvm


def java_class(jvm: Any, name: str) -> Any:
    """Return a JVM class by its full name, without asking the JVM whether it exists."""
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


def python_session(spark: Any, session: Any) -> SparkSession:
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


def geometry_type(reference: str) -> st.DataType:
    """Return Spark's geometry type of a spatial reference such as EPSG:3857.

    Raises:
        IllegalArgumentException: Spark does not know the reference.
    """
    types: Any = GeometryType
    kind: st.DataType = types._from_crs(reference)
    return kind


def spatial_reference(kind: Any) -> str:
    """Return the spatial reference of a geometry or geography type."""
    reference: str = kind._crs
    return reference
