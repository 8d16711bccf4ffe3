"""Random statements over tables with collations, CHAR, VARCHAR, defaults and structs, next to Parquet.

INSERT by position and by name, store assignment, fields of structs in another order, UPDATE, DELETE, MERGE,
overwrites of partitions, new, wider and moved columns, other defaults and partition fields, schema
evolution, OPTIMIZE, DataFrames and LanceTable: afterwards both tables have the same rows and types. The Lance
table is in a catalog of its own or in the session's catalog. It has partitions or an order of rows, and a
CHECK constraint: a statement that violates it has no effect. It can have a generated and an identity column,
which Parquet lacks: each row must have the value of the expression, and a number of its own. Queries read the
table by a view, and another view follows its columns. The change feed of a statement must have the difference
of the rows. Parquet has no UPDATE, DELETE and MERGE: a new table gets the rows of SELECTs, by INSERT.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.types import StructType

from spark_lance import LanceTable, enable
from spark_lance.errors import LanceError
from tests.conftest import interpreted
from tests.spark.sql.random_queries import DECLARED, Queries, literal
from tests.spark.sql.test_select_model import told

RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))
# Spark 4.0 refuses an INSERT that leaves such columns out.
DEFAULTS = {"d": "1.25", "ch": "'c'", "vc": "'df'"} if RELEASE >= (4, 1) else {}
COLUMNS = {
    "id": "BIGINT",
    "i": "INT",
    "d": "DECIMAL(6,2)",
    "lc": "STRING COLLATE UTF8_LCASE",
    "ci": "STRING COLLATE UNICODE_CI",
    "tr": "STRING COLLATE UTF8_BINARY_RTRIM",
    "ch": "CHAR(4)",
    "vc": "VARCHAR(4)",
    "st": "STRUCT<n: SMALLINT, c: CHAR(3), in: STRUCT<v: VARCHAR(3), lc: STRING COLLATE UTF8_LCASE>>",
    "ls": "ARRAY<STRUCT<n: INT, v: VARCHAR(3), lc: STRING COLLATE UTF8_LCASE>>",
    "mp": "MAP<STRING, STRUCT<a: STRING, b: INT>>",
}
# Texts of up to five letters, so that some are too long; numbers that some columns cannot hold.
TEXTS = ("'a'", "'A'", "'ab'", "'AB'", "'a '", "'ab  '", "'é'", "''", "NULL", "'abc'", "'aB   '", "'abcd'")
LONG = ("'abcde'", "'ab   x'")
NUMBERS = ("0", "1", "-1", "7Y", "300S", "70000", "3L", "1.5", "2.25BD", "9.5d", "NULL")
STRANGE = ("5000000000", "123456.789", "true", "date'2020-01-01'", "'12'", "'x'")
# A wider type that schema evolution may give to a column -> a value of it that the old type lacks.
WIDER = {"i": ("BIGINT", "5000000000"), "d": ("DECIMAL(9,3)", "123456.125BD")}
PARTITIONS = (
    "",
    "",
    "i",
    "bucket(3, id)",
    "bucket(3, d)",
    "truncate(5, d)",
    "truncate(1, vc)",
    "ch, i",
    "lc",
    "truncate(2, tr)",
)
# Conditions that schema evolution does not violate.
CHECKS = (
    "",
    "",
    "i <> 3",
    "d <> 1.5 OR id > 115",
    "length(vc) <> 3",
    "st.n <> 3 AND lc <> 'ab'",
    "upper(ch) <> 'AB'",
)
# Spark takes no expressions of strings with collations.
GENERATED = {
    "": "",
    "length(vc)": "INT",
    "concat(trim(ch), '-', vc)": "STRING",
    "mp['k'].a": "STRING",
}
# Orders of rows, for tables without partitions and for all tables.
CLUSTERS = ("", "CLUSTER BY (i, vc)", "CLUSTER BY (vc)")
ORDERS = ("", "", "WRITE ORDERED BY vc DESC NULLS LAST, id", "WRITE LOCALLY ORDERED BY d, id DESC")
# Partition fields of strings that are equal in several spellings: Parquet has no such partitions.
SPELLINGS = ("lc", "truncate(2, tr)")
MORE_FIELDS = ("bucket(2, id)", "truncate(3, vc)", "truncate(10, id)")
# Columns that only the Lance table has: a generated and an identity column.
COMPUTED = ("gen", "num")
DYNAMIC = "spark.sql.sources.partitionOverwriteMode"
INDICES = {"i": "BTREE", "d": "ZONEMAP", "lc": "BTREE", "ch": "BITMAP", "vc": "BTREE", "tr": "BITMAP"}


class Change(NamedTuple):
    """A change of both tables.

    Attributes:
        statement: what changes the Lance table, `{rows}`.
        same: whether Parquet takes the same statement.
        parts: otherwise queries over the old Parquet table; their rows are inserted into a new one.
        columns: the columns of the table after the change.
        face: how the Lance table is changed without SQL, given the session; by the statement if it is None.
        control: the statement for Parquet, if it is another one.
    """

    statement: str
    same: bool
    parts: Sequence[str]
    columns: dict[str, str]
    face: Callable[[SparkSession], object] | None = None
    control: str | None = None


class Changes:
    """Random changes.

    Args:
        draw: where chance comes from.
        table: the name of the Lance table.
        fixed: columns whose types do not change.
        partitions: the partition fields of the Lance table.
        clustered: whether the Lance table has CLUSTER BY.
        generated: the expression of the generated column; empty without one.
    """

    def __init__(
        self,
        draw: random.Random,
        table: str,
        *,
        fixed: Sequence[str],
        partitions: Sequence[str],
        clustered: bool,
        generated: str,
    ) -> None:
        self._draw = draw
        self._table = table
        self._fixed = fixed
        self._partitions = list(partitions)
        self._is_clustered = clustered
        self._generated = generated
        self._layout: Sequence[str] = ()
        self.defaults = dict(DEFAULTS)
        self._queries = Queries(draw, DECLARED)
        self._fresh = 100
        self._added = 0
        self._added_fields = 0

    def one(self, columns: dict[str, str], layout: Sequence[str]) -> Change:
        """Return a change of tables with columns; the Lance table has those of a layout, in its order."""
        self._layout = layout
        kinds = (
            [self._insert] * 4 + [self._update] * 4 + [self._delete, self._merge, self._merge, self._merge]
        )
        kinds += [self._insert_some, self._add_column, self._overwrite]
        kinds += [self._maintain, self._move_column, self._replace_columns, self._partition_field]
        if self._partitions and not set(self._partitions) & {*SPELLINGS, ""}:
            kinds += [self._overwrite_partitions] * 3
        if self._partitions == ["i"]:
            kinds += [self._overwrite_one_partition] * 2
        if self.defaults:
            kinds += [self._set_default]
        if RELEASE >= (4, 1):
            kinds += [self._merge_evolving] * 2
        if RELEASE >= (4, 3):
            kinds += [self._insert_evolving] * 2
        return self._draw.choice(kinds)(columns)

    def _condition(self) -> str:
        while "SELECT" in (condition := self._queries.condition(1)):
            pass
        return condition

    def _text(self) -> str:
        return self._draw.choice(LONG if self._draw.random() < 0.02 else TEXTS)

    def _number(self) -> str:
        return self._draw.choice(STRANGE if self._draw.random() < 0.03 else NUMBERS)

    def _struct(self, *, reorders: bool) -> tuple[str, str]:
        """Return a value of `st`, and the same with its fields in the column's order."""
        n, c, v, lc = self._number(), self._text(), self._text(), self._text()
        own = f"named_struct('n', {n}, 'c', {c}, 'in', named_struct('v', {v}, 'lc', {lc}))"
        if self._draw.random() < 0.15:
            return "NULL", "NULL"
        if not reorders or self._draw.random() < 0.4:
            return own, own
        return f"named_struct('in', named_struct('lc', {lc}, 'v', {v}), 'n', {n}, 'c', {c})", own

    def _list(self, *, reorders: bool) -> tuple[str, str]:
        items, own = [], []
        for _ in range(self._draw.randint(0, 2)):
            n, v, lc = self._number(), self._text(), self._text()
            own.append(f"struct(cast({n} AS DOUBLE) AS n, {v} AS v, {lc} AS lc)")
            items.append(f"struct({lc} AS lc, cast({n} AS DOUBLE) AS n, {v} AS v)")
        if not own:
            return "NULL", "NULL"
        written = items if reorders and self._draw.random() < 0.6 else own
        return f"array({', '.join(written)})", f"array({', '.join(own)})"

    def _map(self, *, reorders: bool) -> tuple[str, str]:
        a, b = self._text(), self._number()
        own = f"map('k', named_struct('a', {a}, 'b', {b}))"
        if reorders and self._draw.random() < 0.5:
            return f"map('k', named_struct('b', {b}, 'a', {a}))", own
        return own, own

    def _value(self, name: str, *, reorders: bool = False) -> tuple[str, str]:
        """Return a value for a column, as it is written, and as Parquet takes it by position."""
        nested = {"st": self._struct, "ls": self._list, "mp": self._map}
        if name in nested:
            return nested[name](reorders=reorders)
        if name in ("lc", "ci", "tr", "ch", "vc"):
            value = self._text() if self._draw.random() < 0.9 else self._number()
        else:
            value = self._number()
        return value, value

    def _row(self, columns: dict[str, str]) -> list[str]:
        """Return the values of a new row in the order of the columns."""
        self._fresh += 1
        return [f"{self._fresh if name == 'id' else self._value(name)[0]} AS {name}" for name in columns]

    def _insert(self, columns: dict[str, str]) -> Change:
        by_name = self._draw.random() < 0.5
        values = self._row(columns)
        if by_name:
            values = self._draw.sample(values, len(values))
        row = values if by_name else self._with_computed(values)
        query = f"SELECT {', '.join(row)}"
        start = f"INSERT INTO {{rows}} {'BY NAME ' if by_name else ''}"
        control = f"{start}SELECT {', '.join(values)}"
        face = self._write(query, by_name=by_name)
        return Change(f"{start}{query}", True, (), columns, face, control)

    def _with_computed(self, row: Sequence[str], without: str = "") -> list[str]:
        """Return values by position, in the order of the Lance table, with null for what it computes."""
        values = {value.rsplit(" ", 1)[-1]: value for value in row}
        return [
            f"NULL AS {name}" if name in COMPUTED else values[name]
            for name in self._layout
            if name != without
        ]

    def _write(self, query: str, *, by_name: bool) -> Callable[[SparkSession], object] | None:
        """Return a write of DataFrames that does the same as INSERT, or None."""
        if self._draw.random() < 0.4:
            return None
        if not by_name:
            return lambda session: session.sql(query).write.insertInto(self._table)
        return self._draw.choice(
            (
                lambda session: session.sql(query).writeTo(self._table).append(),
                lambda session: self._writer(session.sql(query)).mode("append").saveAsTable(self._table),
            )
        )

    def _writer(self, frame: DataFrame) -> DataFrameWriter:
        """Return a writer; that of the session's catalog needs the format."""
        return frame.write.format("lance") if self._table.startswith("spark_catalog") else frame.write

    def _insert_some(self, columns: dict[str, str]) -> Change:
        names = ["id", *self._draw.sample([name for name in columns if name != "id"], 4)]
        self._fresh += 1
        values = [str(self._fresh), *(self._value(name)[0] for name in names[1:])]
        values = ["DEFAULT" if self._draw.random() < 0.1 else value for value in values[1:]]
        values.insert(0, str(self._fresh))
        return Change(
            f"INSERT INTO {{rows}} ({', '.join(names)}) VALUES ({', '.join(values)})", True, (), columns
        )

    def _overwrite(self, columns: dict[str, str]) -> Change:
        condition = f"FROM {{rows}} WHERE id % 3 <> 0 OR {self._condition()}"
        row = ", ".join(self._with_computed(list(columns)))
        rest = f"SELECT {', '.join(columns)} {condition}"
        return Change(f"INSERT OVERWRITE {{rows}} SELECT {row} {condition}", False, [rest], columns)

    def _some_rows(self, columns: dict[str, str]) -> list[str]:
        """Return columns, and the text after them, of a query that gives a few rows new ids."""
        self._fresh += 1000
        shown = [f"id + {self._fresh} AS id" if name == "id" else name for name in columns]
        return [*shown, f"FROM {{rows}} WHERE id % 5 = {self._draw.randrange(5)} AND ({self._condition()})"]

    def _overwrite_partitions(self, columns: dict[str, str]) -> Change:
        *shown, rest = self._some_rows(columns)
        rows = f"SELECT {', '.join(shown)} {rest}"
        expressions = [
            self._generated if field == "gen" else f"functions.{field}" if "(" in field else field
            for field in self._partitions
        ]
        keys = ", ".join(f"{text} AS k{number}" for number, text in enumerate(expressions))
        same = " AND ".join(f"old.k{number} <=> new.k{number}" for number in range(len(expressions)))
        kept = (
            f"SELECT {', '.join(columns)} FROM (SELECT *, {keys} FROM {{rows}}) AS old "
            f"WHERE NOT EXISTS (SELECT 1 FROM (SELECT {keys} FROM ({rows})) AS new WHERE {same})"
        )
        query = f"SELECT {', '.join(self._with_computed(shown))} {rest}"
        statement = f"INSERT OVERWRITE {{rows}} {query}"
        faces: tuple[Callable[[SparkSession], object], ...] = (
            lambda session: with_setting(
                session, DYNAMIC, "dynamic", lambda: session.sql(statement.format(rows=self._table)).collect()
            ),
            lambda session: (
                session.sql(rows.format(rows=self._table)).writeTo(self._table).overwritePartitions()
            ),
            lambda session: (
                self._writer(session.sql(query.format(rows=self._table)))
                .option("partitionOverwriteMode", "dynamic")
                .insertInto(self._table, overwrite=True)
            ),
        )
        return Change(f"{statement} -- dynamic", False, [kept, rows], columns, self._draw.choice(faces))

    def _overwrite_one_partition(self, columns: dict[str, str]) -> Change:
        *shown, rest = self._some_rows(columns)
        value, mode = self._draw.choice(("0", "1", "-1", "NULL")), self._draw.choice(("static", "dynamic"))
        row = ", ".join(self._with_computed(shown, without="i"))
        statement = f"INSERT OVERWRITE {{rows}} PARTITION (i = {value}) SELECT {row} {rest}"
        own = ", ".join(f"{value} AS i" if name == "i" else name for name in shown)
        kept = f"SELECT * FROM {{rows}} WHERE NOT (i <=> {value})"
        if mode == "dynamic":  # without rows it replaces nothing
            kept += f" OR NOT EXISTS (SELECT 1 {rest})"
        parts = [kept, f"SELECT {own} {rest}"]
        return Change(
            f"{statement} -- {mode}",
            False,
            parts,
            columns,
            lambda session: with_setting(
                session, DYNAMIC, mode, lambda: session.sql(statement.format(rows=self._table)).collect()
            ),
        )

    def _maintain(self, columns: dict[str, str]) -> Change:
        statements = ["OPTIMIZE {rows}", "OPTIMIZE {rows} FULL"]
        if not self._is_clustered:
            statements[1:] = ["OPTIMIZE {rows} ZORDER BY (i, vc)", "ALTER TABLE {rows} WRITE UNORDERED"]
            statements += [
                f"ALTER TABLE {{rows}} {order}" for order in ORDERS if order and "d" in self._fixed
            ]
        return Change(self._draw.choice(statements), False, ["SELECT * FROM {rows}"], columns)

    def _partition_field(self, columns: dict[str, str]) -> Change:
        statement = "OPTIMIZE {rows}"
        if self._partitions and self._draw.random() < 0.5:
            field = self._partitions.pop(self._draw.randrange(len(self._partitions)))
            statement = f"ALTER TABLE {{rows}} DROP PARTITION FIELD {field}"
        elif len(self._partitions) < 2 and not self._is_clustered:
            field = self._draw.choice([each for each in MORE_FIELDS if each not in self._partitions])
            self._added_fields += 1
            self._partitions.append(field)
            statement = f"ALTER TABLE {{rows}} ADD PARTITION FIELD {field} AS more{self._added_fields}"
        return Change(statement, False, ["SELECT * FROM {rows}"], columns)

    def _move_column(self, columns: dict[str, str]) -> Change:
        name, place = self._draw.sample(list(columns), 2)
        others = [other for other in columns if other != name]
        index = 0 if self._draw.random() < 0.3 else others.index(place) + 1
        order = [*others[:index], name, *others[index:]]
        where = f"AFTER {place}" if index else "FIRST"
        after = {each: columns[each] for each in order}
        part = f"SELECT {', '.join(order)} FROM {{rows}}"
        return Change(f"ALTER TABLE {{rows}} ALTER COLUMN {name} {where}", False, [part], after)

    def _replace_columns(self, columns: dict[str, str]) -> Change:
        if set(self._layout) & set(COMPUTED):
            return self._move_column(columns)
        self.defaults = {}  # the list has none
        order = self._draw.sample(list(columns), len(columns))
        after = {name: columns[name] for name in order}
        listed = ", ".join(f"{name} {kind}" for name, kind in after.items())
        part = f"SELECT {', '.join(order)} FROM {{rows}}"
        return Change(f"ALTER TABLE {{rows}} REPLACE COLUMNS ({listed})", False, [part], after)

    def _set_default(self, columns: dict[str, str]) -> Change:
        name = self._draw.choice(sorted(self.defaults))
        value = "3" if columns[name] == "INT" or name == "d" else "'x'"
        action = f"SET DEFAULT {value}"
        if self._draw.random() < 0.3:
            del self.defaults[name]
            action = "DROP DEFAULT"
        else:
            self.defaults[name] = value
        return Change(f"ALTER TABLE {{rows}} ALTER COLUMN {name} {action}", True, (), columns)

    def _delete(self, columns: dict[str, str]) -> Change:
        condition = f"id % 4 = 0 AND ({self._condition()})"
        rest = f"SELECT * FROM {{rows}} WHERE NOT coalesce({condition}, false)"
        calls = self._draw.random() < 0.3
        face = (lambda session: LanceTable.forName(session, self._table).delete(condition)) if calls else None
        return Change(f"DELETE FROM {{rows}} WHERE {condition}", False, [rest], columns, face)

    def _sets(self, columns: dict[str, str]) -> dict[str, tuple[str, str]]:
        names = self._draw.sample([name for name in columns if name != "id"], self._draw.randint(1, 3))
        sets = {}
        for name in names:
            others = {
                "lc": ("ch", "concat(vc, 'Z')", "upper(lc)"),
                "vc": ("trim(ch)", "lc", "st.in.v"),
                "ch": ("vc", "st.c", "tr"),
                "i": ("st.n", "i + 1", "length(vc)"),
            }.get(name)
            if others and self._draw.random() < 0.3:
                sets[name] = (self._draw.choice(others),) * 2
            else:
                sets[name] = self._value(name, reorders=True)
        return sets

    @staticmethod
    def _replaced(columns: dict[str, str], values: dict[str, str], prefix: str = "") -> str:
        return ", ".join(f"{values.get(name, prefix + name)} AS {name}" for name in columns)

    def _update(self, columns: dict[str, str]) -> Change:
        condition = self._condition()
        if self._draw.random() < 0.15:
            field, value = self._draw.choice(
                (("st.n", self._number()), ("st.c", self._text()), ("st.in.v", self._text()))
            )
            inner = {"st.n": "st.n", "st.c": "st.c", "st.in.v": "st.in.v", field: value}
            rebuilt = (
                f"if(st IS NULL, NULL, named_struct('n', {inner['st.n']}, 'c', {inner['st.c']}, 'in', "
                + (
                    f"if(st.in IS NULL, NULL, named_struct('v', {value}, 'lc', st.in.lc))"
                    if field == "st.in.v"
                    else "st.in"
                )
                + "))"
            )
            # What Spark makes of a field of a struct that is NULL is the same for all tables: not asked here.
            condition = f"({condition}) AND st IS NOT NULL AND st.in IS NOT NULL"
            sets = {field: value}
            own = {"st": rebuilt}
        else:
            pairs = self._sets(columns)
            sets = {name: pair[0] for name, pair in pairs.items()}
            own = {name: pair[1] for name, pair in pairs.items()}
        assigned = ", ".join(f"{name} = {value}" for name, value in sets.items())
        parts = [
            f"SELECT * FROM {{rows}} WHERE NOT coalesce({condition}, false)",
            f"SELECT {self._replaced(columns, own)} FROM {{rows}} WHERE {condition}",
        ]
        calls = self._draw.random() < 0.3
        face = (
            (lambda session: LanceTable.forName(session, self._table).update(condition, sets))
            if calls
            else None
        )
        return Change(f"UPDATE {{rows}} SET {assigned} WHERE {condition}", False, parts, columns, face)

    def _source(self) -> str:
        self._fresh += 3
        keys = [*self._draw.sample(range(1, 30), 4), self._fresh]
        rows = ", ".join(f"({key}L, {self._plain_text()}, {self._plain_text()})" for key in keys)
        return f"SELECT * FROM VALUES {rows} AS v(k, a, b)"

    def _plain_text(self) -> str:
        return self._draw.choice(TEXTS)

    def _merge(self, columns: dict[str, str]) -> Change:
        source, condition = self._source(), self._condition()
        pairs = self._sets(columns)
        if self._draw.random() < 0.5:
            pairs[self._draw.choice(("lc", "vc", "ch", "tr"))] = ("q.a", "q.a")
        assigned = ", ".join(f"{name} = {pair[0]}" for name, pair in pairs.items())
        condition = "true" if self._draw.random() < 0.3 else condition
        inserted = {name: self._value(name, reorders=True) for name in ("i", "st", "ls")}
        names = ["id", "lc", "vc", *inserted]
        values = ["q.k", "q.a", "q.b", *(pair[0] for pair in inserted.values())]
        deletes = self._draw.random() < 0.2
        action = "DELETE" if deletes else f"UPDATE SET {assigned}"
        merge = (
            f"MERGE INTO {{rows}} AS t USING ({source}) AS q ON t.id = q.k WHEN MATCHED AND ({condition}) "
            f"THEN {action} WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(values)})"
        )
        joined = f"{{rows}} AS t LEFT JOIN ({source}) AS q ON t.id = q.k"
        matched = f"q.k IS NOT NULL AND coalesce({condition}, false)"
        own = {name: pair[1] for name, pair in pairs.items()}
        fresh = {
            "id": "q.k",
            "lc": "q.a",
            "vc": "q.b",
            **{name: pair[1] for name, pair in inserted.items()},
        }
        fresh = {**self.defaults, **fresh}
        row = ", ".join(f"{fresh.get(name, 'NULL')} AS {name}" for name in columns)
        parts = [
            f"SELECT t.* FROM {joined} WHERE NOT ({matched})",
            f"SELECT {row} FROM ({source}) AS q LEFT ANTI JOIN {{rows}} AS t ON t.id = q.k",
        ]
        if not deletes:
            parts.insert(1, f"SELECT {self._replaced(columns, own, 't.')} FROM {joined} WHERE {matched}")
        return Change(merge, False, parts, columns)

    def _add_column(self, columns: dict[str, str]) -> Change:
        if self._added > 4:
            return self._update(columns)
        self._added += 1
        name, kind = f"x{self._added}", self._draw.choice(("VARCHAR(3)", "STRING COLLATE UTF8_LCASE", "INT"))
        old, columns = columns, {**columns, name: kind}
        default = ""
        if DEFAULTS and self._draw.random() < 0.5:
            self.defaults[name] = "7" if kind == "INT" else "'ab'"
            default = f" DEFAULT {self.defaults[name]}"
        if self._draw.random() < 0.5:
            return Change(f"ALTER TABLE {{rows}} ADD COLUMNS ({name} {kind}{default})", True, (), columns)
        place = self._draw.choice(list(old))
        index = list(old).index(place) + 1
        columns = {each: columns[each] for each in [*list(old)[:index], name, *list(old)[index:]]}
        value = self.defaults[name] if default else "NULL"
        part = ", ".join(f"{value} AS {name}" if each == name else each for each in columns)
        statement = f"ALTER TABLE {{rows}} ADD COLUMN {name} {kind}{default} AFTER {place}"
        return Change(statement, False, [f"SELECT {part} FROM {{rows}}"], columns)

    def _evolving(self, columns: dict[str, str]) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Return columns after evolution, and a row of the source: as it is written, as Parquet takes it."""
        self._fresh += 1
        after = dict(columns)
        written = {"id": f"{self._fresh}L"}
        ordered = dict(written)
        for name in columns:
            if name == "id":
                continue
            # The type of a value decides what a column becomes. If the write failed, Spark would leave
            # the changed columns behind.
            if name in ("i", "d") or columns[name] == "INT":
                written[name] = ordered[name] = self._draw.choice(("7Y", "300S"))
            elif name == "st":
                written[name], ordered[name] = self._typed_struct()
            elif name in ("ls", "mp"):
                written[name] = ordered[name] = "NULL"
            else:
                written[name] = ordered[name] = self._draw.choice(("'a'", "'AB'", "'a '", "NULL"))
        for name, (kind, value) in WIDER.items():
            if columns[name] != kind and name not in self._fixed and self._draw.random() < 0.3:
                after[name] = kind
                written[name] = ordered[name] = value
        if self._added < 5 and self._draw.random() < 0.5:
            self._added += 1
            after[f"x{self._added}"] = "INT"
            written[f"x{self._added}"] = ordered[f"x{self._added}"] = "7"
        return after, written, ordered

    def _typed_struct(self) -> tuple[str, str]:
        n, c = self._draw.choice(("7Y", "300S", "-1S")), self._draw.choice(("'a'", "'AB'", "NULL"))
        own = f"named_struct('n', {n}, 'c', {c}, 'in', named_struct('v', 'x', 'lc', {c}))"
        return f"named_struct('in', named_struct('lc', {c}, 'v', 'x'), 'c', {c}, 'n', {n})", own

    def _insert_evolving(self, columns: dict[str, str]) -> Change:
        after, written, ordered = self._evolving(columns)
        names = self._draw.sample(sorted(written), len(written))
        query = ", ".join(f"{written[name]} AS {name}" for name in names)
        old = ", ".join(name if name in columns else f"NULL AS {name}" for name in after)
        row = ", ".join(f"{ordered[name]} AS {name}" for name in after)
        parts = [f"SELECT {old} FROM {{rows}}", f"SELECT {row}"]
        return Change(
            f"INSERT WITH SCHEMA EVOLUTION INTO {{rows}} BY NAME SELECT {query}", False, parts, after
        )

    def _merge_evolving(self, columns: dict[str, str]) -> Change:
        after, written, ordered = self._evolving(columns)
        key = self._draw.choice(("2L", "5L", written["id"]))
        written["id"] = ordered["id"] = key
        query = ", ".join(f"{value} AS {name}" for name, value in written.items())
        old = ", ".join(name if name in columns else f"NULL AS {name}" for name in after)
        row = ", ".join(f"{ordered[name]} AS {name}" for name in after)
        merge = (
            f"MERGE WITH SCHEMA EVOLUTION INTO {{rows}} AS t USING (SELECT {query}) AS q ON t.id = q.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        return Change(merge, False, [f"SELECT {old} FROM {{rows}} WHERE id <> {key}", f"SELECT {row}"], after)


class Sides:
    """A Lance table, and the Parquet table that has the same rows.

    Args:
        spark: any session of the process.
        folder: of the Lance tables.
        seed: of the run.
        draw: where chance comes from.
    """

    def __init__(self, spark: SparkSession, folder: Path, seed: int, draw: random.Random) -> None:
        self._name = f"declared_{os.getpid()}_{seed}"
        self._in_session_catalog = draw.random() < 0.3
        self._draw = draw
        self._ours = enable(interpreted(spark.newSession()), root=str(folder))
        self._theirs = enable(interpreted(spark.newSession()), catalog="functions", root=str(folder / "none"))
        if self._in_session_catalog:
            self._ours = enable(self._ours, catalog="spark_catalog")
        self.table, self._view, self._whole = (
            f"spark_catalog.default.{each}_{self._name}" if self._in_session_catalog else f"lance.{each}"
            for each in ("t", "db.v", "db.w")
        )
        if self._in_session_catalog:
            self._view, self._whole = self._view.replace("db.", ""), self._whole.replace("db.", "")
        elif RELEASE < (4, 2):
            self._view = "v"
        self._ours.conf.set("spark.lance.localRows", draw.choice(("0", "10000")))
        for session in (self._ours, self._theirs):
            session.conf.set("spark.sql.shuffle.partitions", "1")
        self._ours.conf.set("spark.sql.sources.v2.bucketing.enabled", draw.choice(("true", "false")))
        self._number = 0
        self.defaults = dict(DEFAULTS)
        self.columns = dict(COLUMNS)
        self._check = draw.choice(CHECKS)
        self.generated = draw.choice(list(GENERATED)) if RELEASE >= (4, 1) else ""
        partitions = draw.choice(PARTITIONS)
        if self.generated and draw.random() < 0.2:
            partitions = "gen"
        self.partitions = re.findall(r"\w+\([^)]*\)|\w+", partitions)
        self._order = draw.choice(ORDERS)
        cluster = "" if partitions or self._order else draw.choice(CLUSTERS)
        self.clustered = bool(cluster)
        self._create(f"PARTITIONED BY ({partitions})" if partitions else cluster)
        self.indices = draw.sample(sorted(INDICES), draw.randint(0, 3))
        self.fixed = [*self.indices, *re.findall(r"\b(i|d)\b", f"{partitions} {self._order} {cluster}")]

    def _create(self, clause: str) -> None:
        columns = self._ddl(COLUMNS, DEFAULTS)
        if self.generated:
            columns += f", gen {GENERATED[self.generated]} GENERATED ALWAYS AS ({self.generated})"
        if RELEASE >= (4, 1) and self._draw.random() < 0.3:
            columns += f", num BIGINT GENERATED {self._draw.choice(('ALWAYS', 'BY DEFAULT'))} AS IDENTITY"
        self._ours.sql("CREATE NAMESPACE lance.db").collect()
        self._ours.sql(f"CREATE TABLE {self.table} ({columns}) USING lance {clause}").collect()
        if self._order:
            self._ours.sql(f"ALTER TABLE {self.table} {self._order}").collect()
        self._theirs.sql(
            f"CREATE TABLE {self._control} ({self._ddl(COLUMNS, DEFAULTS)}) USING parquet"
        ).collect()
        if self._has_views:
            self._ours.sql(
                f"CREATE VIEW {self._whole} WITH SCHEMA EVOLUTION AS SELECT * FROM {self.table}"
            ).collect()

    @property
    def _has_views(self) -> bool:
        return self._in_session_catalog or RELEASE >= (4, 2)

    @property
    def layout(self) -> list[str]:
        """The columns of the Lance table, in order."""
        return list(self._ours.table(self.table).columns)

    @property
    def _control(self) -> str:
        return f"spark_catalog.default.{self._name}_{self._number}"

    @staticmethod
    def _ddl(columns: dict[str, str], defaults: dict[str, str]) -> str:
        return ", ".join(
            f"{name} {kind} DEFAULT {defaults[name]}" if name in defaults else f"{name} {kind}"
            for name, kind in columns.items()
        )

    def build_indices(self) -> None:
        catalog, name = self.table.split(".", 1)
        for column in self.indices:
            kind = INDICES[column]
            self._ours.sql(f"CALL {catalog}.system.create_index('{name}', '{column}', '{kind}')").collect()

    def constrain(self) -> None:
        """Delete the rows that violate the constraint, and add it."""
        if not self._check:
            return
        self._ours.sql(f"DELETE FROM {self.table} WHERE NOT ({self._check})").collect()
        self._without_violations()
        if self._draw.random() < 0.5:
            LanceTable.forName(self._ours, self.table).addConstraint("c", self._check)
        else:
            self._ours.sql(f"ALTER TABLE {self.table} ADD CONSTRAINT c CHECK ({self._check})").collect()

    def _violations(self) -> int:
        if not self._check:
            return 0
        return self._theirs.sql(f"SELECT * FROM {self._control} WHERE NOT ({self._check})").count()

    def _without_violations(self) -> None:
        old = self._control
        self._number += 1
        self._theirs.sql(
            f"CREATE TABLE {self._control} ({self._ddl(self.columns, self.defaults)}) USING parquet"
        ).collect()
        rows = f"SELECT * FROM {old} WHERE coalesce({self._check}, true)"
        self._theirs.sql(f"INSERT INTO {self._control} {rows}").collect()
        self._theirs.sql(f"DROP TABLE {old}").collect()

    def fill(self, draw: random.Random) -> None:
        rows = []
        for number in range(1, 30):
            texts = [draw.choice(TEXTS) for _ in range(9)]
            small = [draw.choice(("0", "1", "-1", "300", "NULL")) for _ in range(4)]
            struct = f"named_struct('n', {small[0]}, 'c', {_cut(texts[5])}, 'in', named_struct('v', "
            struct += f"{_cut(texts[6])}, 'lc', {texts[7]}))"
            items = f"array(named_struct('n', {small[1]}, 'v', {_cut(texts[8])}, 'lc', {texts[0]}))"
            columns = [str(number), small[2], small[3], *texts[:5]]
            nested = [
                struct if draw.random() < 0.8 else "NULL",
                items if draw.random() < 0.8 else "NULL",
                f"map('k', named_struct('a', {texts[1]}, 'b', {small[0]}))",
            ]
            rows.append(f"({', '.join([*columns, *nested])})")
        names = ", ".join(COLUMNS)
        for session, table in ((self._ours, self.table), (self._theirs, self._control)):
            session.sql(f"INSERT INTO {table} ({names}) VALUES {', '.join(rows)}").collect()

    def apply(self, change: Change, defaults: dict[str, str]) -> tuple[str | None, str | None]:
        """Run a change on both sides; return the conditions of the errors."""
        self.defaults = defaults
        statement = change.statement.format(rows=self.table)
        face = change.face or (lambda session: session.sql(statement).collect())
        ours = _condition(lambda: face(self._ours))
        theirs = self._apply_control(change, defaults)
        if change.face is None:
            return ours, theirs
        # LanceTable has its own errors, and none for a value that no row gets: `contents` would tell.
        return (None, None) if ours is None else ("refused", theirs and "refused")

    def _apply_control(self, change: Change, defaults: dict[str, str]) -> str | None:
        old = self._control
        if change.same:
            statement = (change.control or change.statement).format(rows=old)
            condition = _condition(lambda: self._theirs.sql(statement).collect())
            if condition is None and change.columns == self.columns and self._violations():
                self._without_violations()  # an INSERT of one row
                return VIOLATION
            if condition is None:
                self.columns = change.columns
            return condition
        self._number += 1
        new = self._control
        self._theirs.sql(
            f"CREATE TABLE {new} ({self._ddl(change.columns, defaults)}) USING parquet"
        ).collect()
        for part in change.parts:
            insert = f"INSERT INTO {new} {part.format(rows=old)}"
            condition = _condition(lambda insert=insert: self._theirs.sql(insert).collect())  # type: ignore[misc]
            if condition is not None:
                self._theirs.sql(f"DROP TABLE {new}").collect()
                self._number -= 1
                return condition
        violated = self._violations() > 0
        if violated:
            # Spark changes the columns before it writes rows: a failed write leaves the new columns behind.
            rows = ", ".join(name if name in self.columns else f"NULL AS {name}" for name in change.columns)
            self._theirs.sql(f"INSERT OVERWRITE {new} SELECT {rows} FROM {old}").collect()
        self._theirs.sql(f"DROP TABLE {old}").collect()
        self.columns = change.columns
        return VIOLATION if violated else None

    def contents(self) -> tuple[list[str], list[str]]:
        """Return the types and rows of both sides."""
        sides = []
        for session, table in ((self._ours, self.table), (self._theirs, self._control)):
            frame = session.table(table).drop(*COMPUTED)
            sides.append([_types(frame.schema), *sorted(map(str, frame.collect()))])
        if self._has_views and self._draw.random() < 0.3:
            view = self._ours.table(self._whole).drop(*COMPUTED)
            assert sorted(map(str, view.collect())) == sides[0][1:]
        return sides[0], sides[1]

    def wrong_computed(self) -> list[str]:
        """Return rows whose computed columns have wrong values: another value, no number, a number twice."""
        wrong = []
        if self.generated:
            wrong.append(f"SELECT id, gen FROM {self.table} WHERE NOT (gen <=> ({self.generated}))")
        if "num" in self.layout:
            wrong.append(
                f"SELECT num, count(*) FROM {self.table} GROUP BY num HAVING num IS NULL OR count(*) > 1"
            )
        return [str(row) for query in wrong for row in self._ours.sql(query).collect()]

    def version(self) -> int:
        """Return the number of the Lance table's newest version."""
        return LanceTable.forName(self._ours, self.table).dataset().version

    def changes(self, before: Sequence[str], first: int) -> list[str]:
        """Return rows and the changes since a version, as the rows that they make.

        Args:
            before: the rows of `contents` before the version.
            first: the version.
        """
        if self.version() < first:
            return sorted(before)
        feeds = [f"table_changes('{self.table}', {first})"]
        feeds += [f"{self.table}.changes WHERE _commit_version >= {first}"]
        if RELEASE >= (4, 2):
            feeds += [f"{self.table} CHANGES FROM VERSION {first}"]
        feed = self._ours.sql(f"SELECT * FROM {self._draw.choice(feeds)}")
        names = [f"`{name}`" for name in self.columns]
        rows = Counter(before)
        for kinds, sign in ((("insert", "update_postimage"), 1), (("delete", "update_preimage"), -1)):
            for row in feed.where(feed["_change_type"].isin(*kinds)).selectExpr(*names).collect():
                rows[str(row)] += sign
        assert all(count >= 0 for count in rows.values()), f"rows that never existed were deleted: {rows}"
        return sorted(rows.elements())

    def create_view(self) -> None:
        """Create the view that queries read."""
        statement = f"SELECT {', '.join(self.columns)} FROM {self.table}"
        if self._has_views:
            self._ours.sql(f"CREATE VIEW {self._view} AS {statement}").collect()
        else:
            self._ours.sql(statement).createOrReplaceTempView(self._view)

    def answers(self, query: str, in_order: bool) -> tuple[list[str] | str, list[str] | str]:
        """Return what a query returns on both sides."""
        ours = told(self._ours, query.format(rows=self._view), in_order)
        theirs = told(self._theirs, query.format(rows=self._control), in_order)
        if ours == theirs or ("min(" not in query and "max(" not in query):
            return ours, theirs
        # Interpreted, Spark 4.3 keeps no copy of the least collated string, but the buffer of its row.
        return self._compiled(self._ours, query, self.table, in_order), self._compiled(
            self._theirs, query, self._control, in_order
        )

    @staticmethod
    def _compiled(session: SparkSession, query: str, table: str, in_order: bool) -> list[str] | str:
        mode = session.conf.get("spark.sql.codegen.factoryMode")
        session.conf.set("spark.sql.codegen.factoryMode", "CODEGEN_ONLY")
        try:
            return told(session, query.format(rows=table), in_order)
        finally:
            session.conf.set("spark.sql.codegen.factoryMode", str(mode))

    def drop(self) -> None:
        self._theirs.sql(f"DROP TABLE IF EXISTS {self._control}").collect()
        if self._in_session_catalog:
            for view in (self._view, self._whole):
                self._ours.sql(f"DROP VIEW IF EXISTS {view}").collect()
            self._ours.sql(f"DROP TABLE IF EXISTS {self.table}").collect()


