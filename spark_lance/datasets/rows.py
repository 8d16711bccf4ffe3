"""Changing rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_lance.datasets.merge import MergeInsertBuilder
from spark_lance.errors import OptionTypeError
from spark_lance.expressions.predicate import Predicate
from spark_lance.io.retry import RetryPolicy
from spark_lance.table.rows.delete import delete_rows
from spark_lance.table.rows.update import update_rows

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

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
        done = update_rows(self.dataset.snapshot, updates, where, reruns=reruns)
        return UpdateResult(self.dataset.at(done.manifest), done.num_rows_updated)

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
