"""The base of every part of `LanceTable`: a session, a path and its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.spelling import OneSpelling
from spark_lance.errors import OptionTypeError
from spark_lance.io.store import open_store
from spark_lance.spark.driver.arguments import check_running, check_session
from spark_lance.spark.options.options import WriteOptions, write_options
from spark_lance.spark.table.constraints import evaluate_with
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.versions import load_latest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class TableBase(OneSpelling):
    """A table in a Spark session.

    Attributes:
        spark: the session, classic or of Spark Connect.
        path: where the table is.
        options: options of the data source for every read and write, such as those of the store.
        aliased: the table's name in conditions and expressions, None if it has none.
    """

    spark: SparkSession
    path: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    aliased: str | None = None

    def __post_init__(self) -> None:
        """Check the session and the path.

        Raises:
            OptionTypeError: one of them is something else, as when the two are swapped.
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
