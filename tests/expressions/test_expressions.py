"""Expressions beyond conditions: their values and types are pylance's."""

from __future__ import annotations

import datetime
import math
import re
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from spark_lance.errors import ExpressionError
from spark_lance.expressions.predicate import compile_expression, compile_predicate

INTEGERS = {"i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64"}
INTEGERS |= {"u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64"}
SMALL = [1, 2, 3, 4, None, 1]
WHEN = datetime.datetime(2021, 3, 4, 5, 6, 7, 891234)
OLD = datetime.datetime(1969, 12, 28, 23, 59, 59, 1)
NEGATIVE_NAN = np.array([0xFFF8000000000000], np.uint64).view(np.float64)
FLOATS = np.concatenate([[1.5, math.nan, 0.0, -0.0, math.inf], NEGATIVE_NAN])

TABLE = pa.table(
    {
        "n": pa.array(range(6), pa.int64()),
        **{name: pa.array(SMALL, getattr(pa, kind)()) for name, kind in INTEGERS.items()},
        "wide": pa.array([100, -100, 127, -128, None, 0], pa.int8()),
        "full": pa.array([200, 0, 255, 1, None, 7], pa.uint8()),
        "f4": pa.array([1.5, 2.0, 0.25, None, -3.0, 0.1], pa.float32()),
        "f8": pa.array([1.5, 2.0, 0.25, None, -3.0, 0.1], pa.float64()),
        "d": pa.array([Decimal("1.25"), Decimal("7.50"), None, Decimal("-3.10"), 1, 2], pa.decimal128(10, 2)),
        "e": pa.array([Decimal("1.250"), Decimal("7"), None, 4, 1, 2], pa.decimal256(20, 3)),
        "x": pa.array(FLOATS),
        "x4": pa.array(FLOATS.astype(np.float32)),
        "y": pa.array(FLOATS[::-1].copy()),
        "s": ["12", "x1y22", "-7", None, "", "9999999999"],
        "ts": pa.array([WHEN, OLD, WHEN, None, OLD, WHEN], pa.timestamp("us")),
        "tz": pa.array([WHEN, OLD, WHEN, None, OLD, WHEN], pa.timestamp("us", "UTC")),
        "tn": pa.array([WHEN, OLD, WHEN, None, OLD, WHEN], pa.timestamp("ns")),
        "da": pa.array([datetime.date(2021, 3, 7), datetime.date(1965, 1, 1), None, *[WHEN.date()] * 3]),
        "ti": pa.array([WHEN.time(), None, *[OLD.time()] * 4], pa.time64("us")),
        "du": pa.array([5, 3000, -1, None, 0, 7], pa.duration("ms")),
        "b": [True, False, None] * 2,
        "l": [[1, 2], [3], [], None, [None, 2], [2, 1]],
        "m": [[1, 2], [4], [], [], [None, 2], [2, 1, 0]],
        "v": pa.array([[1, 2], [3, 4], [5, 6], None, [0, 0], [1, 2]], pa.list_(pa.float32(), 2)),
        "st": [{"i": i, "l": ["a"] * i} for i in range(6)],
    }
)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    return lance.write_dataset(TABLE, tmp_path_factory.mktemp("expressions") / "t.lance")


def theirs(reference: lance.LanceDataset, sql: str) -> pa.ChunkedArray | None:
    """Return what pylance computes; None if it refuses."""
    try:
        return reference.to_table(columns={"n": "n", "value": sql})["value"]
    except (OSError, ValueError):
        return None


def same_as_pylance(reference: lance.LanceDataset, sql: str) -> None:
    expected = theirs(reference, sql)
    assert expected is not None, sql
    computed = compile_expression(sql, TABLE.schema)
    values = computed.evaluate(TABLE)
    assert computed.type == values.type == expected.type, sql
    assert str(values.to_pylist()) == str(expected.to_pylist()), sql


COLUMNS = st.sampled_from([*INTEGERS, "f4", "f8", "d", "st.i"])
ARITHMETIC = st.recursive(
    st.one_of(COLUMNS, st.sampled_from(["1", "2", "3", "0.5", "1.25", "4e0"])),
    lambda inner: st.builds("({} {} {})".format, COLUMNS, st.sampled_from("+-*/%"), inner),
    max_leaves=3,
)


