"""SQL queries on a dataset, with DuckDB."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets.special_reads import duckdb_module
from spark_lance.errors import OptionError

__all__ = ["SqlQuery", "SqlQueryBuilder"]


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
        if not self._system:
            return self._value.sql(self._sql, self._name)
        if not self._name.isidentifier():
            raise OptionError(f"{self._name!r} cannot be the name of a table here")
        scanned = self._value.to_table([*self._value.schema.names, *self._system])
        with duckdb_module().connect() as connection:
            connection.register(self._name, scanned)
            return connection.sql(self._sql).to_arrow_table()

    def to_batch_records(self) -> list[pa.RecordBatch]:
        """Return the result as batches."""
        batches: list[pa.RecordBatch] = self._table().to_batches()
        return batches

    def to_stream_reader(self) -> pa.RecordBatchReader:
        """Return the result as a stream."""
        return self._table().to_reader()
