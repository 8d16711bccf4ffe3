"""`enable(spark, new_sessions=True)` in a Connect server: its clients read only what they need."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import spark_lance
from tests.spark.test_connect import environment

_SERVER = """
import sys
from pyspark.sql import SparkSession
import spark_lance

port = sys.argv[1]
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
    .config("spark.connect.grpc.binding.port", port)
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark_lance.enable(spark, new_sessions=True)
print("READY", flush=True)
sys.stdin.read()
"""

_CLIENT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(f"sc://127.0.0.1:{sys.argv[1]}").getOrCreate()
frame = spark.read.format("lance").load(sys.argv[2])
print("COUNT", frame.count())
frame.where("id > 3").select("id").explain()
print("SUM", frame.where("id > 3").selectExpr("sum(id)").collect()[0][0])
print("HEAD", [row.id for row in frame.select("id").head(2)])
for number in range(3):
    few = spark.createDataFrame([(number, "new")], "id bigint, wide string")
    few.write.format("lance").mode("append").save(sys.argv[2])
many = spark.range(20000, 40000).selectExpr("id", "'many' AS wide")
many.write.format("lance").mode("append").save(sys.argv[2])
print("NOW", spark.read.format("lance").load(sys.argv[2]).count())
spark.stop()
"""


def free_port() -> str:
    with socket.socket() as result:
        result.bind(("127.0.0.1", 0))
        return str(result.getsockname()[1])


@pytest.mark.slow
def test_clients_of_a_server_that_has_the_rule_read_only_what_they_need(tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    spark_lance.write_dataset(pa.table({"id": range(10), "wide": ["x" * 100] * 10}), path)
    port = free_port()
    log = tmp_path / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _SERVER, port],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=environment(),
        )
    try:
        deadline = time.monotonic() + 240
        while "READY" not in log.read_text():
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)
        client = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", _CLIENT, port, path],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=400,
            check=False,
        )
        assert "COUNT 10" in client.stdout, client.stdout + client.stderr + log.read_text()[-3000:]
        assert "SUM 39" in client.stdout
        assert "HEAD [0, 1]" in client.stdout
        # Each action of a client is analysed anew.
        assert "NOW 20013" in client.stdout, client.stdout + client.stderr + log.read_text()[-3000:]
        (scan,) = [line for line in client.stdout.splitlines() if "LocalTableScan" in line]
        assert "id#" in scan
        assert "wide#" not in scan
    finally:
        assert server.stdin is not None
        server.stdin.close()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
