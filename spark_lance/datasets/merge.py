"""Methods that delete, update and merge rows, named as in pylance; and merge plans as text."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.datasets.operations import Transaction
from spark_lance.datasets.spelling import SpellingHintMixin
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
# (keeps unmatched table rows, keeps unmatched source rows) -> join type. The table is the left side.
_JOINS = {(False, False): "Inner", (False, True): "Right", (True, False): "Left", (True, True): "Full"}


def explain_merge(snapshot: Snapshot, schema: pa.Schema, rules: MergeRules) -> str:
    """Return the plan of a merge as text. Reads only manifests and index metadata.

    Args:
        snapshot: the version that the source is compared with.
        schema: schema of the source.
        rules: the clauses and keys of the merge.

    Raises:
        SchemaError, ExpressionError, UnsupportedFormatError: see `merge_rows`.
    """
    merge = Merge.plan(snapshot, SourceRows.of(schema.empty_table()), rules)
    return _format_tree(_plan_steps(merge, [""] * 5))


def analyze_merge(snapshot: Snapshot, source: SourceRows, rules: MergeRules) -> str:
    """Run a merge without committing it, and return its plan with times and I/O counts.

    The written files are deleted again. Bytes and requests count all reads of the process during the run,
    including concurrent reads.

    Args:
        snapshot, rules: see `explain_merge`.
        source: the rows to merge.

    Raises:
        SchemaError, ExpressionError, MergeError, UnsupportedFormatError: see `merge_rows`.
    """
    start, counts_before = time.perf_counter(), read_counts()
    merge = Merge.plan(snapshot, source, rules)
    merge.match()
    matched, compared = time.perf_counter(), read_counts()
    output = merge.write()
    end, copied = time.perf_counter(), read_counts()
    added_fragments = [fragment.SerializeToString() for fragment in output.added]
    delete_fragment_files(snapshot.table, added_fragments, snapshot.bases)
    metrics = [
        f"elapsed={(end - start) * 1000:.3f}ms, metrics=[{_write_metrics(merge, output)}]",
        f"metrics=[{_read_metrics(copied - compared)}]",
        f"elapsed={(matched - start) * 1000:.3f}ms, metrics=[{_match_metrics(merge)}]",
        f"metrics=[{_scan_metrics(merge, compared - counts_before)}]",
        f"metrics=[output_rows={merge.source.compared_columns.num_rows}, spilled={source.spilled}]",
    ]
    return _format_tree(_plan_steps(merge, metrics))


def _plan_steps(merge: Merge, metrics: Sequence[str]) -> list[tuple[int, str]]:
    """Return depth and text of each plan step: the write, the copied columns, the join and its two sides."""
    rules = merge.rules
    wrote, copied, joined, read, outer = (f", {metric}" if metric else "" for metric in metrics)
    on = ", ".join(key.name for key in merge.keys)
    steps = [(0, f"MergeInsert: on=[{on}], {_rules_text(merge)}{wrote}")]
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
    return [*steps, (depth + 1, f"Source: projection=[{', '.join(merge.source.schema.names)}]{outer}")]


def _rules_text(merge: Merge) -> str:
    rules = merge.rules
    matched = _MATCHED[rules.matched]
    if merge.condition is not None:
        matched = f"UpdateIf({condition_text(merge.condition.condition)})"
    unmatched = "InsertAll" if rules.insert else "DoNothing"
    unseen_text = "Delete" if rules.delete_missing else "Keep"
    if merge.missing is not None:
        unseen_text = f"DeleteIf({condition_text(merge.missing)})"
    return f"when_matched={matched}, when_not_matched={unmatched}, when_not_matched_by_source={unseen_text}"


def _table_side(merge: Merge) -> str:
    scan = merge.scan()
    line = f"LanceRead: uri={scan.store.uri(scan.root)}, projection=[{', '.join(scan.names)}]"
    line += f", num_fragments={len(scan.fragments)}, version={scan.manifest.version}, rows={scan.count()}"
    if merge.lookup is None:
        return line
    task_ids = {task.message.id for task in merge.lookup.tasks}
    unseen_text = [str(fragment.id) for fragment in scan.fragments if fragment.id not in task_ids]
    if unseen_text:
        text = ", ".join(unseen_text[:20]) + (
            f", and {len(unseen_text) - 20} more" if len(unseen_text) > 20 else ""
        )
        line += f", pruned_fragments=[{text}] of {len(scan.fragments)}"
    lists = sum(task.selection is not None for task in merge.lookup.tasks)
    return f"{line}, row_lists={lists} of {len(task_ids)} fragments" if lists else line


def _index_steps(merge: Merge) -> list[str]:
    """Return a step per index that looks up keys; before the keys are known, per index that might."""
    if merge.rules.delete_missing and merge.missing is None:
        return []
    words = {"keys": "is one of", "range": "is between the least and the greatest of"}
    how = "is among" if merge.lookup is None else words[merge.lookup.method]
    return [
        f"ScalarIndexQuery: query=[{column} {how} the source's keys]@{name}({kind})"
        for column, name, kind in key_indices(merge.scan(), merge.keys)
    ]


def _write_metrics(merge: Merge, output: MergeOutput) -> str:
    inserted, updated, deleted = merge.counts(output)
    sizes = [file.file_size_bytes for fragment in output.added for file in fragment.files]
    text = f"bytes_written={sum(sizes)}, num_files_written={len(sizes)}, num_inserted_rows={inserted}"
    return f"{text}, num_updated_rows={updated}, num_deleted_rows={deleted}"


def _match_metrics(merge: Merge) -> str:
    return f"source_keys={merge.index.size}, matched_keys={int(merge.matched_keys.sum())}"


def _scan_metrics(merge: Merge, counts: ReadCounts) -> str:
    assert merge.lookup is not None
    fragments = f"fragments_scanned={len(merge.lookup.tasks)}, rows_scanned={merge.compared}"
    return f"{fragments}, {_read_metrics(counts)}"


def _read_metrics(counts: ReadCounts) -> str:
    text = f"bytes_read={counts.bytes}, iops={counts.reads}, requests={counts.requests}"
    return f"{text}, cache_hits={counts.cache_hits}"


def _format_tree(steps: Sequence[tuple[int, str]]) -> str:
    return "".join(f"{'  ' * depth}{line}\n" for depth, line in steps)


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge.

    Attributes:
        dataset: the table after the merge.
        num_inserted_rows, num_updated_rows, num_deleted_rows: numbers of rows.
    """

    dataset: LanceDataset
    num_inserted_rows: int
    num_updated_rows: int
    num_deleted_rows: int


