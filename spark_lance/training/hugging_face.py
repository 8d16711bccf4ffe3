"""Hugging Face datasets of tables. Requires the package datasets.

    rows = as_dataset(spark_lance.dataset(uri), columns=["text", "label"])       datasets.Dataset, in memory
    rows = as_iterable(spark_lance.dataset(uri), shards=8).shuffle(seed=1)       datasets.IterableDataset

`spark_lance.write_dataset(rows, uri)` writes both kinds to a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import pyarrow as pa

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError
from spark_lance.training.batches import Batches


def as_dataset(table: LanceDataset, columns: Sequence[str] | None = None, filter: Any = None) -> Any:
    """Return the rows of a version as a `datasets.Dataset` in memory.

    Args:
        table: the version.
        columns: names of top-level columns; all by default. Blobs are read as bytes.
        filter: condition that rows must match.

    Raises:
        SchemaError: a column does not exist.
    """
    batches = Batches(table, columns=columns, filter=filter)
    parts = [part for part, _ in batches.epoch()]
    return datasets.Dataset(pa.concat_tables(parts) if parts else batches.empty_table())


def as_iterable(
    table: LanceDataset, columns: Sequence[str] | None = None, filter: Any = None, *, shards: int = 1
) -> Any:
    """Return the rows of a version as a `datasets.IterableDataset`, which reads them on demand.

    Args:
        table: the version.
        columns, filter: see `as_dataset`.
        shards: number of parts that can be read separately, for example by DataLoader workers.

    Raises:
        OptionError: shards is below 1.
        SchemaError: a column does not exist.
    """
    if shards < 1:
        raise OptionError("shards must be at least 1")
    batches = Batches(table, columns=columns, filter=filter)
    return datasets.IterableDataset.from_generator(
        _rows,
        features=datasets.Features.from_arrow_schema(batches.empty_table().schema),
        gen_kwargs={"batches": batches, "parts": [(shard, shards) for shard in range(shards)]},
    )


def _rows(batches: Batches, parts: Sequence[tuple[int, int]]) -> Iterator[dict[str, Any]]:
    # Hugging Face splits list arguments across workers; `parts` has this worker's items.
    for shard, shards in parts:
        for table, _ in batches.epoch(0, shard, shards):
            yield from table.to_pylist()
