"""Spark's daemon of Python workers, which imports the modules of reads and writes before it forks workers.

    SparkSession.builder.config("spark.python.daemon.module", "spark_lance.spark.daemon")

Spark ends a worker if not all of its rows are fetched, as after `show()`, `head()` or a LIMIT. The next query
then waits for a new worker to load Python packages, most of a second. A worker forked from this process has
them. Its Unix socket is in a folder that no other user can enter. Everything else is Spark's own daemon.
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
    "pyspark.sql.worker.plan_data_source_read",  # holds the function that reads a partition
    "pyarrow.compute",
    "spark_lance.spark.source",
    "spark_lance.spark.scan.rows",
    "spark_lance.file.v2_1.read.field_reader",
    "spark_lance.file.v2_1.write.field_writer",
    "spark_lance.spark.sink.write",
)


def preload() -> None:
    """Load the modules that workers need, and keep them out of garbage collection."""
    # Threads must not be there when a process is forked; numpy's BLAS starts some unless told not to.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in _MODULES:
        import_module(name)
    # Arrow imports pandas, if it is there, with the first value that it makes of one of Python's: 0.35 s of
    # processor time, which every worker would spend.
    pa.scalar(0)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    protect_daemon()
    preload()
    manager()
