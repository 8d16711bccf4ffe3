"""A merge as one Spark job: a join that returns the action for each row to change, and its new values.

`MergeJoin` is the join; `clauses` have the values that each clause sets.

Source and table are joined once, so each attempt evaluates the source once and writes exactly the rows of
this evaluation. The job reads only row addresses and the table columns that the condition and the clauses
use. The clauses determine the kind of join:

    matched                        inner
    not matched (insert)           left anti: the table's values do not matter
    matched, insert                left outer
    not matched by source          the table left anti the source
    matched, not by source         right outer
    insert, not by source          full outer

If only table rows with a key of the source matter, the keys become a filter of the read (`rows`, see
`merge_pruning`). An outer join of a large table with a small source would still sort all rows of the read. So
a semi join with broadcast keys selects these rows first (`narrow`). Both cases evaluate the source twice, so
the source must return the same rows each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as st

from spark_lance.errors import ExpressionError, SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.spark.schema.types import field_type
from spark_lance.spark.table.assignments import Assignments
from spark_lance.spark.table.base import NO_SUBQUERIES, SubqueryColumns, few_partitions, read_needed
from spark_lance.spark.table.expressions import (
    Expression,
    analysis_errors,
    as_column,
    expression_text,
    is_ansi,
    needed_columns,
    quoted,
    resolve_types,
    spark_functions,
)
from spark_lance.spark.table.merge_keys import column_path, equal_columns
from spark_lance.spark.table.merge_pruning import KeyPair, SourceKeys, key_pairs
from spark_lance.spark.table.row_tasks import Action
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.schema.defaults import default_sql, generation_sql, get_identity
from spark_lance.table.schema.keys import sort_key_fields

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_lance.spark.table.base import TableBase

# The rows that a clause applies to: pairs, source rows without a match, table rows without a match.
MATCHED, NEW, MISSING = "matched", "not matched", "not matched by source"

# Prefix of source columns that a clause for all columns uses.
_ALL = "__lance_all_"


@dataclass(frozen=True)
class Clause:
    """One clause of a merge.

    Attributes:
        rows: the rows that the clause applies to: `MATCHED`, `NEW` or `MISSING`.
        kind: "update", "insert" or "delete".
        condition: additional condition on the rows; None for all rows.
        values: table column -> value; None sets all columns to the source columns of the same name.
        without: columns that "all" excludes.
    """

    rows: str
    kind: str
    condition: Expression | None = None
    values: Mapping[str, Expression] | None = None
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The clause for error messages."""
        return f"the clause when {self.rows} then {self.kind}"

    @property
    def method(self) -> str:
        """The method of `MergeBuilder` that adds the clause with all columns."""
        return "whenNotMatchedInsertAll()" if self.kind == "insert" else "whenMatchedUpdateAll()"

    @property
    def is_all(self) -> bool:
        """Whether the clause sets all columns from the source."""
        return self.kind != "delete" and self.values is None


