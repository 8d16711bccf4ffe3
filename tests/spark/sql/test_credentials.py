"""Credentials of one session stay with it: writes by path, plans, descriptions, errors, logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.spark.options.options import read_options, write_options
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.sql.catalogs import BridgeRequest, OpenCatalog
from spark_lance.spark.table.table import LanceTable
from tests.conftest import ROOT

SECRET = "q8Zr2vXw7LmN4tYb"
OPTIONS = {
    "storage.secret_word": f"{SECRET}-word",
    "storage.sas_token": f"sv=1&sig={SECRET}",
    "storage.client_kwargs": json.dumps({"aws_session_token": SECRET, "password": SECRET}),
    "storage.connection_string": f"AccountName=a;AccountKey={SECRET}==",
    "storage.key": f"{SECRET}key",
    "storage.account_key": SECRET,
    "storage.endpoint_url": f"https://me:{SECRET}@host/x",
    "storage.headers": json.dumps({"Authorization": f"Basic {SECRET}"}),
    "storage.service_account_key": json.dumps({"private_key": SECRET}),
}

# A driver of its own: save modes cannot be taken back, and all that its log and its pages say is looked at.
SCRIPT = """
import json, logging, os, sys
from contextlib import suppress
logging.basicConfig(level="DEBUG")
logging.getLogger("py4j").setLevel("WARNING")
from pyspark.sql import SparkSession
import spark_lance
from spark_lance.spark.sql import bridge

place, options, secret = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
events = place + "/events"
os.mkdir(events)
builder = spark_lance.session_builder().master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", "file://" + events)
builder = builder.config("spark.eventLog.compress", "false").config("spark.sql.ui.explainMode", "extended")
for name, value in options.items():
    builder = builder.config("spark.sql.catalog.own." + name, value)
spark = builder.getOrCreate()
spark_lance.enable(spark, catalog="own", root=place + "/root", save_modes=True)
asked, said = [], {}
answer_to = bridge._find_answer
def noted(verb):
    answer = answer_to(verb)
    def record(request):
        name = request.name if "name" in request.body else ()
        asked.append((verb, name, dict(request.body.get("options", {}))))
        return answer(request)
    return record
bridge._find_answer = noted

def write(session, path, mode, **more):
    session.range(3).write.format("lance").mode(mode).options(**more).save(path)

# Writes by path: what one session was given reaches no other one on the same thread.
for mode in ("errorifexists", "ignore", "append", "overwrite"):
    for exists in (False, True):
        path = f"{place}/{mode}{exists}"
        if exists:
            write(spark, path, "append")
        asked.clear()
        with suppress(Exception):
            write(spark, path, mode, **options)
        made = [given for verb, _, given in asked if verb in ("create_table", "stage_table")]
        if not exists and mode in ("errorifexists", "ignore"):
            word = "storage.secret_word"
            assert made and made[0].get(word) == options[word], (mode, asked)
        asked.clear()
        other = spark_lance.enable(spark.newSession())
        assert other.sql(f"SELECT count(*) FROM lance.`{path}`").head()[0] > 0
        with suppress(Exception):
            other.sql(f"SELECT * FROM lance_paths.`{path}`").count()
        with suppress(Exception):
            write(other, path, "errorifexists")
        found = [one for one in asked if one[1] == (path,)]
        assert found, asked
        said[path] = found
        # Nor the same session, in another statement.
        asked.clear()
        with suppress(Exception):
            spark.sql(f"SELECT * FROM lance.`{path}`").count()
        said[path + " again"] = [one for one in asked if one[1] == (path,)]

# Plans, descriptions and errors.
def note(name, work):
    try:
        said[name] = str(work())
    except Exception as error:
        said[name] = f"{error!r} {error}"
def plans(frame):
    execution = frame._jdf.queryExecution()
    return execution.toString(), execution.simpleString(), frame.collect()

