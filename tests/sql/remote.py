"""A Connect server that Python has started with `enable`, and a client of it. Both are programs of their own.

    python -m tests.sql.remote server PORT                  says "ready", and ends with its input
    python -m tests.sql.remote client sc://HOST:PORT FOLDER prints what is not as the .sql files say, as JSON

The client runs each file in a session and a thread of its own, with a catalog whose root is in FOLDER.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import SparkSession

import spark_lance
from spark_lance.spark.java import prepare_environment
from tests.sql.answers import FILES, wrong_answers


def serve(port: str) -> None:
    """Serve until the input ends."""
    prepare_environment()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.port", port)
        .config("spark.connect.grpc.binding.address", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark_lance.enable(spark, new_sessions=True)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    spark.stop()


def run(address: str, folder: str, file: Path) -> list[str]:
    """Run one file and return its wrong answers."""
    session = SparkSession.builder.remote(address).create()
    session.conf.set("spark.sql.catalog.lance.root", f"{folder}/{file.stem}")
    found = wrong_answers(session, file.read_text().replace("{root}", f"{folder}/{file.stem}-paths"))
    session.stop()
    return found


def ask(address: str, folder: str) -> None:
    """Print the wrong answers of all files."""
    with ThreadPoolExecutor(2) as threads:
        found = dict(zip(FILES, threads.map(lambda file: run(address, folder, file), FILES), strict=True))
    sys.stdout.write(json.dumps({file.stem: wrong for file, wrong in found.items()}))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[2])
    else:
        ask(sys.argv[2], sys.argv[3])
