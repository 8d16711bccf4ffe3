"""Time of micro-batches of 1,000 rows, written to a table and read from one.

    python -m benchmarks.bench_stream [--batches 20] [--rows 1000] [--jars FOLDER] [--keep]

The writing stream reads one Parquet file per batch. The reading stream reads a table with one append per
batch, and discards the rows. The benchmark prints the median duration that Spark reports for a batch, without
the first batches. One peer is the same streams without planning and committing in the driver, with
fewer batches, because each takes long. The other peer is Delta Lake, if `--jars` is a folder with its jars
for this Spark release.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
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
# Seconds that a batch may take.
_MOST_SECONDS = 60
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


@dataclass(frozen=True)
class Way:
    """A way to read and write tables.

    Attributes:
        name: for the table of results.
        format: of the tables.
        plans: the value of `spark.lance.planInDriver`.
        share: how many of the batches are run, as a part of all.
    """

    name: str
    format: str
    plans: str
    share: float


WAYS = (
    Way("driver", "lance", "true", 1.0),
    Way("Spark's own way", "lance", "false", 0.25),
    Way("Delta", "delta", "true", 1.0),
)


def rows_of(number: int, rows: int) -> pa.Table:
    """Return the rows of a batch."""
    ids = range(number * rows, (number + 1) * rows)
    return pa.table({"id": pa.array(ids, pa.int64()), "word": [f"word {i % 100}" for i in ids]})


def seconds(writer: DataStreamWriter, batches: int, give: Callable[[int], None]) -> float:
    """Return the median of what a batch of a stream takes, when each gets the rows that `give` provides.

    Raises:
        TimeoutError: a batch takes longer than a minute.
    """
    give(0)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        for number in range(batches):
            if number:
                give(number)
            watch = threading.Timer(_MOST_SECONDS, query.stop)
            watch.start()
            query.processAllAvailable()
            watch.cancel()
            if not query.isActive:
                raise TimeoutError(f"batch {number} takes longer than {_MOST_SECONDS} s")
    finally:
        query.stop()
    batches_with_rows = [each for each in query.recentProgress if each.numInputRows]
    durations = [each.durationMs["triggerExecution"] / 1e3 for each in batches_with_rows]
    assert len(durations) >= batches, durations
    return statistics.median(durations[_COLD:])


def into(spark: SparkSession, way: Way, folder: Path, batches: int, rows: int) -> float:
    """Return the seconds of a batch that is written to a table."""
    source = folder / "parquet"
    source.mkdir(parents=True)

    def give(number: int) -> None:
        fresh = folder / "fresh"
        pq.write_table(rows_of(number, rows), fresh)
        fresh.rename(source / f"{number:04}.parquet")

    stream = spark.readStream.schema("id bigint, word string").parquet(str(source))
    writer = stream.writeStream.format(way.format).option("path", str(folder / "table"))
    return seconds(writer.option("checkpointLocation", str(folder / "into")), batches, give)


def out_of(spark: SparkSession, way: Way, folder: Path, batches: int, rows: int) -> float:
    """Return the seconds of a batch that is read from a table."""
    place, file = folder / "table", folder / "fresh.parquet"

    def append(table: pa.Table) -> None:
        if way.format == "lance":
            spark_lance.write_dataset(table, place, mode="append" if place.exists() else "create")
            return
        pq.write_table(table, file)
        spark.read.parquet(str(file)).write.format(way.format).mode("append").save(str(place))

    append(rows_of(0, rows).slice(0, 0))
    stream = spark.readStream.format(way.format).load(str(place))
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(folder / "out"))
    return seconds(writer, batches, lambda number: append(rows_of(number, rows)))


def main() -> None:
    """Run the benchmark and print its table."""
    options = parser(__doc__)
    options.add_argument("--batches", type=int, default=20)
    options.add_argument("--rows", type=int, default=1000)
    options.add_argument("--jars", type=Path, help="a folder with the archives of Delta Lake")
    arguments = options.parse_args()
    jars = sorted(map(str, arguments.jars.glob("delta-*.jar"))) if arguments.jars else []
    ways = WAYS if jars else WAYS[:-1]
    if not jars:
        print("Delta is left out: --jars names no folder with its archives")
    results = Results("bench_stream", arguments.keep)
    with tempfile.TemporaryDirectory() as temporary:
        spark = start_spark({**_DELTA, "spark.jars": ",".join(jars)} if jars else None)
        print(f"load {os.getloadavg()[0]:.1f}")
        print(f"{'seconds of a batch':20}" + "".join(f"{way.name:>17}" for way in ways))
        for label, measure in (("into a table", into), ("out of a table", out_of)):
            seconds = {}
            for way in ways:
                spark.conf.set(_PLANS, way.plans)
                folder = Path(temporary) / label / way.name
                folder.mkdir(parents=True)
                batches = max(_COLD + 2, round(arguments.batches * way.share))
                seconds[way.name] = measure(spark, way, folder, batches, arguments.rows)
            print(f"{label:20}" + "".join(f"{one:17.3f}" for one in seconds.values()), flush=True)
            ours = seconds.pop(WAYS[0].name)
            results.add(label, "median", "s", ours, seconds)
        spark.stop()
    results.save()


if __name__ == "__main__":
    main()
