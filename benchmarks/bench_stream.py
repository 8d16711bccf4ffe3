"""How long micro-batches of 1,000 rows take: into a table, and out of one.

    python -m benchmarks.bench_stream [--batches 20] [--rows 1000] [--keep]

The sink takes files of Parquet, one a batch; the source is a table that is appended to, once a batch, and
Spark throws the rows away. Prints the median of what Spark says a batch took, the first ones left out, with
the driver planning and committing and, as the peer, with Spark's own way.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

import spark_lance
from benchmarks.harness import Results, parser, start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_PLANS = "spark.lance.planInDriver"
_COLD = 3


def rows_of(number: int, rows: int) -> pa.Table:
    """Return the rows of a batch."""
    ids = range(number * rows, (number + 1) * rows)
    return pa.table({"id": pa.array(ids, pa.int64()), "word": [f"word {i % 100}" for i in ids]})


def seconds(writer: DataStreamWriter, batches: int, give: Callable[[int], None]) -> float:
    """Return the median of what a batch of a stream takes, when each gets the rows that `give` provides."""
    give(0)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        for number in range(1, batches):
            query.processAllAvailable()
            give(number)
        query.processAllAvailable()
    finally:
        query.stop()
    taken = [each.durationMs["triggerExecution"] / 1e3 for each in query.recentProgress if each.numInputRows]
    assert len(taken) >= batches, taken
    return statistics.median(taken[_COLD:])


def into(spark: SparkSession, folder: Path, batches: int, rows: int) -> float:
    """Return the seconds of a batch that is written to a table."""
    source = folder / "parquet"
    source.mkdir(parents=True)

    def give(number: int) -> None:
        fresh = folder / "fresh"
        pq.write_table(rows_of(number, rows), fresh)
        fresh.rename(source / f"{number:04}.parquet")

    stream = spark.readStream.schema("id bigint, word string").parquet(str(source))
    writer = stream.writeStream.format("lance").option("path", str(folder / "into.lance"))
    return seconds(writer.option("checkpointLocation", str(folder / "into")), batches, give)


def out_of(spark: SparkSession, folder: Path, batches: int, rows: int) -> float:
    """Return the seconds of a batch that is read from a table."""
    place = folder / "source.lance"
    spark_lance.write_dataset(rows_of(0, rows).slice(0, 0), place)

    def give(number: int) -> None:
        spark_lance.write_dataset(rows_of(number, rows), place, mode="append")

    stream = spark.readStream.format("lance").load(str(place))
    writer = stream.writeStream.format("noop")
    return seconds(writer.option("checkpointLocation", str(folder / "out")), batches, give)


def main() -> None:
    """Run the benchmark and print its table."""
    options = parser(__doc__)
    options.add_argument("--batches", type=int, default=20)
    options.add_argument("--rows", type=int, default=1000)
    arguments = options.parse_args()
    results = Results("bench_stream", arguments.keep)
    with tempfile.TemporaryDirectory() as temporary:
        spark = start_spark()
        print(f"{'seconds of a batch':20} {'driver':>8} {'own way':>8}")
        for label, measure in (("into a table", into), ("out of a table", out_of)):
            found = []
            for name, plans in (("driver", "true"), ("own", "false")):
                spark.conf.set(_PLANS, plans)
                folder = Path(temporary) / label / name
                folder.mkdir(parents=True)
                found.append(measure(spark, folder, arguments.batches, arguments.rows))
            print(f"{label:20} {found[0]:8.3f} {found[1]:8.3f}", flush=True)
            results.add(label, "median", "s", found[0], {"Spark's own way": found[1]})
        spark.stop()
    results.save()


if __name__ == "__main__":
    main()
