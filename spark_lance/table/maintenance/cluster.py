"""Cluster a table: replace fragments with new fragments that have the same rows in another order.

The caller sorts the rows. A writer gets rows in their new order with their system columns, and writes
fragments. All fragments are committed together as one Rewrite with one group. Before the commit, the number
of rows and a checksum of their addresses are checked, so that a faulty shuffle cannot lose or duplicate a
row.

Rows keep their stable ids and versions. In the new order, these can take up to 100 bytes per row in the
manifest of every later version. So they are stored in columns of the new data files if the table's config
says so (`lance.row_lineage.spill`), or by default if there are many rows. Without stable row ids, an index
contains row addresses. Fragment-reuse entries can only record moves that keep the order of rows. So indexes
no longer cover the rewritten rows. (Lance table format, rewrite.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.deletion import keep_mask
from spark_lance.table.format.features import check_writable
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import NO_PARTITIONS, PartitionSpec
from spark_lance.table.format.row_set import row_addresses
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.maintenance.compact_plan import CompactionOptions
from spark_lance.table.reading.lineage import (
    CREATED_AT,
    LINEAGE_COLUMNS,
    ROW_ID,
    SPILL,
    UPDATED_AT,
    give_lineage,
    mark_spilled,
    with_lineage,
)
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.scan_task import rebatch
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.reading.take import take_addresses
from spark_lance.table.versions.versions import load_version
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.write import write_fragments

# The digits in the names of data files whose rows a clustering put in order: "clustere" in ASCII.
CLUSTERED = b"clustere".hex()

# The most rows whose ids and versions are stored in the manifest, even in random order.
_MAX_INLINE_ROWS = 10_000

_HASH_FACTORS = tuple(
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_HASH_SHIFTS = tuple(np.uint64(bits) for bits in (30, 27, 31))

UInt64Array = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class ClusterPart:
    """The output of one writer. Can be pickled.

    Attributes:
        new: serialized DataFragments with id 0, in the order of their rows.
        rows: the number of rows.
        checksum: of the rows' old addresses, see `_address_checksum`.
    """

    new: tuple[bytes, ...]
    rows: int
    checksum: int


@dataclass(frozen=True)
class ClusterWriter(TableRefMixin):
    """Writes rows in the order of the input. Can be pickled.

    Attributes:
        table: the table.
        read_version: the version that is rewritten.
        schema: the table's schema.
        version: the version of the new files.
        rows_per_file, bytes_per_file: the limits of a new file.
        carried: the columns in the input, in this order; other columns are fetched by address.
        stable_row_ids: whether the input has row ids and row versions.
        spills: whether row ids and row versions are written to the data files.
        partitions: the partition spec by which files are split; the input is clustered by partition.
        marked: whether the names of the files say that their rows are clustered, see `is_clustered`.
    """

    table: TableRef
    read_version: int
    schema: Schema
    version: FileVersion
    rows_per_file: int
    bytes_per_file: int
    carried: tuple[str, ...]
    stable_row_ids: bool
    spills: bool = False
    partitions: PartitionSpec = NO_PARTITIONS
    marked: bool = False

    def write(self, batches: Iterable[pa.RecordBatch]) -> ClusterPart:
        """Write rows to new files.

        Args:
            batches: the columns `carried`, then the columns of `lineage_columns`, by position.

        Raises:
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported, or rows are
                missing.
            OSError: the store failed.
        """
        tally = _RowTally(keeps_lineage=self.stable_row_ids and not self.spills)
        new = write_fragments(
            self._align_batches(batches, tally),
            self.table,
            with_lineage(self.schema) if self.spills else self.schema,
            version=self.version,
            max_rows_per_file=self.rows_per_file,
            max_bytes_per_file=self.bytes_per_file,
            partitions=self.partitions,
            operation=CLUSTERED if self.marked else "",
        )
        fragments = [table_pb2.DataFragment.FromString(data) for data in new]
        rows_out = sum(fragment.physical_rows for fragment in fragments)
        if rows_out != tally.rows:
            raise FormatError(
                f"clustering would lose rows: {tally.rows} were read, {rows_out} were written", path=self.root
            )
        if self.spills:
            for fragment in fragments:
                mark_spilled(fragment)
        elif self.stable_row_ids:
            tally.give_lineage(fragments)
        return ClusterPart(tuple(f.SerializeToString() for f in fragments), tally.rows, tally.checksum)

    def _align_batches(self, batches: Iterable[pa.RecordBatch], tally: _RowTally) -> Iterator[pa.RecordBatch]:
        """Yield batches in the table's schema, and add their rows to the tally."""
        system = lineage_columns(self.stable_row_ids)
        fetched = [top.name for top in self.schema.fields if top.name not in self.carried]
        scan = None
        if fetched:
            manifest = load_version(self.table, self.read_version)
            scan = Snapshot(self.table, manifest).scan(fetched)
        aligner: Aligner | None = None
        for batch in batches:
            arrays = list(batch.columns)
            system_columns = dict(zip(system, arrays[len(self.carried) :], strict=True))
            numbers = {name: _unsigned(array) for name, array in system_columns.items()}
            tally.add_rows(numbers)
            columns: dict[str, Any] = dict(zip(self.carried, arrays, strict=False))
            if scan is not None:
                columns.update(self._fetch(scan, numbers[ROW_ADDRESS]))
            names = list(columns)
            for spilled in LINEAGE_COLUMNS if self.spills else ():
                columns[spilled.name] = pa.array(numbers[spilled.name])
            if aligner is None:
                aligner = Aligner(pa.table(columns).select(names).schema, self.schema)
            for part in rebatch([pa.table(columns)], max(1, batch.num_rows)):
                aligned = aligner.align(part.select(names))
                for spilled in LINEAGE_COLUMNS if self.spills else ():
                    aligned = aligned.append_column(spilled.arrow_field(), part[spilled.name])
                yield aligned

    def _fetch(self, scan: Scan, addresses: UInt64Array) -> dict[str, pa.ChunkedArray]:
        """Return the columns of a scan for the rows at addresses, in the order of the addresses."""
        rows = take_addresses(scan, addresses)
        if rows.num_rows != len(addresses):
            raise FormatError("clustering lost rows between two reads", path=self.root)
        return {name: rows[name] for name in scan.names}


