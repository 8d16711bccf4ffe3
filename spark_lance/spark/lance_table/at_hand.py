"""Row-level changes of rows that the driver already holds: they need no Spark job and no Python worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError

from spark_lance.file.blob_writer import has_blobs
from spark_lance.spark.jobs import gather, local_bytes
from spark_lance.spark.session.java_classes import java
from spark_lance.table.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["gather_changes", "whole_row_bytes"]

Answer = TypeVar("Answer")

_ROWS = "org.lance.spark.rowlevel.LanceAtHand"
# Size of a row in memory, as a multiple of its average size in files; and the size of its address.
_GROWTH, _ADDRESS_BYTES = 4, 16
_INT_MAX = 2**31 - 1


def gather_changes(
    frame: DataFrame,
    work: Callable[[Iterator[pa.RecordBatch]], Iterable[Answer]],
    row_bytes: float | None,
) -> list[Answer]:
    """Pass the rows of a frame to `work`, and return what it yielded.

    Like `gather`, but the driver does the work itself if Spark's plan already has the rows (for example,
    after an index lookup) and the work is small.

    Args:
        frame: the rows.
        work: see `gather`.
        row_bytes: about what the work for a row reads and writes; None if it may be anything.
    """
    most = 0 if row_bytes is None else int(local_bytes(frame.sparkSession) / (row_bytes + _ADDRESS_BYTES))
    rows = _at_hand(frame, most) if most else None
    if rows is None:
        return gather(frame, work)
    with pa.ipc.open_stream(rows) as batches:
        return list(work(iter(batches)))


def whole_row_bytes(manifest: Manifest) -> float | None:
    """Return about the bytes of a row of a version in memory; None if files do not tell."""
    rows = sum(fragment.physical_rows for fragment in manifest.fragments)
    sizes = [file.file_size_bytes for fragment in manifest.fragments for file in fragment.files]
    if not rows or not all(sizes) or any(map(has_blobs, manifest.schema.fields)):
        return None
    return _GROWTH * sum(sizes) / rows


def _at_hand(frame: Any, most: int) -> bytes | None:
    """Return a classic frame's rows as a stream of Arrow, if no job has to find them and they are few."""
    try:
        rows: bytes | None = java(frame.sparkSession._jvm, _ROWS).rows(frame._jdf, min(most, _INT_MAX))
        return rows
    except Py4JError:
        # The job reports what is wrong with the rows; or this release of Spark has no such class.
        return None
