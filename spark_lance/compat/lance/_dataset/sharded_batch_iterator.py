"""Batches of a dataset, split across ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_lance.compat.lance.dataset import LanceDataset
from spark_lance.errors import OptionError

__all__ = ["ShardedBatchIterator"]


class ShardedBatchIterator:
    """Iterates over the batches of one rank.

    Args:
        data: a dataset or its URI.
        rank, world_size: which share of how many.
        columns: as for `LanceDataset.scanner`.
        batch_size: rows of a batch.
        granularity: "fragment" gives whole fragments in turn, "batch" batches in turn; by default
            fragments, if there are at least as many as ranks.
        batch_readahead, with_row_id: as for `LanceDataset.scanner`.
    """

    def __init__(
        self,
        data: Any,
        rank: int,
        world_size: int,
        *,
        columns: Any = None,
        batch_size: int = 10240,
        granularity: str | None = None,
        batch_readahead: int = 8,
        with_row_id: bool = False,
    ) -> None:
        if granularity not in (None, "fragment", "batch"):
            raise OptionError(f"granularity is fragment or batch, not {granularity!r}")
        self._ds = data if isinstance(data, LanceDataset) else LanceDataset(data)
        self._rank, self._world_size = rank, world_size
        self._columns, self._batch_size, self._with_row_id = columns, batch_size, with_row_id
        fragments = len(self._ds.value.manifest.fragments)
        self._granularity = granularity or ("fragment" if fragments >= world_size else "batch")

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        options = {"columns": self._columns, "with_row_id": self._with_row_id, "batch_size": self._batch_size}
        if self._granularity == "fragment":
            for fragment in self._ds.get_fragments()[self._rank :: self._world_size]:
                yield from fragment.to_batches(**options)
            return
        total = self._ds.count_rows()
        step = self._world_size * self._batch_size
        for start in range(self._rank * self._batch_size, total, step):
            # As one batch, where it takes in the end of a fragment, too.
            rows = self._ds.to_table(**options, offset=start, limit=self._batch_size)
            yield from rows.combine_chunks().to_batches()