def _clause_texts(rules: MergeRules) -> Iterator[str]:
    """Yield the clauses of a merge as text, such as "when matched then update"."""
    if rules.matched != "keep":
        condition = "" if rules.condition is None else f" and {rules.condition}"
        yield f"when matched{condition} then {rules.matched}"
    if rules.insert:
        yield "when not matched then insert"
    if rules.delete_missing:
        condition = "" if rules.missing is None else f" and {rules.missing}"
        yield f"when not matched by source{condition} then delete"


class MergeInsertBuilder(SpellingHintMixin):
    """A merge of data into a table. Get it from `LanceDataset.merge_insert`.

    Methods that configure the merge return the builder, so that calls can be chained. A table row and a
    source row match if their keys are equal. A key that contains a null matches nothing. Floats match by
    their bits: NaN matches NaN, 0.0 does not match -0.0.
    """

    def __init__(self, dataset: LanceDataset, on: tuple[str, ...]) -> None:
        self._dataset = dataset
        self._rules_text = MergeRules(on)
        self._retries = 10
        self._timeout = timedelta(seconds=30)
        self._limit = SPILL_BYTES

    def __repr__(self) -> str:
        keys = ", ".join(self._rules_text.on) or "the primary key"
        clauses = ", ".join(_clause_texts(self._rules_text)) or "no clause"
        uri = self._dataset.uri
        return f"MergeInsertBuilder(into {uri!r} on {keys}, {clauses}; not executed: call execute(data))"

    def when_matched_update_all(self, condition: Predicate | None = None) -> MergeInsertBuilder:
        """Replace table rows by the source rows with the same key.

        Args:
            condition: update only pairs for which this is true: SQL such as "source.x > target.x", or a
                pyarrow expression over the struct columns source and target. Default: all pairs.
        """
        self._rules_text = replace(self._rules_text, matched="update", condition=condition)
        return self

    def when_matched_delete(self) -> MergeInsertBuilder:
        """Delete table rows whose key is in the source."""
        self._rules_text = replace(self._rules_text, matched="delete", condition=None)
        return self

    def when_matched_fail(self) -> MergeInsertBuilder:
        """Raise a MergeError if the table contains a key of the source."""
        self._rules_text = replace(self._rules_text, matched="fail", condition=None)
        return self

    def when_not_matched_insert_all(self) -> MergeInsertBuilder:
        """Insert source rows whose key is not in the table."""
        self._rules_text = replace(self._rules_text, insert=True)
        return self

    def when_not_matched_by_source_delete(self, expr: Predicate | None = None) -> MergeInsertBuilder:
        """Delete table rows whose key is not in the source.

        Args:
            expr: a condition over the table's columns. Default: all such rows.
        """
        self._rules_text = replace(self._rules_text, delete_missing=True, missing=expr)
        return self

    def conflict_retries(self, max_retries: int) -> MergeInsertBuilder:
        """Set how often to run the merge again after a conflict. Default: 10."""
        self._retries = max_retries
        return self

    def retry_timeout(self, timeout: timedelta) -> MergeInsertBuilder:
        """Set the time after which no new attempt starts. Default: 30 seconds."""
        self._timeout = timeout
        return self

    def memory_limit(self, num_bytes: int) -> MergeInsertBuilder:
        """Set how many bytes of data are kept in memory. Default: 256 MB.

        Larger data spills to a file in the system's temporary folder. The keys always stay in memory.
        """
        self._limit = num_bytes
        return self

    def target_bases(self, bases: Iterable[str]) -> MergeInsertBuilder:
        """Set the base paths for new files, by name or path, as for `write_dataset`."""
        self._rules_text = replace(self._rules_text, target_bases=tuple(bases), target_all_bases=None)
        return self

    def target_all_bases(self, include_primary: bool = True) -> MergeInsertBuilder:
        """Write new files to all base paths, with or without the table's own root."""
        self._rules_text = replace(self._rules_text, target_bases=(), target_all_bases=include_primary)
        return self

    def use_index(self, use_index: bool) -> MergeInsertBuilder:
        """Set whether the merge may look up keys in scalar indexes if that is less work. Default: True.

        The result is the same. Without an index, the merge scans the key columns.
        """
        self._rules_text = replace(self._rules_text, use_index=use_index)
        return self

    def explain_plan(self, schema: pa.Schema | None = None, verbose: bool = False) -> str:
        """Return the plan of the merge as a tree with the last step first. Runs and writes nothing.

        Args:
            schema: schema of the data. Default: the table's schema.
            verbose: ignored; for compatibility with pylance.

        Raises:
            OptionError, SchemaError, ExpressionError, UnsupportedFormatError: see `execute`.
        """
        del verbose
        snapshot = self._dataset.snapshot
        return explain_merge(
            snapshot, snapshot.schema.to_arrow() if schema is None else schema, self._check_rules()
        )

    def analyze_plan(self, data: Any, schema: pa.Schema | None = None) -> str:
        """Run the merge without committing it, and return its plan with times, rows and bytes.

        The table does not change; the written files are deleted again. Bytes and requests count all reads
        of the process during the run, including concurrent reads.

        Args:
            data, schema: see `execute`.

        Raises:
            OptionError, SchemaError, ExpressionError, MergeError, UnsupportedFormatError: see `execute`.
        """
        rules = self._check_rules()
        with source_rows(self._reader(data, schema), self._limit) as rows:
            return analyze_merge(self._dataset.snapshot, rows, rules)

    def execute(self, data: Any, schema: pa.Schema | None = None) -> MergeResult:
        """Run the merge and commit a new version, even if nothing changes.

        The data is read once and kept in memory up to `memory_limit`; the table is streamed. Updated rows
        move to the end of the table, in table order. Inserted rows follow, in the order of the data. With
        stable row ids, updated rows keep their `_rowid`. If two writers insert the same key concurrently, the
        table gets one row. This also holds if the other writer is pylance and the key is the table's primary
        key.

        Args:
            data: data as for `write_dataset`, with the key columns and any other table columns. Missing
                columns keep their values in updated rows, and are null in inserted rows.
            schema: schema of an iterable of batches.

        Returns:
            The new version, and the numbers of inserted, updated and deleted rows.

        Raises:
            OptionError: the merge has no clause.
            SchemaError: the data does not fit the table, or a key column is missing or nested.
            ExpressionError: a condition cannot be evaluated on the columns.
            MergeError: several source rows match the same table row and would change it; or a row matches,
                and `when_matched_fail` is set.
            CommitError: the commit conflicts with other writers; see its subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot write, or has blobs in
                structs.
        """
        rules = self._check_rules()
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
        """Write the files of the merge without committing them; pass the result to `LanceDataset.commit`.

        The merge is not retried: if it conflicts with another writer, the commit fails.

        Args:
            data, schema: see `execute`.

        Returns:
            The transaction, and a dict with `num_inserted_rows`, `num_updated_rows` and `num_deleted_rows`.

        Raises:
            OptionError, SchemaError, ExpressionError, MergeError, UnsupportedFormatError: see `execute`.
        """
        rules = self._check_rules()
        snapshot = self._dataset.snapshot
        with source_rows(self._reader(data, schema), self._limit) as rows:
            prepared = prepare_merge(snapshot, rows, rules)
        message = stored.Transaction.new(prepared.operation, snapshot.version)
        counts = ("num_inserted_rows", "num_updated_rows", "num_deleted_rows")
        return Transaction.of(message), {name: getattr(prepared, name) for name in counts}

    def _reader(self, data: Any, schema: pa.Schema | None) -> pa.RecordBatchReader:
        return as_reader(data, schema, self._dataset.manifest.schema.to_arrow())

    def _check_rules(self) -> MergeRules:
        rules = self._rules_text
        if rules.matched == "keep" and not rules.insert and not rules.delete_missing:
            raise OptionError(
                "this merge would never change anything: call when_matched_update_all(), "
                "when_not_matched_insert_all() or another clause"
            )
        return rules


