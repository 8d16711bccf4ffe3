"""Deleting, updating and merging rows, with the words of pylance; and plans of merges as text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.datasets.operations import Transaction
from spark_lance.datasets.spelling import OneSpelling
from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.expressions.predicate import Predicate, condition_text
from spark_lance.io.counters import ReadCounts, read_counts
from spark_lance.io.retry import RetryPolicy
from spark_lance.table.commits.commit_options import STATEMENT, commit_options
from spark_lance.table.format import transaction as stored
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.key_lookup import key_indices
from spark_lance.table.rows.merge_insert import (
    SPILL_BYTES,
    Merge,
    MergeOutput,
    MergeRules,
    SourceRows,
    merge_rows,
    prepare_merge,
    source_rows,
)
from spark_lance.table.rows.update import delete_rows, update_rows
from spark_lance.table.writing.inputs import as_reader
from spark_lance.table.writing.write import delete_fragment_files

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

_MATCHED = {"keep": "DoNothing", "update": "UpdateAll", "delete": "Delete", "fail": "Fail"}
# Which side's rows a join keeps without a partner: the table is on the left, the source on the right.
_JOINS = {(False, False): "Inner", (False, True): "Right", (True, False): "Left", (True, True): "Full"}


def explained_merge(snapshot: Snapshot, schema: pa.Schema, rules: MergeRules) -> str:
    """Return the plan of a merge. Nothing is read but manifests and what is known of indices.

    Args:
        snapshot: the version that the source is compared with.
        schema: of the source.
        rules: what is done.

    Raises:
        SchemaError, ExpressionError, UnsupportedFormatError: see `merge_rows`.
    """
    merge = Merge.plan(snapshot, SourceRows.of(schema.empty_table()), rules)
    return _tree(_steps(merge, [""] * 5))


def analyzed_merge(snapshot: Snapshot, source: SourceRows, rules: MergeRules) -> str:
    """Run a merge but for its commit, and return its plan with times, and what was read and written.

    The files that are written are deleted again. Bytes and requests are those of the process during the run,
    including concurrent reads.

    Args:
        snapshot, rules: see `explained_merge`.
        source: the rows.

    Raises:
        SchemaError, ExpressionError, MergeError, UnsupportedFormatError: see `merge_rows`.
    """
    start, counted = time.perf_counter(), read_counts()
    merge = Merge.plan(snapshot, source, rules)
    merge.match()
    matched, compared = time.perf_counter(), read_counts()
    written = merge.write()
    end, copied = time.perf_counter(), read_counts()
    added = [fragment.SerializeToString() for fragment in written.added]
    delete_fragment_files(snapshot.table, added, snapshot.bases)
    metrics = [
        f"elapsed={(end - start) * 1000:.3f}ms, metrics=[{_written(merge, written)}]",
        f"metrics=[{_read(copied - compared)}]",
        f"elapsed={(matched - start) * 1000:.3f}ms, metrics=[{_match_text(merge)}]",
        f"metrics=[{_scanned(merge, compared - counted)}]",
        f"metrics=[output_rows={merge.source.compared_columns.num_rows}, spilled={source.spilled}]",
    ]
    return _tree(_steps(merge, metrics))


def _steps(merge: Merge, metrics: Sequence[str]) -> list[tuple[int, str]]:
    """Return depth and text of each step: the write, what is copied, the join, and its two sides."""
    rules = merge.rules
    wrote, copied, joined, read, drawn = (f", {metric}" if metric else "" for metric in metrics)
    on = ", ".join(key.name for key in merge.keys)
    steps = [(0, f"MergeInsert: on=[{on}], {_rules(merge)}{wrote}")]
    fields = [field.name for field in merge.base.schema.fields]
    missing = [name for name in fields if name not in merge.source.schema.names]
    if rules.matched == "update":
        steps.append((1, f"TakeUpdatedRows: kept_columns=[{', '.join(missing)}]{copied}"))
    if rules.insert and missing:
        steps.append((1, f"InsertNulls: columns=[{', '.join(missing)}]"))
    depth = steps[-1][0] + 1
    pairs = ", ".join(f"({key.name}, {key.name})" for key in merge.keys)
    kind = _JOINS[rules.delete_missing, rules.insert]
    steps.append((depth, f"HashJoinExec: mode=SourceKeysInMemory, join_type={kind}, on=[{pairs}]{joined}"))
    steps += [(depth + 1, f"{_table_side(merge)}{read}")]
    if merge.lookup is None or merge.lookup.method != "nothing":
        steps += [(depth + 2, step) for step in _index_steps(merge)]
    return [*steps, (depth + 1, f"Source: projection=[{', '.join(merge.source.schema.names)}]{drawn}")]


def _rules(merge: Merge) -> str:
    rules = merge.rules
    matched = _MATCHED[rules.matched]
    if merge.condition is not None:
        matched = f"UpdateIf({condition_text(merge.condition.condition)})"
    unmatched = "InsertAll" if rules.insert else "DoNothing"
    gone = "Delete" if rules.delete_missing else "Keep"
    if merge.missing is not None:
        gone = f"DeleteIf({condition_text(merge.missing)})"
    return f"when_matched={matched}, when_not_matched={unmatched}, when_not_matched_by_source={gone}"


def _table_side(merge: Merge) -> str:
    scan = merge.scan()
    line = f"LanceRead: uri={scan.store.uri(scan.root)}, projection=[{', '.join(scan.names)}]"
    line += f", num_fragments={len(scan.fragments)}, version={scan.manifest.version}, rows={scan.count()}"
    if merge.lookup is None:
        return line
    task_ids = {task.message.id for task in merge.lookup.tasks}
    gone = [str(fragment.id) for fragment in scan.fragments if fragment.id not in task_ids]
    if gone:
        text = ", ".join(gone[:20]) + (f", and {len(gone) - 20} more" if len(gone) > 20 else "")
        line += f", pruned_fragments=[{text}] of {len(scan.fragments)}"
    lists = sum(task.selection is not None for task in merge.lookup.tasks)
    return f"{line}, row_lists={lists} of {len(task_ids)} fragments" if lists else line


def _index_steps(merge: Merge) -> list[str]:
    """Return the indices that are asked where keys are; before there are keys, those that may be asked."""
    if merge.rules.delete_missing and merge.missing is None:
        return []
    words = {"keys": "is one of", "range": "is between the least and the greatest of"}
    how = "is among" if merge.lookup is None else words[merge.lookup.method]
    return [
        f"ScalarIndexQuery: query=[{column} {how} the source's keys]@{name}({kind})"
        for column, name, kind in key_indices(merge.scan(), merge.keys)
    ]


def _written(merge: Merge, written: MergeOutput) -> str:
    inserted, updated, deleted = merge.counts(written)
    sizes = [file.file_size_bytes for fragment in written.added for file in fragment.files]
    text = f"bytes_written={sum(sizes)}, num_files_written={len(sizes)}, num_inserted_rows={inserted}"
    return f"{text}, num_updated_rows={updated}, num_deleted_rows={deleted}"


def _match_text(merge: Merge) -> str:
    return f"source_keys={merge.index.size}, matched_keys={int(merge.matched_keys.sum())}"


def _scanned(merge: Merge, counts: ReadCounts) -> str:
    assert merge.lookup is not None
    fragments = f"fragments_scanned={len(merge.lookup.tasks)}, rows_scanned={merge.compared}"
    return f"{fragments}, {_read(counts)}"


def _read(counts: ReadCounts) -> str:
    text = f"bytes_read={counts.bytes}, iops={counts.reads}, requests={counts.requests}"
    return f"{text}, cache_hits={counts.cache_hits}"


def _tree(steps: Sequence[tuple[int, str]]) -> str:
    return "".join(f"{'  ' * depth}{line}\n" for depth, line in steps)


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge.

    Attributes:
        dataset: the table after it.
        num_inserted_rows, num_updated_rows, num_deleted_rows: how many rows.
    """

    dataset: LanceDataset
    num_inserted_rows: int
    num_updated_rows: int
    num_deleted_rows: int


