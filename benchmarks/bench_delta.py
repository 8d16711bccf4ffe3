"""Changes of tables compared with Delta Lake: seconds and bytes written per operation, alternating.

    python -m benchmarks.bench_delta [--scale X] [--repeat K] [--only NAME ...] [--ivy FOLDER]

    merge     100,000 rows into 5 million: half of them are updated, half inserted
    delete    1 % of 5 million rows, spread over all files
    column    one added column, computed from another: 5 million narrow rows
    vectors   the same for 200,000 rows with a vector of 768 floats; also compared with rewriting Parquet
    compact   2,000 small files of 500 rows into few

Spark downloads Delta from Maven Central when it starts (Delta 4.4 is the release for Spark 4.2). Deletion
vectors are enabled, because they make Delta faster here. To add a computed column, Delta must rewrite the
table. The engines alternate. Each run gets a new copy of its table (hard links, because no engine changes a
file in place), and the best time of each engine counts. The benchmark also compares the resulting rows. A
ratio above 1 means that spark_lance is faster or writes less.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from benchmarks.harness import Results, parser, start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK_MINOR = "4.2"
DELTA = "io.delta:delta-spark_2.13:4.4.0"
ROWS = 5_000_000
CHANGES = 100_000
VECTORS = 200_000
VECTOR_SIZE = 768
SMALL_FILES = 2_000
ROWS_PER_SMALL_FILE = 500

NARROW = [
    "id",
    "cast(id % 1000 as int) AS shop",
    "cast(id * 0.37 as double) AS price",
    "concat('customer ', pmod(hash(id), 100000)) AS customer",
    "timestamp_seconds(1700000000 + id) AS at",
    "sha2(cast(id as string), 256) AS note",
]
VECTOR = [
    "id",
    f"transform(sequence(1, {VECTOR_SIZE}), i -> cast(hash(id, i) / 2147483648.0D as float)) AS vector",
]


class Engine(ABC):
    """A table format, with the operations of its users."""

    name: str
    extra: str

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def load(self, path: str) -> DataFrame:
        """Return the table."""
        return self.spark.read.format(self.name).load(path)

    @abstractmethod
    def write(self, frame: DataFrame, path: str, *, rows_per_file: int = 0) -> None:
        """Create a table."""

    def merge(self, path: str, source: DataFrame) -> None:
        """Update rows by id and insert new rows."""
        raise NotImplementedError

    def delete(self, path: str, condition: str) -> None:
        """Delete rows."""
        raise NotImplementedError

    def add_column(self, path: str, name: str, expression: str) -> None:
        """Add a computed column."""
        raise NotImplementedError

    def compact(self, path: str) -> None:
        """Merge many files into few."""
        raise NotImplementedError


class Lance(Engine):
    """Tables of this package."""

    name = "lance"

    def write(self, frame: DataFrame, path: str, *, rows_per_file: int = 0) -> None:
        options = {"max_rows_per_file": rows_per_file} if rows_per_file else {}
        if "vector" in frame.columns:
            options["vector.arrow.fixed-size-list.size"] = VECTOR_SIZE
        frame.write.format("lance").options(**options).mode("append").save(path)

    def merge(self, path: str, source: DataFrame) -> None:
        merge = self._table(path).alias("t").merge(source.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

    def delete(self, path: str, condition: str) -> None:
        self._table(path).delete(condition)

    def add_column(self, path: str, name: str, expression: str) -> None:
        self._table(path).addColumns({name: expression})

    def compact(self, path: str) -> None:
        self._table(path).optimize().executeCompaction()

    def _table(self, path: str):  # type: ignore[no-untyped-def]
        from spark_lance import LanceTable

        return LanceTable.forPath(self.spark, path)


class Delta(Engine):
    """Delta tables, changed by SQL."""

    name = "delta"

    def write(self, frame: DataFrame, path: str, *, rows_per_file: int = 0) -> None:
        options = {"maxRecordsPerFile": rows_per_file} if rows_per_file else {}
        writer = frame.write.format("delta").option("delta.enableDeletionVectors", "true")
        writer.options(**options).save(path)

    def merge(self, path: str, source: DataFrame) -> None:
        source.createOrReplaceTempView("changes")
        self.spark.sql(
            f"MERGE INTO delta.`{path}` t USING changes s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def delete(self, path: str, condition: str) -> None:
        self.spark.sql(f"DELETE FROM delta.`{path}` WHERE {condition}")

    def add_column(self, path: str, name: str, expression: str) -> None:
        frame = self.load(path).selectExpr("*", f"{expression} AS {name}")
        frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)

    def compact(self, path: str) -> None:
        self.spark.sql(f"OPTIMIZE delta.`{path}`")


class Parquet(Engine):
    """Folders of Parquet files, which can only be rewritten."""

    name = "parquet"

    def write(self, frame: DataFrame, path: str, *, rows_per_file: int = 0) -> None:
        frame.write.parquet(path)

    def add_column(self, path: str, name: str, expression: str) -> None:
        frame = self.load(path).selectExpr("*", f"{expression} AS {name}")
        frame.write.parquet(f"{path}/anew")


@dataclass(frozen=True)
class Case:
    """An operation to measure.

    Attributes:
        table: the name of the table that it begins with.
        act: does it.
        check: an expression that must give the same over the changed tables of all engines.
        engines: who takes part, ours first.
    """

    table: str
    act: Callable[[Engine, str], None]
    check: str
    engines: tuple[type[Engine], ...] = (Lance, Delta)


@dataclass(frozen=True)
class Size:
    """The scale of the benchmark."""

    scale: float

    def of(self, whole: int) -> int:
        """Return a number of rows or files, to scale."""
        return max(int(whole * self.scale), 10)


def cases(spark: SparkSession, size: Size) -> dict[str, Case]:
    """Return all operations by name."""
    rows, changes = size.of(ROWS), size.of(CHANGES)
    half = changes // 2
    step = rows // half

    def changed() -> DataFrame:
        ids = f"CASE WHEN id < {half} THEN id * {step} ELSE id - {half} + {rows} END AS id"
        return (
            spark.range(changes)
            .selectExpr(ids)
            .selectExpr(*NARROW)
            .selectExpr("* EXCEPT (price)", "-1D AS price")
        )

    sums = "count(*), sum(id), sum(shop), count(distinct customer), sum(length(note)), round(sum(price))"
    return {
        "merge": Case("narrow", lambda engine, path: engine.merge(path, changed()), sums),
        "delete": Case("narrow", lambda engine, path: engine.delete(path, "id % 100 = 37"), sums),
        "column": Case(
            "narrow",
            lambda engine, path: engine.add_column(path, "tax", "price * 0.19"),
            f"{sums}, round(sum(tax))",
        ),
        "vectors": Case(
            "vectors",
            lambda engine, path: engine.add_column(path, "first", "vector[0]"),
            "count(*), sum(id), round(sum(first), 3), sum(size(vector))",
            (Lance, Delta, Parquet),
        ),
        "compact": Case("small", lambda engine, path: engine.compact(path), sums),
    }


def make_table(engine: Engine, name: str, path: str, size: Size) -> None:
    """Write an input table of the operations."""
    spark = engine.spark
    if name == "vectors":
        engine.write(spark.range(0, size.of(VECTORS), 1, 4).selectExpr(*VECTOR), path)
    elif name == "small":
        rows = size.of(SMALL_FILES) * ROWS_PER_SMALL_FILE
        frame = spark.range(0, rows, 1, 4).selectExpr(*NARROW)
        engine.write(frame, path, rows_per_file=ROWS_PER_SMALL_FILE)
    else:
        engine.write(spark.range(0, size.of(ROWS), 1, 8).selectExpr(*NARROW), path)


def files(path: str) -> dict[str, int]:
    """Return the files below a folder and their sizes in bytes."""
    paths = (file for file in Path(path).rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.stat().st_size for file in paths}


@dataclass
class Measured:
    """The best result of an engine in one case."""

    seconds: float = float("inf")
    written: int = 0


def measure(case: Case, engine: Engine, table: str, copy: str, best: Measured) -> object:
    """Run a case once on a copy of a table; return the result of its check."""
    shutil.copytree(table, copy, copy_function=os.link)
    before = files(copy)
    start = time.perf_counter()
    case.act(engine, copy)
    seconds = time.perf_counter() - start
    if seconds < best.seconds:
        # Files are identified by name, because neither engine reuses names.
        new = {name: size for name, size in files(copy).items() if name not in before}
        best.seconds, best.written = seconds, sum(new.values())
    anew = f"{copy}/anew" if isinstance(engine, Parquet) else copy
    result = engine.load(anew).selectExpr(*_split(case.check)).collect()[0]
    shutil.rmtree(copy)
    return tuple(result)


def _split(check: str) -> list[str]:
    """Split a list of expressions at commas outside parentheses."""
    parts, depth = [""], 0
    for letter in check:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def run_case(
    spark: SparkSession, name: str, case: Case, size: Size, repeat: int, folder: Path
) -> dict[str, Measured]:
    """Measure one operation for all engines, alternating; print a line per engine, return its best result."""
    engines = [kind(spark) for kind in case.engines]
    tables = {engine.name: str(folder / f"{case.table}.{engine.name}") for engine in engines}
    for engine in engines:
        if not Path(tables[engine.name]).exists():
            make_table(engine, case.table, tables[engine.name], size)
    best = {engine.name: Measured() for engine in engines}
    for turn in range(repeat):
        result = {}
        for engine in engines:
            copy = str(folder / f"{name}.{turn}.{engine.name}")
            result[engine.name] = measure(case, engine, tables[engine.name], copy, best[engine.name])
        if len(set(result.values())) != 1:
            raise SystemExit(f"{name}: the engines do not agree: {result}")
    ours = best["lance"]
    for engine in engines:
        theirs = best[engine.name]
        line = f"{name:8} {engine.name:8} {theirs.seconds:8.2f} s {theirs.written / 1e6:10.2f} MB"
        if engine.name != "lance":
            ratios = theirs.seconds / ours.seconds, theirs.written / ours.written
            line += f"   {ratios[0]:7.2f} x the time, {ratios[1]:8.2f} x the bytes"
        print(line, flush=True)
    return best


def note(results: Results, case: str, best: dict[str, Measured]) -> None:
    """Record seconds and bytes of one operation."""
    others = {name: measured for name, measured in best.items() if name != "lance"}
    seconds = {name: measured.seconds for name, measured in others.items()}
    written = {name: float(measured.written) for name, measured in others.items()}
    results.add(case, "time", "s", best["lance"].seconds, seconds)
    results.add(case, "bytes written", "B", best["lance"].written, written)


def start_with_delta(ivy: str) -> SparkSession:
    """Start a local session with two cores and Delta's extension."""
    if not pyspark.__version__.startswith(f"{SPARK_MINOR}."):
        raise SystemExit(
            f"{DELTA} needs Spark {SPARK_MINOR}, this is {pyspark.__version__}: make bench-delta"
        )
    return start_spark(
        {
            "spark.sql.shuffle.partitions": "8",
            "spark.jars.packages": DELTA,
            "spark.jars.ivy": ivy,
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        }
    )


def main() -> None:
    """Run the whole benchmark and print its table."""
    options = parser(__doc__)
    options.add_argument("--scale", type=float, default=1.0, help="of all numbers of rows and files")
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME")
    options.add_argument("--ivy", default=str(Path(sys.prefix) / "ivy"), help="where Spark keeps packages")
    arguments = options.parse_args()
    results = Results("bench_delta", arguments.keep)
    spark = start_with_delta(arguments.ivy)
    chosen = arguments.only or cases(spark, Size(1))
    try:
        with tempfile.TemporaryDirectory() as name:
            # A small warm-up run, so that no engine's time includes the start of its processes.
            for title, scale, repeat in (
                ("to warm up", 0.002, 1),
                ("measured", arguments.scale, arguments.repeat),
            ):
                folder = Path(name, title)
                folder.mkdir()
                print(f"\n{title}: scale {scale}", flush=True)
                every = cases(spark, Size(scale))
                for case in chosen:
                    best = run_case(spark, case, every[case], Size(scale), repeat, folder)
                    if title == "measured":
                        note(results, case if scale == 1 else f"{case}, scale {scale:g}", best)
    finally:
        spark.stop()
    results.save()


if __name__ == "__main__":
    main()
