"""Functions that compute columns."""

from __future__ import annotations

from spark_lance.table.columns.new_columns import BatchUDF, batch_udf

__all__ = ["BatchUDF", "batch_udf"]
