"""Add columns to a table: write one new data file per fragment, and do not touch existing files.

Each fragment's file is written once, even after conflicts with other writers: it is used again in the newest
version unless its input values have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import (
    IncompatibleConflictError,
    SchemaError,
    UnsupportedFormatError,
)
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.write.settings import check_storable
from spark_lance.io.retry import RetryPolicy
from spark_lance.proto import table_pb2
from spark_lance.table.columns.job_records import FragmentResult
from spark_lance.table.columns.new_columns import Computation, Stream
from spark_lance.table.commits.commit import CONFLICT_RETRIES, commit_operation, retry_operation
from spark_lance.table.commits.commit_rows import delete_on_failure
from spark_lance.table.commits.proposal import SYSTEM_ENV, CommitEnv
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import MEM_WAL
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.format.upkeep import log_errors
from spark_lance.table.operations.merge import merge_message
from spark_lance.table.reading.fragment_rows import rows_without_columns
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.schema.changes import add_fields, schema_protos
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.column_files import delete_column_files, each_fragment, write_live_rows

BATCH_BYTES = 32 << 20
BATCH_ROWS = 1 << 20


@dataclass
class ColumnFiles(TableRefMixin):
    """The column files written so far for one change of a table, by fragment."""

    table: TableRef
    _results: dict[int, FragmentResult] = field(default_factory=dict)

    def find(
        self,
        fragment: table_pb2.DataFragment,
        ids: tuple[int, ...],
        sources: Sequence[Field],
        bases: Bases,
    ) -> table_pb2.DataFile | None:
        """Return the file written for a fragment if it is still valid; arguments as in `finished`."""
        result = self.finished(fragment, ids, sources, bases)
        return None if result is None else result.data_file

    def finished(
        self,
        fragment: table_pb2.DataFragment,
        ids: tuple[int, ...],
        sources: Sequence[Field],
        bases: Bases,
    ) -> FragmentResult | None:
        """Return the result of a fragment if it is still valid; None otherwise.

        Args:
            fragment: the fragment in the newest version.
            ids: the current ids of the new fields, for the file's message.
            sources: the fields from which the values are computed.
            bases: the version's base paths.
        """
        result = self._results.get(fragment.id)
        if result is None or not result.is_valid(self.table, fragment, sources, bases):
            return None
        return result.renumbered(ids)

    def add(
        self,
        fragment: table_pb2.DataFragment,
        ids: tuple[int, ...],
        sources: Sequence[Field],
        column_file: tuple[table_pb2.DataFile, npt.NDArray[np.uint32]],
    ) -> table_pb2.DataFile:
        """Add a file that was written for a fragment, and delete the previous file of the fragment."""
        if (old := self._results.pop(fragment.id, None)) is not None and (file := old.data_file) is not None:
            delete_column_files(self.table, [file])
        file, deleted = column_file
        self.keep(FragmentResult.of(fragment, sources, ids, file, deleted))
        return file

    def keep(self, result: FragmentResult) -> FragmentResult:
        """Store the result of a fragment, and return it."""
        self._results[result.fragment] = result
        return result

    def discard(self, committed: Manifest | None = None) -> None:
        """Delete the files that `committed` does not refer to; all files if nothing was committed."""
        used: set[str] = set()
        for fragment in committed.fragments if committed else ():
            if fragment.id in self._results:
                used.update(file.path for file in fragment.files)
        files = [file for finished in self._results.values() if (file := finished.data_file) is not None]
        delete_column_files(self.table, [file for file in files if file.path not in used])


def add_null_columns(
    snapshot: Snapshot,
    columns: pa.Schema,
    *,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Add columns, or fields of structs, that are null in every row, and return the new version.

    Raises:
        SchemaError: a field is NOT NULL, or the table's files cannot store its type, so that no row could be
            written any more; or see `add_fields`.
        CommitError: the commit conflicted; see its subclasses.
    """

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        schema, added = add_fields(version, columns)
        present = {field.id for field in version.schema.walk()}
        for column in added:
            if version.file_version in (FileVersion.V2_1, FileVersion.V2_2):
                check_storable(column, version.file_version)
            for part in column.walk():
                if (
                    part.id not in present
                    and not part.nullable
                    and part in _topmost_new_fields(column, present)
                ):
                    raise SchemaError(
                        f"column {part.name!r} must not be null, and so cannot be added without values"
                    )
        return commit_files(at, schema, at.fragments, env)

    return retry_operation(snapshot, attempt, reruns, env)


def _topmost_new_fields(column: Field, present: set[int]) -> list[Field]:
    """Return the new fields whose parents are not new."""
    if column.id not in present:
        return [column]
    return [part for child in column.children for part in _topmost_new_fields(child, present)]