def with_setting(session: SparkSession, name: str, value: str, call: Callable[[], object]) -> object:
    """Call with a setting of the session."""
    session.conf.set(name, value)
    try:
        return call()
    finally:
        session.conf.unset(name)


def _cut(text: str) -> str:
    """Return a literal cut to three letters, so that it fits everywhere."""
    return text if text == "NULL" else literal(text[1:-1][:3])


def _types(schema: StructType) -> str:
    declared = [str(field.metadata.get("__CHAR_VARCHAR_TYPE_STRING")) for field in schema]
    return f"{schema.simpleString()} {declared}"


def _condition(call: Callable[[], object]) -> str | None:
    try:
        call()
    except LanceError as error:
        return str(error)
    except PySparkException as error:
        return str(error.getCondition() or str(error)[:300])
    return None


VIOLATION = "CHECK_CONSTRAINT_VIOLATION"
FAULTS_OF_VALUES = {"INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST", "EXCEED_LIMIT_LENGTH", "CAST_OVERFLOW"}
FAULTS_OF_CONSTANTS = {"EXCEED_LIMIT_LENGTH", "CAST_OVERFLOW"}
# Conditions that name one fault, once for INSERT and once for other statements.
SAME = {"CAST_OVERFLOW_IN_TABLE_INSERT": "CAST_OVERFLOW"}


