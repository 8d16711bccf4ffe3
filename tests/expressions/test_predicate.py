"""Conditions and computed columns, judged by pylance where it takes the same SQL."""

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_lance.errors import ExpressionError, OptionTypeError
from spark_lance.expressions.predicate import compile_expression, compile_predicate

DAY = datetime.datetime(2020, 6, 1)
TABLE = pa.table(
    {
        "n": pa.array(range(12), pa.int32()),
        "a": pa.array([1, 2, None, -4, 5, 6, 0, 2**53 + 1, -(2**63), 2**63 - 1, 3, None], pa.int64()),
        "f": [0.0, -0.0, math.nan, 1.5, None, math.inf, -math.inf, 2.0, -2.5, 1e300, 0.1, math.nan],
        "g": pa.array([0.1, None, math.nan, 1.5, -0.0, 2, 3, 4, 5, 6, 7, 8], pa.float32()),
        "s": ["x", "yy", None, "it's", "", "Yx", "%", "a_b", "ab", "é", "x y", 'say "q"'],
        "b": [True, False, None] * 4,
        "u": pa.array([0, 2**64 - 1, 5, None, *range(8)], pa.uint64()),
        "Big Name": pa.array(range(12), pa.int16()),
        "t": pa.array(
            [DAY + datetime.timedelta(days=i) if i % 4 else None for i in range(12)], pa.timestamp("us")
        ),
        "d": pa.array([DAY.date()] * 11 + [None], pa.date32()),
        "m": pa.array([Decimal(i) / 4 if i % 5 else None for i in range(12)], pa.decimal128(10, 2)),
        "st": [{"x": i, "y": {"z": str(i)}} if i % 3 else None for i in range(12)],
        "l": [[1, 2], [], None, [3, None], [1], [], [2], [1, 1], None, [4, 5, 6], [0], [7]],
        "w": [["a"], ["b", "a"], None, [], ["c"], ["a"], [None], ["b"], [], ["a", "b"], ["d"], ["e"]],
    }
)
SCHEMA = TABLE.schema


def rows(sql: str) -> list[int]:
    values: list[int] = compile_predicate(sql, SCHEMA).filter(TABLE)["n"].to_pylist()
    return values


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    return lance.write_dataset(TABLE, tmp_path_factory.mktemp("predicates") / "t.lance")


ATOMS = st.one_of(
    st.builds(
        "{} {} {}".format,
        st.sampled_from(["a", "n", "`Big Name`", "A"]),
        st.sampled_from(["=", "<", "<=", ">", ">=", "!=", "<>"]),
        st.integers(-5, 7),
    ),
    st.builds(
        "{} {} {}".format,
        st.sampled_from(["f", "g"]),
        st.sampled_from(["=", "<", "<=", ">", ">=", "!="]),
        st.sampled_from(["0.0", "-0.0", "1.5", "2", "f", "g"]),
    ),
    st.builds("u {} {}".format, st.sampled_from("=<>"), st.sampled_from(["0", "5", "18446744073709551615"])),
    st.builds("s {} '{}'".format, st.sampled_from("=<>"), st.sampled_from(["x", "", "it''s", "é", "Yx"])),
    st.builds(
        "s {} '{}'".format,
        st.sampled_from(["like", "not like", "ilike", "not ilike"]),
        st.sampled_from(["%", "x%", "_", "%y%", "a_b", "Y%", ""]),
    ),
    st.builds(
        "n {} ({})".format,  # n holds no null: pylance forgets nulls where it unites such lists
        st.sampled_from(["in", "not in"]),
        st.lists(st.sampled_from(["1", "2", "7", "99"]), min_size=1, max_size=4).map(", ".join),
    ),
    st.builds(
        "n {} {} and {}".format,
        st.sampled_from(["between", "not between"]),
        st.integers(0, 9),
        st.integers(0, 12),
    ),
    st.builds(
        "{} {}".format,
        st.sampled_from(["a", "f", "s", "b", "st", "st.x", "st.y.z", "l", "t"]),
        st.sampled_from(["is null", "is not null"]),
    ),
    st.builds(
        "b {}".format, st.sampled_from(["", "= true", "is true", "is not true", "is false", "is not false"])
    ),
    st.sampled_from(
        [
            "st.x = 4",
            "st['x'] > 4",
            "st.y.z = '7'",
            "l[1] = 1",
            "l[0] = 1",
            "array_has(l, 1)",
            "array_has_any(w, ['a', 'd'])",
            "array_has_all(w, ['a', 'b'])",
            "array_length(l) > 1",
            "n + 1 > 2 and a < 100",
            "n % 3 = 1",
            "-n = -4",
            "n / 2 = 3",
            "n * 2 = 8",
            "cast(n as string) = '10'",
            "cast(n as double) > 4.5",
            "a is distinct from 1",
            "a is not distinct from null",
            "coalesce(a, 7) = 7",
            "nullif(n, 4) is null",
            "s || 'x' = 'xx'",
            "length(s) = 2",
            "upper(s) = 'YX'",
            "lower(s) = 'yx'",
            "starts_with(s, 'y')",
            "regexp_like(s, '^[xy]+$')",
            "isnan(f)",
            "t > timestamp '2020-06-05 00:00:00'",
            "t > date '2020-06-05'",
            "d = date '2020-06-01'",
            "date_trunc('month', t) = timestamp '2020-06-01 00:00:00'",
            's = "x"',
            "concat(s, 'x') = 'xx'",
            "true",
            "1 = 1",
        ]
    ),
)
CONDITIONS = st.recursive(
    ATOMS.map("({})".format),
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not ({})".format, inner),
    ),
    max_leaves=5,
)