def spills_lineage(manifest: Manifest, rows: int) -> bool:
    """Return whether the ids and versions of `rows` reordered rows are stored in data files."""
    setting = manifest.config.get(SPILL)
    return manifest.uses_stable_row_ids and (
        setting == "true" or (setting is None and rows > _MAX_INLINE_ROWS)
    )


def lineage_columns(stable_row_ids: bool) -> tuple[str, ...]:
    """Return the system columns that the input of `ClusterWriter.write` must have."""
    return (ROW_ADDRESS, ROW_ID, CREATED_AT, UPDATED_AT) if stable_row_ids else (ROW_ADDRESS,)


@dataclass
class _RowTally:
    """Counts the input rows, and collects the checksum of their addresses and their lineage."""

    keeps_lineage: bool
    rows: int = 0
    checksum: int = 0
    lineage: list[list[UInt64Array]] = field(default_factory=lambda: [[], [], []])

    def add_rows(self, numbers: dict[str, UInt64Array]) -> None:
        """Add the rows of a batch, by their system columns."""
        self.rows += len(numbers[ROW_ADDRESS])
        self.checksum = (self.checksum + _address_checksum(numbers[ROW_ADDRESS])) % 2**64
        if self.keeps_lineage:
            for parts, spilled in zip(self.lineage, LINEAGE_COLUMNS, strict=True):
                parts.append(numbers[spilled.name])

    def give_lineage(self, fragments: Sequence[table_pb2.DataFragment]) -> None:
        """Store the collected ids and versions in the messages of new fragments."""
        if not fragments:
            return
        give_lineage(fragments, *(np.concatenate(parts) for parts in self.lineage))


def is_clustered(fragment: table_pb2.DataFragment) -> bool:
    """Return whether the fragment's rows are in the order of a clustering.

    The mark is in the names of its data files, which never change. So it holds in clones and after RESTORE.
    """
    return any(CLUSTERED in file.path for file in fragment.files)


