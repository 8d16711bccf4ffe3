"""Tables as datasets of Hugging Face. Needs the package datasets.

    rows = as_dataset(spark_lance.dataset(uri), columns=["text", "label"])       datasets.Dataset, in memory
    rows = as_iterable(spark_lance.dataset(uri), shards=8).shuffle(seed=1)       datasets.IterableDataset

The other way round, `spark_lance.write_dataset(rows, uri)` takes both kinds.
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
        filter: only rows for which this is true.

    Raises:
        SchemaError: a column does not exist.
    """
    batches = Batches(table, columns=columns, filter=filter)
    parts = [part for part, _ in batches.epoch()]
    return datasets.Dataset(pa.concat_tables(parts) if parts else batches.empty_table())


def as_iterable(
    table: LanceDataset, columns: Sequence[str] | None = None, filter: Any = None, *, shards: int = 1
) -> Any:
    """Return the rows of a version as a `datasets.IterableDataset`, which reads them as they are asked for.

    Args:
        table: the version.
        columns, filter: as for `as_dataset`.
        shards: parts that are read on their own, by the workers of a DataLoader for example.

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
    # Lists among the arguments are shared out; those of one worker come in this one.
    for shard, shards in parts:
        for table, _ in batches.epoch(0, shard, shards):
            yield from table.to_pylist()
