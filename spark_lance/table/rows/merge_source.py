"""The source of a merge: small ones in memory, large ones in a temporary file that is mapped into memory.

A merge compares keys, which it holds, and then takes whole rows of the source in the order of the table. The
file is an Arrow IPC stream, whose batches are views of the mapped file: the system holds as much of it in
memory as it has room for. A merge that is run again, after another writer was first, reads the rows again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import join, pick_rows
from spark_lance.table.writing.align import Aligner

Int64Array = npt.NDArray[np.int64]

# Rows up to this size stay in memory.
SPILL_BYTES = 256 << 20


@dataclass(frozen=True)
class SourceRows:
    """Rows that can be read again and again.

    Attributes:
        schema: as they came.
        batches: the rows.
        spilled: whether they are in a file.
    """

    schema: pa.Schema
    batches: Sequence[pa.RecordBatch]
    spilled: bool = False

    @classmethod
    def of(cls, table: pa.Table) -> SourceRows:
        """Return the rows of a table."""
        return cls(table.schema, table.to_batches())


@contextmanager
def source_rows(reader: pa.RecordBatchReader, limit: int = SPILL_BYTES) -> Iterator[SourceRows]:
    """Lend the rows of a stream, which is drawn once; above `limit` bytes they go to a temporary file."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size > limit:
            break
    else:
        yield SourceRows(reader.schema, batches)
        return
    with tempfile.TemporaryDirectory(prefix="spark-lance-merge-") as folder:
        path = str(Path(folder) / "rows.arrows")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, reader.schema) as writer:
            while batches:
                writer.write_batch(batches.pop(0))
            for batch in reader:
                writer.write_batch(batch)
        with pa.memory_map(path) as mapped:
            yield SourceRows(reader.schema, list(pa.ipc.open_stream(mapped)), spilled=True)


class AlignedSource:
    """The rows of a source with the types of a table, and some of its columns in memory.

    Args:
        rows: the source.
        aligner: from the source to the table.
        names: the columns to hold.

    Attributes:
        held: these columns, each in one chunk.
        schema: of all columns.
        row_bytes: bytes of a row, on average.

    Raises:
        SchemaError: a value does not fit the table.
    """

    def __init__(self, rows: SourceRows, aligner: Aligner, names: Sequence[str]) -> None:
        self.schema = aligner.arrow_schema
        self._aligner, self._rows = aligner, rows
        parts, size = [], 0
        self._whole: pa.Table | None = None
        for batch in rows.batches:
            aligned = aligner.align(batch)
            size += aligned.nbytes
            parts.append(aligned.select(list(names)) if rows.spilled else aligned)
        if not rows.spilled:
            self._whole = _joined(pa.Table.from_batches(parts, self.schema))
            self.held = self._whole.select(list(names))
        else:
            self.held = _joined(
                pa.Table.from_batches(parts, pa.schema([self.schema.field(n) for n in names]))
            )
        self._ends = np.cumsum([batch.num_rows for batch in rows.batches], dtype=np.int64)
        self.row_bytes = size / max(1, self.held.num_rows)

    def pick(self, numbers: Int64Array) -> pa.Table:
        """Return whole rows by number, in that order."""
        if self._whole is not None:
            return pick_rows(self._whole, numbers)
        homes = np.searchsorted(self._ends, numbers, side="right")
        order = np.argsort(homes, kind="stable")
        cuts = np.flatnonzero(np.diff(homes[order])) + 1
        parts = [
            self._pick_of(int(homes[part[0]]), numbers[part]) for part in np.split(order, cuts) if len(part)
        ]
        if not parts:
            return self.schema.empty_table()
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pick_rows(pa.Table.from_batches(parts, self.schema), back)

    def _pick_of(self, home: int, numbers: Int64Array) -> pa.RecordBatch:
        """Return rows of one batch."""
        batch = self._rows.batches[home]
        first = int(self._ends[home]) - batch.num_rows
        picked = pick_rows(pa.Table.from_batches([batch]), numbers - first)
        (taken,) = picked.combine_chunks().to_batches()
        return self._aligner.align(taken)


def _joined(table: pa.Table) -> pa.Table:
    columns = [pa.chunked_array(join(c.chunks), c.type) for c in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)
