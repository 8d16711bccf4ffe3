"""The same SQL on the same rows by spark_lance, Iceberg and Delta Lake, each in both of its write modes.

    python -m benchmarks.bench_peers [--scale X] [--rounds K] [--only NAME ...] [--ivy FOLDER] [--keep]

Each (round, system) pair runs in its own process with one Spark session (local[2]); the systems alternate.
A process writes a table of 3 million rows of six columns and one of 100,000 vectors of 768 floats (scale 1),
reads them, changes them, and reads them again. Reads run three times and the best time counts. The figure of
an operation is the median of the rounds. The checksums of all systems must be equal.

Copy-on-write rewrites the files of changed rows. Merge-on-read writes marks (Iceberg: format 3 with deletion
vectors; Delta: deletion vectors), and reads apply them. spark_lance has one mode, like merge-on-read.
Spark downloads Iceberg and Delta from Maven Central when it starts. Both add a computed column by ALTER TABLE
and an UPDATE of all rows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from benchmarks.harness import Results, parser, size_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_MINOR = "4.1"
ICEBERG_VERSION, DELTA_VERSION = "1.12.0", "4.4.0"
ICEBERG = f"org.apache.iceberg:iceberg-spark-runtime-{SPARK_MINOR}_2.13:{ICEBERG_VERSION}"
DELTA = f"io.delta:delta-spark_{SPARK_MINOR}_2.13:{DELTA_VERSION}"
ROWS, VECTORS, VECTOR_SIZE = 3_000_000, 100_000, 768
LOOKUPS, APPENDS, APPENDED_ROWS = 1_000, 20, 1_000
NARROW = [
    "id",
    "cast(pmod(hash(id), 1000) as int) AS shop",
    "cast(id % 100000 as double) / 4 AS price",
    "concat('customer ', pmod(hash(id, 1), 100000)) AS customer",
    "timestamp_seconds(1700000000 + id) AS at",
    "sha2(cast(id as string), 256) AS note",
]
VECTOR = [
    "id",
    f"transform(sequence(1, {VECTOR_SIZE}), i -> cast(hash(id, i) / 2147483648.0D as float)) AS vector",
]
_ICEBERG = "org.apache.iceberg.spark"
_READS = 3
# Dependencies of Delta that Spark already includes.
_IN_SPARK = (
    "org.slf4j:slf4j-api",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
)


@dataclass(frozen=True)
class System:
    """A table format in one of its write modes.

    Attributes:
        name: as tables and pictures show it.
        catalog: the catalog of its tables.
        using: the format of `CREATE TABLE`.
        properties: TBLPROPERTIES of new tables.
        settings: of the Spark session; {root} is the folder of the tables.
        compact: the statement that compacts {table}.
    """

    name: str
    catalog: str
    using: str
    compact: str
    properties: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether this is spark_lance."""
        return self.using == "lance"


def _iceberg(mode: str) -> System:
    changes = ("write.delete.mode", "write.update.mode", "write.merge.mode")
    return System(
        f"Iceberg {ICEBERG_VERSION}, {mode}",
        "ice",
        "iceberg",
        "CALL ice.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))",
        {"format-version": "3", **dict.fromkeys(changes, mode)},
        {
            "spark.jars.packages": ICEBERG,
            "spark.sql.extensions": f"{_ICEBERG}.extensions.IcebergSparkSessionExtensions",
            "spark.sql.catalog.ice": f"{_ICEBERG}.SparkCatalog",
            "spark.sql.catalog.ice.type": "hadoop",
            "spark.sql.catalog.ice.warehouse": "{root}",
        },
    )


def _delta(mode: str) -> System:
    return System(
        f"Delta {DELTA_VERSION}, {mode}",
        "spark_catalog",
        "delta",
        "OPTIMIZE {table}",
        {"delta.enableDeletionVectors": str(mode == "merge-on-read").lower()},
        {
            "spark.jars.packages": DELTA,
            "spark.jars.excludes": ",".join(_IN_SPARK),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.sql.warehouse.dir": "{root}",
        },
    )


MODES = ("copy-on-write", "merge-on-read")
OURS = System("spark_lance", "lance", "lance", "OPTIMIZE {table}")
SYSTEMS = {system.name: system for system in (OURS, *map(_iceberg, MODES), *map(_delta, MODES))}


