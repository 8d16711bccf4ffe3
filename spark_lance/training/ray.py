"""Ray Data datasets of tables. Requires the package ray[data].

    rows = as_ray(spark_lance.dataset(uri), columns=["text", "label"], shards=16)
    rows.map_batches(embed).write_parquet(target)

Ray tasks read the rows, so workers must be able to open the table's URI.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import ray.data

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError
from spark_lance.training.batches import Batches

_BATCH_ROWS = 8192


def as_ray(
    table: LanceDataset, columns: Sequence[str] | None = None, filter: Any = None, *, shards: int = 8
) -> Any:
    """Return the rows of a version as a `ray.data.Dataset`.

    Args:
        table: the version.
        columns: names of top-level columns; all by default. Blobs are read as bytes.
        filter: condition that rows must match.
        shards: number of parts; one task reads each part.

    Raises:
        OptionError: shards is below 1.
    """
    if shards < 1:
        raise OptionError("shards must be at least 1")
    batches = Batches(table, _BATCH_ROWS, columns, filter)
    parts = ray.data.range(shards, override_num_blocks=shards)
    return parts.map_batches(partial(_rows, batches, shards), batch_size=1, batch_format="pyarrow")


def _rows(batches: Batches, shards: int, parts: pa.Table) -> Iterator[pa.Table]:
    for shard in parts["id"].to_pylist():
        for table, _ in batches.epoch(0, shard, shards):
            yield table
