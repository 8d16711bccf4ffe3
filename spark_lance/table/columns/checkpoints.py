"""Checkpoints of computed columns, so that a failed run can resume.

The file is an SQLite database with one table:

    results   input: text, SHA-256 of the batch that the function got, with the addresses of its rows
              output: blob, its result, as an Arrow IPC stream

A result is used only for the same rows with the same values, so it is never stale.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from spark_lance.errors import FormatError, OptionError
from spark_lance.file.base.limits import check_arrow_stream, decoding
from spark_lance.table.columns.new_columns import Computation
from spark_lance.table.reading.system_columns import ROW_ADDRESS

__all__ = ["Checkpoints"]


class Checkpoints:
    """The kept results of one run.

    Args:
        path: of the file; made if it is missing.

    Raises:
        OptionError: the file is something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        try:
            with self._open() as database:
                database.execute("create table if not exists results (input text primary key, output blob)")
        except sqlite3.DatabaseError as error:
            raise OptionError(f"{path} is not a file of checkpoints: {error}") from error

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)

    def around(self, source: Computation) -> Computation:
        """Return a computation that calls its function only for results that have no checkpoint."""
        columns = tuple(dict.fromkeys([*source.columns, ROW_ADDRESS]))

        def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
            key = _digest(batch)
            return self._kept(key, lambda: source.compute(batch.select(list(source.columns))))

        return Computation(source.schema, columns, compute, any_order=False)

    def _kept(self, key: str, compute: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
        database = self._open()
        try:
            row = database.execute("select output from results where input = ?", (key,)).fetchone()
            if row is not None:
                return _unpacked(row[0], str(self._path))
            output = compute()
            with database:
                database.execute("insert or replace into results values (?, ?)", (key, _packed(output)))
            return output
        finally:
            database.close()

    def remove(self) -> None:
        """Delete the file: the run is complete."""
        self._path.unlink(missing_ok=True)


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _unpacked(data: object, path: str) -> pa.RecordBatch:
    with decoding(path):
        try:
            if not isinstance(data, bytes):
                raise FormatError(f"a result is stored as {type(data).__name__}, not as bytes")
            check_arrow_stream(data)
            with pa.ipc.open_stream(data) as reader:
                batch = reader.read_next_batch()
            batch.validate(full=True)
        except FormatError as error:
            raise error.at(path=path) from error
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise FormatError(f"a result of a function is damaged: {error}; delete the file", path) from error
        return batch


def _digest(batch: pa.RecordBatch) -> str:
    return hashlib.sha256(_packed(batch)).hexdigest()
