"""A Connect server that Python has started with `enable`, and a client of it. Both are programs of their own.

    python -m tests.spark.sql.remote server PORT                  says "ready", and ends with its input
    python -m tests.spark.sql.remote client sc://HOST:PORT FOLDER prints differences from the files as JSON

The client runs each file in a session and a thread of its own, with a catalog whose root is in FOLDER.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import spark_lance
from spark_lance.spark.java import prepare_environment
from tests.spark.sql.answers import FILES, wrong_answers

RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))


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
    result = wrong_answers(session, file.read_text().replace("{root}", f"{folder}/{file.stem}-paths"))
    session.stop()
    return result


def run_writers(address: str, folder: str) -> list[str]:
    """Write tables by name without a format, and return what is wrong."""
    session = SparkSession.builder.remote(address).create()
    session.conf.set("spark.sql.catalog.lance.root", f"{folder}/writers")
    wrong = []
    for mode in ("error", "ignore", "append", "overwrite"):
        session.range(3).write.mode(mode).saveAsTable(f"lance.by_{mode}")
        session.range(3, 5).write.mode("append").saveAsTable(f"lance.by_{mode}")
        if session.table(f"lance.by_{mode}").count() != 5:
            wrong.append(f"mode {mode}")
    try:
        session.range(3).writeTo("lance.other").using("parquet").create()
        wrong.append("USING parquet made a table")
    except PySparkException as error:
        if "keeps Lance tables" not in str(error):
            wrong.append(str(error))
    session.stop()
    return wrong


def run_pipeline(address: str, folder: str) -> list[str]:
    """Run a pipeline with an AUTO CDC flow twice, and return its wrong rows."""
    from pyspark import pipelines  # Spark 4.3
    from pyspark.pipelines import graph_element_registry, spark_connect_pipeline
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry

    session = SparkSession.builder.remote(address).create()
    session.conf.set("spark.sql.catalog.lance.root", f"{folder}/pipeline")
    session.sql("CREATE NAMESPACE lance.db").collect()
    session.sql("CREATE TABLE lance.db.changes (id INT, v STRING, number INT, gone BOOLEAN)").collect()
    batches = ("(1, 'a', 1, false), (2, 'b', 1, false)", "(1, 'new', 2, false), (2, NULL, 2, true)")
    for rows in batches:
        session.sql(f"INSERT INTO lance.db.changes VALUES {rows}").collect()
        graph = spark_connect_pipeline.create_dataflow_graph(session, "lance", "db", {})
        registry = SparkConnectGraphElementRegistry(session, graph)
        with graph_element_registry.graph_element_registration_context(registry):
            pipelines.create_streaming_table("target")

            @pipelines.temporary_view(name="feed")
            def feed() -> DataFrame:
                return session.readStream.table("lance.db.changes")

            pipelines.create_auto_cdc_flow(
                target="target",
                source="feed",
                keys=["id"],
                sequence_by="number",
                apply_as_deletes="gone",
                except_column_list=["gone"],
                stored_as_scd_type=1,
            )
        events = spark_connect_pipeline.start_run(
            session, graph, None, False, None, False, f"file://{folder}/pipeline-state"
        )
        spark_connect_pipeline.handle_pipeline_events(events)
    stored = sorted(f"{row.id} {row.v}" for row in session.table("lance.db.target").collect())
    session.stop()
    return [] if stored == ["1 new"] else stored


def ask(address: str, folder: str) -> None:
    """Print the wrong answers of all files."""
    with ThreadPoolExecutor(2) as threads:
        result = dict(zip(FILES, threads.map(lambda file: run(address, folder, file), FILES), strict=True))
    wrong = {file.stem: answers for file, answers in result.items()}
    wrong["writers"] = run_writers(address, folder)
    if RELEASE >= (4, 3):
        wrong["pipeline"] = run_pipeline(address, folder)
    sys.stdout.write(json.dumps(wrong))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(sys.argv[2])
    else:
        ask(sys.argv[2], sys.argv[3])