@dataclass(frozen=True)
class Clauses:
    """The clauses of a merge and their assignments, resolved on table and source.

    Attributes:
        ordered: updates, then inserts, then deletes: the order in which tasks need the rows.
        assigned: assignments of each clause; None for deletes.
        copied: source columns under unique names.
        schema: schema of the table.
        alias: alias of the table.
        source_names: column names of the source.
    """

    ordered: tuple[Clause, ...]
    assigned: tuple[Assignments | None, ...]
    copied: tuple[Column, ...]
    schema: Schema
    alias: str | None
    source_names: tuple[str, ...]

    @classmethod
    def of(
        cls,
        clauses: Sequence[Clause],
        schema: Schema,
        alias: str | None,
        source_names: Sequence[str],
        evolving: bool,
        functions: Any,
    ) -> Clauses:
        """Resolve clauses on a table and a source.

        Args:
            clauses: the clauses in the user's order.
            schema, alias: schema and alias of the table.
            source_names: column names of the source.
            evolving: whether table columns that the source lacks keep their values instead of raising an
                error.
            functions: Spark's functions module.

        Raises:
            SchemaError: a column does not exist, is missing in the source, or cannot hold such values.
        """
        ordered = sorted(clauses, key=lambda clause: ("update", "insert", "delete").index(clause.kind))
        copies = _SourceCopies(functions, source_names)
        assigned = [_resolve_clause(clause, schema, alias, evolving, copies) for clause in ordered]
        copied = tuple(copies.columns.values())
        return cls(tuple(ordered), tuple(assigned), copied, schema, alias, tuple(source_names))

    @property
    def rows(self) -> frozenset[str]:
        """The kinds of rows that the clauses apply to."""
        return frozenset(clause.rows for clause in self.ordered)

    @property
    def field_ids(self) -> set[int]:
        """The ids of the fields that get values; all fields of the table if a clause inserts."""
        inserts = any(clause.kind == "insert" for clause in self.ordered)
        ids = {node.id for node in self.schema.walk()} if inserts else set()
        return ids.union(*(each.field_ids for each in self.assigned if each is not None))

    def inserted_key(
        self, equal: Sequence[tuple[str, str]], source: st.StructType
    ) -> tuple[Field, ...] | None:
        """Return the key columns whose inserted values are those that the condition compares.

        Args:
            equal: pairs of a table column and a source column that the condition compares for equality.
            source: schema of the source.

        Returns:
            The columns in the order of the declared key; None if no clause inserts, or if an insert may store
            other values.
        """
        inserts = [clause for clause in self.ordered if clause.kind == "insert"]
        keys: dict[str, str] = {}
        for target_name, source_name in equal:
            keys.setdefault(target_name, source_name)
        fields = [top for top in self.schema.fields if top.name.lower() in keys]
        if not inserts or not keys or len(fields) != len(keys):
            return None
        fits = all(self._stores(clause, top, keys[top.name.lower()]) for clause in inserts for top in fields)
        if not fits or not _store_equal_bytes(fields, keys, source):
            return None
        return sort_key_fields(self.schema, fields)

    def _stores(self, clause: Clause, top: Field, source: str) -> bool:
        """Return whether a clause stores a source column unchanged in a table column."""
        if clause.values is None:
            left_out = {name.lower() for name in clause.without}
            return source == top.name.lower() and source not in left_out
        own = [
            value
            for name, value in clause.values.items()
            if Assignments.of(self.schema, {name: value}, self.alias).fields == [top]
        ]
        path = column_path(own[0]) if own else None
        if path is None or path[-1] != source:
            return False
        structs = [name.lower() for name in self.source_names]
        return len(path) == 1 or (len(path) == 2 and path[0] not in structs)


@dataclass
class _SourceCopies:
    """Copies of source columns under unique names."""

    functions: Any
    names: Sequence[str]

    def __post_init__(self) -> None:
        self.columns: dict[str, Column] = {}

    def take(self, name: str) -> Column:
        copy = f"{_ALL}{self.names.index(name)}"
        self.columns[copy] = self.functions.col(quoted(name)).alias(copy)
        result: Column = self.functions.col(copy)
        return result


def _resolve_clause(
    clause: Clause, schema: Schema, alias: str | None, evolving: bool, copies: _SourceCopies
) -> Assignments | None:
    """Return the assignments of a clause; None for a delete."""
    if clause.kind == "delete":
        return None
    if clause.values is not None:
        assigned = Assignments.of(schema, clause.values, alias)
        if clause.kind == "insert" and assigned.partial_columns:
            raise SchemaError(
                f"{clause.name}: an insert sets whole columns, not {assigned.partial_columns[0]!r}"
            )
        if clause.kind == "insert":
            return _add_defaults(clause.values, assigned, schema, alias)
        return assigned.with_generated()
    values: dict[str, Expression] = {}
    left_out = {name.lower() for name in clause.without}
    own = {top.name.lower() for top in schema.fields}
    if unknown := sorted(left_out - own):
        raise SchemaError(f"{clause.name}: there is no column {', '.join(unknown)} to leave out")
    for top in schema.fields:
        if top.name.lower() in left_out:
            continue
        alike = [name for name in copies.names if name.lower() == top.name.lower()]
        exact = [name for name in alike if name == top.name]
        if not alike and (evolving or generation_sql(top) is not None or get_identity(top) is not None):
            continue
        if len(exact or alike) != 1:
            reason = f"no {top.name!r}" if not alike else f"several columns {top.name!r}"
            raise SchemaError(
                f"{clause.method} needs every table column, but the source has {reason}: name the columns, "
                f"write {clause.method[:-1]}exceptCols=[{top.name!r}]), or use withSchemaEvolution()"
            )
        values[quoted(top.name)] = copies.take((exact or alike)[0])
    if not values:
        raise SchemaError(f"{clause.name}: the source has none of the table's columns")
    assigned = Assignments.of(schema, values)
    return (
        _add_defaults(values, assigned, schema, None)
        if clause.kind == "insert"
        else assigned.with_generated()
    )