def check(spark: SparkSession, folder: Path, seed: int, changes: int, queries: int) -> None:
    """Compare both sides after each change, and the answers of queries."""
    draw = random.Random(seed)
    sides = Sides(spark, folder, seed, draw)
    try:
        sides.fill(draw)
        sides.constrain()
        sides.build_indices()
        generator = Changes(
            draw,
            sides.table,
            fixed=sides.fixed,
            partitions=sides.partitions,
            clustered=sides.clustered,
            generated=sides.generated,
        )
        selects = Queries(draw, DECLARED)
        mine, _ = sides.contents()
        for number in range(changes):
            columns, before = sides.columns, mine
            change, first = generator.one(columns, sides.layout), sides.version() + 1
            ours, theirs = (SAME.get(str(each), each) for each in sides.apply(change, generator.defaults))
            if ours is not None and theirs is not None and VIOLATION in (ours, theirs):
                ours = theirs  # A statement with two faults has the condition of one.
            if change.statement.startswith("MERGE") and {ours, theirs} <= FAULTS_OF_VALUES:
                ours = theirs  # Parquet gets the clauses of a MERGE one after another.
            if change.statement.startswith("UPDATE") and theirs is None and ours in FAULTS_OF_CONSTANTS:
                # Spark folds a constant before it knows that no row gets it; the rows are compared.
                ours = None
            assert ours == theirs, f"seed {seed}, {number}: {change.statement}"
            mine, other = sides.contents()
            assert mine == other, f"seed {seed}, {number}: {change.statement}"
            assert not sides.wrong_computed(), f"seed {seed}, {number}: {change.statement}"
            if list(columns.items()) == list(sides.columns.items()):
                changed = sides.changes(before[1:], first)
                assert changed == mine[1:], f"seed {seed}, {number}: changes of {change.statement}"
        sides.create_view()
        wrong = []
        for _ in range(queries):
            query, in_order = selects.query()
            answers = sides.answers(query, in_order)
            if answers[0] != answers[1]:
                wrong.append((query, [answer[:5] for answer in answers]))
        assert not wrong, f"seed {seed}: {wrong}"
    finally:
        sides.drop()


@pytest.mark.parametrize("seed", [1])
def test_statements_next_to_parquet(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    check(spark, tmp_path, seed, 6, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(*map(int, os.environ.get("SPARK_LANCE_SEEDS", "2,52").split(","))))
def test_many_statements_next_to_parquet(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    check(spark, tmp_path, seed, 20, 20)
