"""`LanceTable`, put together from its parts."""

from __future__ import annotations

from dataclasses import dataclass

from spark_lance.spark.lance_table.face import TableFace

__all__ = ["LanceTable"]


@dataclass(frozen=True)
class LanceTable(TableFace):
    """A Lance table in a Spark session: changed, evolved and looked after by Spark jobs.

    Made by `forPath`. All work on rows is done by DataFrames, so a session of Spark Connect does as well;
    commits are made by this process, which therefore needs access to the table's store.
    """
