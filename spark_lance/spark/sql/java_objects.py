"""Creates Python objects for Java at their first use, because creating one takes as long as a small query."""

from __future__ import annotations

from pyspark.sql.udf import UserDefinedFunction

from spark_lance.spark.base.compat import java_data_source, java_function
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.worker.blob_function import BLOB_FUNCTION, blob_function


def make_format(request: BridgeRequest) -> None:
    """Put the format, in Spark's form, into the request's subject.

    Spark's own way to it searches all installed formats, and for that starts a separate daemon of Python
    workers and a worker that imports them.
    """
    request.subject.set(java_data_source(request.spark.sparkContext, request.source))


def make_blob_function(request: BridgeRequest) -> None:
    """Put the function `lance_blob`, in Spark's form, into the request's subject."""
    blob = blob_function()
    function = UserDefinedFunction(blob.func, blob.returnType, BLOB_FUNCTION, blob.evalType)
    request.subject.set(java_function(function))
