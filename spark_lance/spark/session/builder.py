"""Sessions in which small queries on Lance tables are fast: settings that must be there before Spark starts.

    spark = spark_lance.enable(spark_lance.session_builder().master("local[4]").getOrCreate())

A cluster's administrator puts the same into `spark-defaults.conf`; the package has to be installed where
executors run, as it has to for every read by tasks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from pyspark.sql import SparkSession

from spark_lance.spark.java import prepare_environment

__all__ = ["FAST_SETTINGS", "session_builder", "tell_of_settings"]

logger = logging.getLogger(__name__)

# Setting -> its value, and what it is good for.
FAST_SETTINGS = MappingProxyType(
    {
        "spark.python.daemon.module": (
            "spark_lance.spark.daemon",
            "forks Python workers that have loaded what they need",
        ),
        "spark.python.unix.domain.socket.enabled": (
            "true",
            "lets Spark 4.1 and newer talk to Python workers without the network",
        ),
        "spark.sql.execution.arrow.pyspark.enabled": (
            "true",
            "moves rows between Spark and pandas as Arrow",
        ),
    }
)


def session_builder() -> SparkSession.Builder:
    """Return a builder of Spark sessions with `FAST_SETTINGS`; settings that follow take precedence.

    Also finds Java, and lets workers run this Python, see `prepare_environment`. Only a session that starts
    a driver takes the settings of workers: one that is running keeps its own.

    Raises:
        JavaNotFoundError: there is no Java that Spark can run on.
    """
    prepare_environment()
    builder = SparkSession.builder
    for name, (value, _) in FAST_SETTINGS.items():
        if os.name == "posix" or "unix" not in name:
            builder = builder.config(name, value)
    return builder


def tell_of_settings(settings: Mapping[str, str | None]) -> None:
    """Log once, in one line, which settings of a driver, by name, would make small queries faster."""
    missing = [
        f"{name}={value} {reason}"
        for name, (value, reason) in FAST_SETTINGS.items()
        if settings.get(name) != value and (os.name == "posix" or "unix" not in name)
    ]
    if missing:
        _tell("; ".join(missing))


@cache
def _tell(missing: str) -> None:
    logger.info(
        "small queries could be faster: %s (spark_lance.session_builder() sets all of these)", missing
    )