@example("1", "%", "0.5")
@example("(f8 + 1)", "+", "(1 % 0.5)")
@given(ARITHMETIC, st.sampled_from("+-*/%"), ARITHMETIC)
@example("1", "%", "0.5")
@example("i1", "%", "(u8 * i1)")
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arithmetic_is_that_of_pylance(
    reference: lance.LanceDataset, left: str, operator: str, right: str
) -> None:
    sql = f"{left} {operator} {right}"
    expected = theirs(reference, sql)
    assume(expected is not None)
    assert expected is not None
    try:
        values = compile_expression(sql, TABLE.schema).evaluate(TABLE)
    except ExpressionError as error:
        # pylance lets integers wrap.
        assume("overflow" not in str(error))
        raise
    assert values.type == expected.type, sql
    assert str(values.to_pylist()) == str(expected.to_pylist()), sql


@given(st.sampled_from([*INTEGERS, "f4", "f8", "d", "e"]), st.sampled_from([*INTEGERS, "f4", "f8", "d", "e"]))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_columns_meet_in_the_types_of_pylance(reference: lance.LanceDataset, left: str, right: str) -> None:
    for operator in "+*/%":
        same_as_pylance(reference, f"{left} {operator} {right}")


WIDE_TYPES = [
    pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal128(38, 38), pa.decimal256(50, 2),
    pa.decimal256(74, 4), pa.decimal256(76, 0), pa.decimal256(76, 76),
]  # fmt: skip


@st.composite
def wide_decimals(draw: st.DrawFn) -> tuple[pa.DataType, list[Decimal]]:
    kind = draw(st.sampled_from(WIDE_TYPES))
    digits = st.integers(1, kind.precision).flatmap(
        lambda count: st.integers(-(10**count) + 1, 10**count - 1)
    )
    numbers = draw(st.lists(digits, min_size=3, max_size=3))
    return kind, [Decimal(number).scaleb(-kind.scale, Context(prec=200)) for number in numbers]


def exact_result(operator: str, one: Fraction, other: Fraction, unit: Fraction) -> Fraction | None:
    """Return the result of two numbers; a quotient is truncated to `unit`. None for a division by zero."""
    if operator in "/%" and not other:
        return None
    if operator == "/":
        return math.trunc(one / other / unit) * unit
    if operator == "%":
        return one - other * math.trunc(one / other)
    return {"+": one + other, "-": one - other, "*": one * other}[operator]


@given(wide_decimals(), st.sampled_from("+-*/%"), wide_decimals())
@settings(max_examples=150, deadline=None)
@example((pa.decimal256(50, 2), [Decimal("1" * 45 + ".25")]), "+", (pa.decimal256(50, 0), [Decimal(3)]))
@example((pa.decimal256(50, 2), [Decimal("1" * 45 + ".25")]), "*", (pa.decimal256(50, 0), [Decimal(3)]))
@example((pa.decimal256(74, 4), [Decimal(8)]), "/", (pa.decimal256(74, 4), [Decimal(3)]))
def test_wide_decimals_are_exact_or_refused(
    left: tuple[pa.DataType, list[Decimal]], operator: str, right: tuple[pa.DataType, list[Decimal]]
) -> None:
    table = pa.table(
        {name: pa.array([*each[1], None], each[0]) for name, each in (("a", left), ("b", right))}
    )
    compiled = compile_expression(f"a {operator} b", table.schema)
    unit = Fraction(1, 10**compiled.type.scale)
    exact: list[Fraction | None] = [
        exact_result(operator, Fraction(one), Fraction(other), unit)
        for one, other in zip(left[1], right[1], strict=True)
    ]
    values, problem = None, ""
    try:
        values = compiled.evaluate(table).to_pylist()
    except ExpressionError as error:
        problem = str(error)
    if values is None:
        assert re.search("overflow|divide by zero", problem)
        assert any(each is None or abs(each) >= unit * 10**compiled.type.precision for each in exact)
    else:
        assert [None if value is None else Fraction(value) for value in values] == [*exact, None]


ASKED = st.builds(
    "{} {} {} {} {}".format,
    st.sampled_from(["wide", "full", "i1", "u2", "i8"]),
    st.sampled_from(["+", "-", "*"]),
    st.sampled_from(["100", "200", "3", "full", "i2"]),
    st.sampled_from(["=", "<", ">=", "!="]),
    st.sampled_from(["200", "-1", "300", "0", "wide", "0.5"]),
)


