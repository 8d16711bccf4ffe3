"""Runs Spark's own SQL inputs over Lance tables, with Parquet as the control, and counts equal answers.

python -m tests.spark_sql.run                     all files
python -m tests.spark_sql.run --only collations   files whose names contain a text
python -m tests.spark_sql.run --tasks             rows come from tasks, never from the driver
python -m tests.spark_sql.run --report FILE       writes each difference as a line of JSON
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

import spark_lance
from tests.spark_sql.comparison import Outcome, Result, Side, compare_file, make_shared_tables
from tests.spark_sql.inputs import InputFile, input_files

__all__ = ["COUNTED", "WRONG", "main", "run_files"]

# Outcomes of statements that succeed on Parquet, the same way each time.
COUNTED = (
    Outcome.EQUAL,
    Outcome.ROWS,
    Outcome.SCHEMA,
    Outcome.REFUSED,
    Outcome.FOLLOWS,
    Outcome.ABOUT_TABLES,
)
WRONG = (Outcome.ROWS, Outcome.SCHEMA)
ROOT = Path(__file__).resolve().parents[2]


def start_session(folder: Path) -> SparkSession:
    """Start a session of the installed Spark for this process."""
    from spark_lance.spark.java import prepare_environment

    prepare_environment()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.driver.memory", "3g")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    # PySpark logs each refused statement with its Java stack trace.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    return session


def run_files(spark: SparkSession, files: Sequence[InputFile], folder: Path, tasks: bool) -> Iterator[Result]:
    """Yield the results of files, each in new sessions and over new tables.

    Args:
        spark: any session of the process.
        files: of the suite.
        folder: where tables are made; emptied after each file.
        tasks: read Lance tables with tasks only, never in the driver.
    """
    for number, file in enumerate(files):
        ours, control = spark.newSession(), spark.newSession()
        place = folder / f"lance-{number}"
        place.mkdir(parents=True)
        spark_lance.enable(ours, root=str(place))
        if tasks:
            ours.conf.set("spark.lance.localRows", "0")
        ours.sql("CREATE NAMESPACE lance.default").collect()
        ours.sql("USE lance.default").collect()
        ours.conf.set("spark.sql.sources.default", "lance")
        control.sql("USE spark_catalog.default").collect()
        sides = (Side(ours, "lance"), Side(control, "parquet"))
        for side in sides:
            make_shared_tables(side)
        yield from compare_file(file, *sides)
        drop_everything(control)
        shutil.rmtree(place)


def drop_everything(session: SparkSession) -> None:
    """Drop what a file left in the session catalog, which all sessions of the process share."""
    session.sql("USE spark_catalog.default").collect()
    for row in session.sql("SHOW NAMESPACES IN spark_catalog").collect():
        if row[0] != "default":
            session.sql(f"DROP NAMESPACE IF EXISTS spark_catalog.`{row[0]}` CASCADE").collect()
    views = {row.viewName for row in session.sql("SHOW VIEWS IN default").collect() if not row.isTemporary}
    for view in views:
        session.sql(f"DROP VIEW IF EXISTS spark_catalog.default.`{view}`").collect()
    for row in session.sql("SHOW TABLES IN default").collect():
        if not row.isTemporary and row.tableName not in views:
            session.sql(f"DROP TABLE IF EXISTS spark_catalog.default.`{row.tableName}`").collect()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite and print the counts; exit code 1 if a statement has wrong rows or a wrong schema."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="part of the names of the files to run")
    parser.add_argument("--tasks", action="store_true", help="read Lance tables with tasks only")
    parser.add_argument("--report", type=Path, help="file for the differences, a JSON object per line")
    options = parser.parse_args(arguments)
    files = [file for file in input_files() if options.only in file.name]
    counts: Counter[Outcome] = Counter()
    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = start_session(folder)
        for result in run_files(spark, files, folder, options.tasks):
            counts[result.outcome] += 1
            if result.outcome not in (Outcome.EQUAL, Outcome.CONTROL_FAILED):
                lines.append(json.dumps({**result.__dict__, "outcome": result.outcome.value}))
                if options.report:
                    options.report.write_text("\n".join(lines) + "\n")
            if result.outcome in WRONG:
                print(f"{result.file} #{result.number}: {result.outcome.value}: {result.detail}", flush=True)
        spark.stop()
    total = sum(counts[outcome] for outcome in COUNTED)
    print(f"{counts[Outcome.EQUAL]} of {total} statements equal in {len(files)} files")
    for outcome, count in counts.most_common():
        print(f"  {count:6} {outcome.value}")
    return 1 if any(counts[outcome] for outcome in WRONG) else 0


if __name__ == "__main__":
    sys.exit(main())