@dataclass
class Run:
    """The operations of one system in one process.

    Attributes:
        system: the system.
        spark: its session.
        root: the folder of its tables.
        scale: of all numbers of rows.
        figures: seconds, and bytes, by (work, metric).
        checks: the answers by work.
    """

    system: System
    spark: SparkSession
    root: Path
    scale: float
    figures: dict[tuple[str, str], float] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)

    def do(self) -> None:
        """Run all operations in order."""
        rows, vectors = max(int(ROWS * self.scale), 10_000), max(int(VECTORS * self.scale), 1_000)
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.system.catalog}.db")
        narrow, wide = (f"{self.system.catalog}.db.{name}" for name in ("narrow", "wide"))
        self.spark.range(0, rows, 1, 4).selectExpr(*NARROW).createOrReplaceTempView("narrow_rows")
        self.spark.range(0, vectors, 1, 4).selectExpr(*VECTOR).createOrReplaceTempView("wide_rows")
        self._write("write narrow rows", narrow, "narrow_rows")
        self._write("write vectors", wide, "wide_rows")
        self._reads(narrow, rows, "")
        self._read("scan vectors", f"SELECT sum(hash(*)) FROM {wide}")
        self._changes(narrow, rows)
        self._reads(narrow, rows, " after changes")
        self._time("add a column to narrow rows", lambda: self._add_column(narrow, "tax", "price * 2"))
        self._time("add a column to vectors", lambda: self._add_column(wide, "first", "vector[0]"))
        self._time(f"{APPENDS} appends of {APPENDED_ROWS:,} rows", lambda: self._append(narrow, rows))
        self._time("compact", lambda: self._sql(self.system.compact.format(table=narrow)))
        self._read("scan after compaction", f"SELECT sum(hash(*)), sum(tax) FROM {narrow}")
        self.checks["column of vectors"] = self._rows(f"SELECT count(*), round(sum(first), 2) FROM {wide}")

    def _write(self, work: str, table: str, source: str) -> None:
        properties = dict(self.system.properties)
        if self.system.is_ours and source == "wide_rows":
            properties["vector.arrow.fixed-size-list.size"] = str(VECTOR_SIZE)
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        clause = f"TBLPROPERTIES ({listed})" if listed else ""
        before = size_of(str(self.root))
        self._time(
            work,
            lambda: self._sql(
                f"CREATE TABLE {table} USING {self.system.using} {clause} AS SELECT * FROM {source}"
            ),
        )
        self.figures[work, "bytes"] = size_of(str(self.root)) - before

    def _reads(self, table: str, rows: int, suffix: str) -> None:
        keys = ", ".join(str(number * (rows // LOOKUPS) + number % 7) for number in range(LOOKUPS))
        self._read(f"count{suffix}", f"SELECT count(*) FROM {table}")
        self._read(f"sum of a column{suffix}", f"SELECT sum(price) FROM {table}")
        self._read(f"full scan{suffix}", f"SELECT sum(hash(*)) FROM {table}")
        self._read(f"filter 0.1 %{suffix}", f"SELECT sum(hash(*)) FROM {table} WHERE shop = 500")
        self._read(
            f"{LOOKUPS:,} keys, no index{suffix}",
            f"SELECT * FROM {table} WHERE id IN ({keys})",
            lambda result: [len(result), sum(row.price for row in result)],
        )
        self._read(f"LIMIT 10{suffix}", f"SELECT * FROM {table} LIMIT 10", len)

    def _changes(self, table: str, rows: int) -> None:
        self._time("update 1 %", lambda: self._sql(f"UPDATE {table} SET price = -1 WHERE id % 100 = 37"))
        self._time("delete 1 %", lambda: self._sql(f"DELETE FROM {table} WHERE id % 100 = 41"))
        half = rows // 200
        ids = f"CASE WHEN id < {half} THEN id * 200 ELSE id + {rows} END AS id"
        frame = self.spark.range(2 * half).selectExpr(ids).selectExpr(*NARROW)
        frame.createOrReplaceTempView("changed_rows")
        merge = (
            f"MERGE INTO {table} t USING changed_rows s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET price = -2 WHEN NOT MATCHED THEN INSERT *"
        )
        self._time("merge 1 %, half of it new", lambda: self._sql(merge))

    def _add_column(self, table: str, name: str, expression: str) -> None:
        if self.system.is_ours:
            from spark_lance import LanceTable

            LanceTable.forName(self.spark, table).addColumns({name: expression})
            return
        kind = self.spark.sql(f"SELECT {expression} AS c FROM {table} LIMIT 0").schema[0].dataType
        self._sql(f"ALTER TABLE {table} ADD COLUMN {name} {kind.simpleString()}")
        self._sql(f"UPDATE {table} SET {name} = {expression}")

    def _append(self, table: str, rows: int) -> None:
        for number in range(APPENDS):
            first = 2 * rows + number * APPENDED_ROWS
            frame = self.spark.range(first, first + APPENDED_ROWS, 1, 1).selectExpr(*NARROW, "0D AS tax")
            frame.writeTo(table).append()

    def _sql(self, statement: str) -> None:
        self.spark.sql(statement).collect()

    def _rows(self, query: str) -> list[Any]:
        return [list(row) for row in self.spark.sql(query).collect()]

    def _time(self, work: str, action: Callable[[], object]) -> None:
        start = time.perf_counter()
        action()
        self._note(work, time.perf_counter() - start)

    def _note(self, work: str, seconds: float) -> None:
        self.figures[work, "time"] = seconds
        print(f"{self.system.name}: {work}: {seconds:.3f} s", file=sys.stderr, flush=True)

    def _read(self, work: str, query: str, check: Callable[[list[Any]], Any] | None = None) -> None:
        best = float("inf")
        for _ in range(_READS):
            start = time.perf_counter()
            result = self.spark.sql(query).collect()
            best = min(best, time.perf_counter() - start)
        self._note(work, best)
        self.checks[work] = check(result) if check else [list(row) for row in result]


def start(system: System, root: Path, ivy: str) -> SparkSession:
    """Start the session of a system."""
    from spark_lance import enable, session_builder

    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.jars.ivy": ivy,
        **{name: value.format(root=root) for name, value in system.settings.items()},
    }
    builder = session_builder() if system.is_ours else pyspark.sql.SparkSession.builder
    spark = builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return enable(spark, root=str(root)) if system.is_ours else spark


def child(system: System, root: Path, scale: float, ivy: str) -> None:
    """Run all operations of a system; print its figures and checks as JSON in the last line."""
    from spark_lance.spark.java import prepare_environment

    prepare_environment()
    spark = start(system, root, ivy)
    run = Run(system, spark, root, scale)
    run.do()
    spark.stop()
    figures = [[work, metric, value] for (work, metric), value in run.figures.items()]
    print(json.dumps({"figures": figures, "checks": run.checks}))


@dataclass
class Figures:
    """The figures of all rounds by (work, metric) and system, and the checks of each system."""

    values: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)
    checks: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, answer: Mapping[str, Any]) -> None:
        """Add the figures of a process; raise SystemExit if its results differ from the other systems'."""
        for work, metric, value in answer["figures"]:
            self.values.setdefault((work, metric), {}).setdefault(name, []).append(value)
        for other, checks in self.checks.items():
            for work, check in checks.items():
                if check != answer["checks"][work]:
                    raise SystemExit(f"{work}: {other} has {check}, {name} has {answer['checks'][work]}")
        self.checks[name] = answer["checks"]

    def medians(self) -> Iterator[tuple[str, str, dict[str, float]]]:
        """Yield operation, metric, and the median of each system."""
        for (work, metric), sides in self.values.items():
            yield work, metric, {name: statistics.median(values) for name, values in sides.items()}


