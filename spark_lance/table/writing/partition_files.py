"""Split the rows of a task where the partition changes, so that a file has the rows of one partition.

Small tasks (at most 10,000 rows and 8 MiB) write one file, whose name has the range of the partitions. One
file per partition would have only a handful of rows. Larger tasks start a new file for each partition, as
long as the rows are clustered, as Spark sends them to a partitioned table. If a partition occurs a second
time, the rows are not clustered, and the remaining rows go to files without bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.table.format.partition_bounds import bounds_of_rows, bounds_text, partition_key
from spark_lance.table.format.partitions import PartitionSpec

FEW_ROWS = 10_000
FEW_BYTES = 8 << 20


@dataclass
class PartitionCutter:
    """Splits batches where the partition changes.

    Attributes:
        spec: the partition spec, bound to the columns of the rows.
        places: the positions of the columns in the files, see `column_places`.
    """

    spec: PartitionSpec
    places: Mapping[str, int]
    _partition_keys: set[tuple[Any, ...]] = field(default_factory=set)
    _key: tuple[Any, ...] | None = None
    _is_clustered: bool = True

    def parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, str | None]]:
        """Yield (part of a batch, file name ending); the ending is None if the part continues a file."""
        source = iter(batches)
        first_batches: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in source:
            first_batches.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows > FEW_ROWS or size > FEW_BYTES:
                break
        else:
            yield from self._keep_together(first_batches)
            return
        for batch in first_batches:
            yield from self._split(batch)
        del first_batches
        for batch in source:
            yield from self._split(batch)

    def _values(self, batches: list[pa.RecordBatch]) -> pa.Table:
        names = [name for name in self.spec.sources() if name in batches[0].schema.names]
        columns = [pa.chunked_array([batch.column(name) for batch in batches]) for name in names]
        rows = pa.Table.from_arrays(columns, names=names) if names else pa.Table.from_batches(batches)
        return self.spec.values(rows)

    def _keep_together(self, batches: list[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, str | None]]:
        if not batches:
            return
        name: str | None = bounds_text(bounds_of_rows(self.spec, self._values(batches), self.places))
        for batch in batches:
            yield batch, name
            name = None

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, str | None]]:
        if not self._is_clustered or not batch.num_rows:
            yield batch, None
            return
        values = self._values([batch])
        starts = [0, *_find_borders(values).tolist()]
        for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            key = tuple(partition_key(column[start]) for column in values.columns)
            if key == self._key:
                yield batch.slice(start, stop - start), None
                continue
            if key in self._partition_keys:
                self._is_clustered = False
                yield batch.slice(start), ""
                return
            self._partition_keys.add(key)
            self._key = key
            bounds = bounds_of_rows(self.spec, values.slice(start, 1), self.places)
            yield batch.slice(start, stop - start), bounds_text(bounds)


def _find_borders(values: pa.Table) -> npt.NDArray[np.int64]:
    """Return the rows whose partition differs from the partition of the previous row."""
    changes = np.zeros(max(values.num_rows - 1, 0), np.bool_)
    for column in values.columns:
        encoded = column.combine_chunks()
        if pa.types.is_null(encoded.type):
            continue
        codes = encoded.dictionary_encode(null_encoding="encode").indices.to_numpy()
        changes |= codes[1:] != codes[:-1]
    borders: npt.NDArray[np.int64] = np.flatnonzero(changes) + 1
    return borders
