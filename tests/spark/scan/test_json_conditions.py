"""Conditions of Spark's on what stands in documents: rows are left out, and no answer changes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, datasource

import spark_lance
from spark_lance.expressions.json_functions import names_of_path
from spark_lance.spark.scan import predicates
from spark_lance.spark.scan.predicates import convert_json_path
from tests.conftest import interpreted

PLANS, ANSI = "spark.lance.planInDriver", "spark.sql.ansi.enabled"
KEYS = ("a", "b", "two words", "é", "x.y", "0", "k-1")
SCALARS: list[Any] = [
    None, True, False, 0, 1, 5, -7, 127, 128, -129, 2**31, 2**53 + 1, 2**63, 2**64 - 1, 10**22, 0.5, 2.5,
    -0.0, 5.0, 1e30, 1e-7, 1.5e300, "", "x", "click", "5", "5.0", "-7", "1.0E30", "true", "false", "null",
    "é", "日本", 'a"b', "a\\b", "line\nbreak", "{}", "[1]", '{"a":1}', "NaN", "Infinity", "9007199254740993",
    "🎈", "?", "a?",
]  # fmt: skip
LITERALS = (
    "'x'", "'click'", "'5'", "'5.0'", "'1.0E30'", "'true'", "'é'", "'日本'", "''", "'a\"b'", "'null'", "'{}'",
    "'[]'", "'{\"a\":1}'", "'a?'", "'-7'", "'NaN'", "'9007199254740993'", "'1.8446744073709552E19'", "'0.0'",
    "'-0.0'", "'1.0E-7'", "'1.0E22'", "'🎈'",
)  # fmt: skip
NUMBERS = {
    "tinyint": ("0", "5", "127"),
    "int": ("5", "-7", "2147483647"),
    "bigint": ("5", "0", "9007199254740993", "-1"),
    "double": ("0.5D", "5D", "-0.0D", "1.0E30D", "9007199254740992D"),
    "float": ("0.5F",),
    "decimal(10,2)": ("2.5",),
    "boolean": ("true",),
}
ROWS = 600
# Spark 4.0 hands a Python source no conditions.
NARROWS = hasattr(datasource, "GreaterThan")


def document(draw: random.Random, depth: int = 0) -> Any:
    kind = draw.random()
    if depth > 2 or kind < 0.3 * depth:
        return draw.choice(SCALARS)
    if kind < 0.75:
        return {key: document(draw, depth + 1) for key in draw.sample(KEYS, draw.randrange(5))}
    return [document(draw, depth + 1) for _ in range(draw.randrange(4))]


def a_path(draw: random.Random) -> str:
    result = "$"
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3))):
        key = draw.choice(KEYS[:4] if draw.random() < 0.8 else KEYS)
        plain = key if key.isalnum() else "a"
        result += draw.choice((f".{plain}", f"['{key}']", f".{plain}", f"[{draw.randrange(3)}]"))
    return result


MALFORMED = (
    "$",
    "a",
    "$a",
    "$..a",
    "$.*",
    "$.a[*]",
    "$[*].a",
    "$['*']",
    "$.a.",
    "$.a[",
    "$[-1]",
    "$.a b",
    "",
)


def a_condition(draw: random.Random, of: str = "get_json_object") -> str:
    """A condition on the column j; `of` tells the function."""
    # Of variants such a path is an error, whatever the source.
    malformed = of == "get_json_object" and draw.random() < 0.07
    path = draw.choice(MALFORMED) if malformed else a_path(draw)
    quoted = path.replace("'", "\\'")
    kind = draw.choice((*["string"] * 5, "int", "bigint", "double", "double", *NUMBERS))
    if of == "get_json_object":
        call = f"get_json_object(j, '{quoted}')"
        value = call if kind == "string" else f"cast({call} as {kind})"
    elif draw.random() < 0.3:
        value = f"try_cast(try_variant_get(v, '{quoted}', 'variant') as {kind})"
    else:
        value = f"try_variant_get(v, '{quoted}', '{kind}')"
    literals = LITERALS if kind == "string" else NUMBERS[kind]
    shape = draw.random()
    if shape < 0.1:
        return f"{value} is not null"
    if shape < 0.15:
        return f"{value} is null"
    if shape < 0.3:
        return f"{value} in ({', '.join(draw.sample(literals, min(3, len(literals))))})"
    test = draw.choice(("=", "=", "=", "<=>", "<", "<=", ">", ">=", "<>"))
    one, other = value, draw.choice(literals)
    if draw.random() < 0.2:
        one, other = other, one
    result = f"{one} {test} {other}"
    return f"not ({result})" if draw.random() < 0.1 else result


def conditions(seed: int, count: int, of: str = "get_json_object") -> list[str]:
    draw = random.Random(seed)
    results = [a_condition(draw, of) for _ in range(count)]
    words = ("and", "or", "and not", "or not", "or i < 100 or", "and i > 50 and")
    return [
        one if draw.random() < 0.6 else f"({one}) {draw.choice(words)} ({draw.choice(results)})"
        for one in results
    ]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("documents"))
    draw = random.Random(11)
    texts = [None if draw.random() < 0.1 else json.dumps(document(draw)) for _ in range(ROWS)]
    # In these one path has values of one type, as indices want it.
    texts += [
        json.dumps({"s": draw.choice(["x", "click", "5", "q"]), "n": draw.randrange(9)}) for _ in range(50)
    ]
    table = pa.table({"i": range(len(texts)), "j": pa.array(texts, pa.json_())})
    ds = spark_lance.write_dataset(table, f"{folder}/t.lance", max_rows_per_file=300)
    ds.create_scalar_index("j", "JSON", "texts", path="$.s", target_index_type="bitmap")
    ds = spark_lance.dataset(f"{folder}/t.lance")
    ds.create_scalar_index("j", "JSON", "numbers", path="$.n", target_index_type="btree")
    spark_lance.dataset(f"{folder}/t.lance").delete("i % 13 = 5")
    return folder


@pytest.fixture(scope="module")
def driver(spark: SparkSession, root: str) -> Iterator[SparkSession]:
    session = interpreted(spark.newSession())
    session.conf.set(ANSI, "false")
    yield spark_lance.enable(session, root=root)
    spark.newSession()


@pytest.fixture(scope="module")
def plain(driver: SparkSession, root: str) -> DataFrame:
    """All rows, in Spark's memory."""
    frame = driver.read.format("lance").load(f"{root}/t.lance")
    return driver.createDataFrame(frame.collect(), "i bigint, j string").coalesce(1).cache()