def _add_defaults(
    values: Mapping[str, Expression], assigned: Assignments, schema: Schema, alias: str | None
) -> Assignments:
    """Return the assignments of an insert, with defaults for the columns that it does not set."""
    defaults = {
        quoted(top.name): sql
        for top in schema.fields
        if top not in assigned.fields and (sql := default_sql(top)) is not None
    }
    result = Assignments.of(schema, {**values, **defaults}, alias) if defaults else assigned
    return result.with_generated(inserts=True)


def _store_equal_bytes(fields: Sequence[Field], keys: Mapping[str, str], source: st.StructType) -> bool:
    """Return whether equal keys are stored as equal bytes: no casts except between integers."""
    whole = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
    schema = {one.name.lower(): one.dataType for one in source.fields}
    for top in fields:
        actual, target_type = schema[keys[top.name.lower()]], field_type(top.read_field())
        if (
            top.is_blob
            or top.is_json
            or not (actual == target_type or (isinstance(actual, whole) and isinstance(target_type, whole)))
        ):
            return False
    return True


# Columns of the join in addition to the columns of table and source.
ADDRESS = "__lance_address"
# Prefix of the old values of partially set columns.
OLD = "__lance_old_"
_PRESENT = "__lance_source"
_PRECOMPUTED = "__lance_early_"
_KEY = "__lance_key_"


