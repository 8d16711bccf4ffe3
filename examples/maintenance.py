"""Maintain a table: turn many small writes into few sorted files, and delete old versions.

Small writes fill a table of sensor values, and some values are corrected. Then the table is compacted, put in
Z-order, checked and cleaned up, first through Spark, then on the command line. After each step the rows are
compared with the expected rows. The exit status is 1 if they differ.

Run: ``python examples/maintenance.py [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.cli.main import main as command_line
from spark_lance.spark.java import prepare_environment

WRITES = 6
ROWS = 2000


def session() -> SparkSession:
    """Return a small local session."""
    prepare_environment()
    builder = SparkSession.builder.master("local[2]").appName("maintenance of a Lance table")
    for key, value in (("spark.ui.enabled", "false"), ("spark.sql.shuffle.partitions", "2")):
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def fill(spark: SparkSession, path: str) -> LanceTable:
    """Make the table and write to it in small pieces."""
    table = (
        LanceTable.create(spark, enable_stable_row_ids=True)
        .location(path)
        .addColumn("id", "bigint", nullable=False, comment="number of the measurement")
        .addColumn("sensor", "int")
        .addColumn("minute", "int")
        .addColumn("value", "double")
        .addColumn("trace", "array<float>", vectorSize=4)
        .primaryKey("id")
        .comment("measurements")
        .property("owner", "plant 7")
        .execute()
    )
    for number in range(WRITES):
        rows = spark.range(number * ROWS, (number + 1) * ROWS, numPartitions=1).selectExpr(
            "id",
            "cast(pmod(hash(id), 50) AS int) AS sensor",
            "cast(pmod(hash(id, 1), 1440) AS int) AS minute",
            "id / 10 AS value",
            "array(cast(id AS float), 0f, 1f, 2f) AS trace",
        )
        rows.write.format("lance").mode("append").save(path)
    table.delete("sensor = 13")
    return table


def check(what: str, table: LanceTable, expected: int) -> bool:
    """Compare the number of rows and their sum with what they should be."""
    dataset = spark_lance.dataset(table.path)
    rows = dataset.count_rows()
    wrong = dataset.count_rows("trace[1] <> cast(id as float) or sensor = 13")
    good = rows == expected and not wrong
    files = len(dataset.get_fragments())
    print(f"{what:34} {rows:6} rows in {files} fragments: {'as expected' if good else 'FAILED'}")
    return good


def main() -> int:
    """Run all steps and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=None, help="where the table is made")
    folder = parser.parse_args().dir or Path(tempfile.mkdtemp())
    path = str(folder / "measurements")
    spark = session()
    table = fill(spark, path)
    expected = table.toDF().count()
    good = [check("written and corrected", table, expected)]

    table.tags.create("as-delivered")
    table.optimize().executeCompaction().show()
    good.append(check("compacted", table, expected))

    # Rows that are close in both columns come to lie close in the files, which are small here.
    table.optimize(targetRowsPerFragment=3000).executeZOrderBy("sensor", "minute").show()
    good.append(check("in Z-order", table, expected))

    table.delete("id >= 5000")
    table.restoreToTag("as-delivered")
    good.append(check("restored after a mistake", table, expected))
    table.tags.delete("as-delivered")

    table.detail().select("numRows", "numFiles", "sizeInBytes", "primaryKey").show(truncate=False)
    table.history(5).select("version", "operation", "operationMetrics").show(truncate=60)
    table.vacuum(retentionHours=0, dryRun=True).groupBy("kind").count().show()
    # Nothing else reads this table; where something does, versions are kept for 24 hours or longer.
    table.vacuum(retentionHours=0, allowShortRetention=True).show()
    good.append(check("cleaned up", table, expected))
    spark.stop()

    # The same without Spark; in a shell: python -m spark_lance doctor <path>
    for command in ("inspect", "doctor", "compact", "verify"):
        print(f"\n$ python -m spark_lance {command} {path}")
        good.append(command_line([command, path]) == 0)
    if all(good):
        print("\nAll checks passed.")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
