"""`batch_udf`: functions of batches that make columns."""

from __future__ import annotations

from spark_lance.datasets.spelling import both_spellings
from spark_lance.table.columns import new_columns

__all__ = ["batch_udf"]

batch_udf = both_spellings(new_columns.batch_udf)
