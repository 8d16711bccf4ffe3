"""Helpers of the examples: a small local session, a folder for tables, and checks that are counted."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_lance.spark.java import prepare_environment

_FAILED: list[str] = []


def check(what: str, value: Any, expected: Any) -> None:
    """Compare a value with the expected value, and print the result."""
    confirm(what, value, value == expected, f", not {expected}")


def confirm(what: str, value: Any, good: bool, otherwise: str = "") -> None:
    """Print a value and whether it is good, and `otherwise` if it is not."""
    print(f"{'ok' if good else 'FAILED'}: {what}: {value}{'' if good else otherwise}")
    if not good:
        _FAILED.append(what)


def run_steps(title: str, name: str, steps: Callable[[SparkSession, str], None]) -> int:
    """Run an example from the command line; return how many of its checks failed.

    Args:
        title: the text of `--help`.
        name: name of the file or folder that the steps write, in the folder of `--dir` or a temporary one.
        steps: function of a session and the path.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--dir", help="folder for the tables; by default a temporary one")
    chosen_folder = parser.parse_args().dir
    with tempfile.TemporaryDirectory() as folder:
        prepare_environment()
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
        try:
            steps(spark, str(Path(chosen_folder or folder) / name))
        finally:
            spark.stop()
    print("All checks passed." if not _FAILED else f"{len(_FAILED)} checks failed.")
    return len(_FAILED)
