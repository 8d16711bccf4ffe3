"""Adding columns to a table: one new data file per fragment; the files that are there are not touched.

Every fragment's file is written once, also if other writers are in the way: it is used again in the newest
version unless the values that it was computed from have changed.
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
from spark_lance.table.columns.finished import Finished
from spark_lance.table.columns.new_columns import Computation, Stream
from spark_lance.table.commits.commit import CONFLICT_RETRIES, commit_operation, retry_operation
from spark_lance.table.commits.commit_rows import delete_on_failure
from spark_lance.table.commits.proposal import SYSTEM_ENV, CommitEnv
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import MEM_WAL
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.format.upkeep import only_logged
from spark_lance.table.operations.merge import merge_message
from spark_lance.table.reading.fragment_rows import rows_without_columns
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.schema.changes import add_fields, schema_protos
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.column_files import delete_column_files, each_fragment, write_live_rows

BATCH_BYTES = 32 << 20
BATCH_ROWS = 1 << 20


@dataclass
class ColumnFiles(OfTable):
    """The column files written so far for one change of a table, by fragment."""

    table: TableRef
    _known: dict[int, Finished] = field(default_factory=dict)

    def find(
        self,
        fragment: table_pb2.DataFragment,
        ids: tuple[int, ...],
        sources: Sequence[Field],
        bases: Bases,
    ) -> table_pb2.DataFile | None:
        """Return the file written for a fragment if it still fits; arguments as for `found`."""
        result = self.finished(fragment, ids, sources, bases)
        return None if result is None else result.data_file

    def finished(
        self,
        fragment: table_pb2.DataFragment,
        ids: tuple[int, ...],
        sources: Sequence[Field],
        bases: Bases,
    ) -> Finished | None:
        """Return the finished result of a fragment if it still fits.

        Args:
            fragment: the fragment as it is now.
            ids: the ids that the new fields have now; they go into the file's entry.
            sources: the fields that the values are computed from.
            bases: the version's base paths.
        """
        finished = self._known.get(fragment.id)
        if finished is None or not finished.fits(self.table, fragment, sources, bases):
            return None
        return finished.renumbered(ids)

    def add(
        self,
        fragment: table_pb2.DataFragment,
        ids: tuple[int, ...],
        sources: Sequence[Field],
        written: tuple[table_pb2.DataFile, npt.NDArray[np.uint32]],
    ) -> table_pb2.DataFile:
        """Keep a file that was written for a fragment; one written before is deleted."""
        if (old := self._known.pop(fragment.id, None)) is not None and (file := old.data_file) is not None:
            delete_column_files(self.table, [file])
        file, deleted = written
        self.keep(Finished.of(fragment, sources, ids, file, deleted))
        return file

    def keep(self, result: Finished) -> Finished:
        """Keep the finished result of a fragment, and return it."""
        self._known[result.fragment] = result
        return result

    def discard(self, committed: Manifest | None = None) -> None:
        """Delete the files that `committed` does not name; all of them if nothing was committed."""
        used: set[str] = set()
        for fragment in committed.fragments if committed else ():
            if fragment.id in self._known:
                used.update(file.path for file in fragment.files)
        files = [file for finished in self._known.values() if (file := finished.data_file) is not None]
        delete_column_files(self.table, [file for file in files if file.path not in used])


def add_null_columns(
    snapshot: Snapshot,
    columns: pa.Schema,
    *,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Add columns, or fields to structs, that are null everywhere, and return the new version.

    Raises:
        SchemaError: a field must not be null, or is of a type that the table's files cannot store, so that
            nobody could write a row any more; or see `add_fields`.
        CommitError: other writers were in the way; see its subclasses.
    """

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        schema, added = add_fields(version, columns)
        present = {field.id for field in version.schema.walk()}
        for column in added:
            if version.file_version in (FileVersion.V2_1, FileVersion.V2_2):
                check_storable(column, version.file_version)
            for part in column.walk():
                if part.id not in present and not part.nullable and part in _outermost(column, present):
                    raise SchemaError(
                        f"column {part.name!r} must not be null, and so cannot be added without values"
                    )
        return commit_files(at, schema, at.fragments, env)

    return retry_operation(snapshot, attempt, reruns, env)


def _outermost(column: Field, present: set[int]) -> list[Field]:
    """Return the new fields that are not inside of new fields."""
    if column.id not in present:
        return [column]
    return [part for child in column.children for part in _outermost(child, present)]