@given(ASKED)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_in_conditions_do_not_overflow(reference: lance.LanceDataset, sql: str) -> None:
    try:
        rows = compile_predicate(sql, TABLE.schema).filter(TABLE)["n"].to_pylist()
    except ExpressionError as error:
        assume("overflow" not in str(error))
        raise
    assert rows == reference.to_table(columns=["n"], filter=sql)["n"].to_pylist()


SHIFTS = st.builds(
    "{} {} {}".format,
    st.sampled_from(["i1", "i4", "i8", "u1", "u8", "wide", "full", "(i4 + 1)"]),
    st.sampled_from(["<<", ">>"]),
    st.sampled_from(["0", "1", "3", "33", "65", "i4", "u1", "i8"]),
)


@given(SHIFTS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_shifts_are_those_of_pylance(reference: lance.LanceDataset, sql: str) -> None:
    assume(theirs(reference, sql) is not None)
    same_as_pylance(reference, sql)


def test_operators_on_bits() -> None:
    expected = {
        "i4 & 2": [0, 2, 2, 0, None, 0],
        "i4 | 8": [9, 10, 11, 12, None, 9],
        "~i4": [-2, -3, -4, -5, None, -2],
    }
    for sql, values in {**expected, "i4 ^ 1": [0, 3, 2, 5, None, 0]}.items():
        assert compile_expression(sql, TABLE.schema).evaluate(TABLE).to_pylist() == values
    with pytest.raises(ExpressionError, match="bits are those of integers"):
        compile_expression("f4 & 1", TABLE.schema)


PARTS = "year years yr quarter month mon week day doy dow isodow isoyear hour minute m second millisecond ms"
PARTS += " microsecond nanosecond epoch"


@pytest.mark.parametrize("column", ["ts", "tz", "tn", "da"])
def test_parts_of_dates_are_those_of_pylance(reference: lance.LanceDataset, column: str) -> None:
    for part in PARTS.split():
        same_as_pylance(reference, f"date_part('{part}', {column})")
    values = compile_expression(f"extract(dow from {column})", TABLE.schema).evaluate(TABLE)
    assert (
        values.to_pylist()
        == compile_expression(f"date_part('dow', {column})", TABLE.schema).evaluate(TABLE).to_pylist()
    )


@pytest.mark.parametrize(
    "sql",
    [
        "date_part('hour', ti)", "date_part('microsecond', ti)", "date_part('epoch', ti)",
        "date_part('epoch', du)", "datepart('day', ts)",
        "try_cast(s as int)", "try_cast(s as bigint)", "try_cast(s as double)", "try_cast(i8 as tinyint)",
        "try_cast(x as int)", "try_cast(wide as tinyint unsigned)", "try_cast(n as string)",
        "arrow_cast(i4, 'Int8')", "arrow_cast(i4, 'Utf8')", "arrow_cast(i4, 'Decimal128(10, 2)')",
        "arrow_cast(i4, 'Float16')", "arrow_cast(i8, 'Duration(Second)')", "arrow_cast(s, 'LargeUtf8')",
        "arrow_cast(s, 'Dictionary(Int32, Utf8)')", "arrow_cast(s, 'Binary')", "arrow_cast(ts, 'Date32')",
        "arrow_cast(ts, 'Timestamp(Millisecond, Some(\"UTC\"))')", "arrow_cast(tn, 'Timestamp(us)')",
        "arrow_cast(ti, 'Time64(Nanosecond)')", "arrow_cast(l, 'LargeList(Float32)')",
        "arrow_cast(v, 'FixedSizeList(2, Float64)')", "arrow_cast(v, 'FixedSizeList(2 x Float64)')",
        "arrow_cast(v, 'List(Float64)')", "arrow_cast(7, 'UInt8')",
        "[42, 43]", "[42.0, 43.0]", "['x']", "[true]", "array[1]", "make_array(1, 2)", "make_array()",
        "make_array(i4, 2)", "make_array(i4, i8)", "make_array(i4, null)", "make_array(s, 'x')",
        "make_array(f8, 1)", "make_array(make_array(1, 2), make_array(i8))", "make_array(i4, i8)[2]",
        "make_array(u8, i8)", "l = [1, 2]", "l != [1, 2]", "[2, 1] = l", "l = m", "l != m",
        "v = [1.0, 2.0]", "v = [1, 2]",
        "l in ([1, 2], [3])", "coalesce(l, [7])",
        "regexp_match(s, '[0-9]+')", "regexp_match(s, 'x')", "regexp_match(s, '([a-z])([0-9])')",
        "regexp_match(s, '(?P<a>x)(?:1)')", "regexp_match(s, '')", "regexp_match(s, 'X', 'i')",
        "regexp_match(s, '[(]|[)]')", "regexp_match(s, '[0-9]+')[1]",
        "regexp_match(s, 'x') is null", "regexp_match(s, 'x') is not null", "regexp_like(s, 'X', 'i')",
        "coalesce(i1, 0)", "coalesce(u8, -1)", "nullif(i1, 1)", "greatest(i1, 5)", "least(i1, f4)",
        "da + i4", "da - i4", "i8 + da",
    ],
)  # fmt: skip
def test_functions_are_those_of_pylance(reference: lance.LanceDataset, sql: str) -> None:
    same_as_pylance(reference, sql)


COMPARED = st.builds(
    "{} {} {}".format,
    st.sampled_from(["x", "x4", "y", "-x", "f8"]),
    st.sampled_from(["=", "<", "<=", ">", ">=", "!="]),
    st.sampled_from(
        ["x", "y", "x4", "-y", "0.1", "0.0", "-1.5", "cast('nan' as double)", "cast('-inf' as double)"]
    ),
)


@given(COMPARED, st.booleans())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_negative_nan_is_below_everything(reference: lance.LanceDataset, sql: str, inverted: bool) -> None:
    sql = f"not ({sql})" if inverted else sql
    rows = compile_predicate(sql, TABLE.schema).filter(TABLE)["n"].to_pylist()
    assert rows == reference.to_table(columns=["n"], filter=sql)["n"].to_pylist()
    for name in ("greatest", "least"):
        same_as_pylance(reference, f"{name}(x, y)")


@pytest.mark.parametrize(
    "sql",
    ["regexp_match(s, 'x')", "not regexp_match(s, 'x')", "regexp_match(s, '1') and n > 0", "l = [1, 2]",
     "v = [1.0, 2.0]", "st.l = ['a', 'a']", "i4 << 1 = 4", "date_part('year', ts) = 2021",
     "arrow_cast(i4, 'Utf8') = '3'", "try_cast(s as int) > 0", "f4 + 0.1 = 2.1", "f4 = 0.1", "f4 * 1 = 0.1"],
)  # fmt: skip
def test_functions_in_conditions(reference: lance.LanceDataset, sql: str) -> None:
    rows = compile_predicate(sql, TABLE.schema).filter(TABLE)["n"].to_pylist()
    assert rows == reference.to_table(columns=["n"], filter=sql)["n"].to_pylist()


@pytest.mark.parametrize(
    "sql",
    ["arrow_cast(i4, 'Nonsense')", "arrow_cast(i4, s)", "date_part('century', ts)", "date_part('year', b)",
     "s + 1", "b + 1", "l < [1]", "unsigned_nan(f8)", "regexp_match(s, 'x', 'q')", "i1 + wide * wide",
     "arrow_cast(i4, 'List(Int8')", "try_cast(l as int)", "make_array(1, 'x')"],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused(sql: str) -> None:
    with pytest.raises(ExpressionError):
        compile_expression(sql, TABLE.schema).evaluate(TABLE)


@pytest.mark.parametrize(
    ("column", "sql"),
    [
        ("i1", "i1 + 1"), ("i2", "i1 * 7"), ("d", "d / 3"), ("d", "d * 2 + 1"), ("f4", "f8 / 3"),
        ("i8", "i1 + u8"),
        ("l", "[42, 43]"), ("l", "make_array(i4, 2)"), ("l", "make_array()"), ("v", "[42.0, 43.0]"),
        ("v", "[42, 43]"), ("v", "make_array(1.5, f8)"), ("l", "null"), ("s", "regexp_match(s, '[0-9]')[1]"),
        ("u1", "u1 << 1"), ("i4", "date_part('doy', da)"), ("s", "arrow_cast(i4, 'LargeUtf8')"),
    ],
)  # fmt: skip
def test_updates_are_those_of_pylance(tmp_path: Path, column: str, sql: str) -> None:
    import spark_lance

    reference = lance.write_dataset(TABLE, tmp_path / "theirs.lance")
    reference.update({column: sql})
    spark_lance.write_dataset(TABLE, tmp_path / "ours.lance").update({column: sql})
    ours = spark_lance.dataset(tmp_path / "ours.lance")
    expected = reference.to_table(columns=[column])[column]
    result = ours.to_table(columns=[column])[column]
    assert result.type == expected.type
    assert str(result.to_pylist()) == str(expected.to_pylist())
