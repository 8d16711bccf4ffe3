"""`LanceTable`, put together from its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_lance.errors import TableNotFoundError
from spark_lance.spark.lance_table.describing import Describing
from spark_lance.spark.lance_table.maintaining import Maintaining

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LanceTable"]


@dataclass(frozen=True)
class LanceTable(Describing, Maintaining):
    """A Lance table in a Spark session: changed, evolved and looked after by Spark jobs.

    Made by `forPath`. All work on rows is done by DataFrames, so a session of Spark Connect does as well;
    commits are made by this process, which therefore needs access to the table's store.
    """

    @classmethod
    def forPath(cls, spark: SparkSession, path: str, **options: object) -> LanceTable:
        """Return the table at a path.

        Args:
            spark: the session, classic or of Spark Connect.
            path: where the table is.
            options: options of the data source for every read and write, such as those of the store;
                `storage={"key": ...}` stands for the options `storage.key`, ....

        Raises:
            TableNotFoundError: there is no table.
            OptionError: an option cannot be used.
        """
        found = cls(spark, path, _texts(options))
        found._dataset()
        return found

    @classmethod
    def isLanceTable(cls, spark: SparkSession, path: str, **options: object) -> bool:
        """Whether there is a table at a path; arguments as for `forPath`."""
        try:
            cls.forPath(spark, path, **options)
        except TableNotFoundError:
            return False
        return True


def _texts(options: dict[str, object]) -> dict[str, str]:
    """Return options as the data source takes them: text by name."""
    texts: dict[str, str] = {}
    for name, value in options.items():
        if isinstance(value, dict):
            texts.update({f"{name}.{key}": str(item) for key, item in value.items()})
        else:
            texts[name] = str(value)
    return texts
