"""The partitions of a vector index, one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.errors import IndexNotFoundError, OptionError, RowNotFoundError
from spark_lance.index.entries import Segment, segments_of
from spark_lance.index.vector.create import open_segment
from spark_lance.index.vector.kinds import VECTOR_LABEL, VECTOR_NEWEST
from spark_lance.table.index_kinds import label_of

__all__ = ["VectorIndexReader"]


@raises_os_errors
class VectorIndexReader:
    """Reads a vector index by partition, all its segments together.

    Args:
        dataset: the dataset.
        index_name: of the index.

    Raises:
        OptionError: it is no vector index.
        IndexNotFoundError: there is none of the name.
    """

    def __init__(self, dataset: Any, index_name: str) -> None:
        value = dataset.value
        entries = [entry for entry in value.manifest.indices if entry.name == index_name]
        if not entries:
            raise IndexNotFoundError(f"there is no index {index_name!r}")
        if any(label_of(entry) != VECTOR_LABEL for entry in entries):
            raise OptionError(f"{index_name} is not vector index")
        segments: Iterable[Segment] = segments_of(value.snapshot, VECTOR_LABEL, VECTOR_NEWEST)
        self._segments = [open_segment(segment) for segment in segments if segment.name == index_name]

    def num_partitions(self) -> int:
        """Return the number of partitions; segments that were trained apart count one after the other."""
        return max((len(segment.lengths) for segment in self._segments), default=0)

    def read_partition(self, partition_id: int, *, with_vector: bool = False) -> pa.Table:
        """Return the row ids of a partition, and with `with_vector` its codes as they are stored.

        Raises:
            RowNotFoundError: there is no such partition.
        """
        if not 0 <= partition_id < self.num_partitions():
            raise RowNotFoundError(f"partition {partition_id} is out of range: {self.num_partitions()}")
        parts = []
        for segment in self._segments:
            if partition_id >= len(segment.lengths):
                continue
            partition = segment.partition(partition_id)
            columns = {"_rowid": pa.array(partition.row_ids, pa.uint64())}
            if with_vector:
                columns |= {name: _as_arrow(np.asarray(codes)) for name, codes in partition.codes.items()}
            parts.append(pa.table(columns))
        return pa.concat_tables(parts)


def _as_arrow(values: np.ndarray[Any, Any]) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
