"""Update and delete rows by a condition: find the rows, write changed copies or deletion files, and commit.

After a conflict with another writer, both operations start again. The table is searched fragment by fragment
and piece by piece. Memory holds only the offsets of matching rows, four bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError, OptionError, OptionTypeError, SchemaError
from spark_lance.expressions.predicate import Condition, Predicate, compile_expression, compute_native
from spark_lance.expressions.values import cast
from spark_lance.file.base.schema import Field
from spark_lance.io.retry import RetryPolicy
from spark_lance.jsonb.columns import to_json_documents
from spark_lance.table.commits.commit import CONFLICT_RETRIES, retry_operation
from spark_lance.table.commits.commit_rows import commit_row_changes
from spark_lance.table.commits.proposal import SYSTEM_ENV, CommitEnv
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import Offsets, RowSet, address_offsets
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.reading.row_lookup import descriptor_schema, read_rows
from spark_lance.table.reading.scan_task import Filter, read_ahead
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.rows.row_rewrites import CarriedRowIds, check_movable, commit_moves, write_moved

_WINDOW_BYTES = 64 << 20


def find_rows(snapshot: Snapshot, predicate: Filter | None) -> RowChanges:
    """Return the live rows of a version for which a predicate is true; all live rows without a predicate.

    Like a scan with the predicate, it reads only the predicate's columns, and prunes rows by row numbers,
    indexes and page statistics.

    Raises:
        ExpressionError: the predicate does not fit the table.
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    if predicate is None:
        return RowChanges(snapshot, RowSet.from_offsets(_live_rows(snapshot)))
    scan = snapshot.scan([ROW_ADDRESS])
    condition = scan.condition(predicate)
    rows = {}
    tasks = scan.plan_tasks(condition)
    reads = [partial(task.tables, _WINDOW_BYTES, condition) for task in tasks]
    for task, tables in zip(tasks, read_ahead(tasks, reads, _WINDOW_BYTES), strict=True):
        parts = [address_offsets(table[ROW_ADDRESS].to_numpy()) for table in tables]
        offsets = np.concatenate([np.empty(0, np.uint32), *parts])
        if len(offsets):
            rows[task.message.id] = offsets
    return RowChanges(snapshot, RowSet.from_offsets(rows))


def _live_rows(snapshot: Snapshot) -> dict[int, Offsets]:
    rows = {}
    for fragment in snapshot.fragments:
        total = snapshot.physical_rows(fragment)
        live = np.delete(np.arange(total, dtype=np.uint32), snapshot.deletions(fragment))
        if len(live):
            rows[fragment.id] = live
    return rows