@given(CONDITIONS)
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_conditions_keep_the_rows_that_pylance_keeps(reference: lance.LanceDataset, sql: str) -> None:
    assert rows(sql) == reference.to_table(columns=["n"], filter=sql)["n"].to_pylist()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("a not in (1) or a not in (2)", [0, 1, 3, 4, 5, 6, 7, 8, 9, 10]),
        ("a in (1, null)", [0]),
        ("a not in (1, null)", []),
        ("a = 1.0", [0]),
        ("a > 5.5", [5, 7, 9]),
        ("a < 9007199254740993.5 and a > 9007199254740992.5", [7]),
        ("n = 4000000000", []),
        ("n < 4000000000", list(range(12))),
        ("u = -1", []),
        ("u > -1 and n < 3", [0, 1, 2]),
        ("u > a and n = 1", [1]),
        ("m = 1.5", [6]),
        ("m > 2.49", [11]),
        ("m = n / 4", [4, 8]),
        ("t > '2020-06-10'", [10, 11]),
        ("t = '2020-06-02T02:00:00+02:00'", [1]),
        ("d = '2020-06-01' and n > 9", [10]),
        ("case when n < 2 then true else n = 11 end", [0, 1, 11]),
        ("case n when 3 then true when 4 then false end", [3]),
        ("if(n = 3, true, b)", [0, 3, 6, 9]),
        ("n in (1.0, 2.5, 70000000000)", [1]),
        ("f in (0)", [0, 1]),
        ("substr(s, 1, 1) = 'a'", [7, 8]),
        ("extract(day from t) = 2", [1]),
        ("year(t) = 2020 and n < 3", [1, 2]),
        ("round(f) = 2 and not isnan(f)", [3, 7]),
        ('s = "say ""q"""', [11]),
    ],
)
def test_conditions_beyond_pylance(sql: str, expected: list[int]) -> None:
    assert rows(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "a =",
        "a = 1; drop",
        "a > (select 1)",
        "nothing = 1",
        "st.q = 1",
        "s = 1",
        "a = 'x'",
        "b = 1",
        "a + 1",
        "s not similar to 'x'",
        "a between symmetric 2 and 1",
        "count(a) = 1",
        "first(a) over (order by a) = 1",
        "unheard(a)",
        "a in (select 1)",
        "t > 'yesterday'",
        "l = 1",
        "9223372036854775807 + a > 0",
        "n / 0 = 1",
        "a and b",
        "not " * 20_000 + "b",
    ],
)
def test_what_cannot_be_answered_is_refused(sql: str) -> None:
    with pytest.raises(ExpressionError):
        compile_predicate(sql, SCHEMA).filter(TABLE)