class MergeInsertBuilder(OneSpelling):
    """A merge in the making. Its methods change it and return it, so that calls can be chained.

    A row of the table and a row of the source match if their keys are equal. A key with a null in it matches
    nothing. Floats match by their bits: NaN matches NaN, 0.0 does not match -0.0.
    """

    def __init__(self, dataset: LanceDataset, on: tuple[str, ...]) -> None:
        self._dataset = dataset
        self._rules = MergeRules(on)
        self._retries = 10
        self._timeout = timedelta(seconds=30)
        self._limit = SPILL_BYTES

    def when_matched_update_all(self, condition: Predicate | None = None) -> MergeInsertBuilder:
        """Replace rows of the table by the source's rows of the same key.

        Args:
            condition: only where this is true of the pair: SQL such as "source.x > target.x", or a pyarrow
                expression over the struct columns source and target.
        """
        self._rules = replace(self._rules, matched="update", condition=condition)
        return self

    def when_matched_delete(self) -> MergeInsertBuilder:
        """Delete rows of the table whose key the source has."""
        self._rules = replace(self._rules, matched="delete", condition=None)
        return self

    def when_matched_fail(self) -> MergeInsertBuilder:
        """Fail with a MergeError if the table has any key of the source."""
        self._rules = replace(self._rules, matched="fail", condition=None)
        return self

    def when_not_matched_insert_all(self) -> MergeInsertBuilder:
        """Insert rows of the source whose key the table does not have."""
        self._rules = replace(self._rules, insert=True)
        return self

    def when_not_matched_by_source_delete(self, expr: Predicate | None = None) -> MergeInsertBuilder:
        """Delete rows of the table whose key the source does not have.

        Args:
            expr: only rows for which this is true, over the table's columns.
        """
        self._rules = replace(self._rules, delete_missing=True, missing=expr)
        return self

    def conflict_retries(self, max_retries: int) -> MergeInsertBuilder:
        """Set how often to start again because of other writers; 10 by default."""
        self._retries = max_retries
        return self

    def retry_timeout(self, timeout: timedelta) -> MergeInsertBuilder:
        """Set the time after which no new attempt is begun; 30 seconds by default."""
        self._timeout = timeout
        return self

    def memory_limit(self, num_bytes: int) -> MergeInsertBuilder:
        """Set up to which size the data is held in memory; 256 MB by default.

        More goes to a file in the system's folder for temporary files. The keys are always held.
        """
        self._limit = num_bytes
        return self

    def target_bases(self, bases: Iterable[str]) -> MergeInsertBuilder:
        """Set the places that take new files, by name or path, as for `write_dataset`."""
        self._rules = replace(self._rules, target_bases=tuple(bases), target_all_bases=None)
        return self

    def target_all_bases(self, include_primary: bool = True) -> MergeInsertBuilder:
        """Let all places take new files, with the table's own root or without."""
        self._rules = replace(self._rules, target_bases=(), target_all_bases=include_primary)
        return self

    def use_index(self, use_index: bool) -> MergeInsertBuilder:
        """Set whether indices of the key columns may tell where keys are, where that is less work: they may.

        The result is the same; without them the key columns are read.
        """
        self._rules = replace(self._rules, use_index=use_index)
        return self

    def explain_plan(self, schema: pa.Schema | None = None, verbose: bool = False) -> str:
        """Return how the merge is run, as a tree: what runs last stands first. Nothing is run or written.

        Args:
            schema: of the data; that of the table by default.
            verbose: changes nothing; for callers of pylance.

        Raises:
            OptionError, SchemaError, ExpressionError, UnsupportedFormatError: see `execute`.
        """
        del verbose
        snapshot = self._dataset.snapshot
        return explained_merge(
            snapshot, snapshot.schema.to_arrow() if schema is None else schema, self._checked_rules()
        )

    def analyze_plan(self, data: Any, schema: pa.Schema | None = None) -> str:
        """Run the merge but for its commit, and return its plan with times, rows and bytes.

        The table stays as it is; the files that are written are deleted again. Bytes and requests
        are those of the process during the run, including concurrent reads.

        Args:
            data, schema: see `execute`.

        Raises:
            OptionError, SchemaError, ExpressionError, MergeError, UnsupportedFormatError: see `execute`.
        """
        rules = self._checked_rules()
        with source_rows(self._reader(data, schema), self._limit) as rows:
            return analyzed_merge(self._dataset.snapshot, rows, rules)

    def execute(self, data: Any, schema: pa.Schema | None = None) -> MergeResult:
        """Merge the data and return the new version. One is made even if nothing changes.

        The data is drawn once, and held up to `memory_limit`; the table is streamed. Updated rows move to the
        end of the table, in its order; inserted rows follow in the order of the data. With stable row ids,
        updated rows keep theirs. If two writers insert the same key at the same time, the table gets one row.
        That holds for pylance as the other writer, too, if the key is the table's primary key.

        Args:
            data: any kind of data that `write_dataset` takes, with columns of the table, at least the key.
                Updated rows keep their values in columns that are not there; inserted rows are null there.
            schema: of an iterable of batches.

        Raises:
            OptionError: the merge would change nothing in any case.
            SchemaError: the data does not fit the table, or a key column is missing, or nested.
            ExpressionError: a condition does not fit the columns.
            MergeError: several rows of the data match one row that would be changed; or a row matches
                although none may.
            CommitError: other writers were in the way; see its subclasses.
            UnsupportedFormatError: the table uses what is not written here, or has blobs in structs.
        """
        rules = self._checked_rules()
        dataset = self._dataset
        reruns = RetryPolicy(attempts=self._retries + 1, total_seconds=self._timeout.total_seconds())
        options = commit_options(properties={STATEMENT: "MERGE"})
        with options, source_rows(self._reader(data, schema), self._limit) as rows:
            result = merge_rows(dataset.snapshot, rows, rules, reruns=reruns)
        return MergeResult(
            dataset.at(result.manifest),
            result.num_inserted_rows,
            result.num_updated_rows,
            result.num_deleted_rows,
        )

    def execute_uncommitted(
        self, data: Any, schema: pa.Schema | None = None
    ) -> tuple[Transaction, dict[str, int]]:
        """Write the files of the merge, and leave the commit to `LanceDataset.commit`.

        Nothing is run again because of other writers: where they were in the way, the commit fails.

        Args:
            data, schema: see `execute`.

        Returns:
            The transaction, and how many rows it inserts, updates and deletes, as `num_inserted_rows` etc.

        Raises:
            OptionError, SchemaError, ExpressionError, MergeError, UnsupportedFormatError: see `execute`.
        """
        rules = self._checked_rules()
        snapshot = self._dataset.snapshot
        with source_rows(self._reader(data, schema), self._limit) as rows:
            prepared = prepare_merge(snapshot, rows, rules)
        message = stored.Transaction.new(prepared.operation, snapshot.version)
        counts = ("num_inserted_rows", "num_updated_rows", "num_deleted_rows")
        return Transaction.of(message), {name: getattr(prepared, name) for name in counts}

    def _reader(self, data: Any, schema: pa.Schema | None) -> pa.RecordBatchReader:
        return as_reader(data, schema, self._dataset.manifest.schema.to_arrow())

    def _checked_rules(self) -> MergeRules:
        rules = self._rules
        if rules.matched == "keep" and not rules.insert and not rules.delete_missing:
            raise OptionError(
                "this merge would never change anything: say what is done when keys match or not"
            )
        return rules


