"""Streams between Lance tables and the change feed, with a check after every step.

    python examples/streaming.py [--dir FOLDER]

Needs PySpark 4.1 or newer and Java; runs in some seconds. The tables are in FOLDER, by default a
temporary folder.
"""

from __future__ import annotations

import sys

from _steps import check, run_steps
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_lance import LanceTable


def orders(spark: SparkSession, first: int, last: int) -> DataFrame:
    """Return made-up orders."""
    return spark.range(first, last).selectExpr("id", "id % 3 AS customer", "cast(id AS double) / 4 AS total")


def run(spark: SparkSession, place: str) -> None:
    """Copy a table as a stream, follow its changes, and read them once more as a batch."""
    source, copy, history = f"{place}/orders", f"{place}/copy", f"{place}/history"
    append = orders(spark, 0, 100).repartition(4).write.format("lance").mode("append")
    append.option("enable_stable_row_ids", "true").save(source)

    def bring_up_to_date() -> int:
        """Append to the copy what is new, at most two fragments at a time; return the batches it took."""
        new = spark.readStream.format("lance").option("maxFilesPerTrigger", 2).load(source)
        out = new.writeStream.format("lance").option("checkpointLocation", f"{place}/checkpoint")
        query = out.trigger(availableNow=True).start(copy)
        query.awaitTermination()
        return len([batch for batch in query.recentProgress if batch["numInputRows"]])

    check("batches of the first run", bring_up_to_date(), 2)
    orders(spark, 100, 130).coalesce(1).write.format("lance").mode("append").save(source)
    check("batches of the second run", bring_up_to_date(), 1)
    copied = spark.read.format("lance").load(copy)
    check("rows copied", (copied.count(), copied.select("id").distinct().count()), (130, 130))

    table = LanceTable.forPath(spark, source)
    table.update("id < 2", {"total": "total + 1000"})
    table.delete("customer = 2")
    changes = spark.readStream.format("lance").option("readChangeFeed", "true")
    out = changes.option("startingVersion", 3).load(source).writeStream.format("lance")
    query = out.option("checkpointLocation", f"{place}/checkpoint2").trigger(availableNow=True).start(history)
    query.awaitTermination()
    kinds = spark.read.format("lance").load(history).groupBy("_change_type").count().collect()
    expected = {"update_preimage": 2, "update_postimage": 2, "delete": 43}
    check("changes that were streamed", dict(kinds), expected)

    feed = (
        spark.read.format("lance").option("readChangeFeed", "true").option("startingVersion", 1).load(source)
    )
    sign = F.when(F.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1)
    applied = feed.select(F.sum(sign * F.col("total"))).collect()[0][0]
    now = spark.read.format("lance").load(source).select(F.sum("total")).collect()[0][0]
    check("total of all changes", applied, now)


if __name__ == "__main__":
    sys.exit(run_steps(__doc__.splitlines()[0], "streaming", run))
