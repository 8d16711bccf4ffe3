"""Packs the fragments of a version into the input partitions of a scan.

A partition is the input of one Spark task: either fragments with about `partition_bytes` of data to read in
total, or a row range of a larger fragment. The reader carries the data that all tasks share. A partition has
little more than the messages of its fragments.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from spark_lance.file.base.schema import Field, Schema
from spark_lance.spark.worker.read import LancePartition, TaskFragment, live_rows
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.system_columns import SYSTEM_COLUMNS

# As for Spark's own file sources: the largest size of a partition, and the smallest unless data is scarce.
_MAX_PARTITION_BYTES = 128 << 20
_MIN_PARTITION_BYTES = 4 << 20
# The fixed cost of a fragment, so that many tiny fragments are also spread over several tasks.
_FRAGMENT_BYTES = 64 << 10
_SYSTEM_BYTES = 8
# The least memory that Spark uses for a row.
ROW_HEADER_BYTES = 8
# A fragment is not split into smaller row ranges than this.
_MIN_ROWS = 4096
# Rows without columns per task, if there are cores for more tasks.
_ROWS_WITHOUT_COLUMNS = 1 << 26

T = TypeVar("T")


def pack(
    items: Sequence[T],
    count_rows: Callable[[T], int],
    find_span: Callable[[T], tuple[int, int] | None],
    cut: Callable[[T, tuple[int, int]], T],
    width: float,
    partition_bytes: int | None = None,
    *,
    cores: int | None = None,
) -> list[tuple[T, ...]]:
    """Pack items of work into partitions in their order, and split items that are too large.

    Args:
        items: the work, each item on one fragment.
        count_rows: returns the number of rows that an item reads.
        find_span: returns the row range [start, stop) that an item scans in its fragment; None if the item
            cannot be split. Called only for items larger than a partition.
        cut: returns the item for a part of this row range.
        width: bytes of one row of the scan, see `row_bytes`.
        partition_bytes: approximate largest size of a partition. By default every core gets some work.
        cores: number of tasks that run at a time. By default the cores of this machine.

    Returns:
        The items of each partition.
    """

    def pieces(item: T, rows: int, limit: float) -> list[tuple[T, int]]:
        times = _cost(rows, width) / limit
        span = find_span(item) if times > 1 else None
        first, last = span or (0, 0)
        count = min(math.ceil(times), (last - first) // _MIN_ROWS)
        if count < 2:
            return [(item, rows)]
        bounds = [first + (last - first) * i // count for i in range(count + 1)]
        return [
            (cut(item, (start, stop)), rows * (stop - start) // (last - first))
            for start, stop in itertools.pairwise(bounds)
        ]

    item_rows = [(item, count_rows(item)) for item in items]
    limit = partition_bytes or _limit(sum(_cost(rows, width) for _, rows in item_rows), cores)
    partitions: list[list[T]] = []
    room = 0.0
    for piece, piece_rows in (pair for item, rows in item_rows for pair in pieces(item, rows, limit)):
        cost = _cost(piece_rows, width)
        if cost > room or not partitions:
            partitions.append([])
            room = limit
        partitions[-1].append(piece)
        room -= cost
    return [tuple(partition) for partition in partitions]


def pack_tasks(
    tasks: Sequence[ScanTask],
    width: float,
    partition_bytes: int | None = None,
    *,
    whole: bool = False,
    cores: int | None = None,
) -> list[LancePartition]:
    """Pack the fragments of a scan into partitions, see `pack`.

    Args:
        whole: do not split fragments.
    """

    def find_span(task: ScanTask) -> tuple[int, int] | None:
        if whole or task.selection is not None or not task.names:
            return None
        return task.span or (0, physical_rows(task.table, task.message, task.bases))

    def cut(task: ScanTask, span: tuple[int, int]) -> ScanTask:
        return replace(task, span=span)

    packed = pack(tasks, live_rows, find_span, cut, width, partition_bytes, cores=cores)
    return [LancePartition(tuple(map(TaskFragment.of, group))) for group in packed]


def split_row_count(rows: int, cores: int | None = None) -> list[LancePartition]:
    """Return partitions of `rows` rows without columns: one, or up to one per core for very many rows."""
    count = min(cores or os.cpu_count() or 1, math.ceil(rows / _ROWS_WITHOUT_COLUMNS))
    bounds = [rows * i // count for i in range(count + 1)] if count else []
    return [LancePartition((), stop - start) for start, stop in itertools.pairwise(bounds)]


def limit_tasks(tasks: Iterable[ScanTask], limit: int) -> Iterator[ScanTask]:
    """Yield the tasks with the first `limit` live rows, and with few other rows if no row is deleted."""
    for task in tasks:
        if limit <= 0:
            return
        rows = live_rows(task)
        if rows > limit and task.selection is None and not task.message.deletion_file.num_deleted_rows:
            start = task.span[0] if task.span else 0
            task = replace(task, span=(start, start + limit))
        if rows:
            yield task
        limit -= rows


def cut_tasks(tasks: Sequence[ScanTask], budget: int) -> tuple[list[ScanTask], bool]:
    """Return tasks that scan about the first `budget` rows, and whether these are all rows."""
    tasks_to_read: list[ScanTask] = []
    for task in tasks:
        rows = live_rows(task)
        if rows > budget:
            if task.selection is None and budget > 0:
                start = task.span[0] if task.span else 0
                tasks_to_read.append(replace(task, span=(start, start + budget)))
            return tasks_to_read, False
        tasks_to_read.append(task)
        budget -= rows
    return tasks_to_read, True


def _cost(rows: int, width: float) -> float:
    return rows * width + _FRAGMENT_BYTES


def _limit(total: float, cores: int | None) -> float:
    return min(_MAX_PARTITION_BYTES, max(_MIN_PARTITION_BYTES, total / (cores or os.cpu_count() or 1)))


def row_bytes(
    table: Schema, tasks: Sequence[ScanTask], names: Iterable[str], fields: Iterable[Field]
) -> float:
    """Estimate the bytes of one row of some columns, from types and from the sizes of the data files.

    The file bytes that fixed-width columns do not account for are split evenly among the other columns.

    Args:
        table: the table's schema.
        tasks: the fragments of the scan.
        names: the columns, including system columns.
        fields: the table's fields among the columns.
    """
    fields = list(fields)
    width = float(_SYSTEM_BYTES * sum(name in SYSTEM_COLUMNS for name in names))
    width += sum(_fixed_bytes(field) or 0.0 for field in fields)
    variable_count = sum(_fixed_bytes(field) is None for field in fields)
    if variable_count:
        rows = byte_count = 0
        for task in tasks:
            rows += task.message.physical_rows
            byte_count += sum(file.file_size_bytes for file in task.message.files)
        all_fixed = sum(_fixed_bytes(field) or 0.0 for field in table.fields)
        all_variable_count = sum(_fixed_bytes(field) is None for field in table.fields)
        # Compressed text grows when it is read.
        share = max(16.0, 2 * (byte_count / max(rows, 1) - all_fixed) / all_variable_count)
        width += variable_count * share
    return width


def _fixed_bytes(field: Field) -> float | None:
    """Return the width of a field's values in bytes; None if it is not fixed."""
    return _width(field.arrow_type())


def _width(kind: pa.DataType) -> float | None:
    if pa.types.is_fixed_size_list(kind):
        item = _width(kind.value_type)
        return None if item is None else item * kind.list_size
    if pa.types.is_struct(kind):
        parts = [_width(kind.field(i).type) for i in range(kind.num_fields)]
        return None if None in parts else sum(part for part in parts if part is not None)
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return None
