"""Data skipping by two columns: CLUSTER BY of spark_lance and Delta's liquid clustering, on the same rows.

    python -m benchmarks.bench_skipping [--rows N] [--files N] [--queries N] [--ivy FOLDER] [--keep]

Both tables have the columns id, x, y and note, with random x and y that do not depend on each other. They are
declared with CLUSTER BY (x, y), get their rows in four appends, and are optimized. The target size of a file
is chosen so that both have about the same number of files. Each query takes a square of 1 % of the rows,
`x BETWEEN a AND b AND y BETWEEN c AND d`, and reads all columns.

The figures are means of the queries; a ratio above 1 means that spark_lance reads less:

    files       files that were opened: scan metrics of both systems
    file bytes  the sizes of these files

No time is measured. Bytes that are read within a file are not compared: Spark does not count them for local
Parquet files. Each system runs in its own process. Delta comes from Maven Central when Spark starts.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.bench_peers import DELTA_VERSION, OURS, SYSTEMS, System, parse_arguments, start
from benchmarks.harness import Results, parser

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DELTA = SYSTEMS[f"Delta {DELTA_VERSION}, merge-on-read"]
_APPENDS = 4
_RANGE = 1_000_000
_FIGURES = {"files": "", "file bytes": "B"}
_COLUMNS = [
    "id",
    f"cast(pmod(xxhash64(id, 1), {_RANGE}) as int) AS x",
    f"cast(pmod(xxhash64(id, 2), {_RANGE}) as int) AS y",
    "sha2(cast(id as string), 256) AS note",
]


def fill(spark: SparkSession, system: System, rows: int, files: int) -> str:
    """Create, fill and optimize the table of a system; return its name."""
    table = f"{system.catalog}.db.t"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {system.catalog}.db").collect()
    columns = "id BIGINT, x INT, y INT, note STRING"
    spark.sql(f"CREATE TABLE {table} ({columns}) USING {system.using} CLUSTER BY (x, y)").collect()
    for number in range(_APPENDS):
        part = spark.range(rows * number // _APPENDS, rows * (number + 1) // _APPENDS, 1, 2)
        part.selectExpr(*_COLUMNS).writeTo(table).append()
    if system.is_ours:
        from spark_lance import LanceTable

        optimizing = LanceTable.forName(spark, table).optimize(targetRowsPerFragment=rows // files)
        optimizing.executeCompaction().collect()
        return table
    size = spark.sql(f"DESCRIBE DETAIL {table}").collect()[0].sizeInBytes
    spark.conf.set("spark.databricks.delta.snapshotPartitions", "2")
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(size // files))
    spark.sql(f"OPTIMIZE {table}").collect()
    return table


def squares(count: int) -> list[str]:
    """Return conditions that take 1 % of the rows each."""
    chance, side = random.Random(7), _RANGE // 10
    conditions = []
    for _ in range(count):
        x, y = (chance.randrange(_RANGE - side) for _ in range(2))
        conditions.append(f"x BETWEEN {x} AND {x + side - 1} AND y BETWEEN {y} AND {y + side - 1}")
    return conditions


def scan_metrics(frame: DataFrame) -> dict[str, int]:
    """Return the metrics of the scan of a query that has run."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    metrics = leaves.apply(0).metrics()
    names = metrics.keySet().toSeq()
    keys = [str(names.apply(place)) for place in range(names.size())]
    return {key: int(metrics.apply(key).value()) for key in keys}


def delta_figures(frame: DataFrame) -> dict[str, float]:
    """Return the figures of a query that has run on Delta."""
    metrics = scan_metrics(frame)
    return {"files": metrics["numFiles"], "file bytes": metrics["filesSize"]}


def lance_figures(spark: SparkSession, table: str, condition: str, frame: DataFrame) -> dict[str, float]:
    """Return the figures of a query that has run on a Lance table."""
    from spark_lance import LanceTable

    metrics = scan_metrics(frame)
    scanner = LanceTable.forName(spark, table).dataset().scanner(filter=condition)
    tasks = scanner._plan(None).plan_tasks(scanner._condition)
    sizes = [file.file_size_bytes for task in tasks for file in task.message.files]
    if len(tasks) != metrics["lanceFragments"]:
        raise SystemExit(f"{metrics['lanceFragments']} fragments were read, and {len(tasks)} are planned")
    return {"files": len(sizes), "file bytes": sum(sizes)}


def child(system: System, root: Path, rows: int, files: int, queries: int, ivy: str) -> None:
    """Run all queries of a system; print the figures of each and the answers as JSON in the last line."""
    from spark_lance.spark.java import prepare_environment

    prepare_environment()
    spark = start(system, root, ivy)
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    spark.conf.set("spark.lance.localRows", "0")
    table = fill(spark, system, rows, files)
    figures, answers = [], []
    for condition in squares(queries):
        frame = spark.sql(f"SELECT * FROM {table} WHERE {condition}")
        answers.append(sorted(row.id for row in frame.collect()))
        figures.append(
            lance_figures(spark, table, condition, frame) if system.is_ours else delta_figures(frame)
        )
    if system.is_ours:
        totals = spark.sql(f"SELECT count(*), sum(file_size_in_bytes) FROM {table}.data_files").collect()[0]
    else:
        totals = spark.sql(f"DESCRIBE DETAIL {table}").select("numFiles", "sizeInBytes").collect()[0]
    spark.stop()
    print(json.dumps({"figures": figures, "answers": answers, "totals": list(totals)}))


def run(system: System, arguments: Any) -> dict[str, Any]:
    """Run a system in its own process; return its output."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.bench_skipping", "--child", system.name]
        command += ["--folder", folder, "--rows", str(arguments.rows), "--files", str(arguments.files)]
        command += ["--queries", str(arguments.queries), "--ivy", arguments.ivy]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(f"{system.name} failed:\n{process.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def means(output: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean of each figure over the queries."""
    return {name: statistics.mean(query[name] for query in output["figures"]) for name in _FIGURES}


def main() -> None:
    """Run the benchmark, print its table, and store it if requested."""
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=4_000_000)
    options.add_argument("--files", type=int, default=64)
    options.add_argument("--queries", type=int, default=20)
    arguments = parse_arguments(options, "bench-skipping")
    if arguments.child:
        sizes = arguments.rows, arguments.files, arguments.queries
        child(SYSTEMS[arguments.child], arguments.folder, *sizes, arguments.ivy)
        return
    outputs = {system.name: run(system, arguments) for system in (OURS, _DELTA)}
    if outputs[OURS.name]["answers"] != outputs[_DELTA.name]["answers"]:
        raise SystemExit("the systems do not agree about the rows")
    results = Results("bench_skipping", arguments.keep)
    ours, theirs = (means(outputs[system.name]) for system in (OURS, _DELTA))
    for name, output in outputs.items():
        files, size = output["totals"]
        print(f"{name}: {files} files, {size / 1e6:.1f} MB")
    case = f"squares of 1 % of {arguments.rows:,} rows"
    for figure, unit in _FIGURES.items():
        results.add(case, figure, unit, ours[figure], {_DELTA.name: theirs[figure]})
        ratio = theirs[figure] / ours[figure]
        print(f"{figure}: spark_lance {ours[figure]:,.1f}, Delta {theirs[figure]:,.1f}, ratio {ratio:.2f}")
    results.save()


if __name__ == "__main__":
    main()