def test_long_chains_do_not_nest() -> None:
    assert rows(" or ".join(f"n = {i}" for i in range(0, 3000, 2))) == [0, 2, 4, 6, 8, 10]


def test_columns_are_those_that_are_read() -> None:
    condition = compile_predicate("A > 1 and st.y.z is null and `big name` in (1, n)", SCHEMA)
    assert condition.columns == ("Big Name", "a", "n", "st")
    assert condition.filter(TABLE.select(["Big Name", "a", "n", "st"]))["n"].to_pylist() == [9]
    native = compile_predicate((pc.field("a") > 1) & pc.field("st", "x").is_valid(), SCHEMA)
    assert native.columns == ("a", "st")
    assert native.filter(TABLE.select(["a", "st"])).equals(
        TABLE.select(["a", "st"]).filter((pc.field("a") > 1) & pc.field("st", "x").is_valid())
    )


def test_pyarrow_expressions_must_be_conditions_on_the_columns() -> None:
    for wrong in (pc.field("a") + 1, pc.field("nothing") > 1, pc.field("s") > 1):
        with pytest.raises(ExpressionError):
            compile_predicate(wrong, SCHEMA)


@pytest.mark.parametrize("predicate", ["a > 1 or s like 'x%'", pc.field("a") > 1])
def test_conditions_can_be_pickled(predicate: str | pc.Expression) -> None:
    condition = compile_predicate(predicate, SCHEMA)
    again = pickle.loads(pickle.dumps(condition))
    assert again.columns == condition.columns
    assert again.filter(TABLE).equals(condition.filter(TABLE))


@pytest.mark.parametrize(
    "sql",
    [
        "a % 7",
        "n + 1",
        "n / 2",
        "n * n",
        "f * 2",
        "f / 0",
        "s || 'q'",
        "cast(n as bigint)",
        "n::double",
        "cast(n as string)",
        "length(s)",
        "upper(s)",
        "1",
        "1.5",
        "'x'",
        "true",
        "n > 1",
        "concat(s, 'z')",
        "coalesce(a, 0)",
        "st.x",
        "st.y",
        "l",
        "lower(s)",
        "abs(n)",
        "power(n, 2)",
        "replace(s, 'x', 'z')",
        "array_length(l)",
        "st.x + n",
        "date '2020-01-01'",
        "timestamp '2020-01-01 00:00:00'",
        "t",
        "-n",
        "sqrt(f)",
    ],
)
def test_computed_columns_are_those_of_pylance(tmp_path: Path, sql: str) -> None:
    reference = lance.write_dataset(TABLE, tmp_path / "t.lance")
    reference.add_columns({"new": sql})
    expected = reference.to_table(columns=["new"])["new"]
    computed = compile_expression(sql, SCHEMA)
    values = computed.evaluate(TABLE)
    assert computed.type == values.type == expected.type
    assert str(values.to_pylist()) == str(expected.to_pylist())


def test_computed_columns_have_one_type_for_all_tables() -> None:
    computed = compile_expression("null", SCHEMA)
    assert computed.type == pa.null()
    assert computed.evaluate(TABLE).null_count == TABLE.num_rows
    case = compile_expression("case when n > 3 then n else 1.5 end", SCHEMA)
    assert case.type == pa.float64()
    assert case.evaluate(TABLE.slice(2, 3)).to_pylist() == [1.5, 1.5, 4.0]


@pytest.mark.parametrize("given", [5, True, ["n > 1"], ("n", ">", 1)])
def test_what_is_no_condition(given: Any) -> None:
    with pytest.raises(OptionTypeError, match="SQL text or an expression of pyarrow"):
        compile_predicate(given, pa.schema([("n", pa.int64())]))
