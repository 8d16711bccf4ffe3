"""Samplers: they choose the rows of a training process, or random rows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from spark_lance.compat.lance.dataset import LanceDataset
from spark_lance.errors import OptionError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "FragmentSampler",
    "FullScanSampler",
    "Sampler",
    "ShardedBatchSampler",
    "ShardedFixedBatchSampler",
    "ShardedFragmentSampler",
    "maybe_sample",
    "reservoir_sampling",
]

T = TypeVar("T")


def reservoir_sampling(stream: Iterable[T], k: int) -> list[T]:
    """Return k random items of a stream. Every item has the same probability."""
    sample: list[T] = []
    for number, item in enumerate(stream):
        if number < k:
            sample.append(item)
        elif (place := random.randint(0, number)) < k:
            sample[place] = item
    return sample


def maybe_sample(
    dataset: Any,
    n: int,
    columns: list[str] | str,
    batch_size: int = 10240,
    max_takes: int = 2048,
    filt: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield n random rows in batches, or all rows if the dataset has at most n.

    Args:
        dataset: a dataset or its URI.
        n: the number of rows.
        columns: the columns to read.
        batch_size: the number of rows in a batch.
        max_takes: the number of runs to read. If it is below n, a run has several neighbouring rows.
        filt: a filter; only matching rows are sampled.
    """
    ds = dataset if isinstance(dataset, LanceDataset) else LanceDataset(dataset)
    names = [columns] if isinstance(columns, str) else list(columns)
    if filt is not None:
        rows = ds.to_table(names, filt)
        if rows.num_rows > n:
            rows = rows.take(pa.array(sorted(random.sample(range(rows.num_rows), n))))
        yield from rows.combine_chunks().to_batches(max_chunksize=batch_size)
        return
    total = ds.count_rows()
    if n >= total:
        yield from ds.to_batches(names, batch_size=batch_size)
        return
    run = max(1, -(-n // max(1, max_takes)))
    blocks = -(-total // run)
    # The last block of the table can have fewer rows, so one more block than usual can be needed.
    runs, missing = [], n
    for block in random.sample(range(blocks), min(blocks, -(-n // run) + 1)):
        first, stop = block * run, min((block + 1) * run, total)
        size = min(stop - first, missing)
        first += random.randint(0, stop - first - size)
        runs.append(np.arange(first, first + size))
        missing -= size
    positions = np.sort(np.concatenate(runs))
    for start in range(0, len(positions), batch_size):
        yield from ds.take(positions[start : start + batch_size], names).combine_chunks().to_batches()


class Sampler:
    """Yields the batches of one process when called with a dataset and scan arguments."""

    def __call__(
        self, ds: Any, *args: Any, batch_size: int = 128, columns: Any = None, **options: Any
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches."""
        raise NotImplementedError


class FragmentSampler(Sampler):
    """Yields the rows of the fragments from `iter_fragments`."""

    def __call__(
        self,
        ds: Any,
        *args: Any,
        batch_size: int = 128,
        columns: Any = None,
        filter: str | None = None,
        batch_readahead: int = 16,
        with_row_id: bool = False,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches."""
        for fragment in self.iter_fragments(ds, *args, **options):
            yield from fragment.to_batches(
                columns, batch_size=batch_size, filter=filter, with_row_id=with_row_id
            )

    def iter_fragments(self, ds: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Yield fragments."""
        raise NotImplementedError


class FullScanSampler(FragmentSampler):
    """Yields every row."""

    def iter_fragments(self, ds: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Yield all fragments."""
        yield from ds.get_fragments()


def _torch_rank() -> tuple[int, int]:
    distributed = import_module("torch.distributed")
    return distributed.get_rank(), distributed.get_world_size()


class _Ranked:
    """The base class of samplers of one rank."""

    def __init__(self, rank: int, world_size: int, randomize: bool = False, seed: int = 0) -> None:
        if not 0 <= rank < world_size:
            raise OptionError(f"rank {rank} is not below world_size {world_size}")
        self._rank, self._world_size = rank, world_size
        self._randomize, self._seed, self._epoch = randomize, seed, 0

    @classmethod
    def from_torch(cls, randomize: bool = False, seed: int = 0) -> Self:
        """Return the sampler of this process of torch.distributed."""
        return cls(*_torch_rank(), randomize, seed)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the shuffled order."""
        self._epoch = epoch

    def _shuffled(self, items: list[T]) -> list[T]:
        """Return the items in the order of this epoch, or unchanged if the sampler does not shuffle."""
        if self._randomize:
            items = list(items)
            random.Random(f"{self._seed}-{self._epoch}").shuffle(items)
        return items

    def _share(self, items: list[T]) -> list[T]:
        return self._shuffled(items)[self._rank :: self._world_size]


class ShardedFragmentSampler(_Ranked, FragmentSampler):
    """Yields every n-th fragment to a rank, in order or shuffled."""

    def iter_fragments(self, ds: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Yield the fragments of the rank."""
        yield from self._share(ds.get_fragments())


class ShardedBatchSampler(_Ranked, Sampler):
    """Yields every n-th batch to a rank, in order or shuffled."""

    def __call__(
        self,
        ds: Any,
        *args: Any,
        batch_size: int = 128,
        columns: Any = None,
        filter: str | None = None,
        batch_readahead: int = 16,
        with_row_id: bool = False,
        **_: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the rank. With a filter, they contain every n-th matching row."""
        if filter is not None:
            yield from self._filtered(ds, batch_size, columns, filter, with_row_id)
            return
        total = ds.count_rows()
        for start in self._share(list(range(0, total, batch_size))):
            # A batch that spans two fragments is still one batch.
            rows = ds.to_table(columns, offset=start, limit=batch_size, with_row_id=with_row_id)
            yield from rows.combine_chunks().to_batches()

    def _filtered(
        self, ds: Any, batch_size: int, columns: Any, filter: str, with_row_id: bool
    ) -> Iterator[pa.RecordBatch]:
        """Yield full batches of the rank's share of the matching rows."""
        row_ids = ds.to_table([], filter, with_row_id=True)["_rowid"].to_numpy()
        own = row_ids[self._rank :: self._world_size]
        for start in self._shuffled(list(range(0, len(own), batch_size))):
            ids = own[start : start + batch_size]
            rows = ds._take_rows(ids, columns)
            if with_row_id:
                rows = rows.append_column("_rowid", pa.array(ids, pa.uint64()))
            yield from rows.combine_chunks().to_batches()


class ShardedFixedBatchSampler(ShardedBatchSampler):
    """Yields lists of row numbers: each rank's share of the rows, split into batches of neighbours.

    When called with a dataset, it yields rows like its base class.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        randomize: bool = False,
        seed: int = 0,
        batch_size: int = 0,
        total_num_rows: int = 0,
    ) -> None:
        super().__init__(rank, world_size, randomize, seed)
        if batch_size < 0 or total_num_rows < 0 or (batch_size == 0) != (total_num_rows == 0):
            raise OptionError("batch_size and total_num_rows are both given, and at least 1")
        self._batch_size, self._rows = batch_size, total_num_rows

    @classmethod
    def from_torch(  # type: ignore[override]
        cls, batch_size: int, total_num_rows: int, randomize: bool = False, seed: int = 0
    ) -> ShardedFixedBatchSampler:
        """Return the sampler of this process of torch.distributed."""
        return cls(*_torch_rank(), randomize, seed, batch_size, total_num_rows)

    @property
    def _own(self) -> range:
        """Return the row numbers of this rank."""
        share = -(-self._rows // self._world_size)
        return range(min(self._rank * share, self._rows), min((self._rank + 1) * share, self._rows))

    def __len__(self) -> int:
        return -(-len(self._own) // self._batch_size) if self._rows else 0

    def __iter__(self) -> Iterator[list[int]]:
        for start in self._shuffled([first * self._batch_size for first in range(len(self))]):
            yield list(self._own[start : start + self._batch_size])
