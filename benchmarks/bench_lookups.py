"""Time of look-ups by key in Spark: with a BTREE, without an index, and in other formats.

    python -m benchmarks.bench_lookups [--rows N] [--keys 1000] [--rounds 10] [--iceberg JAR] [--keep]

The tables have flights with a key in four files. Spark writes each format from the same Parquet files. A
round queries each table once for all columns of the rows with `--keys` random keys (`id IN (...)`), and
collects them. Every round has other keys, and the first round does not count. The benchmark compares the rows
of all formats. To include Iceberg, give the jar of its Spark runtime for this Spark release.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import spark_lance
from benchmarks.harness import Results, parser, start_spark
from benchmarks.tables import real_flights

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES = 4
_ICEBERG = "org.apache.iceberg.spark"

Read = Callable[[], "DataFrame"]


def write_source(folder: Path, rows: int) -> None:
    """Write flights with the key `id`, 0 and up, as Parquet files."""
    flights = real_flights()
    copies = -(-rows // flights.num_rows)
    table = pa.concat_tables([flights] * copies).slice(0, rows)
    table = table.append_column("id", pa.array(np.arange(rows)))
    folder.mkdir()
    step = -(-rows // _FILES)
    for number in range(_FILES):
        pq.write_table(table.slice(number * step, step), folder / f"{number}.parquet")


def iceberg_settings(jar: str, root: Path) -> dict[str, str]:
    """Return the settings of a session with a catalog `ice` of Iceberg's."""
    return {
        "spark.jars": jar,
        "spark.sql.extensions": f"{_ICEBERG}.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ice": f"{_ICEBERG}.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(root),
    }


def make_tables(spark: SparkSession, root: Path, *, iceberg: bool) -> dict[str, Read]:
    """Write the tables, and return by name how each is read."""
    source = spark.read.parquet(str(root / "source"))
    tables: dict[str, Read] = {}
    for name in ("BTREE", "no index"):
        path = str(root / f"{name}.lance")
        source.write.format("lance").mode("append").save(path)
        tables[name] = partial(spark.read.format("lance").load, path)
    spark_lance.dataset(root / "BTREE.lance").create_scalar_index("id", "BTREE")
    tables["Spark Parquet"] = lambda: spark.read.parquet(str(root / "source"))
    if iceberg:
        source.writeTo("ice.db.flights").using("iceberg").create()
        tables["Iceberg"] = lambda: spark.table("ice.db.flights")
    return tables


def look_up(read: Read, keys: list[int]) -> tuple[int, int, float]:
    """Look keys up; return how many rows came, and sums over two of their columns."""
    frame = read()
    rows = frame.where(f"id IN ({', '.join(map(str, keys))})").select(*frame.columns).collect()
    return len(rows), sum(row["id"] for row in rows), sum(row["distance"] for row in rows)


def measure(tables: Mapping[str, Read], rows: int, keys: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round, by table."""
    draw = np.random.default_rng(7)
    taken: dict[str, list[float]] = {name: [] for name in tables}
    for number in range(rounds + 1):
        chosen = sorted(draw.choice(rows, keys, replace=False).tolist())
        answers = set()
        for name, read in tables.items():
            start = time.perf_counter()
            answers.add(look_up(read, chosen))
            if number:
                taken[name].append(time.perf_counter() - start)
        assert len(answers) == 1, answers
        assert answers.pop()[:2] == (keys, sum(chosen))
    return taken


def main() -> None:
    """Run the benchmark and print its table."""
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=3_367_760)
    options.add_argument("--keys", type=int, default=1000)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--iceberg", default="", help="jar of Iceberg's runtime for this release of Spark")
    arguments = options.parse_args()
    results = Results("bench_lookups", arguments.keep)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_source(root / "source", arguments.rows)
        settings = iceberg_settings(arguments.iceberg, root / "ice") if arguments.iceberg else {}
        spark = start_spark(settings)
        tables = make_tables(spark, root, iceberg=bool(arguments.iceberg))
        print(f"Spark {spark.version}, load {os.getloadavg()[0]:.1f}, {arguments.keys} keys")
        taken = measure(tables, arguments.rows, arguments.keys, arguments.rounds)
        spark.stop()
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    ours = medians["BTREE"]
    print(f"{'':16} {'seconds':>8} {'least':>8} {'BTREE takes of that':>20}")
    for name, seconds in taken.items():
        print(f"{name:16} {medians[name]:8.3f} {min(seconds):8.3f} {ours / medians[name]:20.2f}")
    peers = {name: median for name, median in medians.items() if name != "BTREE"}
    results.add(f"{arguments.keys} keys of {arguments.rows} rows", "time", "s", ours, peers)
    results.save()


if __name__ == "__main__":
    main()
