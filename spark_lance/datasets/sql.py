"""SQL over a table by DuckDB, which asks for the columns and rows that a query needs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.errors import OptionError

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset


def run_sql(dataset: LanceDataset, query: str, table_name: str) -> pa.Table:
    """Return the result of an SQL query by DuckDB; see `LanceDataset.sql`."""
    duckdb = duckdb_module()
    with duckdb.connect() as connection:
        connection.register(table_name, dataset.to_pyarrow())
        relation = connection.sql(query)
        if relation is None:
            raise OptionError(f"this SQL gives no rows: {query!r}")
        result: pa.Table = relation.to_arrow_table()
        return result


def polars_frame(dataset: LanceDataset) -> Any:
    """Return a LazyFrame of polars; see `LanceDataset.to_polars`."""
    try:
        polars = import_module("polars")
    except ModuleNotFoundError:
        raise OptionError("this needs polars: pip install polars") from None
    return polars.scan_pyarrow_dataset(dataset.to_pyarrow())


def duckdb_module() -> Any:
    """Return the module duckdb.

    Raises:
        OptionError: it is not installed.
    """
    try:
        return import_module("duckdb")
    except ModuleNotFoundError:
        raise OptionError("SQL without Spark needs DuckDB: pip install 'spark-lance[duckdb]'") from None
