"""Compact a table: rewrite the live rows of many small fragments to few larger fragments.

A plan consists of tasks that can be pickled and run anywhere. Each task rewrites one group of fragments and
commits nothing. All results are committed together as one Rewrite. Rows keep their order inside a group,
their stable ids and their versions. The new fragments follow the fragments that were not rewritten, because a
version lists its fragments by id. (Lance table format, compaction.)

Without stable row ids, indexes contain row addresses, which change. The caller's `IndexRemap` rewrites the
index segments with the new addresses, after the data files are written and before the commit. With
`defer_index_remap`, index files are not rewritten, and a fragment-reuse entry records the moves. Without
either, indexes no longer cover the rewritten rows, and searches scan these rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from pyroaring import BitMap

from spark_lance.errors import (
    OptionError,
    RetryableConflictError,
    UnsupportedFormatError,
)
from spark_lance.file.base.version import FileVersion
from spark_lance.io.progress import report, report_part
from spark_lance.io.uploads import background_uploads
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.commit_rows import delete_on_failure
from spark_lance.table.commits.proposal import SYSTEM_ENV, CommitEnv
from spark_lance.table.format.features import check_writable
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE, MEM_WAL
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.indices.fragment_reuse import extend_history
from spark_lance.table.indices.remap import (
    IndexRemap,
    MovedGroup,
    RewrittenIndex,
    delete_rewritten,
)
from spark_lance.table.maintenance.compact_plan import CompactionOptions, Group, plan_groups
from spark_lance.table.maintenance.compact_task import CompactionMetrics, CompactionTask, RewriteResult
from spark_lance.table.reading.lineage import SPILL
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import load_latest
from spark_lance.table.writing.write import delete_fragment_files

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = 10

Execute = Callable[[Sequence[CompactionTask]], list[RewriteResult]]
Digest = table_pb2.FragmentReuseIndexDetails.FragmentDigest


@dataclass(frozen=True)
class CompactionPlan:
    """The tasks of a compaction.

    Attributes:
        read_version: the version that the plan is based on.
        tasks: one per group of fragments; they can run in any order and on any machine.
    """

    read_version: int
    tasks: list[CompactionTask] = field(default_factory=list)

    def num_tasks(self) -> int:
        """Return the number of tasks."""
        return len(self.tasks)


def compact_table(
    snapshot: Snapshot,
    options: CompactionOptions,
    *,
    only: Collection[int] | None = None,
    execute: Execute | None = None,
    remap: IndexRemap | None = None,
    env: CommitEnv = SYSTEM_ENV,
) -> CompactionMetrics:
    """Compact a table: plan, rewrite and commit.

    If another writer changes fragments of a group concurrently, the other groups are committed without it.
    The fragments of the group are planned again from the newest version, up to ten times.

    Args:
        snapshot: the version for the first plan.
        options: the options of the compaction.
        only: the ids of the fragments to consider; all by default.
        execute: runs tasks and returns their results in the same order. If it raises an error, it must delete
            their files. By default, tasks run in threads of this process.
        remap: updates indexes to the new addresses; without it, indexes no longer cover rewritten rows.
        env: clock, sleep and random numbers.

    Raises:
        RetryableConflictError: every attempt conflicted with other writers; committed groups are kept.
        CommitError: the commit failed; see its other subclasses.
        UnsupportedFormatError: the table uses a feature that we cannot rewrite.
        FormatError: stored bytes are damaged.
    """
    total = CompactionMetrics()
    for _ in range(_MAX_ATTEMPTS):
        plan = plan_compaction(snapshot, options, only, remap)
        if not plan.tasks:
            return total
        with background_uploads(snapshot.store):
            if execute is None:
                results = execute_all(plan.tasks, options.num_threads or 1)
            else:
                results = execute(plan.tasks)
            metrics, remaining = _commit_unconflicted(snapshot.table, plan.read_version, results, env, remap)
        total += metrics
        if not remaining:
            return total
        only = {fragment.id for result in remaining for fragment in result.old_fragments}
        snapshot = snapshot.at(load_latest(snapshot.table))
    raise RetryableConflictError(
        f"all {_MAX_ATTEMPTS} attempts to compact {snapshot.root} conflicted with other writers"
    )


def plan_compaction(
    snapshot: Snapshot,
    options: CompactionOptions,
    only: Iterable[int] | None,
    remap: IndexRemap | None,
) -> CompactionPlan:
    """Return the plan to compact a version; arguments as in `compact_table`.

    Raises:
        UnsupportedFormatError: the table uses a feature that we cannot rewrite.
    """
    _check_rewritable(snapshot, options)
    return CompactionPlan(
        snapshot.version, _plan_tasks(snapshot, options, plan_groups(snapshot, options, only), remap)
    )


def plan_task(
    snapshot: Snapshot,
    fragments: Sequence[table_pb2.DataFragment],
    options: CompactionOptions,
    remap: IndexRemap | None,
) -> CompactionTask:
    """Return the task that rewrites these fragments of a version together.

    Raises:
        OptionError: the version does not have one of the fragments with these files.
        UnsupportedFormatError: the table uses a feature that we cannot rewrite.
    """
    _check_rewritable(snapshot, options)
    present = {fragment.id: fragment for fragment in snapshot.fragments}
    for fragment in fragments:
        if fragment.id not in present or present[fragment.id].files != fragment.files:
            raise OptionError(
                f"version {snapshot.version} has no fragment {fragment.id} with the task's files"
            )
    rows = sum(f.physical_rows - f.deletion_file.num_deleted_rows for f in fragments)
    stored_bytes = sum(file.file_size_bytes for f in fragments for file in f.files)
    group = Group(tuple(fragments), rows, stored_bytes, indexed=True)
    (task,) = _plan_tasks(snapshot, options, [group], remap)
    return task


def _check_rewritable(snapshot: Snapshot, options: CompactionOptions) -> None:
    check_writable(snapshot.manifest.message, snapshot.manifest.path)
    for top in snapshot.schema.fields:
        if not top.is_blob and any(node.is_blob for node in top.walk()):
            raise UnsupportedFormatError(f"compacting a table with blobs inside column {top.name!r}")
    if options.defer_index_remap and snapshot.manifest.uses_stable_row_ids:
        raise UnsupportedFormatError(
            "defer_index_remap in a table with stable row ids", path=snapshot.manifest.path
        )


def _plan_tasks(
    snapshot: Snapshot, options: CompactionOptions, groups: Sequence[Group], remap: IndexRemap | None
) -> list[CompactionTask]:
    indexed = any(entry.name not in (FRAGMENT_REUSE, MEM_WAL) for entry in snapshot.manifest.indices)
    remapped_fragments = BitMap()
    if remap is not None and options.remap_indices and any(group.indexed for group in groups):
        remapped_fragments = remap.fragments(snapshot)
    storage_version = options.data_storage_version
    return [
        CompactionTask(
            table=snapshot.table,
            read_version=snapshot.version,
            old=tuple(fragment.SerializeToString() for fragment in group.fragments),
            schema=snapshot.schema,
            version=snapshot.manifest.file_version
            if storage_version is None
            else FileVersion.parse(storage_version),
            rows_per_file=_rows_per_file(group, options),
            options=options,
            bases=snapshot.bases,
            stable_row_ids=snapshot.manifest.uses_stable_row_ids,
            tracks_moves=indexed if options.defer_index_remap else _any_in(group, remapped_fragments),
            spills=_spills(snapshot.manifest, group),
        )
        for group in groups
    ]


def _any_in(group: Group, fragments: BitMap) -> bool:
    return any(fragment.id in fragments for fragment in group.fragments)


def _spills(manifest: Manifest, group: Group) -> bool:
    """Return whether row ids and versions are written to data files: by config, or if they are there now."""
    setting = manifest.config.get(SPILL)
    spilled = setting != "false" and any(fragment.HasField("column_row_ids") for fragment in group.fragments)
    return manifest.uses_stable_row_ids and (setting == "true" or spilled)


def _rows_per_file(group: Group, options: CompactionOptions) -> int:
    """Return the rows per file that split a group evenly into files with enough rows and not too many bytes.

    The size is estimated from the bytes per row of the old files.
    """
    by_rows = group.rows // options.target_rows_per_fragment
    by_bytes = -(-group.stored_bytes // options.max_bytes_per_file)
    return max(1, -(-group.rows // max(1, by_rows, by_bytes)))


def execute_all(tasks: Sequence[CompactionTask], threads: int = 1) -> list[RewriteResult]:
    """Run tasks in `threads` threads of this process. If a task fails, the files of all tasks are deleted."""
    if threads == 1:
        return _execute_in_turn(tasks)
    pool = ThreadPoolExecutor(min(threads, len(tasks)))
    futures = [pool.submit(task.execute) for task in tasks]
    try:
        return _collect_results(tasks, futures)
    except BaseException:
        pool.shutdown(cancel_futures=True)
        for task, future in zip(tasks, futures, strict=True):
            if not future.cancelled() and future.exception() is None:
                delete_fragment_files(task.table, future.result().new)
        raise
    finally:
        pool.shutdown()


def _collect_results(
    tasks: Sequence[CompactionTask], futures: Sequence[Future[RewriteResult]]
) -> list[RewriteResult]:
    total = sum(task.rows for task in tasks)
    row_count = 0
    results = []
    for task, future in zip(tasks, futures, strict=True):
        results.append(future.result())
        row_count += task.rows
        report("rewriting", row_count, total, "rows")
    return results


def _execute_in_turn(tasks: Sequence[CompactionTask]) -> list[RewriteResult]:
    results: list[RewriteResult] = []
    total = sum(task.rows for task in tasks)
    row_count = 0
    try:
        for task in tasks:
            with report_part(row_count, total):
                results.append(task.execute())
            row_count += task.rows
    except BaseException:
        for task, result in zip(tasks, results, strict=False):
            delete_fragment_files(task.table, result.new)
        raise
    return results


def _commit_unconflicted(
    table: TableRef,
    read_version: int,
    results: list[RewriteResult],
    env: CommitEnv,
    remap: IndexRemap | None,
) -> tuple[CompactionMetrics, list[RewriteResult]]:
    """Commit the results whose fragments no other writer changed; return the metrics and the other results.

    The files of the other results are deleted. All files are deleted if nothing can be committed.
    """
    remaining: list[RewriteResult] = []

    def discard() -> None:
        for result in results:
            delete_fragment_files(table, result.new)

    with delete_on_failure(discard):
        for _ in range(_MAX_ATTEMPTS):
            try:
                return commit_compaction(table, read_version, results, env, remap), remaining
            except RetryableConflictError as error:
                logger.info("compaction of %s: %s", table.root, error)
            latest = load_latest(table)
            read_version = latest.version
            present = {fragment.id: fragment for fragment in latest.fragments}
            conflicting = [r for r in results if any(present.get(f.id) != f for f in r.old_fragments)]
            for result in conflicting:
                delete_fragment_files(table, result.new)
            results = [result for result in results if result not in conflicting]
            remaining += conflicting
            if not results:
                return CompactionMetrics(), remaining
        raise RetryableConflictError(f"every attempt to compact {table.root} conflicted with other writers")


def commit_compaction(
    table: TableRef,
    read_version: int,
    results: Sequence[RewriteResult],
    env: CommitEnv,
    remap: IndexRemap | None,
) -> CompactionMetrics:
    """Commit results as one Rewrite, together with the index changes for moved rows.

    If the commit fails, new index segments are deleted, unless the outcome is unknown.
    """
    reuse = None
    rewritten: list[RewrittenIndex] = []
    is_deferred = all(result.old_addresses and result.deferred for result in results)
    if is_deferred or (remap is not None and any(result.old_addresses for result in results)):
        version, results = _reserve_ids(table, results, env)
        reserved = Snapshot(table, version)
        groups = [_moved_group(result) for result in results if result.old_addresses]
        if is_deferred:
            reuse = extend_history(reserved, reserved.version, groups)
        elif remap is not None:
            rewritten = remap.rewrite(reserved, groups)
    group = transaction_pb2.Transaction.Rewrite.RewriteGroup
    operation = transaction_pb2.Transaction.Rewrite(
        groups=[group(old_fragments=r.old_fragments, new_fragments=r.new_fragments) for r in results],
        rewritten_indices=rewritten,
    )
    with delete_on_failure(lambda: delete_rewritten(table, rewritten)):
        commit_operation(table, operation, read_version=read_version, reuse=reuse, env=env)
    return sum((result.metrics for result in results), CompactionMetrics())


def _reserve_ids(
    table: TableRef, results: Sequence[RewriteResult], env: CommitEnv
) -> tuple[Manifest, list[RewriteResult]]:
    """Reserve ids for the new fragments; return the version with the reservation, and results with ids."""
    count = sum(len(result.new) for result in results)
    operation = transaction_pb2.Transaction.ReserveFragments(num_fragments=count)
    latest = load_latest(table).version
    reserved = commit_operation(table, operation, read_version=latest, env=env)
    number = reserved.message.max_fragment_id - count
    with_ids = []
    for result in results:
        new = []
        for fragment in result.new_fragments:
            number += 1
            copy = table_pb2.DataFragment()
            copy.CopyFrom(fragment)
            copy.id = number
            new.append(copy.SerializeToString())
        with_ids.append(replace(result, new=tuple(new)))
    return reserved, with_ids


def _moved_group(result: RewriteResult) -> MovedGroup:
    return MovedGroup(
        changed_row_addrs=result.old_addresses,
        old_fragments=[_digest(fragment) for fragment in result.old_fragments],
        new_fragments=[_digest(fragment) for fragment in result.new_fragments],
    )


def _digest(fragment: table_pb2.DataFragment) -> Digest:
    return Digest(
        id=fragment.id,
        physical_rows=fragment.physical_rows,
        num_deleted_rows=fragment.deletion_file.num_deleted_rows,
    )
