"""Requests of the Java side have the keys of `spark_lance.spark.sql.protocol`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.spark.driver import java_classes, start
from spark_lance.spark.options.option_fields import java_option_names
from spark_lance.spark.sql import bridge
from spark_lance.spark.sql.bridge import VERBS
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.sql.protocol import ANSWERS, PARTS, REQUESTS, Function, StartAnswer, StartRequest
from tests.spark.protocol_java import NAME, java_class

# Maps of other things than requests: options of reads and writes, parameters of Spark's errors, fields of its
# CatalogTable.
OTHER_KEYS = {"path", "version", "mode", "stream", "replaceWhere", "replaceUsing"} | {
    "replaceOn",
    "overwriteSchema",
    "mergeSchema",
    "targetAlias",
    "relationName",
    "relationId",
    "viewName",
    "operation",
    "searchPath",
    "provider",
    "comment",
    "location",
    "partitionBy",
    "partitionOverwriteMode",
    "primary_key",
    "enable_stable_row_ids",
    "readChangeFeed",
    "startingVersion",
    "startingTimestamp",
    "endingVersion",
    "endingTimestamp",
}
# Classes that take the request of `enable`. They are compiled without `Protocol`. `answers` is an object.
START_TYPES = (StartRequest, StartAnswer, Function)
KINDS_OF_OPTIONS = set(java_option_names())
START_KEYS = {"answers", *KINDS_OF_OPTIONS, *(key for kind in START_TYPES for key in get_type_hints(kind))}
OF_ENABLE = ("LanceStart", "LanceStatements", "LanceUnits", "LanceLazyFunctions", "LanceParser")


def test_each_verb_has_a_type() -> None:
    assert REQUESTS.keys() == bridge.VERBS.keys()
    assert ANSWERS.keys() <= REQUESTS.keys()
    for kind in (*REQUESTS.values(), *ANSWERS.values(), *PARTS):
        assert kind.__doc__, kind


def test_java_has_the_same_keys() -> None:
    """If this fails, run `python -m tests.spark.protocol_java`."""
    assert java_classes.source(NAME) == java_class()
    for path in java_classes.FOLDER.rglob("*.java"):
        text = path.read_text()
        keys = set(re.findall(r'\.(?:get|put|containsKey|remove)\(\s*"(\w+)"', text))
        keys -= START_KEYS if path.stem in OF_ENABLE else KINDS_OF_OPTIONS
        verbs = set(re.findall(r'(?:question|ask|definition|request)\(\s*"(\w+)"', text))
        assert (path.name, keys - OTHER_KEYS, verbs) == (path.name, set(), set())


def test_enable_sends_the_keys_of_its_type(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[dict[str, Any]] = []

    def dumps(message: dict[str, Any]) -> str:
        messages.append(message)
        return json.dumps(message)

    monkeypatch.setattr(start, "json", SimpleNamespace(loads=json.loads, dumps=dumps))
    spark_lance.enable(spark.newSession(), catalog="start_keys", root="memory://start-keys")
    (message,) = messages
    assert message.keys() == get_type_hints(StartRequest).keys()
    assert all(function.keys() == get_type_hints(Function).keys() for function in message["functions"])


def checked(verb: str, answer_to: Callable[[str], bridge.Answer], verbs: set[str]) -> bridge.Answer:
    """Return what answers a verb, after it has checked the keys of the request and of the answer."""

    def answer(request: BridgeRequest) -> Any:
        kind: Any = REQUESTS[verb]
        keys = request.body.keys()
        assert kind.__required_keys__ <= keys <= kind.__required_keys__ | kind.__optional_keys__, verb
        result = answer_to(verb)(request)
        if verb in ANSWERS and result is not None:
            of_answer: Any = ANSWERS[verb]
            keys = of_answer.__required_keys__ | of_answer.__optional_keys__
            assert of_answer.__required_keys__ <= result.keys() <= keys, verb
        verbs.add(verb)
        return result

    return answer


def test_requests_have_the_keys_of_their_types(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_to, verbs = bridge._find_answer, set[str]()
    monkeypatch.setattr(bridge, "_find_answer", lambda verb: checked(verb, answer_to, verbs))
    session = spark_lance.enable(spark.newSession(), catalog="keys", root=str(tmp_path))
    for statement in (
        "CREATE NAMESPACE keys.n",
        "ALTER NAMESPACE keys.n SET PROPERTIES (a = 'b')",
        "CREATE TABLE keys.n.t (id BIGINT, v ARRAY<FLOAT>, s STRING) "
        "TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '2')",
        "INSERT INTO keys.n.t SELECT id, array(1f, id), 'x' FROM range(9)",
        "CREATE TABLE keys.n.u AS SELECT 1 AS id",
        "ALTER TABLE keys.n.u ADD COLUMN w INT",
        "ALTER TABLE keys.n.u RENAME TO keys.n.x",
        "SHOW TABLES IN keys.n",
        "SHOW NAMESPACES IN keys",
        "SELECT id FROM keys.n.t WHERE id > 3 ORDER BY id LIMIT 2",
        "SELECT max(id), count(*) FROM keys.n.t",
        "SELECT * FROM keys.n.t VERSION AS OF 1",
        "SELECT * FROM vector_search('keys.n.t', 'v', array(1f, 2f), 3)",
        "UPDATE keys.n.t SET s = 'y' WHERE id = 1",
        "DELETE FROM keys.n.t WHERE id IN (SELECT 2)",
        "MERGE INTO keys.n.t t USING (SELECT 5L AS id) u ON t.id = u.id WHEN MATCHED THEN DELETE",
        "CALL keys.system.history('n.t')",
        "TRUNCATE TABLE keys.n.t",
        "DROP TABLE keys.n.x",
        "DROP NAMESPACE keys.n CASCADE",
    ):
        session.sql(statement).collect()
    if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2):
        for statement in (
            "CREATE NAMESPACE keys.n",
            "CREATE VIEW keys.n.v AS SELECT 1 AS a",
            "CREATE OR REPLACE VIEW keys.n.v AS SELECT 2 AS a",
            "ALTER VIEW keys.n.v SET TBLPROPERTIES ('k' = '1')",
            "ALTER VIEW keys.n.v RENAME TO keys.n.w",
            "SELECT * FROM keys.n.w",
            "SHOW VIEWS IN keys.n",
        ):
            session.sql(statement).collect()
        with pytest.raises(PySparkException, match="EXPECT_TABLE_NOT_VIEW"):
            session.sql("INSERT INTO keys.n.w VALUES (1)").collect()
        for statement in (
            "DROP VIEW keys.n.w",
            "DROP NAMESPACE keys.n",
        ):
            session.sql(statement).collect()
        assert {"load_relation", "load_view", "list_views", "create_view", "replace_view"} <= verbs
        assert {"drop_view", "rename_view"} < verbs
    assert len(verbs) > 20


@pytest.mark.parametrize(("verb", "module"), VERBS.items())
def test_each_verb_is_a_function_of_its_module(verb: str, module: str) -> None:
    assert callable(getattr(import_module(f"spark_lance.spark.sql.{module}"), verb))
