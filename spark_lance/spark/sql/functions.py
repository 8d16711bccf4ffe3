"""What SQL gets beside the catalog: searches in FROM, distances of vectors, and a rule for the optimizer.

Their classes are compiled at the first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_lance.spark.session import java_classes
from spark_lance.spark.sql.search_functions import SEARCH_FUNCTIONS

__all__ = ["register_functions"]

_LATE = "spark_lance.LanceLate"

_DISTANCES: Mapping[str, str] = {
    "l2_distance": "_FUNC_(a, b) - The sum of squared differences of two arrays of numbers.",
    "cosine_distance": "_FUNC_(a, b) - 1 minus the cosine of the angle between two arrays of numbers.",
    "dot_distance": "_FUNC_(a, b) - 1 minus the product of two arrays of numbers.",
}


def register_functions(spark: Any, catalog: str, *, new_sessions: bool) -> None:
    """Make the functions known in a classic session, and the rule in all sessions of its driver.

    Args:
        spark: the session.
        catalog: the catalog that searches look up tables in, unless the current one is of Lance.
        new_sessions: do it for sessions that are made later, too.

    Raises:
        Py4JError: Spark takes none.
    """
    none = spark._jvm.scala.Option.empty()
    late = java_classes.load(spark._jvm, _LATE).getConstructors()[0]
    state = spark._jsparkSession.sessionState()
    extensions = spark._jsparkSession.extensions()
    kinds = (
        ("LanceSearch", {name: about.usage for name, about in SEARCH_FUNCTIONS.items()},
         state.tableFunctionRegistry(), extensions.injectTableFunction),
        ("LanceDistance", _DISTANCES, state.functionRegistry(), extensions.injectFunction),
    )  # fmt: skip
    for unit, functions, registry, inject in kinds:
        # Newer releases put a catalog and a namespace before the names of functions, others nothing.
        known = registry.listFunction().head()
        for name, usage in functions.items():
            arguments = spark._sc._gateway.new_array(spark._jvm.java.lang.Object, 3)
            arguments[0], arguments[1], arguments[2] = unit, name, catalog
            builder = late.newInstance(arguments)
            identifier = known.copy(name, known.database(), known.catalog())
            about = spark._jvm.org.apache.spark.sql.catalyst.expressions.ExpressionInfo(
                f"spark_lance.sql.{unit}", None, name, usage, ""
            )
            registry.registerFunction(identifier, about, builder)
            if new_sessions:
                inject(spark._jvm.scala.Tuple3(known.copy(name, none, none), about, builder))
    rule = late.getDeclaringClass().getClassLoader().loadClass(f"{_LATE}$ForSessions").getConstructors()[0]
    rule.newInstance(spark._sc._gateway.new_array(spark._jvm.java.lang.Object, 0)).inject(extensions)
