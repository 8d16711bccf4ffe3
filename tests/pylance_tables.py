"""Writing and reading with pylance, whose own failures on odd tables are not what is tested."""

from __future__ import annotations

from typing import Any, NoReturn

import lance
import numpy as np
import pyarrow as pa
from hypothesis import reject

import spark_lance

__all__ = ["read_own", "read_theirs", "write_theirs"]

_MOST_PASSED_OVER = 0.1
_calls = {"all": 0, "passed over": 0}


def _pass_over(error: BaseException) -> NoReturn:
    """Reject the example, unless so many were that a test would look at too little."""
    _calls["passed over"] += 1
    if _calls["passed over"] > 5 + _MOST_PASSED_OVER * _calls["all"]:
        raise AssertionError(
            f"pylance failed on {_calls['passed over']} of {_calls['all']} tables"
        ) from error
    reject()


def _movable(batch: pa.RecordBatch) -> pa.RecordBatch:
    # Arrow reads beyond its buffers when it takes from slices of fixed-size lists of such lists.
    arrays = [pa.concat_arrays([column]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def write_theirs(table: pa.Table, path: str, **options: Any) -> None:
    """Write with pylance. Its own failures on odd but legal Arrow input are not what is tested here."""
    batches = [batch.take(pa.array(np.arange(batch.num_rows))) for batch in map(_movable, table.to_batches())]
    compact = pa.Table.from_batches(batches, schema=table.schema)
    _calls["all"] += 1
    try:
        lance.write_dataset(compact, path, **options)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        _pass_over(error)


def read_own(path: str, **arguments: Any) -> pa.Table:
    """Read with pylance what pylance wrote. What it cannot read itself is not what is tested here."""
    _calls["all"] += 1
    try:
        return lance.dataset(path).to_table(**arguments)
    except (pa.ArrowInvalid, OSError) as error:
        _pass_over(error)


def read_theirs(path: str, **arguments: Any) -> pa.Table:
    """Read with pylance what we wrote. Only what it cannot read of its own files either may fail."""
    try:
        return lance.dataset(path).to_table(**arguments)
    except (pa.ArrowInvalid, OSError):
        again = f"{path}.again"
        write_theirs(spark_lance.dataset(path).to_table(), again)
        read_own(again, **arguments)
        raise
