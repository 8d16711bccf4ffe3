"""Objects that Java has Python create at their first use: creating one takes as long as a small query."""

from __future__ import annotations

from pyspark.sql.udf import UserDefinedFunction, _wrap_function

from spark_lance.spark.schema.blob_function import BLOB_FUNCTION, blob_function
from spark_lance.spark.session.java_classes import java
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.sql.catalogs import Question

__all__ = ["make_blob_function", "make_format"]

_PYTHON = "org.apache.spark.sql.execution.datasources.v2.python"


def make_format(question: Question) -> None:
    """Put the format, in Spark's form, into the question's subject.

    Spark has it after a look at all installed formats; for that look it starts a daemon of Python workers of
    its own, and a worker that imports them.
    """
    context = question.spark.sparkContext
    source = java(context._jvm, f"{_PYTHON}.UserDefinedPythonDataSource")
    question.subject.set(source(_wrap_function(context, LanceDataSource)))


def make_blob_function(question: Question) -> None:
    """Put the function `lance_blob`, in Spark's form, into the question's subject."""
    blob = blob_function()
    function = UserDefinedFunction(blob.func, blob.returnType, BLOB_FUNCTION, blob.evalType)
    question.subject.set(function._judf)
