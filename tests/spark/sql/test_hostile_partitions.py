# ruff: noqa: E501
"""Partitions of hostile values: random statements do what they do on a list of rows.

A table has the columns id, n and v: v is the value number n of a list. So the model knows only numbers: which
values are equal, and which results of a transform are, is asked from Spark's own expressions.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import spark_lance
from tests.conftest import interpreted

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DYNAMIC = "spark.sql.sources.partitionOverwriteMode"
BUCKETING = {
    "spark.sql.sources.v2.bucketing.enabled": "true",
    "spark.sql.sources.v2.bucketing.pushPartValues.enabled": "true",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}
TEXTS = (
    "''", "' '", "'a'", "'A'", "'a/b'", "'a=b'", "'50%'", "'%2F'", "'it''s'", "'\"'", r"'a\nb'", r"'\\'", "'..'",
    "'\u00e9'", "'e\u0301'", "'\u212b'", "'\u00c5'", "'\U0001f600'", "'__HIVE_DEFAULT_PARTITION__'", "'null'",
    "repeat('x', 5000)", "repeat('x', 5001)", "concat('a', chr(0), 'v')", "'aaa'", "'aab'", r"'\u007f'",
)  # fmt: skip
FLOATS = ("0.0", "-0.0", "'NaN'", "'Infinity'", "'-Infinity'", "0.1", "1e10", "-1e-30", "16777217", "1.5")
DAYS = (
    "DATE'0001-01-01'", "DATE'1582-10-04'", "DATE'1582-10-15'", "DATE'9999-12-31'", "DATE'+10000-01-01'",
    "DATE'-0044-03-15'", "DATE'1969-12-31'", "DATE'1970-01-01'", "DATE'1970-01-02'",
    "date_from_unix_date(2147483647)", "date_from_unix_date(-2147483648)",
)  # fmt: skip
TIMES = (
    "timestamp_micros(-9223372036854775808)", "timestamp_micros(9223372036854775807)", "timestamp_micros(-1)",
    "TIMESTAMP'1582-10-10 12:00:00'",
    "TIMESTAMP'9999-12-31 23:59:59.999999'",
    "timestamp_micros(0)", "timestamp_micros(1)", "timestamp_seconds(-62135596800)", "timestamp_seconds(253402300800)",
    "timestamp_seconds(-12219292801)", "timestamp_seconds(-12219292800)", "timestamp_seconds(86399)",
)  # fmt: skip
VALUES: dict[str, tuple[str, ...]] = {
    "STRING": TEXTS,
    "DOUBLE": FLOATS,
    "FLOAT": FLOATS,
    "DATE": DAYS,
    "TIMESTAMP": TIMES,
    "TIMESTAMP_NTZ": TIMES,
    "DECIMAL(38,10)": ("0", "-0.0000000001", "1e27", "-1e27", "0.1", "9999999999999999999999999999", "100", "101"),
    "DECIMAL(5,2)": ("0", "999.99", "-999.99", "0.01", "-0.01", "1", "1.01"),
    "BINARY": ("X''", "X'00'", "X'ff'", "X'6162'", "X'616200'", "X'61'"),
    "BOOLEAN": ("true", "false"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807", "0", "-1", "1", "9007199254740993"),
    "TINYINT": ("-128", "127", "0", "-1"),
}  # fmt: skip
WHOLE = ("BIGINT", "TINYINT", "DECIMAL(38,10)", "DECIMAL(5,2)", "STRING", "BINARY")
TRANSFORMS: dict[str, tuple[str, ...]] = {
    "v": tuple(VALUES),
    "bucket(3, v)": (*WHOLE, "DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
    "truncate(2, v)": WHOLE,
    "days(v)": ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"),
    "months(v)": ("DATE", "TIMESTAMP"),
    "years(v)": ("DATE", "TIMESTAMP_NTZ"),
    "hours(v)": ("TIMESTAMP", "TIMESTAMP_NTZ"),
}
CASES = [(kind, transform) for transform, kinds in TRANSFORMS.items() for kind in kinds]
OPERATORS = ("=", "<=>", "<", "<=", ">", ">=", "<>", "IS NULL", "IS NOT NULL", "IN")


@dataclass
class Model:
    """A table, and the rows that it must have.

    Attributes:
        session: a session with the catalog lance.
        kind: the type of v.
        transform: the partition field.
        chance: draws statements.
        rows: pairs of id and n.
    """

    session: SparkSession
    kind: str
    transform: str
    chance: random.Random
    rows: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        texts = ("null", *VALUES[self.kind])
        # PARTITION (...) takes constants, and no expressions.
        self.constants = {number: text for number, text in enumerate(texts) if "(" not in text}
        self.literals = [f"CAST({text} AS {self.kind})" for text in texts]
        rows = ", ".join(f"({number}, {text})" for number, text in enumerate(self.literals))
        self.run(f"CREATE OR REPLACE TEMPORARY VIEW pool AS SELECT * FROM (VALUES {rows}) AS p (n, v)")
        key = self.transform if self.transform == "v" else f"lance.{self.transform}"
        keys = self.run(f"SELECT n, dense_rank() OVER (ORDER BY k) FROM (SELECT n, {key} AS k FROM pool)")
        self.keys: dict[int, int] = dict(keys)
        self.next_id = 0
        self.run(
            f"CREATE OR REPLACE TABLE lance.t (id INT, n INT, v {self.kind}) PARTITIONED BY ({self.transform})"
        )

    def run(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.session.sql(text).collect()]

    def new_rows(self) -> list[tuple[int, int]]:
        """Draw new rows: of one value, or of several."""
        count = self.chance.choice((1, 1, 2, 4))
        numbers = [self.chance.randrange(len(self.literals)) for _ in range(count)]
        self.next_id += 2 * count
        return [(self.next_id - place, n) for place, n in enumerate(numbers * self.chance.choice((1, 2)))]

    def query(self, rows: list[tuple[int, int]]) -> str:
        listed = ", ".join(f"({number}, {n})" for number, n in rows)
        return f"SELECT r.id, r.n, v FROM (VALUES {listed}) AS r (id, n) JOIN pool ON r.n = pool.n"

    def insert(self) -> str:
        rows = self.new_rows()
        self.rows += rows
        return f"INSERT INTO lance.t {self.query(rows)}"

    def overwrite(self) -> str:
        rows = self.new_rows()
        replaced = {self.keys[n] for _, n in rows}
        self.rows = [row for row in self.rows if self.keys[row[1]] not in replaced] + rows
        return f"INSERT OVERWRITE lance.t {self.query(rows)}"

    def overwrite_partition(self) -> str:
        n = self.chance.choice(list(self.constants))
        rows = [(number, n) for number, _ in self.new_rows()]
        self.rows = [row for row in self.rows if self.keys[row[1]] != self.keys[n]] + rows
        listed = ", ".join(map(str, rows))
        return f"INSERT OVERWRITE lance.t PARTITION (v = {self.constants[n]}) VALUES {listed}"

    def drop(self) -> str:
        n = self.chance.choice(list(self.constants))
        self.rows = [row for row in self.rows if self.keys[row[1]] != self.keys[n]]
        return f"ALTER TABLE lance.t DROP IF EXISTS PARTITION (v = {self.constants[n]})"

    def delete(self) -> str:
        condition = self.condition()
        gone = self.matches(condition)
        self.rows = [row for row in self.rows if row[1] not in gone]
        return f"DELETE FROM lance.t WHERE {condition}"

    def condition(self) -> str:
        operator = self.chance.choice(OPERATORS)
        if operator.endswith("NULL"):
            return f"v {operator}"
        literals = self.chance.choices(self.literals, k=2)
        return f"v IN ({', '.join(literals)})" if operator == "IN" else f"v {operator} {literals[0]}"

    def matches(self, condition: str) -> set[int]:
        return {row[0] for row in self.run(f"SELECT n FROM pool WHERE {condition}")}

    def statements(self) -> Iterator[Callable[[], str]]:
        yield from (self.insert, self.insert, self.overwrite, self.delete, lambda: "OPTIMIZE lance.t")
        if self.transform == "v":
            yield from (self.overwrite_partition, self.drop)

    def check(self) -> None:
        assert sorted(self.run("SELECT id, n FROM lance.t")) == sorted(self.rows)
        other = "SELECT count(*) FROM lance.t JOIN pool ON t.n = pool.n WHERE NOT (t.v <=> pool.v)"
        assert self.run(other) == [(0,)]
        condition = self.condition()
        matches = self.matches(condition)
        expected = sorted(number for number, n in self.rows if n in matches)
        result = sorted(row[0] for row in self.run(f"SELECT id FROM lance.t WHERE {condition}"))
        assert result == expected, condition

    def check_lists(self) -> None:
        present = {self.keys[n] for _, n in self.rows}
        assert len(self.run("SHOW PARTITIONS lance.t")) == len(present)
        listed = self.run("SELECT sum(record_count), count(*) FROM lance.t.partitions")
        assert listed == [(len(self.rows) or None, len(present))]

    def check_join(self) -> None:
        equal = {
            (one, other)
            for one, other in self.run("SELECT a.n, b.n FROM pool AS a JOIN pool AS b ON a.v = b.v")
        }
        pairs = sorted((one, two) for one, m in self.rows for two, n in self.rows if (m, n) in equal)
        join = "SELECT a.id, b.id FROM lance.t AS a JOIN lance.t AS b ON a.v = b.v"
        for key, value in BUCKETING.items():
            self.session.conf.set(key, value)
        try:
            assert sorted(self.run(join)) == pairs
        finally:
            for key in BUCKETING:
                self.session.conf.unset(key)


def compare(session: SparkSession, kind: str, transform: str, seed: int, count: int) -> None:
    chance = random.Random(seed)
    session.conf.set(DYNAMIC, "dynamic")
    model = Model(session, kind, transform, chance)
    for number in range(count):
        statement = chance.choice(list(model.statements()))()
        try:
            model.run(statement)
            model.check()
            if number % 4 == 3:
                model.check_lists()
                model.check_join()
        except Exception as error:
            text = f"{kind}, {transform}, seed {seed}, {number}: {statement[:500]}: {str(error)[:600]}"
            raise AssertionError(text) from error


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    return spark_lance.enable(interpreted(spark.newSession()), root=str(tmp_path / "root"))


@pytest.mark.parametrize(("kind", "transform"), [("STRING", "v"), ("DOUBLE", "v"), ("DATE", "days(v)")])
def test_statements_on_hostile_partitions(session: SparkSession, kind: str, transform: str) -> None:
    compare(session, kind, transform, 1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(*map(int, os.environ.get("SPARK_LANCE_SEEDS", "2,4").split(","))))
@pytest.mark.parametrize(("kind", "transform"), CASES)
def test_many_statements_on_hostile_partitions(
    session: SparkSession, kind: str, transform: str, seed: int
) -> None:
    compare(session, kind, transform, seed, 24)
