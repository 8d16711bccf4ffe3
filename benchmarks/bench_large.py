"""Time and memory of Spark jobs by table size: tables of 10 narrow columns, and of vectors of 768 floats.

    python -m benchmarks.bench_large [--rows N ...] [--vectors N ...] [--folder PATH]

Every size has its own table and its own session with two cores. If one size is ten times another, a factor
above 10 after the seconds means that the cost of a step grows faster than the number of rows. Seconds are
wall time. Memory is the peak of the largest Python process (a worker or the driver) during the step, without
file pages. The JVM has 4 GB.

    write      all rows, by Spark (flat), or by `write_dataset` from batches (vectors)
    scan       all columns, with the format noop
    sum        one column
    filter     1 of 1,000 rows by a condition without index, all columns
    merge      1 of 1,000 rows changed by a join on the key, and one new row for each thousand of these
    compact    after a fifth of the rows of every third fragment was deleted (the step delete)
    index      a BTREE of the key (flat), IVF_PQ with `--partitions` partitions (vectors)
    look-ups   1,000 keys by the BTREE (flat), 100 searches of the 10 nearest in a batch (vectors)
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

import spark_lance
from benchmarks.harness import Results, parser, size_of, start_spark
from spark_lance import LanceTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DIMENSION = 768
_BATCH = 8192


class Peak:
    """The largest anonymous memory of this process and of all Python processes below it, by looking often."""

    def __init__(self) -> None:
        self.megabytes = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self.megabytes = max([self.megabytes, *_python_processes()])
            if self._over.wait(0.1):
                return


def _python_processes() -> Iterator[float]:
    """Yield the megabytes of this process and of every Python below it."""
    processes: dict[int, dict[str, str]] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        processes[int(status.parent.name)] = dict(line.split(":", 1) for line in lines)
    children: dict[int, list[int]] = {}
    for process, fields in processes.items():
        children.setdefault(int(fields["PPid"]), []).append(process)
    ours = [os.getpid()]
    for process in ours:
        ours += children.get(process, [])
        fields = processes.get(process, {})
        if "RssAnon" in fields and fields["Name"].strip().startswith("python"):
            yield int(fields["RssAnon"].split()[0]) / 1024


class Steps:
    """Runs the steps of one table, prints and notes what each took."""

    def __init__(self, results: Results, kind: str, rows: int, before: dict[str, float]) -> None:
        self._results, self._case, self._rows, self._before = results, f"{rows:,} {kind}", rows, before
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, action: Callable[[], Any]) -> Any:
        with Peak() as peak:
            start = time.perf_counter()
            answer = action()
            seconds = time.perf_counter() - start
        self.seconds[name] = seconds
        times = f"{seconds / self._before[name]:9.1f}" if name in self._before else f"{'':9}"
        rate = self._rows / seconds / 1e6
        print(f"{self._case:24} {name:9}{seconds:9.2f} s{times}{rate:10.2f} M rows/s{peak.megabytes:8.0f} MB")
        self._results.add(f"{self._case}: {name}", "time", "s", seconds)
        self._results.add(f"{self._case}: {name}", "peak memory", "MB", peak.megabytes)
        return answer


def _flat_rows(spark: SparkSession, rows: int) -> DataFrame:
    number = F.col("id")
    mixed = F.xxhash64(number)
    return spark.range(rows, numPartitions=max(2, rows // 5_000_000)).select(
        number,
        F.pmod(mixed, F.lit(100_000)).cast("int").alias("customer"),
        (F.pmod(mixed, F.lit(1_000_003)) / 100).alias("price"),
        F.pmod(number, F.lit(50)).cast("smallint").alias("quantity"),
        F.timestamp_seconds(F.lit(1_600_000_000) + number / 10).alias("at"),
        F.date_add(F.lit("2020-01-01").cast("date"), (number / 100_000).cast("int")).alias("day"),
        F.concat(F.lit("city "), F.pmod(mixed, F.lit(997))).alias("city"),
        F.when(F.pmod(mixed, F.lit(7)) != 0, F.concat(F.lit("note "), F.pmod(mixed, F.lit(1 << 40)))).alias(
            "note"
        ),
        (F.pmod(mixed, F.lit(3)) == 0).alias("paid"),
        F.rand(1).alias("score"),
    )


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Rows of an id and a vector: a thousand centres, noise that a batch shares but for where it stands."""
    random = np.random.default_rng(5)
    centres = random.standard_normal((1000, _DIMENSION), np.float32)
    noise = random.standard_normal((2 * _BATCH, _DIMENSION), np.float32) * np.float32(0.5)
    for start in range(0, rows, _BATCH):
        count, first = min(_BATCH, rows - start), random.integers(_BATCH)
        vectors = noise[first : first + count] + centres[random.integers(1000, size=count)]
        vectors *= np.float32(1 + random.random() / 10)
        yield pa.record_batch(
            {
                "id": np.arange(start, start + count),
                "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), _DIMENSION),
            }
        )