def unclustered(manifest: Manifest, options: CompactionOptions, task_bytes: int) -> set[int]:
    """Return the ids of the fragments that the next incremental clustering rewrites.

    These are the fragments that no clustering wrote. Small clustered fragments join them, so that many small
    clusterings do not leave many small files. Clustered fragments with many deleted rows are rewritten, too.

    Args:
        manifest: the version.
        options: the sizes of files and the share of deleted rows that may stay.
        task_bytes: the most bytes that a clustering writes into one file.
    """
    new: set[int] = set()
    small: set[int] = set()
    file_bytes = min(options.max_bytes_per_file, task_bytes)
    for fragment in manifest.fragments:
        if fragment.id in options.excluded_fragment_ids:
            continue
        deleted = fragment.deletion_file.num_deleted_rows
        stored_bytes = sum(file.file_size_bytes for file in fragment.files)
        threshold = options.materialize_deletions_threshold * fragment.physical_rows
        if not is_clustered(fragment) or (options.materialize_deletions and deleted > threshold):
            new.add(fragment.id)
        elif 2 * fragment.physical_rows < options.target_rows_per_fragment and 2 * stored_bytes < file_bytes:
            small.add(fragment.id)
    return new | small if new or len(small) > 1 else set()


def check_clusterable(manifest: Manifest) -> None:
    """Check that the rows of a version can be reordered.

    Raises:
        UnsupportedFormatError: it has blobs, or needs a feature that we cannot write.
    """
    check_writable(manifest.message, manifest.path)
    for top in manifest.schema.fields:
        if any(node.is_blob for node in top.walk()):
            raise UnsupportedFormatError(f"sorting the rows of a table with blobs (column {top.name!r})")


def check_parts(snapshot: Snapshot, old: Iterable[int], parts: Sequence[ClusterPart]) -> int:
    """Check that the new fragments have exactly the rows of the old fragments, and return their number.

    Args:
        snapshot: the version that was read.
        old: the ids of the old fragments.
        parts: the outputs of all writers.

    Raises:
        FormatError: a row is missing or duplicated.
    """
    old_fragments = frozenset(old)
    rows = checksum = 0
    for fragment in snapshot.fragments:
        if fragment.id not in old_fragments:
            continue
        row_count = snapshot.physical_rows(fragment)
        live = np.flatnonzero(keep_mask(snapshot.deletions(fragment), 0, row_count))
        rows += len(live)
        checksum = (checksum + _address_checksum(row_addresses(fragment.id, live))) % 2**64
    rows_written = sum(part.rows for part in parts)
    if rows_written != rows or sum(part.checksum for part in parts) % 2**64 != checksum:
        raise FormatError(
            f"clustering would lose rows: {rows} exist, {rows_written} were written, or not the same",
            path=snapshot.root,
        )
    return rows


def commit_parts(snapshot: Snapshot, old: Iterable[int], parts: Sequence[ClusterPart]) -> Manifest:
    """Replace the old fragments with the new ones, in the order of `parts`, and return the new version.

    Raises:
        RetryableConflictError: an old fragment was changed concurrently.
        CommitError: the commit failed; see its other subclasses.
    """
    old_fragments = frozenset(old)
    group = transaction_pb2.Transaction.Rewrite.RewriteGroup(
        old_fragments=[fragment for fragment in snapshot.fragments if fragment.id in old_fragments],
        new_fragments=[table_pb2.DataFragment.FromString(data) for part in parts for data in part.new],
    )
    operation = transaction_pb2.Transaction.Rewrite(groups=[group])
    return commit_operation(snapshot.table, operation, read_version=snapshot.version)


def _address_checksum(addresses: UInt64Array) -> int:
    """Return a checksum of addresses that does not depend on their order: the sum of their hashes."""
    with np.errstate(over="ignore"):
        mixed = addresses.astype(np.uint64) + _HASH_FACTORS[0]
        mixed = (mixed ^ (mixed >> _HASH_SHIFTS[0])) * _HASH_FACTORS[1]
        mixed = (mixed ^ (mixed >> _HASH_SHIFTS[1])) * _HASH_FACTORS[2]
        return int((mixed ^ (mixed >> _HASH_SHIFTS[2])).sum(dtype=np.uint64))


def _unsigned(array: pa.Array) -> UInt64Array:
    numbers: UInt64Array = array.to_numpy(zero_copy_only=False).astype(np.uint64)
    return numbers
