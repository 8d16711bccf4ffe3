"""Check a table's constraints during a commit.

A commit compares each new version with the version that it is built on. So every source of rows is covered:
append, overwrite, merge, and new values of a column. Only new rows are read, and only the columns of the
constraints. If a constraint is new, or the types of its columns changed, all rows are checked. Rows that were
written before a constraint was added, but are committed after it, are checked as well.

This module evaluates the expressions that `own_condition` supports. An engine for Spark SQL evaluates the
others, see `use_engine`. Without an engine, the commit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ConstraintError, ConstraintViolationError
from spark_lance.expressions.predicate import Condition
from spark_lance.file.base.schema import Field, Schema
from spark_lance.io.uploads import finish_uploads
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.reserved_names import MEM_WAL
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.schema.constraints import (
    GENERATED,
    Constraint,
    comparable,
    generated_constraints,
    own_condition,
    table_constraints,
)

# Returns at most one row for which a Spark SQL expression is false; None if the engine cannot evaluate it.
Engine = Callable[[str, pa.Table, tuple[Field, ...]], pa.Table | None]

_WINDOW_BYTES = 32 << 20
_MAX_VALUE_CHARS = 100
# Operations that move rows, or restore rows that were checked.
_SAME_ROWS = frozenset({"rewrite", "restore", "clone"})
_engines: list[Engine] = []


def use_engine(engine: Engine) -> None:
    """Set the engine of this process for expressions that this module cannot evaluate."""
    _engines[:] = [engine]


def check_constraints(
    table: TableRef, base: Manifest | None, built: Manifest, operation: str | None, memo: set[object]
) -> None:
    """Refuse a version whose new rows violate a constraint.

    Args:
        table: the table.
        base: the version that `built` is built on; None if `built` is the first version.
        built: the new version, whose files exist.
        operation: the name of its operation.
        memo: the files that earlier attempts of the same commit have checked; newly checked files are added.

    Raises:
        ConstraintError: a row violates a constraint, a column of a constraint does not exist, or a constraint
            needs Spark.
    """
    constraints = _all_constraints(built.config, built.schema)
    if not constraints:
        return
    finish_uploads()
    before = set() if base is None else set(_all_constraints(base.config, base.schema))
    files = set() if base is None else {_file_key(file) for f in base.fragments for file in f.files}
    for constraint in constraints:
        fields = _constraint_fields(constraint, built.schema, table.root)
        if not constraint.is_checked or operation in _SAME_ROWS:
            continue
        is_new = constraint not in before
        types = None if base is None else _column_types(constraint, base.schema)
        is_other = is_new or types != _column_types(constraint, built.schema)
        use = f"write to {table.root}"
        if is_new and base is not None:
            _refuse_mem_wal(constraint, base, table.root)
            use = f"constraint cannot be added to {table.root}"
        if is_other:
            # The expression must fit the columns, even if there are no rows.
            empty = pa.schema([field.read_field() for field in fields]).empty_table()
            _check_tables(constraint, fields, iter([empty]), use)
        ids = {node.id for field in fields for node in field.walk()}
        fragments = [
            fragment for fragment in built.fragments if is_other or _has_new_values(fragment, files, ids)
        ]
        _check_fragments(table, built, constraint, fragments, use, memo)


def check_rows(config: Mapping[str, str], schema: Schema, rows: pa.Table, where: str) -> None:
    """Refuse rows that violate a constraint and are not committed now, such as rows of a log.

    Raises:
        ConstraintError: a row violates a constraint, or a constraint needs Spark.
    """
    for constraint in _all_constraints(config, schema):
        if constraint.is_checked:
            fields = _constraint_fields(constraint, schema, where)
            part = rows.select([field.name for field in fields])
            _check_tables(constraint, fields, iter([part]), f"write to {where}")


def _all_constraints(config: Mapping[str, str], schema: Schema) -> tuple[Constraint, ...]:
    return (*table_constraints(config), *generated_constraints(schema))


def _refuse_mem_wal(constraint: Constraint, base: Manifest, root: str) -> None:
    """Refuse a new constraint if the table has a MemWAL, whose rows may be unchecked."""
    if any(index.name == MEM_WAL for index in base.indices):
        raise ConstraintError(
            f"constraint {constraint.name} cannot be added to {root}, which has logs of rows (MemWAL) "
            "that are not checked: make a table with the constraint and copy the rows"
        )


def _file_key(file: table_pb2.DataFile) -> tuple[str, int]:
    return file.path, file.base_id


def _constraint_fields(constraint: Constraint, schema: Schema, root: str) -> tuple[Field, ...]:
    by_name = {field.name: field for field in schema.fields}
    missing = [name for name in constraint.columns if name not in by_name]
    if missing and constraint.type == GENERATED:
        raise ConstraintError(
            f"column {missing[0]!r} of {root} is used by the generated column {constraint.name!r} "
            f"({constraint.expression}): before it is dropped or renamed, drop column {constraint.name!r}"
        )
    if missing:
        raise ConstraintError(
            f"column {missing[0]!r} of {root} is used by constraint {constraint.name} ({constraint.sql}): "
            f"before it is dropped or renamed, ALTER TABLE t DROP CONSTRAINT {constraint.name}, or "
            f"LanceTable.dropConstraint({constraint.name!r})"
        )
    return tuple(by_name[name] for name in constraint.columns)


def _column_types(constraint: Constraint, schema: Schema) -> list[object]:
    by_name = {field.name: field for field in schema.fields}
    return [(field.id, field.arrow_type()) for name in constraint.columns if (field := by_name.get(name))]


def _has_new_values(fragment: table_pb2.DataFragment, files: set[tuple[str, int]], ids: set[int]) -> bool:
    """Return whether a fragment has new files with values of the given fields."""
    new = [file for file in fragment.files if _file_key(file) not in files]
    return len(new) == len(fragment.files) or any(ids.intersection(file.fields) for file in new)


def _check_fragments(
    table: TableRef,
    built: Manifest,
    constraint: Constraint,
    fragments: Iterable[table_pb2.DataFragment],
    use: str,
    memo: set[object],
) -> None:
    fields = _constraint_fields(constraint, built.schema, table.root)
    for fragment in fragments:
        key = (constraint, tuple(map(_file_key, fragment.files)))
        if key in memo:
            continue
        # Without constraint columns, read any column to get the number of rows.
        names = list(constraint.columns) or [built.schema.fields[0].name]
        scan = Snapshot(table, built).scan(names, fragments=[fragment])
        _check_tables(constraint, fields, scan.tables(target_bytes=_WINDOW_BYTES), use)
        memo.add(key)


def _check_tables(
    constraint: Constraint, fields: Sequence[Field], tables: Iterator[pa.Table], use: str
) -> None:
    expression = str(constraint.expression)
    condition = own_condition(expression, pa.schema([field.read_field() for field in fields]))
    for rows in tables:
        violating = _find_violating_row(expression, condition, rows, tuple(fields))
        if violating is None:
            raise ConstraintError(
                f"only Spark evaluates {_constraint_title(constraint)} ({expression}), and there is no "
                f"session of it here ({use}): use SQL or LanceTable after enable(spark)"
            )
        if violating.num_rows:
            row = ", ".join(
                f"{name} = {_value_text(value)}" for name, value in violating.to_pylist()[0].items()
            )
            raise _violation_error(constraint, row, use)


def _constraint_title(constraint: Constraint) -> str:
    kind = "generated column" if constraint.type == GENERATED else "CHECK constraint"
    return f"{kind} {constraint.name}"


def _violation_error(constraint: Constraint, row: str, use: str) -> ConstraintError:
    text = f"{_constraint_title(constraint)} ({constraint.expression}) is violated by the row {row or '()'}"
    if use.startswith("write"):
        text = f"{text}; nothing was written ({use.removeprefix('write to ')})"
        return ConstraintViolationError(text, constraint.name, str(constraint.expression), row)
    return ConstraintError(f"{text}, so the {use}: correct or delete such rows first")


def _find_violating_row(
    expression: str, condition: Condition | None, rows: pa.Table, fields: tuple[Field, ...]
) -> pa.Table | None:
    """Return at most one row for which an expression is false; None if nothing here can evaluate it."""
    if condition is not None:
        mask = pc.fill_null(pc.invert(condition.mask(comparable(rows))), False)
        return rows.filter(mask).slice(0, 1)
    return _engines[0](expression, rows, fields) if _engines else None


def _value_text(value: object) -> str:
    text = "NULL" if value is None else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."