def measure(names: list[str], scale: float, rounds: int, ivy: str) -> Figures:
    """Run each system in a separate process, alternating."""
    figures = Figures()
    for number in range(1, rounds + 1):
        for name in names:
            with tempfile.TemporaryDirectory() as folder:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.bench_peers",
                    "--child",
                    name,
                    "--folder",
                    folder,
                ]
                command += ["--scale", str(scale), "--ivy", ivy]
                done = subprocess.run(
                    command, capture_output=True, text=True, env={**os.environ}, check=False
                )
            if done.returncode:
                raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
            figures.add(name, json.loads(done.stdout.splitlines()[-1]))
            print(f"round {number}: {name}", flush=True)
    return figures


def note(results: Results, figures: Figures) -> None:
    """Record and print our figures next to each peer's figures, with the ratios."""
    for work, metric, sides in figures.medians():
        peers = {name: value for name, value in sides.items() if name != OURS.name}
        ours, unit = sides[OURS.name], "B" if metric == "bytes" else "s"
        results.add(work, metric, unit, ours, peers)
        cells = "  ".join(f"{name}: {value:.4g} ({value / ours:.2f})" for name, value in peers.items())
        print(f"{work}, {metric}: spark_lance {ours:.4g} {unit}  {cells}")


def parse_arguments(options: argparse.ArgumentParser, target: str) -> argparse.Namespace:
    """Return the arguments of a benchmark that runs each system in a process of its own.

    Args:
        options: the options of the benchmark; those of its processes are added.
        target: its target in the Makefile, which has the right Spark.
    """
    options.add_argument("--ivy", default=str(Path(sys.prefix) / "ivy"), help="where Spark keeps packages")
    options.add_argument("--child", help="the system to run in this process")
    options.add_argument("--folder", type=Path, help="the folder of its tables")
    arguments = options.parse_args()
    if not pyspark.__version__.startswith(f"{SPARK_MINOR}."):
        raise SystemExit(f"this needs Spark {SPARK_MINOR}, not {pyspark.__version__}: make {target}")
    return arguments


def main() -> None:
    """Run the benchmark, print its table, and store it if requested."""
    options = parser(__doc__)
    options.add_argument("--scale", type=float, default=1.0, help="of all numbers of rows")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--only", nargs="+", default=[], metavar="NAME", help="a part of the peer's name")
    arguments = parse_arguments(options, "bench-peers")
    if arguments.child:
        child(SYSTEMS[arguments.child], arguments.folder, arguments.scale, arguments.ivy)
        return
    peers = [name for name in SYSTEMS if name != OURS.name]
    chosen = [name for name in peers if not arguments.only or any(part in name for part in arguments.only)]
    if arguments.keep and arguments.scale != 1:
        raise SystemExit("--keep needs --scale 1: figures of other sizes are not comparable")
    results = Results("bench_peers", arguments.keep)
    figures = measure([OURS.name, *chosen], arguments.scale, arguments.rounds, arguments.ivy)
    note(results, figures)
    results.save()


if __name__ == "__main__":
    main()
