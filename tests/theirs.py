"""Writing and reading with pylance, whose own failures on odd tables are not what is tested."""

from __future__ import annotations

from typing import Any

import lance
import numpy as np
import pyarrow as pa
from hypothesis import reject

import spark_lance

__all__ = ["read_own", "read_theirs", "write_theirs"]


def _movable(batch: pa.RecordBatch) -> pa.RecordBatch:
    # Arrow reads beyond its buffers when it takes from slices of fixed-size lists of such lists.
    arrays = [pa.concat_arrays([column]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def write_theirs(table: pa.Table, path: str, **options: Any) -> None:
    """Write with pylance. Its own failures on odd but legal Arrow input are not what is tested here."""
    batches = [batch.take(pa.array(np.arange(batch.num_rows))) for batch in map(_movable, table.to_batches())]
    compact = pa.Table.from_batches(batches, schema=table.schema)
    try:
        lance.write_dataset(compact, path, **options)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reject()


def read_own(path: str, **arguments: Any) -> pa.Table:
    """Read with pylance what pylance wrote. What it cannot read itself is not what is tested here."""
    try:
        return lance.dataset(path).to_table(**arguments)
    except (pa.ArrowInvalid, OSError):
        reject()


def read_theirs(path: str, **arguments: Any) -> pa.Table:
    """Read with pylance what we wrote. Only what it cannot read of its own files either may fail."""
    try:
        return lance.dataset(path).to_table(**arguments)
    except (pa.ArrowInvalid, OSError):
        again = f"{path}.again"
        write_theirs(spark_lance.dataset(path).to_table(), again)
        read_own(again, **arguments)
        raise
