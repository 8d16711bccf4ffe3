"""Spark's daemon of Python workers, which imports the modules of reads and writes before it forks workers.

    SparkSession.builder.config("spark.python.daemon.module", "spark_lance.spark.daemon")

Spark ends a worker when a query stops before its last row, as with `show()`, `head()` or a LIMIT. The next
query then waits almost a second while a new worker loads Python packages. A worker forked from this process
has them already. Its Unix socket is in a folder that no other user can enter. Everything else is Spark's own
daemon.
"""

from __future__ import annotations

import gc
import os
from importlib import import_module

import pyarrow as pa
from pyspark.daemon import manager

from spark_lance.spark.worker.sockets import protect_daemon

__all__ = ["preload"]

_MODULES = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",  # defines the function that reads a partition
    "pyarrow.compute",
    "spark_lance.spark.source",
    "spark_lance.spark.scan.rows",
    "spark_lance.file.v2_1.read.field_reader",
    "spark_lance.file.v2_1.write.field_writer",
    "spark_lance.spark.sink.write",
)


def preload() -> None:
    """Load the modules that workers need, and keep them out of garbage collection."""
    # A process must not have threads when it forks. numpy's BLAS starts some unless this variable forbids it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in _MODULES:
        import_module(name)
    # Arrow imports pandas, if installed, when it first converts a Python value. That takes 0.35 s of
    # processor time, which every worker would spend.
    pa.scalar(0)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    protect_daemon()
    preload()
    manager()
