"""Routes of upserts: all rows of a shard go to one Spark task, so that the task can write its shards itself.

Spark sends a row to partition (Murmur3(x, seed 42) mod n, made positive) for a value x that it computes from
the row. For shards by bucket b, x is a number chosen so that Spark sends it to partition b mod n. For shards
by identity, x is the value itself; without shards there is one partition. So all rows of a shard are in one
partition. The task checks that: if Spark computed something else, the task fails before it writes.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import CommitError
from spark_lance.memwal.sharding import Router, hashes
from spark_lance.table.reading.snapshot import Snapshot

__all__ = ["Route", "check_partition"]

# Spark's seed where it sends rows to partitions.
_SEED = 42
# Types of Spark's whose values hash as those of the table's columns do.
_ALIKE: tuple[tuple[st.DataType, tuple[pa.DataType, ...]], ...] = (
    (st.BooleanType(), (pa.bool_(),)),
    (st.ByteType(), (pa.int8(),)),
    (st.ShortType(), (pa.int16(),)),
    (st.IntegerType(), (pa.int32(),)),
    (st.LongType(), (pa.int64(),)),
    (st.DateType(), (pa.date32(),)),
    (st.StringType(), (pa.string(), pa.large_string())),
)


@dataclass(frozen=True)
class Route:
    """How the rows of one micro-batch come to the shards.

    Attributes:
        epoch: the number of the micro-batch.
        partitions: how many tasks there are.
        column: the place, in the rows, of the column that tells the shard; None without.
        values: for each bucket the number by which Spark sends its rows; none for other shards.
        shards: those that are there, by their value.
    """

    epoch: int
    partitions: int
    column: int | None = None
    values: tuple[int, ...] = ()
    shards: Mapping[bytes, uuid.UUID] = field(default_factory=dict)

    @classmethod
    def plan(
        cls,
        snapshot: Snapshot,
        router: Router,
        names: tuple[str, ...],
        rows: st.StructType,
        epoch: int,
        most: int,
    ) -> Route | None:
        """Return the route of a micro-batch; None if Spark hashes the column in another way.

        Args:
            snapshot, router: the table.
            names: the table's name of each column of the rows.
            rows: their schema.
            epoch: the number of the micro-batch.
            most: tasks at most.
        """
        shards = router.shards(snapshot.store, snapshot.root)
        if router.transform == "unsharded":
            return cls(epoch, 1, shards=shards)
        if router.column not in names:
            return None
        place = names.index(router.column)
        stored = snapshot.schema.field(router.column).arrow_type()
        if not any(rows[place].dataType == kind and stored in alike for kind, alike in _ALIKE):
            return None
        if router.transform == "identity":
            return cls(epoch, max(1, most), place, shards=shards)
        count = max(1, min(most, router.num_buckets))
        numbers = _numbers(count)
        values = tuple(numbers[bucket % count] for bucket in range(router.num_buckets))
        return cls(epoch, count, place, values, shards)

    def described(self) -> dict[str, Any]:
        """Return what Java has to know to send the rows."""
        return {"partitions": self.partitions, "column": self.column, "values": list(self.values)}


def _numbers(count: int) -> list[int]:
    """Return for each of so many partitions the least number that Spark sends there."""
    tried = 32 * count + 256
    while True:
        partitions = _partitions(pa.array(np.arange(tried, dtype=np.int32)), count)
        numbers, firsts = np.unique(partitions, return_index=True)
        if len(numbers) == count:
            return [int(first) for first in firsts]
        tried *= 2


def _partitions(values: pa.Array, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the partition of every value, of so many, that Spark sends it to."""
    signed = hashes(values, _SEED).view(np.int32).astype(np.int64)
    numbers: np.ndarray[Any, np.dtype[np.int64]] = signed % count
    return numbers


def check_partition(route: Route, router: Router, rows: pa.Table, partition: int) -> None:
    """Make sure that rows of a task are of shards that no other task has rows of.

    Args:
        route, router: by which the rows were sent.
        rows: in the types of the table.
        partition: the number of the task's partition.

    Raises:
        CommitError: they are not.
    """
    if not rows.num_rows:
        return
    if route.values:
        right = one_array(router.values(rows)).to_numpy() % route.partitions
    else:
        right = _partitions(one_array(router.values(rows)), route.partitions)
    if bool((right != partition).any()):
        raise CommitError(
            f"rows of a shard came to task {partition}, which is that of another: nothing of this task was "
            "written; this is a bug. spark.lance.planInDriver=false writes in another way"
        )
