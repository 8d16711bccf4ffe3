"""Merging a source into a table, with the words of pylance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.datasets.merge_plan import analyzed_merge, explained_merge
from spark_lance.datasets.spelling import OneSpelling
from spark_lance.datasets.transaction import Transaction
from spark_lance.errors import OptionError
from spark_lance.expressions.predicate import Predicate
from spark_lance.io.retry import RetryPolicy
from spark_lance.table import transaction as stored
from spark_lance.table.rows.merge_insert import MergeRules, merge_rows, prepare_merge
from spark_lance.table.rows.merge_source import SPILL_BYTES, source_rows
from spark_lance.table.writing.inputs import as_reader

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

__all__ = ["MergeInsertBuilder", "MergeResult"]


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
        with source_rows(self._reader(data, schema), self._limit) as rows:
            done = merge_rows(dataset.snapshot, rows, rules, reruns=reruns)
        return MergeResult(
            dataset.at(done.manifest), done.num_inserted_rows, done.num_updated_rows, done.num_deleted_rows
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
