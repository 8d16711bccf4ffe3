"""Reading and writing whole tables, beside pylance and beside Spark's Parquet, as ratios of one run.

    python -m benchmarks.bench [--rows-flights N] [--rows-vectors N] [--repeat K]

Every pair is measured in turns (A B A B ...) and the best of each side is kept, so that a machine that slows
down half-way hits both. A ratio above 1 means that spark_lance is faster. Pylance runs in a process of its
own with one thread, as our reader does; Spark uses both cores on both sides.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ = {
    "ours": "import spark_lance as m",
    "pylance": "import lance as m",
}
_TIMED = """
import time, sys
{import_line}
path, repeat = sys.argv[1], int(sys.argv[2])
best = 1e9
for _ in range(repeat):
    start = time.perf_counter()
    table = m.dataset(path).to_table()
    best = min(best, time.perf_counter() - start)
print(best, table.nbytes)
"""


def read_seconds(who: str, path: str, repeat: int) -> tuple[float, int]:
    """Time `dataset(path).to_table()` in a fresh process with one thread: (best seconds, Arrow bytes)."""
    one_thread = {"LANCE_CPU_THREADS": "1", "LANCE_IO_THREADS": "1", "OMP_NUM_THREADS": "1"}
    script = _TIMED.format(import_line=_READ[who])
    command = [sys.executable, "-c", script, path, str(repeat)]
    if shutil.which("taskset"):
        command = ["taskset", "-c", "0", *command]
    done = subprocess.run(
        command, env={**os.environ, **one_thread}, capture_output=True, text=True, check=True
    )
    seconds, size = done.stdout.split()
    return float(seconds), int(size)


def in_turns(repeat: int, *actions: Callable[[], float]) -> list[float]:
    """Run the actions in turns; return the least seconds of each."""
    best = [float("inf")] * len(actions)
    for _ in range(repeat):
        for i, action in enumerate(actions):
            best[i] = min(best[i], action())
    return best


@dataclass(frozen=True)
class Timed:
    """An action whose call answers the seconds it took."""

    action: Callable[[], object]

    def __call__(self) -> float:
        start = time.perf_counter()
        self.action()
        return time.perf_counter() - start


@dataclass(frozen=True)
class Read:
    """A read of a whole table in a fresh process; its call answers the best seconds."""

    who: str
    path: str

    def __call__(self) -> float:
        return read_seconds(self.who, self.path, 3)[0]


def size_of(folder: str) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


def start_spark() -> SparkSession:
    """Start a local session with two cores."""
    from pyspark.sql import SparkSession

    from spark_lance import enable
    from spark_lance.spark.java import prepare_environment

    prepare_environment()
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return enable(session)


TWO_COLUMNS = {
    "flights": "select carrier, sum(distance) from {} group by carrier",
    "vectors": "select max(title), sum(id) from {}",
}
# One row in a thousand, spread over the table, with the widest columns.
FEW_ROWS = {
    "flights": "select * from {} where distance between 1391 and 1396",
    "vectors": f"select vector from {{}} where id in ({', '.join(str(i * 997 + 13) for i in range(200))})",
}
AGGREGATES = {
    "flights": "select sum(distance), avg(arr_delay), max(time_hour), count(distinct carrier) from {}",
    "vectors": "select sum(id), sum(size(vector)), max(title) from {}",
}


def report(name: str, what: str, seconds: list[float], against: str) -> None:
    """Print one line of the result table; `seconds` are ours and the other's."""
    ours, other = seconds
    print(f"{name:8} {what:34} {ours:8.2f} s {other:8.2f} s   {other / ours:5.2f} x {against}", flush=True)


def bench_table(spark: SparkSession, name: str, rows: int, repeat: int, folder: Path) -> None:
    """Measure one table: single-process reads against pylance, Spark reads and writes against Parquet."""
    import lance
    import pyarrow.parquet as pq

    import spark_lance

    table = TABLES[name](rows)
    theirs, ours, parquet = (str(folder / f"{name}.{kind}") for kind in ("pylance", "lance", "parquet"))
    lance.write_dataset(table, theirs)
    spark_lance.write_dataset(table, ours)
    Path(parquet).mkdir()
    half = (rows + 1) // 2
    for part in range(2):
        pq.write_table(table.slice(part * half, half), f"{parquet}/{part}.parquet")
    print(f"\n{name}: {rows} rows, {table.nbytes / 1e6:.0f} MB in memory", flush=True)
    print(f"  bytes on disk: pylance {size_of(theirs)}, ours {size_of(ours)}, parquet {size_of(parquet)}")
    for label, path in (("read pylance's file", theirs), ("read our file", ours)):
        best = in_turns(repeat, Read("ours", path), Read("pylance", path))
        report(name, label, best, "pylance, 1 thread")
    del table
    split = str(folder / f"{name}.split")
    spark.read.parquet(parquet).write.format("lance").options(**_options(name)).mode("append").save(split)
    bench_spark(spark, name, repeat, folder, {"lance": split, "parquet": parquet})


def _options(name: str) -> dict[str, str]:
    return {"vector.arrow.fixed-size-list.size": "768"} if name == "vectors" else {}


def bench_spark(spark: SparkSession, name: str, repeat: int, folder: Path, paths: dict[str, str]) -> None:
    """Count, read some columns, some rows and everything, and write, through Spark."""

    def load(kind: str) -> DataFrame:
        return spark.read.format(kind).load(paths[kind])

    def aggregate(kind: str) -> None:
        load(kind).createOrReplaceTempView(f"{name}_{kind}")
        spark.sql(AGGREGATES[name].format(f"{name}_{kind}")).collect()

    def count(kind: str) -> None:
        load(kind).count()

    def query(sql: str, kind: str) -> None:
        load(kind).createOrReplaceTempView(f"{name}_{kind}")
        spark.sql(sql.format(f"{name}_{kind}")).write.format("noop").mode("overwrite").save()

    def scan(kind: str) -> None:
        load(kind).write.format("noop").mode("overwrite").save()

    def write(kind: str) -> None:
        target = str(folder / f"{name}.written.{kind}")
        options = _options(name) if kind == "lance" else {}
        load("parquet").write.format(kind).options(**options).mode("overwrite").save(target)

    for label, action in (
        ("Spark count()", count),
        ("Spark 2 columns", partial(query, TWO_COLUMNS[name])),
        ("Spark 1 row in 1,000, wide columns", partial(query, FEW_ROWS[name])),
        ("Spark scan + aggregate", aggregate),
        ("Spark full scan", scan),
        ("Spark write", write),
    ):
        for kind in paths:
            action(kind)
        best = in_turns(repeat, Timed(partial(action, "lance")), Timed(partial(action, "parquet")))
        report(name, label, best, "Spark Parquet")


def main() -> None:
    """Run the whole benchmark and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows-flights", type=int, default=1_000_000)
    parser.add_argument("--rows-vectors", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    spark = start_spark()
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench_table(spark, "flights", arguments.rows_flights, arguments.repeat, Path(folder))
            bench_table(spark, "vectors", arguments.rows_vectors, arguments.repeat, Path(folder))
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
