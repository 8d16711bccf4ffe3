"""Merges that move the dataset to the version they make."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pyarrow as pa

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets.operations import Transaction

__all__ = ["MergeInsertBuilder"]


@raises_os_errors
class MergeInsertBuilder:
    """A merge in the making; see `spark_lance.datasets.merge.MergeInsertBuilder`."""

    def __init__(self, dataset: Any, on: str | Iterable[str] | None) -> None:
        self._dataset = dataset
        self._builder = dataset.value.merge_insert(on)

    def when_matched_update_all(self, condition: str | None = None) -> MergeInsertBuilder:
        """Replace rows of the same key."""
        self._builder.when_matched_update_all(condition)
        return self

    def when_matched_delete(self) -> MergeInsertBuilder:
        """Delete rows of the same key."""
        self._builder.when_matched_delete()
        return self

    def when_matched_fail(self) -> MergeInsertBuilder:
        """Fail if there is a row of the same key."""
        self._builder.when_matched_fail()
        return self

    def when_not_matched_insert_all(self) -> MergeInsertBuilder:
        """Insert rows of new keys."""
        self._builder.when_not_matched_insert_all()
        return self

    def when_not_matched_by_source_delete(self, expr: str | None = None) -> MergeInsertBuilder:
        """Delete rows of keys that the data lacks."""
        self._builder.when_not_matched_by_source_delete(expr)
        return self

    def conflict_retries(self, max_retries: int) -> MergeInsertBuilder:
        """Set how often to start again."""
        self._builder.conflict_retries(max_retries)
        return self

    def retry_timeout(self, timeout: timedelta) -> MergeInsertBuilder:
        """Set the time after which no new attempt is begun."""
        self._builder.retry_timeout(timeout)
        return self

    def use_index(self, use_index: bool) -> MergeInsertBuilder:
        """Set whether indices of the key columns may be asked."""
        self._builder.use_index(use_index)
        return self

    def explain_plan(self, schema: pa.Schema | None = None, verbose: bool = False) -> str:
        """Return how the merge is run, as a tree."""
        plan: str = self._builder.explain_plan(schema, verbose)
        return plan

    def analyze_plan(self, data_obj: Any, *, schema: pa.Schema | None = None) -> str:
        """Run the merge but for its commit; return its plan with what was read and written."""
        plan: str = self._builder.analyze_plan(data_obj, schema)
        return plan

    def target_bases(self, bases: Iterable[str]) -> MergeInsertBuilder:
        """Set the places that take new files."""
        self._builder.target_bases(bases)
        return self

    def target_all_bases(self, include_primary: bool = True) -> MergeInsertBuilder:
        """Let all places take new files."""
        self._builder.target_all_bases(include_primary)
        return self

    def execute(self, data_obj: Any, *, schema: pa.Schema | None = None) -> dict[str, int]:
        """Merge the data; tell how many rows."""
        done = self._builder.execute(data_obj, schema)
        self._dataset.value = done.dataset
        names = ("num_inserted_rows", "num_updated_rows", "num_deleted_rows")
        return {name: getattr(done, name) for name in names}

    def execute_uncommitted(
        self, data_obj: Any, *, schema: pa.Schema | None = None
    ) -> tuple[Transaction, dict[str, int]]:
        """Write the files of the merge, which `LanceDataset.commit` commits; tell how many rows."""
        transaction, counts = self._builder.execute_uncommitted(data_obj, schema)
        return transaction, counts
