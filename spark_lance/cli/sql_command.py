"""The command that asks DuckDB: sql."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from spark_lance.cli.names import Arguments
from spark_lance.cli.opening import open_table
from spark_lance.cli.output import Progress
from spark_lance.cli.row_commands import show_rows
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import ExpressionError, OptionError

__all__ = ["sql"]

_VIEW = "t"


def sql(arguments: Arguments) -> int:
    """Show what a SQL query of DuckDB answers; the table is called t in it."""
    dataset = open_table(arguments)
    duckdb = _duckdb()
    connection = duckdb.connect()
    try:
        connection.register(_VIEW, _Table(dataset, _named_columns(arguments.query, dataset)))
        with Progress("asking"):
            relation = connection.sql(arguments.query)
            found = None if relation is None else pa.RecordBatchReader.from_stream(relation).read_all()
    except duckdb.Error as error:
        raise ExpressionError(" ".join(str(error).split())) from None
    finally:
        connection.close()
    if found is not None:
        show_rows(found, arguments)
    return 0


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ModuleNotFoundError:
        raise OptionError("sql needs DuckDB: pip install 'spark-lance[duckdb]'") from None


class _Table:
    """A table that DuckDB reads as a stream of Arrow batches, from the start each time it asks."""

    def __init__(self, dataset: LanceDataset, columns: list[str]) -> None:
        self._dataset = dataset
        self._columns = columns

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a new stream of the columns."""
        schema = pa.schema([self._dataset.schema.field(name) for name in self._columns])
        batches = self._dataset.to_batches(self._columns)
        return pa.RecordBatchReader.from_batches(schema, batches).__arrow_c_stream__(requested_schema)


def _named_columns(query: str, dataset: LanceDataset) -> list[str]:
    """Return the columns of a table that a query may need: all, unless its text names those that it needs.

    A name that means something else in the query costs a column that is read for nothing, never an answer.
    """
    names = [field.name for field in dataset.schema]
    try:
        trees = sqlglot.parse(query, read="duckdb")
    except SqlglotError:
        return names
    nodes = [node for tree in trees if tree is not None for node in tree.walk()]
    if not all(isinstance(tree, exp.Select) for tree in trees) or any(map(_means_all, nodes)):
        return names
    tables = {
        node.alias_or_name.lower() for node in nodes if isinstance(node, (exp.Table, exp.CTE, exp.Subquery))
    }
    if any(isinstance(node, exp.Column) and node.name.lower() in {_VIEW, *tables} for node in nodes):
        return names
    # Any word of the query may be a column, whatever this grammar takes it for.
    words = {node.name.lower() for node in nodes if isinstance(node, exp.Identifier)}
    return [name for name in names if name.lower() in words] or names[:1]


def _means_all(node: Any) -> bool:
    """Whether a part of a query may stand for columns that it does not name."""
    if isinstance(node, exp.Star):
        return not isinstance(node.parent, exp.Count)
    if isinstance(node, exp.Select):
        return not node.expressions
    if isinstance(node, exp.Join):
        return node.method.upper() == "NATURAL"
    return isinstance(node, (exp.Columns, exp.Anonymous, exp.Pivot, exp.Command, exp.Describe, exp.Summarize))