class MergeJoin:
    """The join of source and table.

    Args:
        table: the table.
        manifest: the version.
        source: the rows to merge.
        condition: true if a source row and a table row match.
        clauses: the resolved clauses.
        narrow: select the table rows that have a key of the source before the join.
        rows: a filter for the table rows that matter.
        subqueries: adds columns that expressions use in addition to the table's columns.

    Raises:
        ExpressionError: Spark cannot resolve the columns of source or table.
    """

    def __init__(
        self,
        table: TableBase,
        manifest: Manifest,
        source: DataFrame,
        condition: Expression,
        clauses: Clauses,
        narrow: bool,
        rows: SourceKeys | None,
        subqueries: SubqueryColumns = NO_SUBQUERIES,
    ) -> None:
        self._table, self._manifest, self._condition = table, manifest, condition
        self._clauses, self._rows, self._subqueries = clauses, rows, subqueries
        self._functions: Any = spark_functions(table.spark)
        # Expressions to compute before the join, because a name in them is ambiguous after it.
        self._precomputed: dict[str, list[Column]] = {NEW: [], MISSING: []}
        self._own_source = source
        self._target = self._read_table()
        self._source = self._mark_source()
        if narrow and self.can_narrow():
            self._target = self._narrow_target()

    @property
    def has_target_rows(self) -> bool:
        """Whether the join returns table rows."""
        return self._join_type != "new"

    def _read_table(self) -> DataFrame:
        """Return the table side: needed columns, addresses, and old values of partially set columns."""
        F = self._functions
        expressions: list[Expression] = [self._condition]
        partly: list[str] = []
        for clause, assigned in zip(self._clauses.ordered, self._clauses.assigned, strict=True):
            expressions += [] if clause.condition is None else [clause.condition]
            expressions += [] if clause.values is None else clause.values.values()
            partly += [] if assigned is None else assigned.partial_columns
        column_names = needed_columns([ROW_ADDRESS], expressions, self._table.aliased)
        pairs = self.deciding_pairs()
        only = (
            self._rows.condition if pairs and self._rows is not None and self._rows.pairs == pairs else None
        )
        columns_to_read = [*expressions, *map(quoted, partly)]
        frame = self._subqueries.add_to_rows(read_needed(self._table, self._manifest, columns_to_read, only))
        old = [F.col(quoted(name)).alias(f"{OLD}{name}") for name in dict.fromkeys(partly)]
        frame = frame.select("*", F.col(ROW_ADDRESS).alias(ADDRESS), *old)
        return frame if column_names else frame.drop(ROW_ADDRESS)

    def _mark_source(self) -> DataFrame:
        """Return the source side with a presence column and the copied columns."""
        with analysis_errors("the source"):
            side = self._own_source.select(
                "*", self._functions.lit(True).alias(_PRESENT), *self._clauses.copied
            )
            assert side.schema
        return side

    def can_narrow(self) -> bool:
        """See `MergePlan.can_narrow`."""
        return self._join_type in ("new", "left_outer") and bool(self.equal)

    def deciding_pairs(self) -> list[KeyPair]:
        """See `MergePlan.pairs`."""
        if self._join_type not in ("inner", "new", "left_outer"):
            return []
        return key_pairs(self._manifest.schema, self._own_source.schema, self.equal)

    @cached_property
    def equal(self) -> list[tuple[str, str]]:
        """The pairs of a table column and a source column that the condition compares for equality."""
        names = [top.name for top in self._manifest.schema.fields]
        return equal_columns(self._condition, self._table.aliased, names, self._clauses.source_names)

    def _narrow_target(self) -> DataFrame:
        """Return the table rows that have a key of the source."""
        F = self._functions
        pairs = self.equal
        keys = self._own_source.select(
            *[F.col(quoted(source_name)).alias(f"{_KEY}{i}") for i, (_, source_name) in enumerate(pairs)]
        )
        equal = [
            F.col(quoted(target_name)) == F.col(f"{_KEY}{i}") for i, (target_name, _) in enumerate(pairs)
        ]
        return self._target.join(F.broadcast(keys), equal, "left_semi")

    def applies(self, clause: Clause) -> Column:
        """Return a Column: whether a clause applies to a joined row, apart from the clause's condition."""
        F = self._functions
        there: Column = F.lit(True)
        if self._join_type in ("inner", "new", "missing"):
            return there
        if clause.rows == NEW:
            there = F.col(ADDRESS).isNull()
        elif clause.rows == MISSING:
            there = F.col(_PRESENT).isNull()
        else:
            there = F.col(ADDRESS).isNotNull() & F.col(_PRESENT).isNotNull()
        return there

    @cached_property
    def _join_type(self) -> str:
        kinds = self._clauses.rows
        if kinds == {MATCHED}:
            return "inner"
        if len(kinds) == 1:
            return "new" if kinds == {NEW} else "missing"
        return {
            frozenset({MATCHED, NEW}): "left_outer",
            frozenset({MATCHED, MISSING}): "right_outer",
        }.get(kinds, "full_outer")

    def joined(self) -> DataFrame:
        """Return the joined rows. Call `resolved` for all expressions first."""
        F = self._functions
        how = self._join_type
        side = self._source
        if self._precomputed[NEW]:
            side = side.select("*", *self._precomputed[NEW])
        target = self._target
        if self._precomputed[MISSING]:
            target = target.select("*", *self._precomputed[MISSING])
        with analysis_errors(f"the merge condition {expression_text(self._condition)!r}"):
            on = as_column(F, self._condition)
            if how == "missing":
                joined = target.join(side, on, "left_anti")
            elif how == "new":
                joined = side.join(target, on, "left_anti")
            else:
                joined = self._subqueries.add_to_pairs(side.join(target, on, how))
            assert joined.schema
        return joined

    @cached_property
    def _pairs(self) -> DataFrame:
        with analysis_errors(f"the merge condition {expression_text(self._condition)!r}"):
            joined = self._source.join(self._target, as_column(self._functions, self._condition), "inner")
            pairs = self._subqueries.add_to_pairs(joined)
            assert pairs.schema
        return pairs

    def _visible_rows(self, rows: str) -> DataFrame:
        """Return a frame with the columns that expressions of a clause may use."""
        return {NEW: self._source, MISSING: self._target}[rows] if rows != MATCHED else self._pairs

    def resolved(self, clause: Clause, expressions: Sequence[Expression]) -> list[Column]:
        """Return expressions as Columns that the join resolves.

        Raises:
            ExpressionError: an expression uses a column that is not available to the clause.
        """
        if not expressions:
            return []
        F = self._functions
        columns = []
        for expression in expressions:
            with analysis_errors(f"{clause.name}, {expression_text(expression)!r}"):
                columns.append(as_column(F, expression))
        own = self._visible_rows(clause.rows)
        if not _resolves(own, columns):
            for column, expression in zip(columns, expressions, strict=True):
                with analysis_errors(f"{clause.name}, {expression_text(expression)!r}"):
                    resolve_types(own, [column])
        if clause.rows == MATCHED or self._join_type in ("new", "missing"):
            return columns
        pairs = self._pairs
        if _resolves(pairs, columns):
            return columns
        return [
            column if _resolves(pairs, [column]) else self._compute_before_join(clause.rows, column)
            for column in columns
        ]

    def _compute_before_join(self, rows: str, column: Column) -> Column:
        """Compute an expression with an ambiguous name before the join; return its column."""
        name = f"{_PRECOMPUTED}{rows.replace(' ', '_')}_{len(self._precomputed[rows])}"
        self._precomputed[rows].append(column.alias(name))
        result: Column = self._functions.col(name)
        return result


