"""Public import path of the search for a Java runtime that Spark can start, see `driver.java_home`."""

from __future__ import annotations

from spark_lance.errors import JavaNotFoundError
from spark_lance.spark.driver.java_home import ensure_java, prepare_environment

__all__ = ["JavaNotFoundError", "ensure_java", "prepare_environment"]