def delete_rows(
    snapshot: Snapshot,
    predicate: Filter,
    *,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> Manifest:
    """Delete the rows for which a predicate is true and return the new version.

    A version is committed even if no row matches. Rows are searched in `snapshot`. If another writer changed
    or moved the same rows concurrently, they are searched again in the newest version.

    Args:
        snapshot: the version in which the rows are searched first.
        predicate: the condition of the rows to delete.
        reruns: the number of retries, and the pauses, after conflicts.
        env: clock, sleep and random numbers.

    Raises:
        ExpressionError: the predicate does not fit the table.
        RetryableConflictError: every attempt conflicted with another writer.
        CommitError: the commit failed; see its other subclasses.
        UnsupportedFormatError: the table needs a feature that we cannot write.
    """

    text = predicate.text if isinstance(predicate, Condition) else str(predicate)

    def attempt(base: Snapshot) -> Manifest:
        return commit_row_changes(
            find_rows(base, predicate),
            lambda outcome: delete_message(outcome.updated, outcome.removed, text),
            env=env,
        )

    return retry_operation(snapshot, attempt, reruns, env)


Evaluate = Callable[[pa.Table], pa.ChunkedArray]


@dataclass(frozen=True)
class UpdateResult:
    """The result of an update: the new version, and the number of changed rows."""

    manifest: Manifest
    num_rows_updated: int


def update_rows(
    snapshot: Snapshot,
    updates: Mapping[str, Any],
    where: Predicate | None = None,
    *,
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> UpdateResult:
    """Set columns of the rows for which a predicate is true; of all rows without a predicate.

    A version is committed even if no row matches. If another writer changed the same rows concurrently, rows
    and new values are computed again from the newest version.

    Args:
        snapshot: the version in which the rows are searched first.
        updates: column -> new value: SQL text over the old columns, a pyarrow expression, or a constant.
            Values are cast to the column's type; fractions are truncated.
        where: the condition of the rows to update; None for all rows.
        reruns: the number of retries, and the pauses, after conflicts.
        env: clock, sleep and random numbers.

    Raises:
        OptionError: `updates` is empty.
        SchemaError: a column does not exist, or a NOT NULL column would get a null.
        ExpressionError: an expression does not fit the table, or a value does not fit the column's type.
        RetryableConflictError: every attempt conflicted with another writer.
        CommitError: the commit failed; see its other subclasses.
        UnsupportedFormatError: the table needs a feature that we cannot write, or has blobs in structs.
    """
    if not isinstance(updates, Mapping):
        raise OptionTypeError(
            f"updates is a dict from columns to SQL values, such as {{'price': 'price + 1'}}, not {updates!r}"
        )
    if not updates:
        raise OptionError("an update needs at least one column, as in {'price': 'price + 1'}")

    def attempt(at: Snapshot) -> UpdateResult:
        base = at.manifest
        check_movable(base)
        values = {name: _compile_value(base, name, value) for name, value in updates.items()}
        changes = find_rows(at, where)
        ids = CarriedRowIds(at)
        added = write_moved(at, _changed_rows(at, changes, values, ids), ids)
        field_ids = sorted(node.id for name in values for node in base.schema.field(name).walk())
        committed = commit_moves(changes, added, field_ids, env)
        return UpdateResult(committed, changes.rows.num_rows)

    return retry_operation(snapshot, attempt, reruns, env)


def _changed_rows(
    at: Snapshot, changes: RowChanges, values: Mapping[str, Evaluate], ids: CarriedRowIds
) -> Iterator[pa.Table]:
    """Yield the changed rows with their new values."""
    for number, offsets, old in read_rows(at, changes.rows.offsets_by_fragment(), at.schema.fields):
        new = old
        for name, evaluate in values.items():
            place = old.schema.get_field_index(name)
            new = new.set_column(place, old.schema.field(place), evaluate(old))
        ids.add_rows(number, offsets)
        yield new


# The hint if a string is not a valid SQL expression.
_QUOTING = """Values are SQL: write a text in quotes, {"name": "'hello'"}, or use pa.scalar("hello")"""


def _compile_value(base: Manifest, name: str, value: Any) -> Evaluate:
    """Return the function that computes the new values of a column, checked with an empty table."""
    names = {field.name for field in base.schema.fields}
    if name not in names and name.partition(".")[0] in names:
        base.schema.find(name)
        raise SchemaError(f"{name!r} is a field: set its whole column here, or use UPDATE in Spark SQL")
    field = base.schema.field(name)
    schema = descriptor_schema(base)
    source = _compile_source(value, field, schema)

    def evaluate(table: pa.Table) -> pa.ChunkedArray:
        values = _cast_to_field(source(table), field)
        if values.null_count and not field.nullable:
            raise SchemaError(f"column {name!r} must not be null, but the update gives nulls")
        return values

    try:
        evaluate(pa.Table.from_batches([], schema))
    except ExpressionError as error:
        raise ExpressionError(f"new values of column {name!r}: {error}") from error
    return evaluate


def _compile_source(value: Any, field: Field, schema: pa.Schema) -> Evaluate:
    if isinstance(value, str):
        try:
            return compile_expression(value, schema).evaluate
        except ExpressionError as error:
            raise ExpressionError(f"new values of column {field.name!r}: {error}. {_QUOTING}") from error
    if isinstance(value, pc.Expression):
        return lambda table: compute_native(table, value)
    try:
        constant = value if isinstance(value, pa.Scalar) else pa.scalar(value, field.arrow_type())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
        raise ExpressionError(f"column {field.name!r} cannot hold {value!r}: {error}") from error
    one = pa.repeat(constant, 1)  # take() instead of repeat(): pyarrow fails to repeat a nested value 0 times
    return lambda table: pa.chunked_array([one.take(pa.repeat(pa.scalar(0), table.num_rows))])


def _cast_to_field(values: pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    """Return values cast to the type of their column; values for JSON columns are text or documents."""
    target = field.arrow_type()
    if field.is_json:
        parts = [to_json_documents(chunk) for chunk in values.chunks]
        if any(part is None for part in parts):
            raise ExpressionError(f"values of type {values.type} are neither JSON text nor documents")
        return pa.chunked_array(parts, target)
    if values.type == target:
        return values
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.nulls(len(values), target)])
    if not pa.types.is_dictionary(target):
        try:
            return cast(values, target)
        except ExpressionError as error:
            raise ExpressionError(f"column {field.name!r}: {error}") from error
    plain = cast(values, target.value_type).combine_chunks()
    encoded = plain.dictionary_encode()
    indices = cast(encoded.indices, target.index_type)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, encoded.dictionary)])
