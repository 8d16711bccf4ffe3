"""One model of DELETE, UPDATE and MERGE: the rows that each way to change a table must leave.

Rows are dicts in memory. A condition or a value is SQL, next to a Python function that means the same.
Tests drive the model through SQL and LanceTable (tests/spark/sql/test_row_level_model.py), through
LanceDataset (tests/table/rows/test_merge_insert.py), and through pylance and LanceDataset in turns
(tests/reference/test_state_machine.py).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

Row = dict[Any, Any]


@dataclass(frozen=True)
class Text:
    """SQL with the table as x and the source as y, and its value for a row of each and the whole source."""

    sql: str
    means: Callable[[Any, Any, Sequence[Row]], Any]

    @property
    def has_query(self) -> bool:
        return "SELECT" in self.sql

    def spell(self, table: str, source: str = "y.") -> str:
        """Return the SQL with other prefixes for columns of the table and of the source."""
        return self.sql.replace("x.", table).replace("y.", source)


def some(function: Callable[..., Any], *values: Any) -> Any:
    """Return the result of a function, null if a value is null."""
    return None if None in values else function(*values)


@dataclass(frozen=True)
class Clause:
    """A clause of MERGE.

    Attributes:
        rows: MATCHED, NOT MATCHED or NOT MATCHED BY SOURCE.
        kind: UPDATE, INSERT, UPDATE *, INSERT * or DELETE.
        values: column, or field inside one (`e.a`) -> its new value.
    """

    rows: str
    kind: str
    condition: Text | None = None
    values: Mapping[str, Text] = field(default_factory=dict)

    @property
    def sql(self) -> str:
        condition = "" if self.condition is None else f" AND {self.condition.sql}"
        action = {"UPDATE *": "UPDATE SET *"}.get(self.kind, self.kind)
        if self.kind == "UPDATE":
            action = f"UPDATE SET {assignments(self.values)}"
        elif self.kind == "INSERT":
            values = ", ".join(value.sql for value in self.values.values())
            action = f"INSERT ({', '.join(self.values)}) VALUES ({values})"
        return f"WHEN {self.rows}{condition} THEN {action}"

    def holds(self, x: Row | None, y: Row | None, source: Sequence[Row]) -> bool:
        return self.condition is None or bool(self.condition.means(x, y, source))

    def result(
        self, x: Row | None, y: Row | None, source: Sequence[Row], columns: Iterable[Any]
    ) -> Row | None:
        """Return the new row, None if the clause deletes it. A source may lack columns."""
        old = dict.fromkeys(columns) if x is None else x
        if self.kind == "DELETE":
            return None
        if self.kind.endswith("*"):
            assert y is not None
            return {**old, **y}
        return changed(old, self.values, x, y, source)


@dataclass(frozen=True)
class Statement:
    """A DELETE, UPDATE or MERGE. A merge compares the columns `keys`."""

    kind: str
    condition: Text | None = None
    values: Mapping[str, Text] = field(default_factory=dict)
    clauses: tuple[Clause, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def on(self) -> str:
        return " AND ".join(f"x.{key} = y.{key}" for key in self.keys)

    @property
    def is_in_order(self) -> bool:
        """Whether only the last clause for each kind of rows has no condition, as SQL wants it."""
        groups = [[c for c in self.clauses if c.rows == rows] for rows in {c.rows for c in self.clauses}]
        return all(clause.condition is not None for group in groups for clause in group[:-1])

    def sql(self, table: str) -> str:
        where = "" if self.condition is None else f" WHERE {self.condition.sql}"
        if self.kind == "DELETE":
            return f"DELETE FROM {table} AS x{where}"
        if self.kind == "UPDATE":
            return f"UPDATE {table} x SET {assignments(self.values)}{where}"
        clauses = " ".join(clause.sql for clause in self.clauses)
        return f"MERGE INTO {table} AS x USING source AS y ON {self.on} {clauses}"


def assignments(values: Mapping[str, Text]) -> str:
    return ", ".join(f"{name} = {value.sql}" for name, value in values.items())


def changed(old: Row, values: Mapping[str, Text], x: Row | None, y: Row | None, source: Sequence[Row]) -> Row:
    new = dict(old)
    for name, value in values.items():
        column, _, inner = name.partition(".")
        result = value.means(x, y, source)
        new[column] = {**(new[column] or {"a": None, "b": None}), inner: result} if inner else result
    return new


class DoubledError(Exception):
    """Several rows of the source change one row."""


def change(
    table: Sequence[Row],
    source: Sequence[Row],
    statement: Statement,
    columns: Iterable[Any] = (),
    doubled_deletes: bool = True,
) -> tuple[list[Row], Counter[str]]:
    """Return the rows after a statement, and how many it updated, deleted and inserted.

    Args:
        columns: the columns of a row that a merge inserts; those without a value are null.
        doubled_deletes: whether several rows of the source may delete one row, if the merge has no other
            clause for rows that match, and this one has no condition.

    Raises:
        DoubledError: several rows of the source change one row.
    """
    if statement.kind == "MERGE":
        return _merge(table, source, statement, list(columns), doubled_deletes)
    condition = statement.condition
    hits = [condition is None or bool(condition.means(x, None, source)) for x in table]
    if statement.kind == "DELETE":
        return [x for x, hit in zip(table, hits, strict=True) if not hit], Counter(deleted=sum(hits))
    rows = [
        changed(x, statement.values, x, None, source) if hit else x
        for x, hit in zip(table, hits, strict=True)
    ]
    return rows, Counter(updated=sum(hits))


def _merge(
    table: Sequence[Row],
    source: Sequence[Row],
    statement: Statement,
    columns: list[Any],
    doubled_deletes: bool,
) -> tuple[list[Row], Counter[str]]:
    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in statement.keys)

    def results(rows: str, x: Row | None, y: Row | None) -> list[Row | None]:
        """Return the result of the first clause that applies, in a list that is empty if none does."""
        clauses = (c for c in statement.clauses if c.rows == rows and c.holds(x, y, source))
        return [clause.result(x, y, source, columns) for clause in itertools.islice(clauses, 1)]

    of_matches = [clause for clause in statement.clauses if clause.rows == "MATCHED"]
    deletes = [clause.kind == "DELETE" and clause.condition is None for clause in of_matches]
    lenient = doubled_deletes and deletes == [True]
    rows, counts = [], Counter[str]()
    matched: set[int] = set()
    for x in table:
        pairs = [i for i, y in enumerate(source) if None not in key(x) and key(y) == key(x)]
        matched.update(pairs)
        new = [result for i in pairs for result in results("MATCHED", x, source[i])]
        if not pairs:
            new = results("NOT MATCHED BY SOURCE", x, None)
        if len(new) > 1 and not lenient:
            raise DoubledError
        if new:
            counts["deleted" if new[0] is None else "updated"] += 1
        row = new[0] if new else x
        rows += [] if row is None else [row]
    for i, y in enumerate(source):
        inserts = [] if i in matched else results("NOT MATCHED", None, y)
        counts["inserted"] += len(inserts)
        rows += [row for row in inserts if row is not None]
    return rows, counts


# Rows that a clause is about -> what it does to them -> its conditions, and the values that it may set.
Clauses = Mapping[str, Mapping[str, tuple[Sequence[Text], Mapping[str, Text] | None]]]


@st.composite
def values_of(draw: st.DrawFn, values: Mapping[str, Text] | None) -> dict[str, Text]:
    names = draw(st.sets(st.sampled_from(sorted(values)), min_size=1)) if values else set()
    return {name: values[name] for name in sorted(names)} if values else {}


@st.composite
def merges(draw: st.DrawFn, clauses: Clauses, keys: Sequence[tuple[str, ...]]) -> Statement:
    """Draw a merge with at least one clause. One in many has a clause after one without a condition."""
    drawn: list[Clause] = []
    while not drawn:
        for rows, kinds in clauses.items():
            count = draw(st.integers(0, 2))
            for place in range(count):
                kind = draw(st.sampled_from(sorted(kinds)))
                conditions, values = kinds[kind]
                condition = draw(st.sampled_from(conditions))
                is_last = place == count - 1 or draw(st.integers(0, 9)) == 0
                unconditional = is_last and draw(st.booleans())
                assigned = draw(values_of(values))
                drawn.append(Clause(rows, kind, None if unconditional else condition, assigned))
    return Statement("MERGE", clauses=tuple(drawn), keys=draw(st.sampled_from(keys)))
