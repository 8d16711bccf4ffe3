"""Functions of JSON documents give what pylance gives, and fail where it fails."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import ExpressionError, LanceError
from spark_lance.expressions.json_functions import parse_path
from spark_lance.expressions.predicate import compile_expression
from spark_lance.jsonb.binary import json_documents

SCHEMA = pa.schema([pa.field("j", pa.large_binary())])

PATHS = [
    "$",
    "$.a",
    "a",
    "$.o.a",
    "$.l[0]",
    "$.l[*]",
    "$.l[*].a",
    "$.l[last]",
    "$.l[last-1]",
    "$.l[1,0]",
    "$.l[0, 0]",
    "$.*",
    "$.o.*",
    "$.a[*]",
    "$[0]",
    "$[*]",
    '$."a b"',
    '$["é"]',
    "$:a",
    "$.l[*][*]",
    "$.nope",
    " $.a",
    "$.l[ 1 ] ",
    ".a",
    "[0]",
    "$.*[0]",
    "$.l.a",
    "$.o[0]",
    '["l"][1]',
]
KEYS = ["a", "b", "o", "l", "0", "1", "é", "a b", ""]
VALUES = [
    "1",
    "-1",
    "1.5",
    "-2.5",
    "2.4999",
    "0.5",
    "-0.5",
    "1e30",
    "18446744073709551615",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "9.3e18",
    "9223372036854775295.0",
    "100.0",
    "1e16",
    "-0.0",
    "0",
    "1e-7",
    '"x"',
    '"7"',
    '" 7"',
    '"7.5"',
    '"+7"',
    '"-7"',
    '"1e3"',
    '"true"',
    '"FALSE"',
    '"t"',
    '"inf"',
    '"NaN"',
    '"."',
    '"1."',
    '".5"',
    '"1_0"',
    '"9223372036854775808"',
    '""',
    "true",
    "false",
    "[1]",
    "{}",
    "null",
]


def computed(expression: str, table: pa.Table) -> list[Any]:
    documents = [json_documents(chunk.storage) for chunk in table["j"].chunks]
    stored = pa.table({"j": pa.chunked_array(documents, pa.large_binary())})
    actual = compile_expression(expression, SCHEMA)
    result = actual.evaluate(stored)
    assert result.type == actual.type
    return list(result.to_pylist())


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 3 else 5)
    if kind < 5:
        return rng.choice([None, True, False, 0, 1, -7, 2.5, "x", "1", "é", "", 10**18])
    if kind < 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = rng.sample(["a", "b", "o", "l", "é", "a b", "0"], rng.randrange(6))
    return {key: random_value(rng, depth + 1) for key in keys}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, Any]:
    rng = random.Random(8)
    texts = [None if rng.random() < 0.05 else json.dumps(random_value(rng)) for _ in range(300)]
    table = pa.table({"j": pa.array(texts, pa.json_())})
    path = str(tmp_path_factory.mktemp("json") / "t")
    lance.write_dataset(table, path)
    return table, lance.dataset(path)


def same(expression: str, documents: tuple[pa.Table, Any]) -> None:
    table, theirs = documents
    expected = theirs.to_table(columns={"r": expression})["r"].to_pylist()
    assert computed(expression, table) == expected, expression


@pytest.mark.parametrize("path", PATHS)
def test_what_is_at_a_path(path: str, documents: tuple[pa.Table, Any]) -> None:
    for function in ("json_extract", "json_exists", "json_array_length"):
        same(f"{function}(j, '{path}')", documents)


@pytest.mark.parametrize(
    "value", ["1", "'1'", "'x'", "2.5", "true", "'null'", "'[]'", "'\"x\"'", "null", "''"]
)
def test_items_of_arrays(value: str, documents: tuple[pa.Table, Any]) -> None:
    for path in ("$", "$.l", "$.a", "$.o.l", "$.l[0]", "$.l[*]"):
        same(f"json_array_contains(j, '{path}', {value})", documents)


@pytest.mark.parametrize("key", KEYS)
def test_members_by_key(key: str, documents: tuple[pa.Table, Any]) -> None:
    same(f"json_get(j, '{key}')", documents)
    same(f"json_get(json_get(j, '{key}'), 'a')", documents)
    same(f"json_extract(json_get(j, '{key}'), '$.l[0]')", documents)


def test_values_in_types(tmp_path: Path) -> None:
    texts = [f'{{"a":{value}}}' for value in VALUES]
    table = pa.table({"i": range(len(texts)), "j": pa.array(texts, pa.json_())})
    lance.write_dataset(table, str(tmp_path / "t"))
    theirs = lance.dataset(str(tmp_path / "t"))
    for number, text in enumerate(texts):
        for kind in ("int", "float", "string", "bool"):
            call = f"json_get_{kind}(j, 'a')"
            try:
                expected = theirs.to_table(columns={"r": call}, filter=f"i = {number}")["r"].to_pylist()
            except (ValueError, OSError):
                expected = ["fails"]
            try:
                result = computed(call, table.slice(number, 1))
            except ExpressionError:
                result = ["fails"]
            assert repr(result) == repr(expected), (text, kind)


def test_many_rows_of_mixed_values() -> None:
    texts = ['{"a":1}', '{"a":"2"}', "[5]", None, '{"a":null}', '{"b":1}', '{"a":true}', '{"a":3.5}'] * 1000
    table = pa.table({"j": pa.chunked_array([pa.array(texts, pa.json_())] * 2)})
    assert computed("json_get_int(j, 'a')", table) == [1, 2, None, None, None, None, 1, 4] * 2000
    assert (
        computed("json_get_string(j, 'a')", table) == ["1", "2", None, None, None, None, "true", "3.5"] * 2000
    )
    assert computed("json_get_int(j, '0')", table)[:3] == [None, None, 5]


@pytest.mark.parametrize(
    "path",
    [
        "$.",
        "$..a",
        "$.l[0 to 1]",
        "$.l[-1]",
        "$['a']",
        "$.a?(@.x==1)",
        "$.a > 1",
        "@.a",
        "$.a b",
        "$.l[0",
        "$.$",
    ],
)
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(ExpressionError, match="not supported"):
        parse_path(path)


@pytest.mark.parametrize(
    "expression",
    [
        "json_extract(j)",
        "json_get_int(1, 'a')",
        "json_get('{}', 'a')",
        "json_get(j, j)",
        "json_extract(j, X'00')",
    ],
)
def test_arguments_that_are_refused(expression: str) -> None:
    with pytest.raises(ExpressionError):
        compile_expression(expression, SCHEMA)


def test_damaged_documents_are_errors() -> None:
    rng = random.Random(3)
    good = json_documents(pa.array(['{"a":[1,{"b":"x"}],"c":2.5}', "[[],{}]", '"s"'])).to_pylist()
    calls = ["json_extract(j, '$.a[*].b')", "json_get_int(j, 'c')", "json_array_length(j, '$.a')"]
    for _ in range(600):
        data = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        table = pa.table({"j": pa.array([bytes(data[: rng.randrange(len(data) + 1)])], pa.large_binary())})
        for call in calls:
            with contextlib.suppress(LanceError):
                compile_expression(call, SCHEMA).evaluate(table)


def test_in_filters_updates_and_added_columns(tmp_path: Path) -> None:
    texts = ['{"a":1,"s":"x"}', '{"a":2,"l":[1,"y"]}', None, '{"s":"z"}']
    ours = spark_lance.write_dataset({"i": [0, 1, 2, 3], "j": pa.array(texts, pa.json_())}, tmp_path / "t")
    for condition in (
        "json_get_int(j, 'a') > 1",
        "json_get_int(j, 'a') is null",
        "json_extract(j, '$.s') = '\"x\"' or json_exists(j, '$.l')",
        "json_array_contains(j, '$.l', 'y')",
        "j is not null and json_get_string(j, 's') in ('x', 'z')",
    ):
        theirs = lance.dataset(str(tmp_path / "t"))
        expected = theirs.to_table(columns=["i"], filter=condition).to_pylist()
        assert ours.to_table(["i"], filter=condition).to_pylist() == expected, condition
        assert ours.count_rows(condition) == len(expected)
    ours.add_columns({"a": "json_get_int(j, 'a')", "s": "json_get_string(j, 's')"})
    ours = spark_lance.dataset(tmp_path / "t")
    ours.update({"j": "json_get(j, 'l')"}, where="json_exists(j, '$.l')")
    ours = spark_lance.dataset(tmp_path / "t")
    rows = sorted(lance.dataset(str(tmp_path / "t")).to_table().to_pylist(), key=lambda row: row["i"])
    assert rows == sorted(ours.to_table().to_pylist(), key=lambda row: row["i"])
    assert [row["a"] for row in rows] == [1, 2, None, None]
    assert rows[1]["j"] == '[1,"y"]'
    ours.delete("json_get_int(j, 'a') = 1")
    assert spark_lance.dataset(tmp_path / "t").count_rows() == 3