def _scan(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _changes(spark: SparkSession, path: str, steps: Steps, rows: int, updated: dict[str, str]) -> None:
    """Merge, delete from every third fragment, compact; check the number of rows."""
    table = LanceTable.forPath(spark, path)
    frame = spark.read.format("lance").load(path)
    keys = spark.range(rows // 1000).select((F.col("id") * 1000 + 7).alias("id"))
    new = spark.range(rows, rows + rows // 1_000_000 + 1)
    changed = frame.limit(1).drop("id").crossJoin(keys.union(new)).select(*frame.columns)
    merge = table.alias("t").merge(changed.alias("s"), "t.id = s.id")
    steps("merge", lambda: merge.whenMatchedUpdate(set=updated).whenNotMatchedInsertAll().execute())
    total = rows + rows // 1_000_000 + 1
    assert spark_lance.dataset(path).count_rows() == total
    length = rows // len(spark_lance.dataset(path).get_fragments())
    steps("delete", lambda: table.delete(f"id % 5 = 3 AND id div {length} % 3 = 0 AND id < {rows}"))
    left = spark_lance.dataset(path).count_rows()
    steps("compact", lambda: table.optimize().executeCompaction())
    assert spark_lance.dataset(path).count_rows() == left < total


def flat(folder: Path, rows: int, steps: Steps) -> None:
    """Take the steps with a table of ten narrow columns."""
    path = str(folder / "flat.lance")
    spark = start_spark()
    try:
        steps("write", lambda: _flat_rows(spark, rows).write.format("lance").mode("append").save(path))
        frame = spark.read.format("lance").load(path)
        print(f"{size_of(path) / 2**30:.2f} GiB, {len(spark_lance.dataset(path).get_fragments())} fragments")
        steps("scan", lambda: _scan(frame))
        (total,) = steps("sum", lambda: frame.agg(F.sum("quantity")).first())
        assert total == sum(i * len(range(i, rows, 50)) for i in range(50))
        steps("filter", lambda: _scan(frame.where("customer % 1000 = 1")))
        _changes(spark, path, steps, rows, {"price": "s.price"})
        steps("index", lambda: LanceTable.forPath(spark, path).createScalarIndex("id"))
        keys = np.random.default_rng(3).integers(0, rows // 2, 1000) * 2
        rows_of_keys = spark.read.format("lance").load(path).where(F.col("id").isin(keys.tolist()))
        steps("look-ups", lambda: rows_of_keys.collect())
    finally:
        spark.stop()


def vectors(folder: Path, rows: int, steps: Steps, partitions: int) -> None:
    """Take the steps with a table of vectors."""
    path = str(folder / "vectors.lance")
    schema = next(_batches(1)).schema
    steps("write", lambda: spark_lance.write_dataset(_batches(rows), path, schema=schema))
    print(f"{size_of(path) / 2**30:.2f} GiB, {len(spark_lance.dataset(path).get_fragments())} fragments")
    spark = start_spark()
    try:
        frame = spark.read.format("lance").load(path)
        steps("scan", lambda: _scan(frame))
        steps("sum", lambda: frame.agg(F.sum(F.col("v")[0])).first())
        steps("filter", lambda: _scan(frame.where("id % 1000 = 7")))
        table = LanceTable.forPath(spark, path)
        _changes(spark, path, steps, rows, {"v": "s.v"})
        steps("index", lambda: table.createIndex("v", "IVF_PQ", numPartitions=partitions))
        queries = next(_batches(100))
        query_frame = spark.createDataFrame(
            list(zip(queries["id"].to_pylist(), queries["v"].to_pylist(), strict=True)),
            "id long, vector array<float>",
        )
        steps("look-ups", lambda: _scan(table.searchBatch(query_frame, "v", k=10, nprobes=10)))
    finally:
        spark.stop()


def main() -> None:
    """Print the figures of every size."""
    arguments_parser = parser(__doc__)
    arguments_parser.add_argument("--rows", type=int, nargs="*", default=[10_000_000, 100_000_000])
    arguments_parser.add_argument(
        "--vectors", type=int, nargs="*", default=[650_000, 6_500_000], help="3 KB each"
    )
    arguments_parser.add_argument("--partitions", type=int, default=256)
    arguments_parser.add_argument(
        "--folder", type=Path, help="where the tables are made; 60 GB for the defaults"
    )
    options = arguments_parser.parse_args()
    results = Results("bench_large", options.keep)
    for kind, sizes in (("flat rows", options.rows), ("vectors", options.vectors)):
        before: dict[str, float] = {}
        for rows in sizes:
            folder = Path(tempfile.mkdtemp(dir=options.folder))
            try:
                steps = Steps(results, kind, rows, before)
                if kind == "vectors":
                    vectors(folder, rows, steps, options.partitions)
                else:
                    flat(folder, rows, steps)
                before = steps.seconds
            finally:
                shutil.rmtree(folder)
    results.save()


if __name__ == "__main__":
    main()