_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update.

    Attributes:
        dataset: the table after it.
        num_rows_updated: how many rows were changed.
    """

    dataset: LanceDataset
    num_rows_updated: int


@dataclass(frozen=True)
class DatasetRows:
    """Changes of rows; each makes a new version."""

    dataset: LanceDataset

    def delete(
        self,
        predicate: Predicate,
        *,
        conflict_retries: int = 10,
        retry_timeout: timedelta = _TIMEOUT,
    ) -> LanceDataset:
        """Delete the rows for which a predicate is true; return the version without them.

        Rows are looked for in this version. If another writer changed the same rows meanwhile, or moved them,
        they are looked for again in the newest version. A version is made even if no row matches.

        Args:
            predicate: SQL such as "a > 1 and b is null", or a pyarrow expression.
            conflict_retries: how often to begin anew because of other writers.
            retry_timeout: no new attempt is begun after this time.

        Raises:
            OptionTypeError: there is no predicate.
            ExpressionError: the predicate does not fit the columns.
            CommitError: other writers were in the way; see its subclasses.
            UnsupportedFormatError: the table uses a feature that is not written here.
        """
        if predicate is None:
            raise OptionTypeError("delete needs a condition, not None; delete('true') deletes every row")
        reruns = _reruns(conflict_retries, retry_timeout)
        return self.dataset.at(delete_rows(self.dataset.snapshot, predicate, reruns=reruns))

    def update(
        self,
        updates: Mapping[str, Any],
        where: Predicate | None = None,
        conflict_retries: int = 10,
        retry_timeout: timedelta = _TIMEOUT,
    ) -> UpdateResult:
        """Set columns of the rows for which a predicate is true, of all rows without one.

        All new values are computed from the old row, so {"a": "b", "b": "a"} swaps two columns. Values are
        cast to the column's type: fractions are cut off, and a number too large for it is an error. Changed
        rows move to the end of the table; with stable row ids they keep their `_rowid`.

        Rows are looked for in this version. If another writer changed the same rows meanwhile, rows and
        values are computed again from the newest version. A version is made even if no row matches.

        Args:
            updates: column -> SQL text such as "b + 1", a pyarrow expression, or a constant that is not a str
                (as SQL, the text x is "'x'").
            where: SQL such as "a > 1", or a pyarrow expression.
            conflict_retries: how often to begin anew because of other writers.
            retry_timeout: no new attempt is begun after this time.

        Returns:
            The new version and the number of rows changed. (pylance returns {"num_rows_updated": n}.)

        Raises:
            OptionError: there are no updates.
            SchemaError: a column does not exist, or null comes into one that must not be null.
            ExpressionError: an expression does not fit the columns, or a value does not fit its column.
            CommitError: other writers were in the way; see its subclasses.
            UnsupportedFormatError: the table uses what is not written here, or has blobs in structs.
        """
        reruns = _reruns(conflict_retries, retry_timeout)
        result = update_rows(self.dataset.snapshot, updates, where, reruns=reruns)
        return UpdateResult(self.dataset.at(result.manifest), result.num_rows_updated)

    def merge(self, on: str | Iterable[str] | None = None) -> MergeInsertBuilder:
        """Return a builder of a merge: update, insert and delete rows by comparing keys with a source.

            dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table)

        Args:
            on: the key column or columns; by default the table's primary key.
        """
        names = (on,) if isinstance(on, str) else tuple(on or ())
        return MergeInsertBuilder(self.dataset, names)


def _reruns(retries: int, timeout: timedelta) -> RetryPolicy:
    return RetryPolicy(attempts=retries + 1, total_seconds=timeout.total_seconds())
