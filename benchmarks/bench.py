"""Time of reading and writing whole tables, compared with pylance and with Spark's Parquet.

    python -m benchmarks.bench [--rows-flights N] [--rows-vectors N] [--repeat K]

The two sides of a pair run alternately (A B A B ...), so that a slowdown of the machine affects both. The
best time of each side counts. A ratio above 1 means that spark_lance is faster. Pylance runs in its own
process with one thread, like our reader. Spark uses both cores on both sides.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Results, Timed, in_turns, parser, run_alone, size_of, start_spark
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
    script = _TIMED.format(import_line=_READ[who])
    seconds, size = run_alone(["-c", script, path, str(repeat)], one_core=True).split()
    return float(seconds), int(size)


@dataclass(frozen=True)
class Read:
    """A read of a whole table in a fresh process. Its call returns the best seconds."""

    who: str
    path: str

    def __call__(self) -> float:
        return read_seconds(self.who, self.path, 3)[0]


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


def report(results: Results, name: str, what: str, seconds: list[float], against: str) -> None:
    """Print and record one line of the result table. `seconds` has our time and the peer's."""
    ours, other = seconds
    results.add(f"{name}: {what}", "time", "s", ours, {against: other})
    print(f"{name:8} {what:34} {ours:8.2f} s {other:8.2f} s   {other / ours:5.2f} x {against}", flush=True)


def bench_table(
    spark: SparkSession, results: Results, name: str, rows: int, repeat: int, folder: Path
) -> None:
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
    sizes = {"pylance": size_of(theirs), "parquet": size_of(parquet)}
    print(f"  bytes on disk: pylance {sizes['pylance']}, ours {size_of(ours)}, parquet {sizes['parquet']}")
    results.add(f"{name}: on disk", "bytes", "B", size_of(ours), sizes)
    for label, path in (("read pylance's file", theirs), ("read our file", ours)):
        best = in_turns(repeat, Read("ours", path), Read("pylance", path))
        report(results, name, label, best, "pylance, 1 thread")
    del table
    split = str(folder / f"{name}.split")
    spark.read.parquet(parquet).write.format("lance").options(**_options(name)).mode("append").save(split)
    bench_spark(spark, results, name, repeat, folder, {"lance": split, "parquet": parquet})


def _options(name: str) -> dict[str, str]:
    return {"vector.arrow.fixed-size-list.size": "768"} if name == "vectors" else {}


def bench_spark(
    spark: SparkSession, results: Results, name: str, repeat: int, folder: Path, paths: dict[str, str]
) -> None:
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
        report(results, name, label, best, "Spark Parquet")


def main() -> None:
    """Run the whole benchmark and print its table."""
    options = parser(__doc__)
    options.add_argument("--rows-flights", type=int, default=1_000_000)
    options.add_argument("--rows-vectors", type=int, default=200_000)
    options.add_argument("--repeat", type=int, default=3)
    arguments = options.parse_args()
    results = Results("bench", arguments.keep)
    spark = start_spark()
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench_table(spark, results, "flights", arguments.rows_flights, arguments.repeat, Path(folder))
            bench_table(spark, results, "vectors", arguments.rows_vectors, arguments.repeat, Path(folder))
    finally:
        spark.stop()
    results.save()


if __name__ == "__main__":
    main()
