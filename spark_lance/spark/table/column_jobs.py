"""Distributed changes of columns: Spark computes the missing values, and one commit adds all files.

    round    load the newest version. Compute the fragments that have no file yet, or a file that no longer
             fits, and commit all files. After a conflict with other writers, the next round computes the
             fragments that they added or changed.

Every finished fragment is recorded in the table immediately (see `table.columns.job_records`). So another
process can resume a job that has a name. A job without a name leaves no files behind if it fails.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import pyarrow as pa
from pyroaring import BitMap
from pyspark.errors import PySparkException

from spark_lance.errors import (
    CommitError,
    IncompatibleConflictError,
    LanceError,
    UnsupportedFormatError,
)
from spark_lance.file.base.schema import Field
from spark_lance.io.retry import RetryPolicy
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.spark.driver.progress import operation, step
from spark_lance.spark.table.base import TableBase
from spark_lance.spark.table.column_sources import Source, fields_among, over_fragments
from spark_lance.table.columns.alter import Cast, alter_columns
from spark_lance.table.columns.evolve import ColumnFiles, commit_files, refuse_mem_wal
from spark_lance.table.columns.job_records import FragmentResult, JobRecords
from spark_lance.table.columns.work import ColumnWork, UnchangedColumns
from spark_lance.table.commits.commit import commit_operation, retry_operation
from spark_lance.table.commits.commit_options import commit_options
from spark_lance.table.commits.commit_rows import delete_on_failure
from spark_lance.table.commits.proposal import SYSTEM_ENV
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.upkeep import log_errors
from spark_lance.table.operations.data_replacement import place_file
from spark_lance.table.schema.changes import Alteration, add_fields
from spark_lance.table.writing.column_files import delete_column_files

logger = logging.getLogger(__name__)

# A job may take hours, so only the number of rounds is limited.
_ROUNDS = RetryPolicy(attempts=20, total_seconds=math.inf)

_Files = dict[int, FragmentResult]


@dataclass
class Outcome:
    """The result of a change of columns.

    Attributes:
        version: the version with the change.
        fragments: number of fragments with new files.
        rows: number of rows with a new value.
        reused: number of files from an earlier run of the job.
        bytes_written: bytes of all these files.
    """

    version: int
    fragments: int = 0
    rows: int = 0
    reused: int = 0
    bytes_written: int = 0


@dataclass
class ColumnJob:
    """One distributed change of columns.

    Args:
        table: the table.
        source: the source of the values.
        others: how to treat rows without a value.
        resume: name under which the job can be resumed; None if it cannot be resumed.
    """

    table: TableBase
    source: Source
    others: UnchangedColumns
    resume: str | None = None
    _earlier_paths: set[str] = field(default_factory=set, init=False)
    _results: _Files = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._start = self.table.dataset()
        self._files = ColumnFiles(self._start.table)

    def add(self, schema: pa.Schema) -> Outcome:
        """Add columns.

        Raises:
            SchemaError: a column exists already, or the values do not fit.
            OptionError: a job with this name was started with another request.
            CommitError: the commit conflicts with other writers; see its subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot write.
        """

        def attempt(version: Manifest) -> Manifest:
            refuse_mem_wal(version)
            whole, added = add_fields(version, schema)
            files = self._compute(version, added)
            fragments = []
            for fragment in version.fragments:
                longer = table_pb2.DataFragment()
                longer.CopyFrom(fragment)
                if (file := files[fragment.id].data_file) is not None:
                    longer.files.add().CopyFrom(file)
                fragments.append(longer)
            return commit_files(self._start.snapshot.at(version), whole, fragments, SYSTEM_ENV)

        types = ", ".join(f"{column.name} {column.type}" for column in schema)
        return self._run(f"add {types}: {self.source.describe()}", attempt)

    def update(self, names: Sequence[str]) -> Outcome:
        """Rewrite column values in place. No version is created if no row changes.

        Raises:
            SchemaError: a column does not exist, or the values do not fit.
            OptionError, CommitError, UnsupportedFormatError: as for `add`.
        """
        pb = transaction_pb2.Transaction

        def attempt(version: Manifest) -> Manifest:
            fields = version.schema.select(names).fields
            if any(part.kind == "blob" for top in fields for part in top.walk()):
                raise UnsupportedFormatError("blobs are not updated in place", version.path)
            files = self._compute(version, fields)
            operation = pb.Update(update_mode=pb.Update.REWRITE_COLUMNS)
            for fragment in version.fragments:
                result = files[fragment.id]
                if (file := result.data_file) is None or result.offsets is None:
                    continue
                updated = operation.updated_fragments.add()
                updated.CopyFrom(fragment)
                place_file(updated, file)
                operation.fields_modified[:] = file.fields
                operation.updated_fragment_offset_bitmaps[fragment.id] = result.offsets
            if not operation.updated_fragments:
                return version
            return commit_operation(self._start.table, operation, read_version=version.version)

        return self._run(f"update {', '.join(names)}: {self.source.describe()}", attempt)

    def _discard(self) -> None:
        """Delete the files of a failed job, unless it can be resumed."""
        if self.resume is None:
            clean_up(self._records, set())

    def _run(self, request: str, attempt: Callable[[Manifest], Manifest]) -> Outcome:
        self._records = JobRecords(self._start.table, self.resume or f"auto-{uuid.uuid4().hex}", request)
        if self.resume is not None:
            for result in self._records.load():
                self._files.keep(result)
                self._earlier_paths.update(_paths([result]))
        message = self.table.writeOptions.commit_message
        options = nullcontext() if message is None else commit_options(message=message)
        running = operation(self.table.spark, "change of columns", self.table.path)
        with running, delete_on_failure(self._discard, PySparkException), options:
            version = retry_operation(self._start.snapshot, lambda at: attempt(at.manifest), _ROUNDS)
        files = [result for result in self._results.values() if result.file is not None]
        # Files of an earlier run are kept: that run may have committed them.
        with log_errors(f"version {version.version} was committed, but unused files stay behind"):
            clean_up(self._records, _paths(files) | self._earlier_paths)
        return Outcome(
            version.version,
            len(files),
            sum(result.values for result in files),
            len(_paths(files) & self._earlier_paths),
            sum(file.file_size_bytes for result in files if (file := result.data_file) is not None),
        )

    def _compute(self, version: Manifest, fields: tuple[Field, ...]) -> _Files:
        """Return the results of all fragments of a version; compute the missing ones."""
        if not version.file_version.writable:
            raise UnsupportedFormatError(
                f"files of version {version.file_version.text} are not written here", version.path
            )
        self._check_moves(version)
        sources = fields_among(version, self.source.columns(version))
        if self.others is UnchangedColumns.KEPT:
            sources = tuple({top.id: top for top in (*sources, *fields)}.values())
        bases = self._start.snapshot.at(version).bases
        ids = tuple(part.id for top in fields for part in top.walk())
        files: _Files = {}
        missing: dict[int, table_pb2.DataFragment] = {}
        for fragment in version.fragments:
            result = self._files.finished(fragment, ids, sources, bases)
            if result is None:
                missing[fragment.id] = fragment
            else:
                files[fragment.id] = result
        if missing:
            work = ColumnWork(
                self._start.table,
                self._records,
                fields,
                sources,
                self.others,
                version.file_version,
                bases,
                version.uses_stable_row_ids,
                {number: fragment.SerializeToString() for number, fragment in missing.items()},
                frozenset(files),
            )
            with step(self.table.spark, f"write {len(missing)} fragments"):
                answers = self.source.run(version, list(missing), work)
            for result in (*answers, *self._results_without_values(missing, answers, work)):
                self._check_result(missing, result, files, bases)
                self._files.keep(result)
                files[result.fragment] = result
        self._results = files
        return files

    def _check_moves(self, version: Manifest) -> None:
        """Check that no rows can have moved since their addresses were read."""
        if version.version == self._start.version or self.source.finds_moved(version):
            return
        before = {
            fragment.id: fragment.deletion_file.num_deleted_rows
            for fragment in self._start.manifest.fragments
        }
        now = {fragment.id: fragment.deletion_file.num_deleted_rows for fragment in version.fragments}
        has_deletions = any(now.get(number, -1) != deleted for number, deleted in before.items())
        if has_deletions and now.keys() - before.keys():
            raise IncompatibleConflictError(
                "other writers have moved rows, for which the data has values by their old addresses: read "
                "the addresses of the new version"
            )

    def _results_without_values(
        self, missing: dict[int, table_pb2.DataFragment], answers: Sequence[FragmentResult], work: ColumnWork
    ) -> list[FragmentResult]:
        """Return results for the fragments without any value."""
        reported = {result.fragment for result in answers}
        out = []
        for number, fragment in missing.items():
            if number in reported:
                continue
            if self.others is UnchangedColumns.FORBIDDEN:
                # Valid only if all rows are deleted, which the work checks.
                out.append(work.finish(number, ()))
                continue
            rows = fragment.physical_rows or None
            deleted = read_deletions(self._start.table, fragment, rows, work.bases)
            out.append(FragmentResult.of(fragment, work.sources, work.ids, None, deleted, offsets=BitMap()))
        return out

    def _check_result(
        self, missing: dict[int, table_pb2.DataFragment], result: FragmentResult, files: _Files, bases: Bases
    ) -> None:
        """Check that each fragment was written once and that every row has a value."""
        if result.fragment not in missing or result.fragment in files:
            raise CommitError(
                f"fragment {result.fragment} was written twice, so nothing was committed; its rows did not "
                "come to one task"
            )
        if self.others is UnchangedColumns.FORBIDDEN:
            fragment = missing[result.fragment]
            rows = physical_rows(self._start.table, fragment, bases) - fragment.deletion_file.num_deleted_rows
            if result.values != rows:
                raise CommitError(
                    f"{result.values} values were computed for the {rows} rows of fragment "
                    f"{result.fragment}, so nothing was committed; this is a bug"
                )


def cast_columns(table: TableBase, alterations: Sequence[Alteration]) -> None:
    """Alter columns; Spark tasks rewrite the columns whose type changes.

    Raises:
        SchemaError, CommitError, UnsupportedFormatError: see `alter_columns` of the table layer.
    """
    dataset = table.dataset()
    records = JobRecords(dataset.table, f"auto-{uuid.uuid4().hex}", "cast")

    def execute(cast: Cast, fragments: Sequence[int]) -> list[FragmentResult]:
        with step(table.spark, f"write {len(fragments)} fragments"):
            return over_fragments(table.spark, fragments, cast.recorded(records))

    running = operation(table.spark, "change of columns", table.path)
    with running, delete_on_failure(lambda: clean_up(records, set()), PySparkException):
        committed = alter_columns(dataset.snapshot, alterations, execute=execute)
    used = {file.path for fragment in committed.fragments for file in fragment.files}
    with log_errors(f"version {committed.version} was committed, but unused files stay behind"):
        clean_up(records, used)


def clean_up(records: JobRecords, used: set[str]) -> None:
    """Delete the files of a job that are not in use, and its records."""
    try:
        unused = sorted(set(records.data_file_names()) - used)
        files = [table_pb2.DataFile(path=path) for path in unused]
        delete_column_files(records.table, files)
        records.clear()
    except (LanceError, OSError) as error:
        logger.warning("files of a job are left to clean-up: %s", error)


def _paths(files: Sequence[FragmentResult]) -> set[str]:
    return {file.path for result in files if (file := result.data_file) is not None}
