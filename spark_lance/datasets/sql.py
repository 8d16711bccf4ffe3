"""SQL over a table by DuckDB, which asks for the columns and rows that a query needs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyarrow as pa

from spark_lance.datasets.read import ReadMixin
from spark_lance.errors import OptionError

__all__ = ["SqlMixin", "duckdb_module"]


class SqlMixin(ReadMixin):
    """Views of a table for engines in the process."""

    def to_pyarrow(self) -> Any:
        """Return the table as a `pyarrow.dataset.Dataset`, into which engines push columns and filters.

        DuckDB finds it as a variable: `t = ds.to_pyarrow(); duckdb.sql("select n from t where n > 1")`.
        Its `scanner` takes what `LanceDataset.scanner` takes.
        """
        # It brings pandas with it where that is installed, half a second that few processes need to spend.
        return import_module("spark_lance.datasets.arrow_dataset").ArrowDataset(self)

    def to_polars(self) -> Any:
        """Return a polars LazyFrame: columns, filters and limits of its queries are pushed down.

        Raises:
            OptionError: polars is not installed.
        """
        try:
            polars = import_module("polars")
        except ModuleNotFoundError:
            raise OptionError("this needs polars: pip install polars") from None
        return polars.scan_pyarrow_dataset(self.to_pyarrow())

    def sql(self, query: str, table_name: str = "dataset") -> pa.Table:
        """Return the result of an SQL query by DuckDB, in which this version is the table `dataset`.

        Args:
            query: SQL as DuckDB has it.
            table_name: the name of the table in it.

        Raises:
            OptionError: DuckDB is not installed, or the query is none that gives rows.
        """
        duckdb = duckdb_module()
        with duckdb.connect() as connection:
            connection.register(table_name, self.to_pyarrow())
            relation = connection.sql(query)
            if relation is None:
                raise OptionError(f"this SQL gives no rows: {query!r}")
            result: pa.Table = relation.to_arrow_table()
            return result


def duckdb_module() -> Any:
    """Return the module duckdb.

    Raises:
        OptionError: it is not installed.
    """
    try:
        return import_module("duckdb")
    except ModuleNotFoundError:
        raise OptionError("SQL without Spark needs DuckDB: pip install 'spark-lance[duckdb]'") from None
