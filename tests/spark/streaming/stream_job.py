"""A job that copies a Lance table as a stream, and may be killed in the middle of a commit.

python -m tests.spark.streaming.stream_job SOURCE TARGET CHECKPOINT [before|after MARKER]
"""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession

from spark_lance.spark.java import prepare_environment
from tests.spark.streaming.faulty_source import FaultySource


def main(source: str, target: str, checkpoint: str, place: str = "", marker: str = "") -> None:
    prepare_environment()
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.dataSource.register(FaultySource)
    rows = spark.readStream.format("lance").option("maxFilesPerTrigger", 1).load(source)
    out = rows.writeStream.format("lance_faulty").option("checkpointLocation", checkpoint)
    if place:
        jvm: Any = spark._jvm
        java = jvm.java.lang.ProcessHandle.current().pid()
        out = out.option("fault.place", place).option("fault.batch", "1").option("fault.marker", marker)
        out = out.option("fault.kill", f"{os.getpid()},{java}")
    out.trigger(availableNow=True).start(target).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
