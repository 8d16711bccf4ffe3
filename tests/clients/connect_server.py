"""A Spark Connect server that Python has started with `enable`: its clients have the catalog.

python -m tests.clients.connect_server PORT FOLDER      says "ready", and ends with its input

A line of its input names a file of JSON with SQL statements. The server runs them without Connect, and prints
their errors.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import spark_lance
from spark_lance.spark.java import prepare_environment
from tests.clients.connect_client import outcomes


def serve(port: str, folder: str) -> None:
    """Serve the tables of a folder until the input ends."""
    prepare_environment()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
        .config("spark.connect.grpc.binding.port", port)
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark_lance.enable(spark, root=f"{folder}/tables", new_sessions=True)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lance.d").collect()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        errors = outcomes(spark.newSession(), json.loads(Path(line.strip()).read_text()))
        sys.stdout.write(json.dumps(errors) + "\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    serve(*sys.argv[1:])
