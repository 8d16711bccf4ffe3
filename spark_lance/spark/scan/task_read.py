"""What a Spark task runs for a scan that the driver itself has planned.

Spark's own planner wraps a reader in a function of its own. This one is named by its module, so that it
pickles to a few bytes and not to its code.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    import pyspark.sql.types as st
    from pyspark.sql.datasource import DataSourceReader

__all__ = ["TaskRead", "pickled_read"]


@dataclass(frozen=True)
class TaskRead:
    """Reads a partition.

    Attributes:
        reader: a reader that yields record batches.
    """

    reader: DataSourceReader

    def batches(self, given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition that Spark hands over: one row with one column, its pickle."""
        for batch in given:
            yield from self.reader.read(pickle.loads(batch.column(0)[0].as_py()))


def pickled_read(reader: DataSourceReader, schema: st.StructType) -> tuple[bytes, list[bytes]]:
    """Return what Spark's reader of partitions takes: a pickled function, and pickled partitions."""
    # Without a partition, Spark runs one task without a value.
    partitions = list(reader.partitions()) or [InputPartition(None)]
    function = pickle.dumps((TaskRead(reader).batches, schema), protocol=pickle.HIGHEST_PROTOCOL)
    return function, [pickle.dumps(part, protocol=pickle.HIGHEST_PROTOCOL) for part in partitions]