def add_columns(
    snapshot: Snapshot,
    source: Computation | Stream,
    *,
    batch_rows: int = BATCH_ROWS,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Add columns with values and return the new version.

    Only the columns that the source needs are read. If other writers append rows concurrently, the values of
    these rows are computed, too.

    Args:
        snapshot: the version for which the source was made.
        source: the source of the values.
        batch_rows: the maximal number of rows that are passed to the source at once.
        reruns: the number of retries, and the pauses, after conflicts.
        env: clock, sleep and random numbers.

    Raises:
        SchemaError: the values do not fit the new columns or the number of rows; or see `add_fields`.
        ExpressionError: an expression cannot be computed.
        IncompatibleConflictError: the source is a stream, which had ended when other writers added rows; or
            the commit conflicted.
        CommitError: the commit failed; see its subclasses.
        UnsupportedFormatError: the table uses a feature that we cannot write.
    """
    files = ColumnFiles(snapshot.table)

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        refuse_mem_wal(version)
        schema, added = add_fields(version, source.schema)
        writer = _ColumnWriter(files, at, added, source, batch_rows)
        if isinstance(source, Computation) and source.any_order:
            fragments = each_fragment(snapshot.store, version.fragments, writer.add_file)
        else:
            fragments = [writer.add_file(fragment) for fragment in version.fragments]
        if isinstance(source, Stream) and not source.is_finished:
            source.finish()
        return commit_files(at, schema, fragments, env)

    return with_files(files, lambda: retry_operation(snapshot, attempt, reruns, env))


class _ColumnWriter:
    """Writes the new columns of fragments of one version."""

    def __init__(
        self,
        files: ColumnFiles,
        snapshot: Snapshot,
        added: tuple[Field, ...],
        source: Computation | Stream,
        batch_rows: int,
    ) -> None:
        self._files = files
        self._snapshot = snapshot
        self._added = added
        self._source = source
        self._batch_rows = batch_rows
        self._ids = tuple(part.id for top in added for part in top.walk())
        self._aligner = Aligner(source.schema, Schema(added))
        self._scan = snapshot.scan(source.columns)

    def add_file(self, fragment: table_pb2.DataFragment) -> table_pb2.DataFragment:
        """Return a fragment with a file of the new columns."""
        files, bases = self._files, self._scan.bases
        file = files.find(fragment, self._ids, self._scan.fields, bases)
        if file is None:
            if isinstance(self._source, Stream) and self._source.is_finished:
                raise IncompatibleConflictError(
                    "other writers added rows for which the data has no values: run it on the new version"
                )
            values = map(self._aligner.align, self._source.values(self._rows(fragment)))
            column_file = write_live_rows(
                files.table,
                fragment,
                self._added,
                values,
                self._snapshot.manifest.file_version,
                bases,
            )
            file = files.add(fragment, self._ids, self._scan.fields, column_file)
        longer = table_pb2.DataFragment()
        longer.CopyFrom(fragment)
        longer.files.add().CopyFrom(file)
        return longer

    def _rows(self, fragment: table_pb2.DataFragment) -> Iterable[pa.RecordBatch]:
        if not self._source.columns and fragment.physical_rows:
            # The source needs no columns: the number of rows is in the manifest.
            live = fragment.physical_rows - fragment.deletion_file.num_deleted_rows
            return _empty_batches(live, self._batch_rows)
        return self._scan.task(fragment).batches(BATCH_BYTES, self._batch_rows)


def extend_fragment(
    snapshot: Snapshot,
    fragment: table_pb2.DataFragment,
    source: Computation | Stream,
    batch_rows: int = BATCH_ROWS,
) -> tuple[table_pb2.DataFragment, Schema]:
    """Write columns of one fragment; return the fragment with the new file, and the new schema.

    Nothing is committed.

    Raises:
        SchemaError: the values do not fit the new columns or the number of rows; or see `add_fields`.
        UnsupportedFormatError: the table uses a feature that we cannot write.
    """
    refuse_mem_wal(snapshot.manifest)
    schema, added = add_fields(snapshot.manifest, source.schema)
    files = ColumnFiles(snapshot.table)
    add_file = _ColumnWriter(files, snapshot, added, source, batch_rows).add_file(fragment)
    if isinstance(source, Stream):
        source.finish()
    return add_file, schema


def _empty_batches(rows: int, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield batches without columns that have `rows` rows in total, and at most `limit` rows each."""
    for start in range(0, rows, limit):
        yield from rows_without_columns(min(limit, rows - start)).to_batches()


def with_files(files: ColumnFiles, change: Callable[[], Manifest]) -> Manifest:
    """Call `change`, and delete the files that the committed version does not use.

    If it is unknown whether the change was committed, no file is deleted.
    """
    with delete_on_failure(files.discard):
        committed = change()
    with log_errors(f"version {committed.version} was committed, but unused files stay behind"):
        files.discard(committed)
    return committed


def commit_files(
    snapshot: Snapshot, schema: Schema, fragments: Sequence[table_pb2.DataFragment], env: CommitEnv
) -> Manifest:
    """Commit a new schema and the fragments with its files, both derived from the version `snapshot`."""
    version = snapshot.manifest
    operation = merge_message(schema_protos(schema, version), version.message.schema_metadata, fragments)
    return commit_operation(snapshot.table, operation, read_version=version.version, env=env)


def refuse_mem_wal(version: Manifest) -> None:
    """Check that a table has no MemWAL, whose rows are not in fragments, so that columns can be computed.

    Raises:
        UnsupportedFormatError: the table has a MemWAL.
    """
    if any(index.name == MEM_WAL for index in version.indices):
        raise UnsupportedFormatError(
            "columns with values cannot be added to a table with a MemWAL", version.path
        )