path = f"{place}/appendTrue"
note("path", lambda: plans(spark.read.format("lance").options(**options).load(path).where("id > 0")))
chosen = {**options, "filter": "id > 0"}
note("plain", lambda: plans(spark.read.format("lance").options(**chosen).load(path).limit(1)))
note("create", lambda: spark.sql("CREATE TABLE own.t AS SELECT id, 1 AS b FROM range(3)").collect())
for statement in ("SELECT * FROM own.t WHERE id > 1", "DESCRIBE EXTENDED own.t",
                  "SHOW TBLPROPERTIES own.t",
                  "SHOW CREATE TABLE own.t", "EXPLAIN EXTENDED UPDATE own.t SET b = 2",
                  "UPDATE own.t SET b = 2",
                  "DELETE FROM own.t WHERE id = 9", "INSERT INTO own.t VALUES (7, 7)",
                  "SHOW CATALOGS", "SET -v",
                  "DESCRIBE CATALOG EXTENDED own", "SELECT * FROM own.missing", "SELECT * FROM own.t.history",
                  "MERGE INTO own.t USING range(2) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET b = 3",
                  "CALL own.system.vacuum('t')", "DESCRIBE NAMESPACE EXTENDED own.db"):
    note(statement, lambda: plans(spark.sql(statement)))
table = spark_lance.LanceTable.forPath(spark, path, **options)
note("table", lambda: (repr(table), str(table), table.toDF()._jdf.queryExecution().toString()))
broken = {"storage.client_kwargs": '{"password": "' + secret}
note("broken", lambda: spark.read.format("lance").options(**broken).load(path).collect())
note("broken write", lambda: write(spark, path, "append", **broken))
note("broken table", lambda: spark_lance.LanceTable.forPath(spark, path, **broken).toDF().collect())
note("not there", lambda: spark.read.format("lance").options(**options).load(place + "/nothing").collect())
store = spark._jsparkSession.sharedState().statusStore()
executions = store.executionsList()
note("pages", lambda: [executions.apply(at).physicalPlanDescription() for at in range(executions.size())])
spark.stop()
for root, _, names in os.walk(events):
    for name in names:
        said["event log " + name] = open(os.path.join(root, name), errors="replace").read()
json.dump(said, open(place + "/said", "w"), default=str)
"""


@pytest.mark.slow
def test_nothing_that_a_driver_says_has_credentials(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_CONF_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), json.dumps(OPTIONS), SECRET],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    said = json.loads((tmp_path / "said").read_text())
    said["log"] = done.stdout + done.stderr
    leaks = {
        name: [line[max(0, line.find(SECRET) - 150) :][:300] for line in _lines(text) if SECRET in line][:3]
        for name, text in said.items()
        if SECRET in json.dumps(text)
    }
    assert leaks == {}
    assert any(name.startswith("event log") for name in said)
    assert "starts like JSON" in said["broken"]


def _lines(text: object) -> list[str]:
    return (text if isinstance(text, str) else json.dumps(text)).replace("\\n", "\n").splitlines()


@pytest.mark.parametrize("name", ["storage.client_kwargs", "storage.secret"])
def test_a_malformed_value_is_not_quoted(spark: SparkSession, tmp_path: Path, name: str) -> None:
    broken = {name: '{"password": "' + SECRET}
    with pytest.raises(PySparkException, match="starts like JSON") as failure:
        spark.read.format("lance").options(**broken).load(str(tmp_path)).collect()
    assert SECRET not in str(failure.value)


def test_nothing_shows_its_options(spark: SparkSession) -> None:
    storage = tuple(sorted((name.removeprefix("storage."), value) for name, value in OPTIONS.items()))
    catalog = OpenCatalog.of("own", {"root": "/x", **OPTIONS})
    service = OpenCatalog.of("own", {"impl": "rest", "uri": "http://x", "header.Authorization": SECRET})
    shown = [
        read_options({"path": "/x", **OPTIONS}),
        write_options({"path": "/x", **OPTIONS}, overwrite=False),
        catalog,
        catalog.names,
        service,
        service.names,
        BridgeRequest(spark, LanceDataSource, {"catalog": "own", "options": OPTIONS}, None),
        LanceTable(spark, "/x", options=OPTIONS),
        spark_lance.LanceTable.create(spark).location("/x"),
    ]
    assert len(storage) == len(OPTIONS)
    assert SECRET not in repr(shown) + str(shown)
