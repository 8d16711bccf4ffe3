"""Which columns conditions and expressions need, and the keys of merge conditions; no session is needed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.spark.table.assignments import Assignments
from spark_lance.spark.table.expressions import columns_option, expression_text, needed_columns
from spark_lance.spark.table.merge_keys import column_path, equal_columns


class Column:
    """Stands for Spark's: all that is looked at is its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return f"Column<'{self.text}'>"


NAMES = ["id", "v", "a b", "x.y", "st", "_rowid"]


@pytest.mark.parametrize(
    ("expression", "needed"),
    [
        ("id > 1", ["id"]),
        ("ID > 1 and V is null", ["id", "v"]),
        ("idx > valid", []),
        ("t.id = s.v", ["id"]),
        ("`t`.`v` = s.id", ["v"]),
        ("t . v = 1", ["v"]),
        ("st.id = 1", ["st"]),
        ("`a b` = `x.y`", ["a b", "x.y"]),
        ("a*2 + (v *3)", ["v"]),
        ("_rowid in (1)", ["_rowid"]),
        ("struct(*) is null", NAMES),
        ("size(array(t.*)) = 1", NAMES),
        ("exists (select 1 from u)", NAMES),
        ("id in (SELECT k FROM u)", NAMES),
    ],
)
def test_sql(expression: str, needed: list[str]) -> None:
    assert needed_columns(NAMES, [expression], "t") == needed


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("and(>(id, 1), =(*(v, 2), 3))", ["id", "v"]),
        ("f(columnnodeexpression(UnresolvedAttribute(List(t, v),None,false)))", ["v"]),
        ("concat(c0, ... 5 more fields)", NAMES),
        ("scalarsubquery()", NAMES),
        ("CASE WHEN >(st.a, 1) THEN `a b` END", ["a b", "st"]),
    ],
)
def test_columns(text: str, needed: list[str]) -> None:
    assert needed_columns(NAMES, [Column(text)], "t") == needed  # type: ignore[list-item]
    assert expression_text(Column(text)) == text  # type: ignore[arg-type]


def test_several_expressions_and_the_option() -> None:
    assert needed_columns(NAMES, ["v = 1", "id = 2"]) == ["id", "v"]
    assert needed_columns(NAMES, []) == []
    assert columns_option(["a b", 'q"']) == '["a b", "q\\""]'


@pytest.mark.parametrize(
    ("condition", "pairs"),
    [
        ("t.id = s.id", [("id", "id")]),
        ("s.key = t.id", [("id", "key")]),
        ("t.id = s.id and (t.v = s.w) and t.v > 3", [("id", "id"), ("v", "w")]),
        ("key = t.id", [("id", "key")]),
        ("v = key", [("v", "key")]),
        ("t.id = s.id or t.v = s.w", []),
        ("t.id <=> s.id", []),
        ("t.id = s.id + 1", []),
        ("t.id = t.v", []),
        ("t.id = 5", []),
        ("not t.id = s.id", []),
        ("t.st.a = s.id", []),
        ("t.id = st.id", []),
        ("text that is no SQL (", []),
        (Column("=(t.id, s.id)"), [("id", "id")]),
        (Column("and(and(==(t.id, s.id), =(s.w, t.v)), >(t.v, 3))"), [("id", "id"), ("v", "w")]),
        (Column("or(=(t.id, s.id), =(s.w, t.v))"), []),
        (Column("=(t.id, concat('a, b', s.id))"), []),
    ],
)
def test_keys(condition: str, pairs: list[tuple[str, str]]) -> None:
    assert equal_columns(condition, "t", ["id", "v", "st"], ["id", "w", "key", "st"]) == pairs


def test_plain_columns() -> None:
    assert column_path("S.`Id`") == ("s", "id")
    assert column_path(Column("s.id")) == ("s", "id")  # type: ignore[arg-type]
    assert column_path("id + 1") is column_path("(") is column_path(Column("+(id, 1)")) is None  # type: ignore[arg-type]


def test_targets() -> None:
    inner = pa.struct([("b", pa.struct([("c", pa.int64())])), ("d", pa.int64())])
    schema = Schema.from_arrow(pa.schema([("x y", pa.int64()), ("st", inner), ("t", pa.int64())]))
    result = Assignments.of(schema, {"`x y`": "1", "t.ST.b.`c`": "2", "t": "3", "st.d": "4"}, "t")
    assert result.targets == {"x y": 0, "st": {"b": {"c": 1}, "d": 3}, "t": 2}
    assert result.partial_columns == ["st"]
    assert result.field_ids == sorted(node.id for node in schema.walk())
    for wrong in ("`x", "st.", ".st", "st..d", ""):
        with pytest.raises(SchemaError):
            Assignments.of(schema, {wrong: "1"})
