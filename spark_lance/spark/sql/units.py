"""The Java side of the SQL catalog, in units that are compiled when Spark first asks for a class of them.

Whoever names no table in SQL compiles nothing: `LanceUnits` answers the class loader that Spark asks, and it
compiles a unit, or finds it in the cache folder, when a class of it is needed.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from pyspark.sql.udf import _wrap_function

from spark_lance.spark.session import java_classes
from spark_lance.spark.source import LanceDataSource

__all__ = ["UNITS", "publish", "take_statements"]

_FIRST = "spark_lance.LanceUnits"
_ADDRESS = "lance-units:/"
_STATEMENTS = "spark_lance.LanceStatements"

# A source file each, named like its class in the package spark_lance.sql. One that does not fit a release of
# Spark is missing there, and nothing else.
UNITS = (
    "Bridge",
    "LanceCatalog",
    "LanceTable",
    "LanceProcedures",
    "LanceColumnVector",
    "LanceColumns",
    "LanceHeldColumns",
    "LanceRowBatches",
    "LanceTransport",
    "LanceSaveModes",
    "LanceAmount",
    "LancePushed",
    "LanceRows",
    "LanceTaskScan",
    "LanceColumnScan",
    "LanceScan",
    "LanceWrite",
    "LanceWriteRows",
    "LancePaths",
    "LanceTarget",
    "LanceChange",
    "LanceRowLevel",
    "LanceSearch",
    "LanceDistance",
    "LanceNearest",
)


@cache
def _sources() -> dict[str, str]:
    return {name: java_classes.source(f"{name}.java") for name in UNITS}


def publish(spark: Any, answers: Any) -> bool:
    """Let the classes of `UNITS` be found in a session's JVM, and their questions be answered by Python.

    Args:
        spark: a classic session.
        answers: a `java.util.function.BiFunction` in Python: (text of a question, object) -> text of answer.

    Returns:
        Whether there is a loader that classes can be added to.
    """
    jvm = spark._jvm
    loader = java_classes.open_loader(jvm)
    if loader is None:
        return False
    content = hashlib.sha256("\0".join(_sources().values()).encode()).hexdigest()[:16]
    arguments = spark._sc._gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0] = loader
    arguments[1] = str(java_classes.cache_folder(jvm) / f"units-{content}")
    units = java_classes.load(jvm, _FIRST).getConstructors()[0].newInstance(arguments)
    if not any(url.toString() == _ADDRESS for url in loader.getURLs()):
        for name, text in _sources().items():
            units.add(name, text)
        loader.addURL(jvm.java.net.URL(None, _ADDRESS, units))
    units.answerBy(answers)
    units.formatIs(_format(spark), spark.sparkContext.applicationId)
    return True


def _format(spark: Any) -> Any:
    """Return the format in Spark's form, as it has it after a look at all installed ones.

    For that look it starts a daemon of Python workers of its own, and a worker that imports them.
    """
    jvm = spark._jvm
    python = "org.apache.spark.sql.execution.datasources.v2.python"
    return getattr(jvm, f"{python}.UserDefinedPythonDataSource")(
        _wrap_function(spark.sparkContext, LanceDataSource)
    )


def take_statements(spark: Any) -> None:
    """Let DELETE, UPDATE and MERGE on Lance tables be taken by the unit LanceRowLevel, in all sessions.

    Args:
        spark: a classic session whose JVM has the units.

    Raises:
        Py4JError: this release of Spark does not take what is needed for that.
    """
    jvm = spark._jvm
    none = spark._sc._gateway.new_array(jvm.java.lang.Object, 0)
    statements = java_classes.load(jvm, _STATEMENTS).getConstructors()[0].newInstance(none)
    statements.enter(spark._jsparkSession.extensions())