def add_columns(
    snapshot: Snapshot,
    source: Computation | Stream,
    *,
    batch_rows: int = BATCH_ROWS,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Add columns with values and return the new version.

    Only the columns that the source reads are read. If other writers append rows meanwhile, the values of
    these rows are computed too, and rows that they delete are gone.

    Args:
        snapshot: the version that the source fits to.
        source: gives the values.
        batch_rows: the most rows that are handed to the source at once.
        reruns: how often to begin anew because of other writers.
        env: clock, sleep and random numbers.

    Raises:
        SchemaError: the values do not fit the new columns or the number of rows; or see `add_fields`.
        ExpressionError: an expression cannot be computed.
        IncompatibleConflictError: a stream had ended when other writers added rows; or see its other uses.
        CommitError: the commit failed; see its subclasses.
        UnsupportedFormatError: the table uses what is not written here.
    """
    files = ColumnFiles(snapshot.table)

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        refuse_mem_wal(version)
        schema, added = add_fields(version, source.schema)
        writer = _Adding(files, at, added, source, batch_rows)
        if isinstance(source, Computation) and source.any_order:
            fragments = each_fragment(snapshot.store, version.fragments, writer.extended)
        else:
            fragments = [writer.extended(fragment) for fragment in version.fragments]
        if isinstance(source, Stream) and not source.is_finished:
            source.finish()
        return commit_files(at, schema, fragments, env)

    return with_files(files, lambda: retry_operation(snapshot, attempt, reruns, env))


class _Adding:
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

    def extended(self, fragment: table_pb2.DataFragment) -> table_pb2.DataFragment:
        """Return a fragment with a file of the new columns."""
        files, bases = self._files, self._scan.bases
        file = files.find(fragment, self._ids, self._scan.fields, bases)
        if file is None:
            if isinstance(self._source, Stream) and self._source.is_finished:
                raise IncompatibleConflictError(
                    "other writers added rows for which the data has no values: run it on the new version"
                )
            values = map(self._aligner.align, self._source.values(self._rows(fragment)))
            written = write_live_rows(
                files.table,
                fragment,
                self._added,
                values,
                self._snapshot.manifest.file_version,
                bases,
            )
            file = files.add(fragment, self._ids, self._scan.fields, written)
        longer = table_pb2.DataFragment()
        longer.CopyFrom(fragment)
        longer.files.add().CopyFrom(file)
        return longer

    def _rows(self, fragment: table_pb2.DataFragment) -> Iterable[pa.RecordBatch]:
        if not self._source.columns and fragment.physical_rows:
            # Nothing is read; how many rows there are is known.
            live = fragment.physical_rows - fragment.deletion_file.num_deleted_rows
            return _counted(live, self._batch_rows)
        return self._scan.task(fragment).batches(BATCH_BYTES, self._batch_rows)


def extend_fragment(
    snapshot: Snapshot,
    fragment: table_pb2.DataFragment,
    source: Computation | Stream,
    batch_rows: int = BATCH_ROWS,
) -> tuple[table_pb2.DataFragment, Schema]:
    """Write columns of one fragment and commit nothing: return it with the new file, and the new schema.

    Raises:
        SchemaError: the values do not fit the new columns or the number of rows; or see `add_fields`.
        UnsupportedFormatError: the table uses what is not written here.
    """
    refuse_mem_wal(snapshot.manifest)
    schema, added = add_fields(snapshot.manifest, source.schema)
    files = ColumnFiles(snapshot.table)
    extended = _Adding(files, snapshot, added, source, batch_rows).extended(fragment)
    if isinstance(source, Stream):
        source.finish()
    return extended, schema


def _counted(rows: int, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield batches without columns, with this number of rows in all."""
    for start in range(0, rows, limit):
        yield from rows_without_columns(min(limit, rows - start)).to_batches()


def with_files(files: ColumnFiles, change: Callable[[], Manifest]) -> Manifest:
    """Make a change, and delete those of its files that it does not need in the end.

    If it is not known whether the change was committed, all files stay.
    """
    with delete_on_failure(files.discard):
        committed = change()
    with only_logged(f"version {committed.version} was committed, but unused files stay behind"):
        files.discard(committed)
    return committed


def commit_files(
    snapshot: Snapshot, schema: Schema, fragments: Sequence[table_pb2.DataFragment], env: CommitEnv
) -> Manifest:
    """Commit another schema and the fragments with the files for it, both made from a version."""
    version = snapshot.manifest
    operation = merge_message(schema_protos(schema, version), version.message.schema_metadata, fragments)
    return commit_operation(snapshot.table, operation, read_version=version.version, env=env)


def refuse_mem_wal(version: Manifest) -> None:
    """Refuse to compute columns of a table that has rows outside of its fragments.

    Raises:
        UnsupportedFormatError: the table has a MemWAL.
    """
    if any(index.name == MEM_WAL for index in version.indices):
        raise UnsupportedFormatError(
            "columns with values cannot be added to a table with a MemWAL", version.path
        )