def expected(plain: DataFrame, asked: list[str]) -> list[list[int]]:
    columns = [f"coalesce({condition}, false) AS c{number}" for number, condition in enumerate(asked)]
    rows = plain.selectExpr("*", "parse_json(j) AS v").selectExpr("i", *columns).collect()
    return [sorted(row.i for row in rows if row[number + 1]) for number in range(len(asked))]


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def check(driver: SparkSession, plain: DataFrame, frame: DataFrame, asked: list[str], least: int) -> None:
    """Compare what conditions keep with Spark's own answers, read by the driver and by tasks."""
    real, narrowed = predicates.translate_json_condition, 0

    def counted(*arguments: Any) -> Any:
        nonlocal narrowed
        result = real(*arguments)
        narrowed += result is not None
        return result

    draw = random.Random(len(asked))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predicates, "translate_json_condition", counted)
        for condition, ids in zip(asked, expected(plain, asked), strict=True):
            if draw.random() < 0.2:
                driver.conf.set("spark.lance.localRows", "0")
            try:
                remaining = frame.where(condition).select("i")
                assert sorted(row.i for row in remaining.collect()) == ids, condition
            finally:
                driver.conf.unset("spark.lance.localRows")
    if not NARROWS:
        assert narrowed == 0
        return
    assert narrowed >= least, f"{narrowed} times rows were left out, for {len(asked)} conditions"


def test_answers_are_those_of_spark(driver: SparkSession, plain: DataFrame, root: str) -> None:
    check(driver, plain, driver.read.format("lance").load(f"{root}/t.lance"), conditions(1, 40), 15)


