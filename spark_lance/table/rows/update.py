"""Update rows: find them, write changed copies, commit; start over if another writer was in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError, OptionError, SchemaError
from spark_lance.expressions.predicate import Predicate, compile_expression, compute_native
from spark_lance.expressions.values import cast
from spark_lance.file.base.schema import Field
from spark_lance.io.retry import RetryPolicy
from spark_lance.jsonb.columns import documents_of
from spark_lance.table.commits.commit import SYSTEM_ENV, CommitEnv
from spark_lance.table.commits.retry_operation import CONFLICT_RETRIES, retry_operation
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.row_lookup import columns_of, read_rows
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.find_rows import find_rows
from spark_lance.table.rows.row_rewrites import CarriedRowIds, check_movable, commit_moves, write_moved

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
