"""A Thrift server that Python has started with `enable`.

python -m tests.clients.thrift_server PORT FOLDER      says "ready", and ends with its input
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import SparkSession

import spark_lance
from spark_lance.spark.java import prepare_environment


def serve(port: str, folder: str) -> None:
    """Serve the tables of a folder until the input ends."""
    prepare_environment()
    spark: Any = (
        SparkSession.builder.master("local[2]")
        .config("spark.hadoop.hive.server2.thrift.port", port)
        .config("spark.hadoop.hive.server2.thrift.bind.host", "127.0.0.1")
        .config("spark.hadoop.hive.server2.authentication", "NOSASL")
        .config("spark.sql.catalogImplementation", "hive")
        .config("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:derby:memory:metastore;create=true")
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark_lance.enable(spark, root=f"{folder}/tables", new_sessions=True)
    spark_lance.enable(spark, catalog="spark_catalog", new_sessions=True)
    server = spark._jvm.org.apache.spark.sql.hive.thriftserver.HiveThriftServer2
    server.startWithContext(spark._jsparkSession.sqlContext())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    spark.stop()


if __name__ == "__main__":
    serve(*sys.argv[1:])