def _resolves(frame: DataFrame, columns: Sequence[Column]) -> bool:
    """Return whether Spark can resolve expressions on a DataFrame."""
    try:
        with analysis_errors("an expression"):
            resolve_types(frame, columns)
    except ExpressionError:
        return False
    return True


# The index of the clause that applies to a row.
_ACTION = "__lance_action"
# Number of columns of a frame without values: action and address.
_WITHOUT_VALUES = 2


@dataclass
class MergePlan:
    """The plan of a merge for one version.

    Attributes:
        frame: action, address and new values of the rows to change.
        actions: the actions by their index.
        field_ids: ids of the fields that get values.
        key: the table columns that are equal in source and table; None if they are unknown.
        pairs: the key columns for pruning; empty if all table rows matter.
        can_narrow: whether table rows without a key of the source do not matter, and the join would sort the
            table.
    """

    frame: DataFrame
    actions: tuple[Action, ...]
    field_ids: list[int]
    key: tuple[Field, ...] | None
    pairs: Sequence[KeyPair]
    can_narrow: bool

    @classmethod
    def of(
        cls,
        table: TableBase,
        manifest: Manifest,
        source: DataFrame,
        condition: Expression,
        clauses: Sequence[Clause],
        evolving: bool = False,
        narrow: bool = False,
        rows: SourceKeys | None = None,
        subqueries: SubqueryColumns = NO_SUBQUERIES,
    ) -> MergePlan:
        """Plan a merge for a version. Spark analyses it; no job runs.

        Args:
            table: the table.
            manifest: the version.
            source: the rows to merge.
            condition: true if a source row and a table row match.
            clauses: the clauses in the user's order.
            evolving: whether table columns that the source lacks keep their values instead of raising an
                error.
            narrow: select the table rows that have a key of the source before the join.
            rows: a filter for the table rows that matter; used only if its keys are the plan's keys.
            subqueries: adds columns that expressions use in addition to the table's columns.

        Raises:
            ExpressionError: Spark cannot resolve an expression on table and source.
            SchemaError: a column does not exist, is missing in the source, or cannot hold such values.
        """
        functions = spark_functions(table.spark)
        with analysis_errors("the source"):
            names = list(source.columns)
        resolved_clauses = Clauses.of(clauses, manifest.schema, table.aliased, names, evolving, functions)
        sides = MergeJoin(table, manifest, source, condition, resolved_clauses, narrow, rows, subqueries)
        joined_rows, values = _join_rows(sides, resolved_clauses, clauses, functions)
        frame, actions = _with_values(
            joined_rows, resolved_clauses, values, functions, is_ansi(table.spark), sides.has_target_rows
        )
        if sides.has_target_rows and len(frame.columns) > _WITHOUT_VALUES:
            frame = few_partitions(frame, manifest, functions)
            frame = frame.sortWithinPartitions("action", "address")
        key = resolved_clauses.inserted_key(sides.equal, source.schema)
        ids = sorted(resolved_clauses.field_ids)
        return cls(frame, actions, ids, key, sides.deciding_pairs(), sides.can_narrow())


