"""The check of a table's constraints, as a part of its commit.

A commit compares each new version with the version that it is built on. So it does not matter how the rows
were made: by an append, an overwrite, a merge, or as new values of a column. Only new rows are read, and only
the columns of the constraints. A constraint that is new, or whose columns have other types, is checked for
all rows. Rows that were written before a constraint was added and are committed after it are checked as well.

The expressions of `own_condition` are evaluated here. An engine that computes Spark's SQL evaluates the
others, see `use_engine`. Without one, the commit is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ConstraintError, ConstraintViolationError
from spark_lance.expressions.predicate import Condition
from spark_lance.file.base.schema import Field, Schema
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

# Returns rows of a table for which Spark's SQL is false, one at most; None if it cannot compute it.
Engine = Callable[[str, pa.Table, tuple[Field, ...]], pa.Table | None]

_WINDOW_BYTES = 32 << 20
_SHOWN = 100
# Operations that move rows, or bring back rows that were checked.
_SAME_ROWS = frozenset({"rewrite", "restore", "clone"})
_engines: list[Engine] = []


def use_engine(engine: Engine) -> None:
    """Let an engine evaluate the expressions that are not evaluated here, in this process."""
    _engines[:] = [engine]


def check_constraints(
    table: TableRef, base: Manifest | None, built: Manifest, operation: str | None, memo: set[object]
) -> None:
    """Refuse a version whose new rows violate a constraint.

    Args:
        table: the table.
        base: the version that it is built on; None if it is the first.
        built: the new version, whose files exist.
        operation: the name of its operation.
        memo: the files that earlier attempts of the same commit have checked; more are added.

    Raises:
        ConstraintError: a row violates a constraint, one of its columns is gone, or only Spark can tell.
    """
    constraints = _all_constraints(built.config, built.schema)
    if not constraints:
        return
    before = set() if base is None else set(_all_constraints(base.config, base.schema))
    files = set() if base is None else {_key(file) for f in base.fragments for file in f.files}
    for constraint in constraints:
        fields = _fields(constraint, built.schema, table.root)
        if not constraint.is_checked or operation in _SAME_ROWS:
            continue
        is_new = constraint not in before
        types = None if base is None else _types(constraint, base.schema)
        is_other = is_new or types != _types(constraint, built.schema)
        use = f"write to {table.root}"
        if is_new and base is not None:
            _refuse_log(constraint, base, table.root)
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
    """Refuse rows that are not committed now, such as those of a log, if they violate a constraint.

    Raises:
        ConstraintError: a row does, or only Spark can tell.
    """
    for constraint in _all_constraints(config, schema):
        if constraint.is_checked:
            fields = _fields(constraint, schema, where)
            part = rows.select([field.name for field in fields])
            _check_tables(constraint, fields, iter([part]), f"write to {where}")


def _all_constraints(config: Mapping[str, str], schema: Schema) -> tuple[Constraint, ...]:
    return (*table_constraints(config), *generated_constraints(schema))


def _refuse_log(constraint: Constraint, base: Manifest, root: str) -> None:
    """Refuse a new constraint if rows may be logged that nobody has checked."""
    if any(index.name == MEM_WAL for index in base.indices):
        raise ConstraintError(
            f"constraint {constraint.name} cannot be added to {root}, which has logs of rows (MemWAL) "
            "that are not checked: make a table with the constraint and copy the rows"
        )


def _key(file: table_pb2.DataFile) -> tuple[str, int]:
    return file.path, file.base_id


def _fields(constraint: Constraint, schema: Schema, root: str) -> tuple[Field, ...]:
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


def _types(constraint: Constraint, schema: Schema) -> list[object]:
    by_name = {field.name: field for field in schema.fields}
    return [(field.id, field.arrow_type()) for name in constraint.columns if (field := by_name.get(name))]


def _has_new_values(fragment: table_pb2.DataFragment, files: set[tuple[str, int]], ids: set[int]) -> bool:
    """Whether a fragment has values of some fields that no fragment of the version before had."""
    new = [file for file in fragment.files if _key(file) not in files]
    return len(new) == len(fragment.files) or any(ids.intersection(file.fields) for file in new)


def _check_fragments(
    table: TableRef,
    built: Manifest,
    constraint: Constraint,
    fragments: Iterable[table_pb2.DataFragment],
    use: str,
    memo: set[object],
) -> None:
    fields = _fields(constraint, built.schema, table.root)
    for fragment in fragments:
        key = (constraint, tuple(map(_key, fragment.files)))
        if key in memo:
            continue
        # A column is needed for the number of rows.
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
        violating = _violating(expression, condition, rows, tuple(fields))
        if violating is None:
            raise ConstraintError(
                f"only Spark evaluates {_title(constraint)} ({expression}), and there is no "
                f"session of it here ({use}): use SQL or LanceTable after enable(spark)"
            )
        if violating.num_rows:
            row = ", ".join(
                f"{name} = {_value_text(value)}" for name, value in violating.to_pylist()[0].items()
            )
            raise _violation(constraint, row, use)


def _title(constraint: Constraint) -> str:
    kind = "generated column" if constraint.type == GENERATED else "CHECK constraint"
    return f"{kind} {constraint.name}"


def _violation(constraint: Constraint, row: str, use: str) -> ConstraintError:
    text = f"{_title(constraint)} ({constraint.expression}) is violated by the row {row or '()'}"
    if use.startswith("write"):
        text = f"{text}; nothing was written ({use.removeprefix('write to ')})"
        return ConstraintViolationError(text, constraint.name, str(constraint.expression), row)
    return ConstraintError(f"{text}, so the {use}: correct or delete such rows first")


def _violating(
    expression: str, condition: Condition | None, rows: pa.Table, fields: tuple[Field, ...]
) -> pa.Table | None:
    """Return a row for which an expression is false, no row, or None if nobody here can compute it."""
    if condition is not None:
        mask = pc.fill_null(pc.invert(condition.mask(comparable(rows))), False)
        return rows.filter(mask).slice(0, 1)
    return _engines[0](expression, rows, fields) if _engines else None


def _value_text(value: object) -> str:
    text = "NULL" if value is None else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
