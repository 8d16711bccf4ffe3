"""One task of a compaction: a group of fragments rewritten to new files, with all that belongs to their rows.

Nothing is committed here, and no manifest is read. Before a task is done its rows are counted: those that are
there, those that were read, and those that were written. (Lance table format, compaction.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.io.progress import report
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.deletion import keep_mask, read_deletions
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.indices.fragment_reuse import pack_addresses
from spark_lance.table.maintenance.compact_plan import CompactionOptions
from spark_lance.table.reading.blob_values import blob_values
from spark_lance.table.reading.fragment import physical_rows
from spark_lance.table.reading.lineage import (
    LINEAGE_COLUMNS,
    Lineage,
    fragment_lineage,
    give_lineage,
    mark_spilled,
    with_lineage,
)
from spark_lance.table.reading.pieces import in_batches
from spark_lance.table.reading.row_lookup import by_blob_bytes
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.small_fragments import read_tasks
from spark_lance.table.writing.write import delete_fragment_files, write_fragments

__all__ = ["CompactionMetrics", "CompactionTask", "RewriteResult"]

# Bytes of blobs that are copied at a time.
_BLOB_BYTES = 16 << 20
# Bytes of other rows with lineage that are read at a time.
_TABLE_BYTES = 32 << 20
# Rows of a batch if only its bytes count.
_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class CompactionMetrics:
    """The metrics of a compaction.

    Attributes:
        fragments_removed, fragments_added: old fragments that were rewritten, and new ones.
        files_removed: data files and deletion files that the table no longer uses.
        files_added: new data files.
    """

    fragments_removed: int = 0
    fragments_added: int = 0
    files_removed: int = 0
    files_added: int = 0

    def __add__(self, other: CompactionMetrics) -> CompactionMetrics:
        return CompactionMetrics(
            self.fragments_removed + other.fragments_removed,
            self.fragments_added + other.fragments_added,
            self.files_removed + other.files_removed,
            self.files_added + other.files_added,
        )


@dataclass(frozen=True)
class RewriteResult:
    """The output of a task. Can be pickled.

    Attributes:
        read_version: the version that was read.
        old, new: the serialized DataFragments that are removed, and those that are added, of id 0.
        moved: the treemap of the old addresses of all rows; empty if the plan does not need it.
        deferred: whether the moves are recorded in the table; otherwise indices are rewritten.
    """

    read_version: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    moved: bytes = b""
    deferred: bool = False

    @cached_property
    def old_fragments(self) -> list[table_pb2.DataFragment]:
        """The fragments that were rewritten."""
        return [table_pb2.DataFragment.FromString(data) for data in self.old]

    @cached_property
    def new_fragments(self) -> list[table_pb2.DataFragment]:
        """The fragments that take their place."""
        return [table_pb2.DataFragment.FromString(data) for data in self.new]

    @property
    def metrics(self) -> CompactionMetrics:
        """The metrics of this result."""
        old, new = self.old_fragments, self.new_fragments
        gone = sum(len(f.files) + f.HasField("deletion_file") for f in old)
        return CompactionMetrics(len(old), len(new), gone, sum(len(f.files) for f in new))


@dataclass(frozen=True)
class CompactionTask(OfTable):
    """A group of fragments to rewrite. Can be pickled; reads no manifest.

    Attributes:
        table: the table.
        read_version: the version that is read.
        old: its serialized DataFragments that are rewritten.
        schema: its schema.
        version: version of the new files.
        rows_per_file: rows of a new file.
        options: how the table is compacted.
        bases: where the files are.
        stable_row_ids: whether rows have ids.
        tracks_moves: whether to record the addresses of the rows.
        spills: whether row ids and versions are written to the new data files, not to the manifest.
    """

    table: TableRef
    read_version: int
    old: tuple[bytes, ...]
    schema: Schema
    version: FileVersion
    rows_per_file: int
    options: CompactionOptions
    bases: Bases
    stable_row_ids: bool
    tracks_moves: bool
    spills: bool = False

    @property
    def fragments(self) -> list[table_pb2.DataFragment]:
        """The fragments to rewrite."""
        return [table_pb2.DataFragment.FromString(data) for data in self.old]

    @property
    def rows(self) -> int:
        """Rows that are not deleted, as the manifest counts them."""
        return sum(f.physical_rows - f.deletion_file.num_deleted_rows for f in self.fragments)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the data files to be rewritten, as far as the manifest knows them."""
        return sum(file.file_size_bytes for fragment in self.fragments for file in fragment.files)

    def execute(self, dataset: object = None) -> RewriteResult:  # noqa: ARG002 (pylance's signature)
        """Write the new files; nothing is committed.

        Args:
            dataset: not needed; taken because pylance's tasks need it.

        Raises:
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported, or rows got lost.
            OSError: the store failed. Files written before an error are deleted.
        """
        count = _Counted(self._tables(), self.rows)
        new = write_fragments(
            count.batches(self.options.batch_size),
            self.table,
            with_lineage(self.schema) if self.spills else self.schema,
            version=self.version,
            max_rows_per_file=self.rows_per_file,
            max_bytes_per_file=self.options.max_bytes_per_file,
        )
        try:
            return self._account([table_pb2.DataFragment.FromString(data) for data in new], count.rows)
        except BaseException:
            delete_fragment_files(self.table, new)
            raise

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the rows of the fragments in order."""
        names = tuple(top.name for top in self.schema.fields)
        if self.spills:
            names += tuple(column.name for column in LINEAGE_COLUMNS)
        described = tuple(top.described() for top in self.schema.fields)
        tasks = [
            ScanTask(self.table, names, described, data, self.stable_row_ids, self.bases) for data in self.old
        ]
        blobs = [(place, top) for place, top in enumerate(self.schema.fields) if top.is_blob]
        if blobs:
            return self._with_blobs(tasks, blobs)
        if self.spills:
            return chain.from_iterable(task.tables(_TABLE_BYTES) for task in tasks)
        return read_tasks(tasks)

    def _with_blobs(
        self, tasks: Iterable[ScanTask], blobs: Sequence[tuple[int, Field]]
    ) -> Iterator[pa.Table]:
        """Yield the rows of tasks with the bytes of their blobs, some of these at a time."""
        for task in tasks:
            for table in task.tables(_BLOB_BYTES):
                for part in by_blob_bytes(table, blobs, _BLOB_BYTES):
                    rows = table.slice(part.start, part.stop - part.start)
                    for place, top in blobs:
                        values = blob_values(self.bases, top, rows.column(place), task.message)
                        rows = rows.set_column(place, top.arrow_field(), values)
                    yield rows

    def _account(self, new: list[table_pb2.DataFragment], rows_read: int) -> RewriteResult:
        """Check the number of rows, add their lineage, and return the result."""
        old = self.fragments
        deleted = [
            read_deletions(self.store, self.root, fragment, self._rows(fragment), self.bases)
            for fragment in old
        ]
        live = sum(self._rows(f) - len(gone) for f, gone in zip(old, deleted, strict=True))
        written = sum(fragment.physical_rows for fragment in new)
        if not live == rows_read == written:
            raise FormatError(
                f"compaction would lose rows: {live} are there, {rows_read} were read, {written} written",
                path=self.root,
            )
        if self.spills:
            for fragment in new:
                mark_spilled(fragment)
        elif self.stable_row_ids:
            self._carry_lineage(old, deleted, new)
        moved = b""
        if self.tracks_moves:
            moved = pack_addresses(
                (fragment.id, self._rows(fragment), gone) for fragment, gone in zip(old, deleted, strict=True)
            )
        return RewriteResult(
            self.read_version,
            self.old,
            tuple(fragment.SerializeToString() for fragment in new),
            moved,
            self.options.defer_index_remap,
        )

    def _rows(self, fragment: table_pb2.DataFragment) -> int:
        return physical_rows(self.store, self.root, fragment, self.bases)

    def _carry_lineage(
        self,
        old: Sequence[table_pb2.DataFragment],
        deleted: Sequence[npt.NDArray[np.uint32]],
        new: Sequence[table_pb2.DataFragment],
    ) -> None:
        """Give the rows of the new fragments the ids and versions that they had."""
        parts: list[list[npt.NDArray[np.uint64]]] = [[], [], []]
        for fragment, gone in zip(old, deleted, strict=True):
            lineage: Lineage = fragment_lineage(self.table, fragment, self.bases)
            keep = keep_mask(gone, 0, fragment.physical_rows)
            for column, values in zip(parts, lineage, strict=True):
                assert values is not None
                column.append(values[keep])
        give_lineage(new, *(np.concatenate(column) for column in parts))


@dataclass
class _Counted:
    """Tables on their way to the writer, counted."""

    tables: Iterable[pa.Table]
    total: int
    rows: int = 0

    def batches(self, batch_size: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the tables as record batches."""
        for table in self.tables:
            self.rows += table.num_rows
            yield from in_batches([table], batch_size or _BATCH_ROWS)
            report("rewriting", self.rows, self.total, "rows")
