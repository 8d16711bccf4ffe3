"""The command that asks DuckDB: sql."""

from __future__ import annotations

from spark_lance.cli.names import Arguments
from spark_lance.cli.opening import open_table
from spark_lance.cli.output import Progress
from spark_lance.cli.row_commands import show_rows
from spark_lance.datasets.sql import duckdb_module
from spark_lance.errors import ExpressionError

__all__ = ["sql"]

_VIEW = "t"


def sql(arguments: Arguments) -> int:
    """Show what a SQL query of DuckDB answers; the table is called t in it."""
    dataset = open_table(arguments)
    duckdb = duckdb_module()
    try:
        with Progress("asking"):
            result = dataset.sql(arguments.query, _VIEW)
    except duckdb.Error as error:
        raise ExpressionError(" ".join(str(error).split())) from None
    show_rows(result, arguments)
    return 0
