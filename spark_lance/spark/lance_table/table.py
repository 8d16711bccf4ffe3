"""`LanceTable`, put together from its parts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_lance.errors import TableNotFoundError
from spark_lance.spark.lance_table.builder import TableBuilder, option_texts
from spark_lance.spark.lance_table.changing import Changing
from spark_lance.spark.lance_table.describing import Describing
from spark_lance.spark.lance_table.evolving import Evolving
from spark_lance.spark.lance_table.hybrid import HybridSearching
from spark_lance.spark.lance_table.indexing import Indexing
from spark_lance.spark.lance_table.maintaining import Maintaining
from spark_lance.spark.lance_table.merging import Merging
from spark_lance.spark.lance_table.upserting import Upserting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LanceTable"]


@dataclass(frozen=True)
class LanceTable(Describing, Changing, Merging, Evolving, Maintaining, Indexing, HybridSearching, Upserting):
    """A Lance table in a Spark session. Its methods change, evolve and maintain the table in Spark jobs.

    Create it with `forPath`. DataFrames do all work on rows, so a session of Spark Connect works as well.
    This process makes the commits, so it needs access to the table's store.
    """

    @classmethod
    def forPath(cls, spark: SparkSession, path: str | os.PathLike[str], **options: object) -> LanceTable:
        """Return the table at a path.

        Args:
            spark: the session, classic or of Spark Connect.
            path: where the table is.
            options: options of the data source for every read and write, such as those of the store;
                `storage={"key": ...}` stands for the options `storage.key`, .... With `branch` the table is
                that branch.

        Raises:
            TableNotFoundError: there is no table.
            OptionError: an option cannot be used.
        """
        branch = options.pop("branch", None)
        table = cls(spark, os.fspath(path) if isinstance(path, os.PathLike) else path, option_texts(options))
        table._dataset()
        return table if branch is None else table.branches.get(str(branch))  # type: ignore[return-value]

    @classmethod
    def isLanceTable(cls, spark: SparkSession, path: str | os.PathLike[str], **options: object) -> bool:
        """Whether there is a table at a path; arguments as for `forPath`."""
        try:
            cls.forPath(spark, path, **options)
        except TableNotFoundError:
            return False
        return True

    @classmethod
    def create(cls, spark: SparkSession, **options: object) -> TableBuilder[LanceTable]:
        """Begin to make an empty table where there is none.

        Args:
            spark: the session, classic or of Spark Connect.
            options: as for `forPath`; also `enable_stable_row_ids` and `data_storage_version`.
        """
        return TableBuilder(spark, "create", cls, option_texts(options))

    @classmethod
    def createIfNotExists(cls, spark: SparkSession, **options: object) -> TableBuilder[LanceTable]:
        """Begin to make an empty table, or to take the one that is there as it is; see `create`."""
        return TableBuilder(spark, "create_if_not_exists", cls, option_texts(options))

    @classmethod
    def replace(cls, spark: SparkSession, **options: object) -> TableBuilder[LanceTable]:
        """Begin to replace the columns and rows of a table by other columns and no rows; see `create`."""
        return TableBuilder(spark, "replace", cls, option_texts(options))

    @classmethod
    def createOrReplace(cls, spark: SparkSession, **options: object) -> TableBuilder[LanceTable]:
        """Begin to make an empty table, whether or not there is one; see `create` and `replace`."""
        return TableBuilder(spark, "create_or_replace", cls, option_texts(options))
