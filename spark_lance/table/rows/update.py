"""Update and delete rows by a condition: find them, write changed copies or deletion files, and commit.

If another writer was in the way, both start over. A search goes through the table fragment by fragment and
piece by piece, so memory does not grow with it: it keeps only the offsets of matching rows, four bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError, OptionError, SchemaError
from spark_lance.expressions.predicate import Condition, Predicate, compile_expression, compute_native
from spark_lance.expressions.values import cast
from spark_lance.file.base.schema import Field
from spark_lance.io.retry import RetryPolicy
from spark_lance.jsonb.columns import documents_of
from spark_lance.table.commits.commit import CONFLICT_RETRIES, retry_operation
from spark_lance.table.commits.commit_rows import commit_row_changes
from spark_lance.table.commits.proposal import SYSTEM_ENV, CommitEnv
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import Offsets, RowSet, offsets_of
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.reading.row_lookup import columns_of, read_rows
from spark_lance.table.reading.scan_task import Filter, read_ahead
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.rows.row_rewrites import CarriedRowIds, check_movable, commit_moves, write_moved

_WINDOW_BYTES = 64 << 20


def find_rows(snapshot: Snapshot, predicate: Filter | None) -> RowChanges:
    """Return the live rows of a version for which a predicate is true; all of them without a predicate.

    Reads what a scan with the predicate reads: only the columns that it names, and of these only what row
    numbers, indices and page statistics cannot rule out.

    Raises:
        ExpressionError: the predicate does not fit the table.
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    if predicate is None:
        return RowChanges(snapshot, RowSet.from_offsets(_live_rows(snapshot)))
    scan = snapshot.scan([ROW_ADDRESS])
    condition = scan.condition(predicate)
    rows = {}
    tasks = scan.tasks_for(condition)
    reads = [partial(task.tables, _WINDOW_BYTES, condition) for task in tasks]
    for task, tables in zip(tasks, read_ahead(tasks, reads, _WINDOW_BYTES), strict=True):
        parts = [offsets_of(table[ROW_ADDRESS].to_numpy()) for table in tables]
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
    """Delete the rows for which a predicate is true and return the version without them.

    A version is committed even if no row matches. Rows are looked for in `snapshot`; where another writer
    changed the same rows or moved them meanwhile, they are looked for again in the newest version.

    Raises:
        ExpressionError: the predicate does not fit the table.
        RetryableConflictError: other writers were in the way each time.
        CommitError: the commit failed; see its other subclasses.
        UnsupportedFormatError: the table needs a feature that is not written here.
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
class Updated:
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
) -> Updated:
    """Set columns of the rows for which a predicate is true; of all rows without one.

    A version is committed even if no row matches. Where another writer changed the same rows meanwhile, rows
    and new values are computed again from the newest version.

    Args:
        snapshot: the version in which the rows are looked for.
        updates: column -> new value: SQL text over the old columns, a pyarrow expression, or a constant.
            Values are cast to the column's type; fractions are cut off.
        where: which rows.
        reruns: how often to begin anew.
        env: clock, sleep and random numbers.

    Raises:
        OptionError: there are no updates.
        SchemaError: a column does not exist, or null comes into one that must not be null.
        ExpressionError: an expression does not fit the table, or a value does not fit the column's type.
        RetryableConflictError: other writers were in the way each time.
        CommitError: the commit failed; see its other subclasses.
        UnsupportedFormatError: the table needs a feature that is not written here, or has blobs in structs.
    """
    if not updates:
        raise OptionError("an update needs at least one column")

    def attempt(at: Snapshot) -> Updated:
        base = at.manifest
        check_movable(base)
        values = {name: _value(base, name, value) for name, value in updates.items()}
        changes = find_rows(at, where)
        ids = CarriedRowIds(at)
        added = write_moved(at, _changed(at, changes, values, ids), ids)
        field_ids = sorted(node.id for name in values for node in base.schema.field(name).walk())
        committed = commit_moves(changes, added, field_ids, env)
        return Updated(committed, changes.rows.num_rows)

    return retry_operation(snapshot, attempt, reruns, env)


def _changed(
    at: Snapshot, changes: RowChanges, values: Mapping[str, Evaluate], ids: CarriedRowIds
) -> Iterator[pa.Table]:
    """Yield the rows with their new values."""
    for number, offsets, old in read_rows(at, changes.rows.by_offsets(), at.schema.fields):
        new = old
        for name, evaluate in values.items():
            place = old.schema.get_field_index(name)
            new = new.set_column(place, old.schema.field(place), evaluate(old))
        ids.note(number, offsets)
        yield new


# The hint for plain strings in place of expressions.
_QUOTING = """Values are SQL: write a text in quotes, {"name": "'hello'"}, or use pa.scalar("hello")"""


def _value(base: Manifest, name: str, value: Any) -> Evaluate:
    """Return the function for the new values of a column, already tried on an empty table."""
    field = base.schema.field(name)
    schema = columns_of(base)
    source = _source(value, field, schema)

    def evaluate(table: pa.Table) -> pa.ChunkedArray:
        values = _fit(source(table), field)
        if values.null_count and not field.nullable:
            raise SchemaError(f"column {name!r} must not be null, but the update gives nulls")
        return values

    try:
        evaluate(pa.Table.from_batches([], schema))
    except ExpressionError as error:
        raise ExpressionError(f"new values of column {name!r}: {error}") from error
    return evaluate


def _source(value: Any, field: Field, schema: pa.Schema) -> Evaluate:
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
    one = pa.repeat(constant, 1)  # no more at once: repeating a nested value no times fails
    return lambda table: pa.chunked_array([one.take(pa.repeat(pa.scalar(0), table.num_rows))])


def _fit(values: pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    """Return the values in the type of their column; values for JSON are text or documents."""
    target = field.arrow_type()
    if field.is_json:
        parts = [documents_of(chunk) for chunk in values.chunks]
        if any(part is None for part in parts):
            raise ExpressionError(f"values of type {values.type} are neither JSON text nor documents")
        return pa.chunked_array(parts, target)
    if values.type == target:
        return values
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.nulls(len(values), target)])
    if not pa.types.is_dictionary(target):
        return cast(values, target)
    plain = cast(values, target.value_type).combine_chunks()
    encoded = plain.dictionary_encode()
    indices = cast(encoded.indices, target.index_type)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, encoded.dictionary)])