_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update.

    Attributes:
        dataset: the table after the update.
        num_rows_updated: number of changed rows.
    """

    dataset: LanceDataset
    num_rows_updated: int


@dataclass(frozen=True)
class DatasetRows:
    """Methods that change rows. Each call commits one version."""

    dataset: LanceDataset

    def delete(
        self,
        predicate: Predicate,
        *,
        conflict_retries: int = 10,
        retry_timeout: timedelta = _TIMEOUT,
    ) -> LanceDataset:
        """Delete the rows that match a predicate, and return the new version.

        The rows are searched in this version. If another writer has changed or moved the same rows, they are
        searched again in the newest version. A version is created even if no row matches.

        Args:
            predicate: SQL such as "a > 1 and b is null", or a pyarrow expression.
            conflict_retries: how often to retry after a conflict with another writer.
            retry_timeout: start no new attempt after this time.

        Raises:
            OptionTypeError: the predicate is None.
            ExpressionError: the predicate cannot be evaluated on the columns.
            CommitError: the commit conflicts with other writers; see its subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot write.
        """
        if predicate is None:
            raise OptionTypeError("delete needs a condition, not None; delete('true') deletes every row")
        reruns = _retry_policy(conflict_retries, retry_timeout)
        return self.dataset.at(delete_rows(self.dataset.snapshot, predicate, reruns=reruns))

    def update(
        self,
        updates: Mapping[str, Any],
        where: Predicate | None = None,
        conflict_retries: int = 10,
        retry_timeout: timedelta = _TIMEOUT,
    ) -> UpdateResult:
        """Set columns of the rows that match a predicate, and return the new version.

        All new values are computed from the old row, so {"a": "b", "b": "a"} swaps two columns. Values are
        cast to the column's type: fractions are truncated, and a number out of range is an error. Changed
        rows move to the end of the table. With stable row ids, they keep their `_rowid`.

        The rows are searched in this version. If another writer has changed the same rows, rows and values
        are computed again from the newest version. A version is created even if no row matches.

        Args:
            updates: column -> SQL text such as "b + 1", a pyarrow expression, or a constant other than a
                str. A text constant needs SQL quotes: "'x'".
            where: SQL such as "a > 1", or a pyarrow expression. Default: all rows.
            conflict_retries: how often to retry after a conflict with another writer.
            retry_timeout: start no new attempt after this time.

        Returns:
            The new version and the number of changed rows. (pylance returns {"num_rows_updated": n}.)

        Raises:
            OptionError: `updates` is empty.
            SchemaError: a column does not exist, or a NOT NULL column gets a null.
            ExpressionError: an expression cannot be evaluated, or a value does not fit its column.
            CommitError: the commit conflicts with other writers; see its subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot write, or has blobs in
                structs.
        """
        reruns = _retry_policy(conflict_retries, retry_timeout)
        result = update_rows(self.dataset.snapshot, updates, where, reruns=reruns)
        return UpdateResult(self.dataset.at(result.manifest), result.num_rows_updated)

    def merge(self, on: str | Iterable[str] | None = None) -> MergeInsertBuilder:
        """Return a merge builder, to update, insert and delete rows by comparing keys with a source.

            dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table)

        Args:
            on: the key column or columns. Default: the table's primary key.
        """
        names = (on,) if isinstance(on, str) else tuple(on or ())
        return MergeInsertBuilder(self.dataset, names)


def _retry_policy(retries: int, timeout: timedelta) -> RetryPolicy:
    return RetryPolicy(attempts=retries + 1, total_seconds=timeout.total_seconds())