def _join_rows(
    sides: MergeJoin, resolved_clauses: Clauses, clauses: Sequence[Clause], functions: Any
) -> tuple[DataFrame, list[list[Column]]]:
    """Return the joined rows that a clause applies to, and the values of each resolved clause.

    The first clause in the user's order (`clauses`) that applies to a row wins.
    """
    F = functions
    conditions: list[list[Column]] = []
    values: list[list[Column]] = []
    for clause, assigned in zip(resolved_clauses.ordered, resolved_clauses.assigned, strict=True):
        conditions.append(sides.resolved(clause, [] if clause.condition is None else [clause.condition]))
        values.append(sides.resolved(clause, [] if assigned is None else assigned.expressions))
    joined = sides.joined()
    action: Any = F
    for clause in clauses:
        number = next(i for i, other in enumerate(resolved_clauses.ordered) if other is clause)
        applies = sides.applies(clause)
        for condition in conditions[number]:
            applies = applies & condition
        action = action.when(applies, F.lit(number))
    with analysis_errors("the conditions of the clauses"):
        actions = joined.withColumn(_ACTION, action).where(F.col(_ACTION).isNotNull())
        assert actions.schema
    return actions, values


def _with_values(
    joined_rows: DataFrame,
    clauses: Clauses,
    values: Sequence[Sequence[Column]],
    functions: Any,
    ansi: bool,
    has_target_rows: bool,
) -> tuple[DataFrame, tuple[Action, ...]]:
    """Return action, address and a value column for each column that any clause sets."""
    F = functions
    set_anywhere = {name for a in clauses.assigned if a is not None for name in a.targets}
    fields = [top for top in clauses.schema.fields if top.name in set_anywhere]
    cases: dict[str, Any] = {}
    actions = []
    every = iter(_types(joined_rows, values))
    frame_names = [[next(every) for _ in each] for each in values]
    referenced: set[str] = set()
    for assigned, types in zip(clauses.assigned, frame_names, strict=True):
        referenced |= set() if assigned is None else assigned.referenced(types)
    for number, (clause, assigned) in enumerate(zip(clauses.ordered, clauses.assigned, strict=True)):
        if assigned is None:
            actions.append(Action("delete"))
            continue
        columns = assigned.columns(
            F,
            values[number],
            frame_names[number],
            ansi,
            lambda name: F.col(quoted(f"{OLD}{name}")),
            referenced,
        )
        for top, column in zip(assigned.fields, columns, strict=True):
            case = cases.get(top.name)
            cases[top.name] = (F if case is None else case).when(F.col(_ACTION) == number, column)
        names = tuple(top.name for top in assigned.fields)
        places = tuple(next(i for i, top in enumerate(fields) if top.name == name) for name in names)
        actions.append(Action(clause.kind, names, places))
    with analysis_errors("the new values"):
        address = F.col(ADDRESS) if has_target_rows else F.lit(None).cast("long")
        frame = joined_rows.select(
            F.col(_ACTION).alias("action"),
            address.alias("address"),
            *[cases[top.name].alias(f"v{i}") for i, top in enumerate(fields)],
        )
        assert frame.schema
    return frame, tuple(actions)


def _types(joined_rows: DataFrame, values: Sequence[Sequence[Column]]) -> list[st.DataType]:
    with analysis_errors("the new values"):
        return resolve_types(joined_rows, [value for each in values for value in each])
