"""`TableBase`, the base class of `LanceTable` and its parts, and the reads that row changes need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.spelling import SpellingHintMixin
from spark_lance.errors import OptionTypeError
from spark_lance.io.store import open_store
from spark_lance.spark.driver.arguments import check_running, check_session
from spark_lance.spark.options.option_fields import WriteOptions
from spark_lance.spark.options.options import write_options
from spark_lance.spark.table.constraints import evaluate_with
from spark_lance.spark.table.expressions import Expression, columns_option, needed_columns
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.system_columns import ROW_ADDRESS, SYSTEM_COLUMNS
from spark_lance.table.versions.versions import load_latest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class TableBase(SpellingHintMixin):
    """A table in a Spark session.

    Attributes:
        spark: the session, classic or Spark Connect.
        path: path or URI of the table.
        options: data source options for every read and write, such as storage options.
        aliased: the table's alias in conditions and expressions, or None.
    """

    spark: SparkSession
    path: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    aliased: str | None = None

    def __post_init__(self) -> None:
        """Check the session and the path.

        Raises:
            OptionTypeError: one of them has the wrong type, such as when the two are swapped.
        """
        check_session(self.spark, "LanceTable.forPath(spark, path)")
        if not isinstance(self.path, str):
            raise OptionTypeError(f"the path of a table is text, not {type(self.path).__name__}")
        evaluate_with(self.spark)

    @property
    def writeOptions(self) -> WriteOptions:
        """The options of the table, parsed."""
        return write_options({**self.options, "path": self.path})

    def dataset(self) -> LanceDataset:
        """Open the newest version in this process.

        Raises:
            TableNotFoundError: there is no table.
            OptionError: the session has been stopped.
        """
        check_running(self.spark)
        parsed = self.writeOptions
        table = TableRef(*open_store(parsed.path, parsed.storage))
        return LanceDataset(parsed.path, table, load_latest(table))

    def read(self, **options: object) -> DataFrame:
        """Return a DataFrame of the table, read with further options."""
        check_running(self.spark)
        reader = self.spark.read.format("lance").options(**self.options)
        return reader.options(**{name: str(value) for name, value in options.items()}).load(self.path)


# Tables with at least this many fragments or rows shuffle changed rows before writing them. Otherwise every
# task of a large scan could write a small file.
_MANY_FRAGMENTS = 64
_MANY_ROWS = 1 << 25
_FRAGMENT = "__lance_fragment"


def _return_unchanged(frame: DataFrame) -> DataFrame:
    """Return the frame unchanged."""
    return frame


@dataclass(frozen=True)
class SubqueryColumns:
    """Functions that add columns to frames, for expressions that use more than the stored columns.

    Attributes:
        add_to_rows: adds the columns that a row of the table determines.
        add_to_pairs: adds the columns that only a joined pair of a table row and a source row determines.
    """

    add_to_rows: Callable[[DataFrame], DataFrame] = _return_unchanged
    add_to_pairs: Callable[[DataFrame], DataFrame] = _return_unchanged


NO_SUBQUERIES = SubqueryColumns()


def read_needed(
    table: TableBase, manifest: Manifest, expressions: list[Expression], condition: str | None = None
) -> DataFrame:
    """Return a version's row addresses with the columns that expressions need, under the table's alias.

    Args:
        table: the table.
        manifest: the version.
        expressions: the expressions that the caller computes.
        condition: a condition in the syntax of the read option `filter`; None for all rows.
    """
    existing = [field.name for field in manifest.schema.fields]
    system = [name for name in SYSTEM_COLUMNS if name not in existing]
    names = needed_columns([*existing, *system], expressions, table.aliased)
    if len(names) == len(existing) + len(system):
        names = existing
    columns = list(dict.fromkeys([*names, ROW_ADDRESS]))
    only = {} if condition is None else {"filter": condition}
    frame = table.read(version=manifest.version, columns=columns_option(columns), **only)
    return frame if table.aliased is None else frame.alias(table.aliased)


def few_partitions(frame: DataFrame, manifest: Manifest, functions: Any) -> DataFrame:
    """Return the changed rows clustered by fragment, in partitions sized by their bytes.

    A frame over a small table is returned unchanged. The frame has the columns of `ChangeRows`, `action` and
    `address` first.
    """
    rows = sum(fragment.physical_rows for fragment in manifest.fragments)
    if len(manifest.fragments) < _MANY_FRAGMENTS and rows < _MANY_ROWS:
        return frame
    number = functions.shiftright(functions.col("address"), 32)
    gathered = frame.withColumn(_FRAGMENT, number).hint("rebalance", functions.col(_FRAGMENT))
    return gathered.sortWithinPartitions("action", "address").drop(_FRAGMENT)
