"""Time of Spark reads compared with Parquet, and with a source that only returns prepared batches.

    python -m benchmarks.bench_spark [--rows-flights N] [--rows-vectors N] [--rows-look-ups N] [--repeat K]
                                     [--only WORD]

All sources have the same rows in the same number of files. The sources alternate (A B C A B C ...), and the
best run of each source counts. A ratio above 1 means that spark_lance is faster. "transport" returns the
batches of our full scan from memory-mapped files, see `transport`. No Python source can be faster. The first
query of a session runs in its own process, and its time includes the start of the read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import spark_lance
from benchmarks.harness import Results, Timed, in_turns, parser, run_alone, start_spark
from benchmarks.tables import flights, vectors
from benchmarks.transport import TransportSource, export

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOOK_UPS = 1000
_FIRST_QUERY = """
import json, sys, time
from benchmarks.harness import start_spark
spark = start_spark()
spark.range(10).selectExpr("sum(id)").collect()
start = time.perf_counter()
spark.read.format(sys.argv[1]).load(sys.argv[2]).selectExpr("sum(distance)").collect()
print(json.dumps(time.perf_counter() - start))
spark.stop()
"""


def flights_of_20(rows: int) -> pa.Table:
    """Flights with as many further columns as make 20."""
    table = flights(rows)
    rng = np.random.default_rng(20)
    for number in range(20 - table.num_columns):
        table = table.append_column(f"extra{number}", pa.array(rng.normal(size=rows)))
    return table


def look_up_rows(rows: int) -> pa.Table:
    """An id, three numbers and a text per row."""
    rng = np.random.default_rng(7)
    ids = np.arange(rows)
    texts = pa.array([f"customer {i}" for i in range(1000)]).take(pa.array(rng.integers(0, 1000, rows)))
    numbers = {name: rng.normal(size=rows) for name in ("x", "y", "z")}
    return pa.table({"id": ids, **numbers, "text": texts})


class Bench:
    """Tables in both formats and a session that reads them."""

    def __init__(self, spark: SparkSession, results: Results, folder: Path, repeat: int, only: str) -> None:
        self._spark, self._results, self._folder = spark, results, folder
        self._repeat, self._only = repeat, only

    def make(self, name: str, table: pa.Table, files: int = 2) -> None:
        """Write a table in both formats."""
        step = -(-table.num_rows // files)
        (self._folder / f"{name}.parquet").mkdir()
        for number in range(files):
            part = table.slice(number * step, step)
            pq.write_table(part, self._folder / f"{name}.parquet" / f"{number}.parquet")
        spark_lance.write_dataset(table, self.path(name, "lance"), max_rows_per_file=step)

    def path(self, name: str, kind: str) -> str:
        """Return where a table is."""
        return str(self._folder / f"{name}.{kind}")

    def load(self, name: str, kind: str) -> DataFrame:
        """Return a table as a DataFrame."""
        return self._spark.read.format(kind).load(self.path(name, kind))

    def case(self, label: str, actions: dict[str, Callable[[], object]]) -> None:
        """Measure actions, the first of which is ours, in turns, and print a line."""
        if self._only not in label:
            return
        for action in actions.values():
            action()
        best = in_turns(self._repeat, *(Timed(action) for action in actions.values()))
        self.line(label, dict(zip(actions, best, strict=True)))

    def line(self, label: str, seconds: dict[str, float]) -> None:
        """Print the seconds of ours and of the others, and the ratios; note them."""
        (_, ours), *others = seconds.items()
        self._results.add(label, "time", "s", ours, dict(others))
        text = "  ".join(f"{name} {other:6.3f} s {other / ours:5.2f} x" for name, other in others)
        print(f"{label:44} {ours:7.3f} s   {text}", flush=True)


def noop(frame: DataFrame) -> None:
    """Run a query and drop its rows."""
    frame.write.format("noop").mode("overwrite").save()


def bench_table(bench: Bench, name: str, spark: SparkSession) -> None:
    """Measure counting, a full scan, 2 columns and a sum of a table."""
    both = ("lance", "parquet")
    pair = {"flights": ("carrier", "distance"), "vectors": ("id", "title")}[name]
    number = {"flights": "distance", "vectors": "id"}[name]

    def count(kind: str) -> None:
        bench.load(name, kind).count()

    def two_columns(kind: str) -> None:
        noop(bench.load(name, kind).select(*pair))

    def total(kind: str) -> None:
        bench.load(name, kind).selectExpr(f"sum({number})").collect()

    def scan(kind: str) -> None:
        noop(bench.load(name, kind))

    bench.case(f"{name}: count()", {kind: partial(count, kind) for kind in both})
    bench.case(f"{name}: 2 columns", {kind: partial(two_columns, kind) for kind in both})
    bench.case(f"{name}: sum of 1 column", {kind: partial(total, kind) for kind in both})
    cores = spark.sparkContext.defaultParallelism
    export(bench.path(name, "lance"), bench.path(name, "transport"), cores)
    bench.case(f"{name}: full scan", {kind: partial(scan, kind) for kind in (*both, "transport")})


def bench_selective(bench: Bench, rows: int) -> None:
    """Measure filters that keep one row of a thousand and return the widest column."""
    keys = list(range(13, rows, 1000))

    def some(kind: str) -> None:
        frame = bench.load("vectors", kind)
        noop(frame.where(frame.id.isin(keys)).select("vector"))

    def title(kind: str) -> None:
        noop(bench.load("vectors", kind).where("key = 'k7'").select("vector"))

    both = ("lance", "parquet")
    bench.case("vectors: id in (0.1 %), vector column", {kind: partial(some, kind) for kind in both})
    bench.case("vectors: key = 'k7' (0.1 %), vector column", {kind: partial(title, kind) for kind in both})


def bench_look_ups(bench: Bench, rows: int) -> None:
    """Measure 1,000 rows by row id, against the same rows by a column of Parquet."""
    ids = np.sort(np.random.default_rng(1).choice(rows, _LOOK_UPS, replace=False)).tolist()
    lance = bench.path("rows", "lance")
    addresses = spark_lance.dataset(lance).take(ids, columns=["_rowid"])["_rowid"].to_pylist()

    def ours() -> None:
        frame = bench._spark.read.format("lance").option("with_row_id", True).load(lance)
        assert len(frame.where(frame._rowid.isin(addresses)).collect()) == _LOOK_UPS

    def theirs() -> None:
        frame = bench.load("rows", "parquet")
        assert len(frame.where(frame.id.isin(ids)).collect()) == _LOOK_UPS

    bench.case(f"1,000 look-ups by _rowid in {rows:,} rows", {"lance": ours, "parquet": theirs})


def bench_first_query(bench: Bench, repeat: int) -> None:
    """Measure the first query of a session."""
    best: dict[str, float] = {}
    for _ in range(repeat):
        for kind in ("lance", "parquet"):
            printed = run_alone(["-c", _FIRST_QUERY, kind, bench.path("flights", kind)])
            seconds = json.loads(printed.splitlines()[-1])
            best[kind] = min(best.get(kind, seconds), seconds)
    bench.line("first query of a session", best)


def main() -> None:
    """Run the benchmark and print its table."""
    options = parser(__doc__)
    options.add_argument("--rows-flights", type=int, default=1_000_000)
    options.add_argument("--rows-vectors", type=int, default=200_000)
    options.add_argument("--rows-look-ups", type=int, default=10_000_000)
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--only", default="", help="run only the cases with this in their name")
    arguments = options.parse_args()
    results = Results("bench_spark", arguments.keep)
    spark = start_spark()
    spark.dataSource.register(TransportSource)
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(spark, results, Path(folder), arguments.repeat, arguments.only)
            bench.make("flights", flights_of_20(arguments.rows_flights))
            bench_table(bench, "flights", spark)
            keys = pa.array([f"k{i % 1000}" for i in range(arguments.rows_vectors)])
            bench.make("vectors", vectors(arguments.rows_vectors).append_column("key", keys))
            bench_table(bench, "vectors", spark)
            bench_selective(bench, arguments.rows_vectors)
            if arguments.only in "1,000 look-ups by _rowid":
                bench.make("rows", look_up_rows(arguments.rows_look_ups), files=4)
                bench_look_ups(bench, arguments.rows_look_ups)
            if arguments.only in "first query of a session":
                bench_first_query(bench, arguments.repeat)
    finally:
        spark.stop()
    results.save()


if __name__ == "__main__":
    main()
