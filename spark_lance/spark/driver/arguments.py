"""Checks of arguments that callers pass to the Spark layer: sessions and numbers."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.spark.base.compat import is_stopped


def check_session(spark: Any, usage: str) -> None:
    """Check that an argument is a Spark session, classic or of Spark Connect.

    Args:
        spark: the argument.
        usage: how the function is called, such as "enable(spark)".

    Raises:
        OptionTypeError: it is something else.
    """
    if not hasattr(type(spark), "createDataFrame"):
        kind = "None" if spark is None else type(spark).__name__
        raise OptionTypeError(
            f"the first argument is {kind}, not a Spark session: write {usage} "
            "with spark = SparkSession.builder.getOrCreate()"
        )


def check_running(spark: Any) -> None:
    """Check that a session has not been stopped.

    Raises:
        OptionError: it has.
    """
    if is_stopped(spark):
        raise OptionError(
            "the Spark session has been stopped: make one with SparkSession.builder.getOrCreate(), "
            "and open the table again with LanceTable.forPath(spark, path)"
        )


def check_number(name: str, value: object, example: str, *, whole: bool = False) -> None:
    """Check that an argument is a number, or None.

    Args:
        name: the argument.
        value: its value.
        example: a valid value with its meaning, such as "168 for 7 days".
        whole: whether it is a whole number.

    Raises:
        OptionTypeError: it is something else.
    """
    kind = Integral if whole else Real
    if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
        what = "a whole number" if whole else "a number"
        raise OptionTypeError(f"{name} is {what}, such as {example}, not {value!r}")
