"""Airflow's SparkSubmitOperator runs a program that changes Lance tables.

Airflow is in another Python, which AIRFLOW_PYTHON names:

    python -m venv airflow
    airflow/bin/pip install apache-airflow apache-airflow-providers-apache-spark
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

import spark_lance
from tests.conftest import ROOT
from tests.spark.test_connect import environment

pytestmark = pytest.mark.slow

_AIRFLOW = os.environ.get("AIRFLOW_PYTHON")
# What spark-submit runs: rows that a retry must not add again, and a merge.
_PROGRAM = """
import sys
from pyspark.sql import SparkSession
import spark_lance

spark = SparkSession.builder.getOrCreate()
spark_lance.enable(spark, root=sys.argv[1])
spark.sql("CREATE NAMESPACE IF NOT EXISTS lance.d")
spark.sql("CREATE TABLE IF NOT EXISTS lance.d.t (id BIGINT, name STRING)")
rows = spark.createDataFrame([(1, "a"), (2, "b")], "id BIGINT, name STRING").write.mode("append")
rows.option("txnAppId", "load").option("txnVersion", sys.argv[2]).saveAsTable("lance.d.t")
source = "(SELECT 2L AS id, 'x' AS name) AS s"
spark.sql(f"MERGE INTO lance.d.t USING {source} ON t.id = s.id WHEN MATCHED THEN UPDATE SET *")
spark.stop()
"""
_DAG = """
import datetime
import os
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

with DAG("load", schedule=None, start_date=datetime.datetime(2026, 1, 1)):
    SparkSubmitOperator(
        task_id="load",
        application=os.environ["PROGRAM"],
        application_args=[os.environ["TABLES"], "{{ logical_date.strftime('%Y%m%d') }}"],
        conf={"spark.ui.enabled": "false"},
    )
"""


@pytest.mark.skipif(
    _AIRFLOW is None, reason="AIRFLOW_PYTHON names no Python with Airflow and its Spark provider"
)
def test_spark_submit_operator(tmp_path: Path) -> None:
    program, dags, tables = tmp_path / "program.py", tmp_path / "dags", tmp_path / "tables"
    dags.mkdir()
    program.write_text(_PROGRAM)
    (dags / "load.py").write_text(_DAG)
    connection = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
    settings = {
        **environment(),
        "PATH": f"{Path(pyspark.__file__).parent / 'bin'}{os.pathsep}{os.environ['PATH']}",
        # The driver has the Python of the tests, not Airflow's.
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection),
        "PROGRAM": str(program),
        "TABLES": str(tables),
    }
    # The second run is what a retry would do.
    for command in (
        "db migrate",
        "dags reserialize",
        "dags test load 2026-03-01",
        "dags test load 2026-03-01",
    ):
        process = subprocess.run(
            [str(_AIRFLOW), "-m", "airflow", *command.split()],
            env=settings,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-3000:]
    (path,) = tables.glob("*$t")
    rows = spark_lance.dataset(str(path)).to_table().to_pylist()
    assert sorted((row["id"], row["name"]) for row in rows) == [(1, "a"), (2, "x")]
