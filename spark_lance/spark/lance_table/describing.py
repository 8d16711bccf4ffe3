"""What a table is: its rows as a DataFrame, and who it is in a query."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from spark_lance.spark.lance_table.face import TableFace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Describing"]

_Same = TypeVar("_Same", bound="Describing")


class Describing(TableFace):
    """Looking at a table."""

    def toDF(self) -> DataFrame:
        """Return the rows of the newest version as a DataFrame, under the table's alias if it has one."""
        frame = self._read()
        return frame if self.aliased is None else frame.alias(self.aliased)

    def alias(self: _Same, aliasName: str) -> _Same:
        """Return the same table under a name for conditions and expressions, such as `t` in `t.id = s.id`."""
        return replace(self, aliased=aliasName)
