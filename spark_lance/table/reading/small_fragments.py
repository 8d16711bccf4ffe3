"""Reading runs of small fragments: neighbours whose files hold the same columns are read as one.

Anything out of the ordinary (several files in a fragment, overlays, missing columns, files that cannot be
decoded together) is read fragment by fragment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from spark_lance.arrow.arrays import kept_rows
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.columns import owned_columns
from spark_lance.file.base.schema import Field
from spark_lance.file.base.version import FileVersion
from spark_lance.file.joined import JoinedFiles, can_join, open_whole
from spark_lance.proto import table_pb2
from spark_lance.table.format.data_files import column_numbers
from spark_lance.table.format.deletion import keep_mask, read_deletions
from spark_lance.table.reading.fragment import fixed_width
from spark_lance.table.reading.scan_task import ScanTask

__all__ = ["read_tasks"]

_WINDOW_BYTES = 32 << 20
# Fragments of more bytes than that are read one after the other, window by window.
_SMALL_BYTES = 2 << 20
# The limits of one joint read; the sizes are estimated before it.
_JOINED_FILES = 128
_JOINED_BYTES = 4 << 20
_JOINED_ARROW_BYTES = 16 << 20
_TEXT_BYTES = 32
# Runs of small fragments that are fetched ahead, to wait for several answers of the store at a time.
_AHEAD = 8

Run: TypeAlias = list[ScanTask]


def read_tasks(tasks: Sequence[ScanTask]) -> Iterator[pa.Table]:
    """Yield the live rows of tasks of one scan, in order; small fragments are read together and ahead.

    Args:
        tasks: with the same fields and no system columns.

    Raises:
        FormatError, UnsupportedFormatError: as `ScanTask.tables`.
    """
    if not tasks:
        return
    if tasks[0].store.is_local:
        for run in _runs(tasks):
            yield from _tables(run)
        return
    with ThreadPoolExecutor(_AHEAD) as pool:
        ahead: deque[Future[list[pa.Table]] | Run] = deque()
        for run in _runs(tasks):
            large = len(run) == 1 and _stored(run[0].message) >= _SMALL_BYTES
            ahead.append(run if large else pool.submit(_whole, run))
            if len(ahead) > _AHEAD:
                yield from _drawn(ahead.popleft())
        while ahead:
            yield from _drawn(ahead.popleft())


def _drawn(rows: Future[list[pa.Table]] | Run) -> Iterator[pa.Table]:
    return _tables(rows) if isinstance(rows, list) else iter(rows.result())


def _whole(run: Run) -> list[pa.Table]:
    return list(_tables(run))


def _stored(fragment: table_pb2.DataFragment) -> int:
    return sum(file.file_size_bytes or _SMALL_BYTES for file in fragment.files)


def _runs(tasks: Sequence[ScanTask]) -> Iterator[Run]:
    """Yield the tasks in order, those that can be read as one together."""
    fields = tasks[0].fields
    columns_by_version = {
        version: {owner.id for owner in owned_columns(fields, version)}
        for version in FileVersion
        if can_join(version, fields)
    }
    row_bytes = sum(_row_bytes(field) for field in fields)
    run: Run = []
    alike: object = None
    stored = arrow = 0
    for task in tasks:
        kind = _kind(task.message, columns_by_version)
        stored += _stored(task.message)
        arrow += int(row_bytes * task.message.physical_rows)
        full = len(run) >= _JOINED_FILES or stored > _JOINED_BYTES or arrow > _JOINED_ARROW_BYTES
        if run and (kind is None or kind != alike or full):
            yield run
            run = []
        if not run:
            stored, arrow = _stored(task.message), int(row_bytes * task.message.physical_rows)
        run.append(task)
        alike = kind
    if run:
        yield run


def _kind(fragment: table_pb2.DataFragment, columns_by_version: dict[FileVersion, set[int]]) -> object:
    """Return a key that is equal for fragments that are read as one; None if this one is read separately."""
    if len(fragment.files) != 1 or fragment.overlays or not fragment.physical_rows:
        return None
    (file,) = fragment.files
    version = FileVersion.from_manifest(file.file_major_version, file.file_minor_version)
    small = 0 < file.file_size_bytes < _SMALL_BYTES
    if (
        not small
        or version not in columns_by_version
        or not columns_by_version[version].issubset(file.fields)
    ):
        return None
    return version


def _row_bytes(field: Field) -> float:
    try:
        return fixed_width(field.arrow_type())
    except ValueError:
        return _TEXT_BYTES


def _tables(run: Run) -> Iterator[pa.Table]:
    try:
        joined = _read_joined(run) if len(run) > 1 else None
    except (FormatError, UnsupportedFormatError):
        joined = None  # the one that is to blame says so by itself, and the others can be read
    if joined is not None:
        yield joined
        return
    for task in run:
        yield from task.tables(_WINDOW_BYTES)


def _read_joined(run: Run) -> pa.Table:
    """Read several fragments as one."""
    files, keep = [], []
    for task in run:
        fragment = task.message
        (entry,) = fragment.files
        if task.bases is None:
            raise UnsupportedFormatError("fragments without base paths", task.root)
        store, path = task.bases.data_file(entry)
        columns = column_numbers(entry)
        try:
            file = open_whole(store, path, columns)
        except FileNotFoundError as error:
            raise FormatError("the manifest names a data file that does not exist", path) from error
        if file.num_rows != fragment.physical_rows or file.source.size != entry.file_size_bytes:
            raise FormatError("the file is not the one that the manifest describes", path)
        deleted = read_deletions(task.store, task.root, fragment, file.num_rows, task.bases)
        files.append(file)
        keep.append(keep_mask(deleted, 0, file.num_rows))
    joined = JoinedFiles(files)
    arrays = [joined.read(field) for field in run[0].fields]
    table = pa.Table.from_arrays(arrays, schema=run[0].arrow_schema)
    mask = np.concatenate(keep)
    return table if mask.all() else kept_rows(table, pa.array(mask))
