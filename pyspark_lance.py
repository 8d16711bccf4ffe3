"""Makes ``spark.read.format("lance")`` work without registering anything.

Spark imports every installed top-level module whose name starts with ``pyspark_`` and registers its
``DefaultSource``. That happens in each Spark session on the machine, so this import must stay light.
"""

from __future__ import annotations

from spark_lance.spark.source import LanceDataSource as DefaultSource

__all__ = ["DefaultSource"]
