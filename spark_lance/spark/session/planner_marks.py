"""Marks of the optimizer rule (`LancePruning`) for the reader of a scan that it has made.

Spark hands a reader nothing but the data source and a schema, so the rule writes into the metadata of the
first column:

    lance.planned.alone     true: the plan serves this scan only
    lance.planned.cores     how many tasks the session runs at a time
    lance.planned.limit     at most this many rows are used, in any order
    lance.planned.filters   how many conditions stand between the scan and that limit

A scan without columns has no marks. Nor does the schema that Spark sees of the scan.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyspark.sql.types as st

__all__ = ["PlannerMarks"]

_PREFIX = "lance.planned."


@dataclass(frozen=True)
class PlannerMarks:
    """The marks of a scan.

    Attributes:
        alone: the plan serves this scan only, so what reduces its rows need not suit others.
        cores: how many tasks the session runs at a time, if that is known.
        limit: the rows that are enough, if they are limited.
        filters: how many conditions the rows must meet before they count for the limit.
    """

    alone: bool = False
    cores: int | None = None
    limit: int | None = None
    filters: int = 0

    @classmethod
    def of(cls, schema: st.StructType) -> PlannerMarks:
        """Return the marks in a schema; none if the rule has not made it."""
        marks = schema.fields[0].metadata if schema.fields else {}
        names = ("cores", "limit", "filters")
        if not marks.get(f"{_PREFIX}alone"):
            return cls()
        return cls(True, **{name: marks[_PREFIX + name] for name in names if _PREFIX + name in marks})
