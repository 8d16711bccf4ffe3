"""SQL queries on a dataset.

A query of columns with a condition is a scan, which uses indexes and knows all functions of conditions.
DuckDB runs all other queries.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets.special_reads import duckdb_module
from spark_lance.errors import LanceError, OptionError

__all__ = ["SqlQuery", "SqlQueryBuilder"]

_EXPLAIN = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?", re.IGNORECASE)
# The parts of a query that a scan can run.
_STAR_PARTS = ("except", "except_", "replace", "rename")
_SCAN_PARTS = {"kind", "expressions", "from", "from_", "where"}


def _is_scan(query: exp.Select, table: str) -> bool:
    """Return whether a query only has columns of one table, without quotes, and a condition."""
    parts = {name for name, value in query.args.items() if value}
    if parts - _SCAN_PARTS or "where" not in parts or query.find(exp.Subquery, exp.AggFunc, exp.Window):
        return False
    for column in query.expressions:
        if not isinstance(column, exp.Column | exp.Star) or any(
            column.args.get(name) for name in _STAR_PARTS
        ):
            return False
    if any(column.table for column in query.find_all(exp.Column)):
        return False
    is_quoted = any(name.args.get("quoted") for name in query.find_all(exp.Identifier))
    return not is_quoted and [each.sql() for each in query.find_all(exp.Table)] == [table]


@raises_os_errors
class SqlQueryBuilder:
    """Builder of a query."""

    def __init__(self, value: Any, sql: str) -> None:
        self._value = value
        self._sql = sql
        self._name = "dataset"
        self._system: list[str] = []

    def table_name(self, table_name: str) -> SqlQueryBuilder:
        """Set the name of the table in the query; `dataset` by default."""
        self._name = table_name
        return self

    def with_row_id(self, with_row_id: bool = True) -> SqlQueryBuilder:
        """Add the column `_rowid` to the table of the query."""
        self._system += ["_rowid"] if with_row_id else []
        return self

    def with_row_addr(self, with_row_addr: bool = True) -> SqlQueryBuilder:
        """Add the column `_rowaddr` to the table of the query."""
        self._system += ["_rowaddr"] if with_row_addr else []
        return self

    def build(self) -> SqlQuery:
        """Return the query."""
        return SqlQuery(self._value, self._sql, self._name, self._system)


@raises_os_errors
class SqlQuery:
    """A query that runs when its result is read."""

    def __init__(self, value: Any, sql: str, name: str, system: list[str]) -> None:
        self._value, self._sql, self._name, self._system = value, sql, name, system

    def _table(self) -> pa.Table:
        explain = _EXPLAIN.match(self._sql)
        scanner = self._scanner(self._sql[explain.end() :] if explain else self._sql)
        if scanner is not None:
            try:
                if explain is None:
                    return scanner.to_table()
                name, plan = "Plan with Metrics", scanner.analyze_plan
                if not explain.group(1):
                    name, plan = "physical_plan", scanner.explain_plan
                return pa.table({"plan_type": [name], "plan": [plan()]})
            except LanceError:
                pass  # DuckDB may know the function, or has a better error.
        if not self._system:
            return self._value.sql(self._sql, self._name)
        if not self._name.isidentifier():
            raise OptionError(f"{self._name!r} cannot be the name of a table here")
        scanned = self._value.to_table([*self._value.schema.names, *self._system])
        with duckdb_module().connect() as connection:
            connection.register(self._name, scanned)
            return connection.sql(self._sql).to_arrow_table()

    def _scanner(self, sql: str) -> Any:
        """Return the scan that a query is; None if DuckDB must run it."""
        try:
            query = parse_one(sql, read="duckdb")
        except SqlglotError:
            return None
        if not isinstance(query, exp.Select) or not _is_scan(query, self._name):
            return None
        schema = self._value.schema
        names: list[str] = []
        for column in query.expressions:
            names += [*schema.names, *self._system] if isinstance(column, exp.Star) else [column.name]
        if len({*names}) < len(names) or not {*names} <= {*schema.names, *self._system}:
            return None
        fields = [schema.field(name) for name in names if name in schema.names]
        if any(b"lance-encoding:blob" in (field.metadata or {}) for field in fields):
            return None
        return self._value.scanner(columns=names, filter=query.args["where"].this.sql())

    def to_batch_records(self) -> list[pa.RecordBatch]:
        """Return the result as batches."""
        batches: list[pa.RecordBatch] = self._table().to_batches()
        return batches

    def to_stream_reader(self) -> pa.RecordBatchReader:
        """Return the result as a stream."""
        return self._table().to_reader()