def test_of_variants_too(driver: SparkSession, plain: DataFrame, root: str) -> None:
    frame = driver.read.format("lance").option("json_as", "variant").load(f"{root}/t.lance")
    frame = frame.withColumnRenamed("j", "v")
    check(driver, plain, frame, conditions(2, 25, "variant_get"), 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_answers_are_those_of_spark_at_length(
    driver: SparkSession, plain: DataFrame, root: str, seed: int
) -> None:
    frame = driver.read.format("lance").load(f"{root}/t.lance")
    check(driver, plain, frame, conditions(100 + seed, 120), 20)
    frame = driver.read.format("lance").option("json_as", "variant").load(f"{root}/t.lance")
    check(driver, plain, frame.withColumnRenamed("j", "v"), conditions(200 + seed, 60, "variant_get"), 10)


@pytest.mark.skipif(not NARROWS, reason="Spark 4.0 knows no paths behind a colon")
def test_colons_and_failing_casts(driver: SparkSession, root: str) -> None:
    frame = driver.read.format("lance").option("json_as", "variant").load(f"{root}/t.lance")
    frame.createOrReplaceTempView("documents")
    request = "SELECT i FROM documents WHERE try_cast(j:s AS string) = 'click'"
    result = driver.sql(request)
    driver.conf.set("spark.lance.localRows", "0")
    assert "json_candidate" in plan(result)
    driver.conf.unset("spark.lance.localRows")
    assert result.count() > 0
    # Spark finds the text of another row that is no number, as it does without a table.
    driver.conf.set(ANSI, "true")
    try:
        for condition in ("cast(get_json_object(j, '$.a') as int) = 5", "get_json_object(j, '$.a') = 5"):
            with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
                driver.read.format("lance").load(f"{root}/t.lance").where(condition).collect()
    finally:
        driver.conf.set(ANSI, "false")


def test_indices_of_documents_are_used(driver: SparkSession, plain: DataFrame, root: str) -> None:
    frame = driver.read.format("lance").load(f"{root}/t.lance")
    driver.conf.set("spark.lance.localRows", "0")
    try:
        for condition, index in (
            ("get_json_object(j, '$.s') = 'click'", "texts"),
            ("get_json_object(j, '$.s') in ('click', 'x')", "texts"),
            ("cast(get_json_object(j, '$.n') as bigint) > 6", "numbers"),
            ("cast(get_json_object(j, '$.n') as bigint) = 3", "numbers"),
        ):
            result = frame.where(condition)
            assert (index in plan(result)) is NARROWS, condition
            (ids,) = expected(plain, [condition])
            assert sorted(row.i for row in result.collect()) == ids
            assert ids
        # A text that may be a number's has to be looked for in the documents.
        assert "texts" not in plan(frame.where("get_json_object(j, '$.s') = '5'"))
    finally:
        driver.conf.unset("spark.lance.localRows")


def test_it_can_be_switched_off(driver: SparkSession, root: str) -> None:
    driver.conf.set(PLANS, "false")
    try:
        frame = driver.read.format("lance").load(f"{root}/t.lance")
        assert frame.where("get_json_object(j, '$.s') = 'click'").count() > 0
    finally:
        driver.conf.unset(PLANS)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("$.a", ("a",)),
        ("$.a.b_1", ("a", "b_1")),
        ("$['two words'].é", ("two words", "é")),
        *((path, None) for path in MALFORMED),
    ],
)
def test_paths(path: str, names: tuple[str, ...] | None) -> None:
    result = convert_json_path(path)
    assert (None if result is None else names_of_path(result)) == names


def test_items_that_are_null_are_texts_to_spark(driver: SparkSession, tmp_path: Path) -> None:
    """What `get_json_object` makes of a null item is the text "null", of a null member it is null."""
    texts = [
        "[null]",
        '{"a":null}',
        '{"a":[1,null]}',
        "null",
        "[[null]]",
        '["null"]',
        '[{"a":null}]',
        "[]",
        "[1]",
    ]
    table = pa.table({"i": range(len(texts)), "j": pa.array(texts, pa.json_())})
    spark_lance.write_dataset(table, tmp_path / "t")
    frame = driver.read.format("lance").load(str(tmp_path / "t"))
    plain = driver.createDataFrame(list(enumerate(texts)), "i bigint, j string")
    paths = ("$[0]", "$.a", "$.a[1]", "$[0][0]", "$[0].a", "$['a']")
    tests = (
        "= 'null'",
        "in ('x', 'null')",
        "< 'x'",
        ">= 'n'",
        "<=> 'null'",
        "is not null",
        "<> '1'",
        "= '1'",
    )
    requests = [
        f"get_json_object(j, '{path.replace(chr(39), chr(92) + chr(39))}') {test}"
        for number, path in enumerate(paths)
        # All are asked of the first path, two of each other.
        for test in (tests[number % 4 :: 4] if number else tests)
    ]
    expected_rows = expected(plain, requests)
    assert expected_rows[0] == [0, 5]
    for condition, ids in zip(requests, expected_rows, strict=True):
        assert sorted(row.i for row in frame.where(condition).select("i").collect()) == ids, condition


def test_documents_with_damage_are_told(driver: SparkSession, tmp_path: Path) -> None:
    stored = pa.field("j", pa.large_binary(), metadata={"ARROW:extension:name": "lance.json"})
    table = pa.table([pa.array([b"\x40\x00\x00\x09"], pa.large_binary())], schema=pa.schema([stored]))
    spark_lance.write_dataset(table, tmp_path / "t")
    with pytest.raises(PySparkException, match="JSON"):
        driver.read.format("lance").load(str(tmp_path / "t")).where(
            "get_json_object(j, '$.a') = '1'"
        ).collect()
