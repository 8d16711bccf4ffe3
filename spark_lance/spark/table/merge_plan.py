"""A merge as one Spark job: a join that returns the action for each row to change, and its new values.

`MergeJoin` is the join; `clauses` have the values that each clause sets.

Source and table are joined once, so the source is evaluated once per attempt. Its rows are written as they
were read, even if another evaluation would return others. Only the columns of the table that the condition
and the clauses use are read, with the rows' addresses. The kind of join follows from the clauses:

    matched                        inner
    not matched (insert)           left anti: what the table has does not matter
    matched, insert                left outer
    not matched by source          the table left anti the source
    matched, not by source         right outer
    insert, not by source          full outer

If only rows of the table with a key of the source matter, the keys become a condition of the read (`rows`,
see `merge_pruning`). An outer join of a large table with a small source would still sort all rows that are
read. So the rows with a key are picked first, with the keys in the memory of every task (`narrow`). Both
cases evaluate the source twice, so the source must return the same rows each time.
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
from spark_lance.spark.table.base import AS_THEY_ARE, WithSubqueryColumns, few_partitions, read_needed
from spark_lance.spark.table.expressions import (
    Expression,
    analysed,
    as_column,
    functions_of,
    is_ansi,
    needed_columns,
    quoted,
    text_of,
    types_of,
)
from spark_lance.spark.table.merge_keys import column_path, equal_columns
from spark_lance.spark.table.merge_pruning import KeyPair, SourceKeys, key_pairs
from spark_lance.spark.table.row_tasks import Action
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.schema.defaults import default_sql, generation_sql, identity_of
from spark_lance.table.schema.keys import in_key_order

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_lance.spark.table.base import TableBase

# Which rows a clause is about: pairs, rows of the source alone, rows of the table alone.
MATCHED, NEW, MISSING = "matched", "not matched", "not matched by source"

# Names of columns of the source that a clause for "all" takes.
_ALL = "__lance_all_"


@dataclass(frozen=True)
class Clause:
    """One clause of a merge.

    Attributes:
        rows: which rows it is about.
        kind: "update", "insert" or "delete".
        condition: only for rows for which this is true.
        values: what is set; None stands for all columns, with the source's values of the same name.
        without: columns that "all" leaves out.
    """

    rows: str
    kind: str
    condition: Expression | None = None
    values: Mapping[str, Expression] | None = None
    without: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The clause in messages."""
        return f"the clause when {self.rows} then {self.kind}"

    @property
    def method(self) -> str:
        """The method of `MergeBuilder` that adds the clause with all columns."""
        return "whenNotMatchedInsertAll()" if self.kind == "insert" else "whenMatchedUpdateAll()"

    @property
    def is_all(self) -> bool:
        """Whether it takes all columns from the source."""
        return self.kind != "delete" and self.values is None


@dataclass(frozen=True)
class Clauses:
    """The clauses of a merge with what each sets, fitted to table and source.

    Attributes:
        ordered: updates, then inserts, then deletes: the order in which tasks want rows.
        assigned: what each clause sets; None for deletes.
        copied: columns of the source, under names that nothing else has.
        schema: the table's.
        alias: the table's.
        source_names: the source's columns.
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
        """Fit clauses to a table and a source.

        Args:
            clauses: in the order of the user.
            schema, alias: the table's.
            source_names: the source's columns.
            evolving: whether columns that the source lacks are left alone, and not an error.
            functions: of Spark.

        Raises:
            SchemaError: a column does not exist, is missing in the source, or cannot hold such values.
        """
        ordered = sorted(clauses, key=lambda clause: ("update", "insert", "delete").index(clause.kind))
        copies = _Copies(functions, source_names)
        assigned = [_assigned(clause, schema, alias, evolving, copies) for clause in ordered]
        copied = tuple(copies.columns.values())
        return cls(tuple(ordered), tuple(assigned), copied, schema, alias, tuple(source_names))

    @property
    def rows(self) -> frozenset[str]:
        """Which rows the clauses are about."""
        return frozenset(clause.rows for clause in self.ordered)

    @property
    def field_ids(self) -> set[int]:
        """The fields that get values: all of the table if there is an insert."""
        inserts = any(clause.kind == "insert" for clause in self.ordered)
        ids = {node.id for node in self.schema.walk()} if inserts else set()
        return ids.union(*(each.field_ids for each in self.assigned if each is not None))

    def inserted_key(
        self, equal: Sequence[tuple[str, str]], source: st.StructType
    ) -> tuple[Field, ...] | None:
        """Return the key columns whose inserted values are those that the condition compares.

        Args:
            equal: pairs of a column of the table and one of the source that must be equal.
            source: the source's schema.

        Returns:
            The columns in the order of the declared key; None if there are no inserts, or that is not known.
        """
        inserts = [clause for clause in self.ordered if clause.kind == "insert"]
        keys: dict[str, str] = {}
        for mine, theirs in equal:
            keys.setdefault(mine, theirs)
        fields = [top for top in self.schema.fields if top.name.lower() in keys]
        if not inserts or not keys or len(fields) != len(keys):
            return None
        fits = all(self._stores(clause, top, keys[top.name.lower()]) for clause in inserts for top in fields)
        if not fits or not _alike(fields, keys, source):
            return None
        return in_key_order(self.schema, fields)

    def _stores(self, clause: Clause, top: Field, source: str) -> bool:
        """Whether a clause stores a column of the source, as it is, in a column of the table."""
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
class _Copies:
    """Columns of the source that are taken under names that nothing else has."""

    functions: Any
    names: Sequence[str]

    def __post_init__(self) -> None:
        self.columns: dict[str, Column] = {}

    def take(self, name: str) -> Column:
        copy = f"{_ALL}{self.names.index(name)}"
        self.columns[copy] = self.functions.col(quoted(name)).alias(copy)
        result: Column = self.functions.col(copy)
        return result


def _assigned(
    clause: Clause, schema: Schema, alias: str | None, evolving: bool, copies: _Copies
) -> Assignments | None:
    """Return what a clause sets."""
    if clause.kind == "delete":
        return None
    if clause.values is not None:
        assigned = Assignments.of(schema, clause.values, alias)
        if clause.kind == "insert" and assigned.partly:
            raise SchemaError(f"{clause.name}: an insert sets whole columns, not {assigned.partly[0]!r}")
        if clause.kind == "insert":
            return _with_defaults(clause.values, assigned, schema, alias)
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
        if not alike and (evolving or generation_sql(top) is not None or identity_of(top) is not None):
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
        _with_defaults(values, assigned, schema, None)
        if clause.kind == "insert"
        else assigned.with_generated()
    )


def _with_defaults(
    values: Mapping[str, Expression], assigned: Assignments, schema: Schema, alias: str | None
) -> Assignments:
    """Return what an insert sets, with the defaults of the columns that it leaves out."""
    defaults = {
        quoted(top.name): sql
        for top in schema.fields
        if top not in assigned.fields and (sql := default_sql(top)) is not None
    }
    result = Assignments.of(schema, {**values, **defaults}, alias) if defaults else assigned
    return result.with_generated(inserts=True)


def _alike(fields: Sequence[Field], keys: Mapping[str, str], source: st.StructType) -> bool:
    """Whether equal keys are stored with equal bytes: no casts but those between integers."""
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


# Columns that the join carries in addition to the columns of table and source.
ADDRESS = "__lance_address"
# The old values of columns that are set in part.
OLD = "__lance_old_"
_PRESENT = "__lance_source"
_EARLY = "__lance_early_"
_KEY = "__lance_key_"


class MergeJoin:
    """Source and table of a merge, ready to be joined.

    Args:
        table: the table.
        manifest: the version.
        source: the rows to merge.
        condition: when a row of the source and one of the table match.
        clauses: what is done.
        narrow: pick the rows of the table that have a key of the source before they are joined.
        rows: what the rows of the table have in common that matter.
        widened: adds columns that expressions name beside those of the table.

    Raises:
        ExpressionError: source and table cannot be read so.
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
        widened: WithSubqueryColumns = AS_THEY_ARE,
    ) -> None:
        self._table, self._manifest, self._condition = table, manifest, condition
        self._clauses, self._rows, self._widened = clauses, rows, widened
        self._functions: Any = functions_of(table.spark)
        # Expressions that are computed before the join, for a name in them means two columns after it.
        self._early: dict[str, list[Column]] = {NEW: [], MISSING: []}
        self._own_source = source
        self._target = self._read()
        self._source = self._marked()
        if narrow and self.can_narrow():
            self._target = self._narrowed()

    @property
    def sees_target(self) -> bool:
        """Whether rows of the table come out of the join."""
        return self._how != "new"

    def _read(self) -> DataFrame:
        """Return the table's side: needed columns, addresses, old values of columns that are set in part."""
        F = self._functions
        expressions: list[Expression] = [self._condition]
        partly: list[str] = []
        for clause, assigned in zip(self._clauses.ordered, self._clauses.assigned, strict=True):
            expressions += [] if clause.condition is None else [clause.condition]
            expressions += [] if clause.values is None else clause.values.values()
            partly += [] if assigned is None else assigned.partly
        named = needed_columns([ROW_ADDRESS], expressions, self._table.aliased)
        pairs = self.deciding_pairs()
        only = (
            self._rows.condition if pairs and self._rows is not None and self._rows.pairs == pairs else None
        )
        columns_to_read = [*expressions, *map(quoted, partly)]
        frame = self._widened.table(read_needed(self._table, self._manifest, columns_to_read, only))
        old = [F.col(quoted(name)).alias(f"{OLD}{name}") for name in dict.fromkeys(partly)]
        frame = frame.select("*", F.col(ROW_ADDRESS).alias(ADDRESS), *old)
        return frame if named else frame.drop(ROW_ADDRESS)

    def _marked(self) -> DataFrame:
        """Return the source's side: with a mark, and the columns that clauses for "all" take."""
        with analysed("the source"):
            side = self._own_source.select(
                "*", self._functions.lit(True).alias(_PRESENT), *self._clauses.copied
            )
            assert side.schema
        return side

    def can_narrow(self) -> bool:
        """See `MergePlan`."""
        return self._how in ("new", "left_outer") and bool(self.equal)

    def deciding_pairs(self) -> list[KeyPair]:
        """See `MergePlan.pairs`."""
        if self._how not in ("inner", "new", "left_outer"):
            return []
        return key_pairs(self._manifest.schema, self._own_source.schema, self.equal)

    @cached_property
    def equal(self) -> list[tuple[str, str]]:
        """The pairs of a column of the table and one of the source that the condition says are equal."""
        names = [top.name for top in self._manifest.schema.fields]
        return equal_columns(self._condition, self._table.aliased, names, self._clauses.source_names)

    def _narrowed(self) -> DataFrame:
        """Return the rows of the table that have a key of the source."""
        F = self._functions
        pairs = self.equal
        keys = self._own_source.select(
            *[F.col(quoted(theirs)).alias(f"{_KEY}{i}") for i, (_, theirs) in enumerate(pairs)]
        )
        equal = [F.col(quoted(mine)) == F.col(f"{_KEY}{i}") for i, (mine, _) in enumerate(pairs)]
        return self._target.join(F.broadcast(keys), equal, "left_semi")

    def applies(self, clause: Clause) -> Column:
        """Return whether a joined row is one that a clause is about."""
        F = self._functions
        there: Column = F.lit(True)
        if self._how in ("inner", "new", "missing"):
            return there
        if clause.rows == NEW:
            there = F.col(ADDRESS).isNull()
        elif clause.rows == MISSING:
            there = F.col(_PRESENT).isNull()
        else:
            there = F.col(ADDRESS).isNotNull() & F.col(_PRESENT).isNotNull()
        return there

    @cached_property
    def _how(self) -> str:
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
        """Return the joined rows; `resolved` has been asked for all expressions before."""
        F = self._functions
        how = self._how
        side = self._source
        if self._early[NEW]:
            side = side.select("*", *self._early[NEW])
        target = self._target
        if self._early[MISSING]:
            target = target.select("*", *self._early[MISSING])
        with analysed(f"the merge condition {text_of(self._condition)!r}"):
            on = as_column(F, self._condition)
            if how == "missing":
                joined = target.join(side, on, "left_anti")
            elif how == "new":
                joined = side.join(target, on, "left_anti")
            else:
                joined = self._widened.pairs(side.join(target, on, how))
            assert joined.schema
        return joined

    @cached_property
    def _pairs(self) -> DataFrame:
        with analysed(f"the merge condition {text_of(self._condition)!r}"):
            joined = self._source.join(self._target, as_column(self._functions, self._condition), "inner")
            pairs = self._widened.pairs(joined)
            assert pairs.schema
        return pairs

    def _visible_rows(self, rows: str) -> DataFrame:
        """Return what expressions of a clause may name."""
        return {NEW: self._source, MISSING: self._target}[rows] if rows != MATCHED else self._pairs

    def resolved(self, clause: Clause, expressions: Sequence[Expression]) -> list[Column]:
        """Return expressions as Columns that the join resolves.

        Raises:
            ExpressionError: one names what the clause cannot see.
        """
        if not expressions:
            return []
        F = self._functions
        columns = []
        for expression in expressions:
            with analysed(f"{clause.name}, {text_of(expression)!r}"):
                columns.append(as_column(F, expression))
        own = self._visible_rows(clause.rows)
        if not _resolves(own, columns):
            for column, expression in zip(columns, expressions, strict=True):
                with analysed(f"{clause.name}, {text_of(expression)!r}"):
                    types_of(own, [column])
        if clause.rows == MATCHED or self._how in ("new", "missing"):
            return columns
        pairs = self._pairs
        if _resolves(pairs, columns):
            return columns
        return [
            column if _resolves(pairs, [column]) else self._computed_early(clause.rows, column)
            for column in columns
        ]

    def _computed_early(self, rows: str, column: Column) -> Column:
        """Let an expression with a name that both sides have be computed before the join, on its own side."""
        name = f"{_EARLY}{rows.replace(' ', '_')}_{len(self._early[rows])}"
        self._early[rows].append(column.alias(name))
        result: Column = self._functions.col(name)
        return result


def _resolves(frame: DataFrame, columns: Sequence[Column]) -> bool:
    """Whether Spark can resolve expressions over a DataFrame."""
    try:
        with analysed("an expression"):
            types_of(frame, columns)
    except ExpressionError:
        return False
    return True


# The number of the clause that applies to a row.
_ACTION = "__lance_action"
# Action and address.
_WITHOUT_VALUES = 2


@dataclass
class MergePlan:
    """A merge fitted to a version.

    Attributes:
        frame: action, address and new values of the rows to change.
        actions: what the numbers of actions mean.
        field_ids: the fields that get values.
        key: the columns of the table that are equal in source and table; None if that is not known.
        pairs: the keys that tell which rows of the table matter; none if all do.
        can_narrow: whether rows of the table without a key of the source do not matter, and a join of that
            kind would sort the table.
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
        widened: WithSubqueryColumns = AS_THEY_ARE,
    ) -> MergePlan:
        """Fit a merge to a version. Spark analyses it; no job runs.

        Args:
            table: the table.
            manifest: the version.
            source: the rows to merge.
            condition: when a row of the source and one of the table match.
            clauses: what to do, in order.
            evolving: whether columns that the source lacks are left alone, and not an error.
            narrow: pick the rows of the table that have a key of the source before they are joined.
            rows: what the rows of the table have in common that matter; only for the plan's keys.
            widened: adds columns that expressions name beside those of the table.

        Raises:
            ExpressionError: an expression does not fit table and source.
            SchemaError: a column does not exist, is missing in the source, or cannot hold such values.
        """
        functions = functions_of(table.spark)
        with analysed("the source"):
            names = list(source.columns)
        resolved_clauses = Clauses.of(clauses, manifest.schema, table.aliased, names, evolving, functions)
        sides = MergeJoin(table, manifest, source, condition, resolved_clauses, narrow, rows, widened)
        joined_rows, values = _join_rows(sides, resolved_clauses, clauses, functions)
        frame, actions = _with_values(
            joined_rows, resolved_clauses, values, functions, is_ansi(table.spark), sides.sees_target
        )
        if sides.sees_target and len(frame.columns) > _WITHOUT_VALUES:
            frame = few_partitions(frame, manifest, functions)
            frame = frame.sortWithinPartitions("action", "address")
        key = resolved_clauses.inserted_key(sides.equal, source.schema)
        ids = sorted(resolved_clauses.field_ids)
        return cls(frame, actions, ids, key, sides.deciding_pairs(), sides.can_narrow())


def _join_rows(
    sides: MergeJoin, resolved_clauses: Clauses, clauses: Sequence[Clause], functions: Any
) -> tuple[DataFrame, list[list[Column]]]:
    """Return the joined rows that a clause applies to, and what each fitted clause sets.

    The first clause of the user's order, `clauses`, that applies to a row is the one that counts.
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
    with analysed("the conditions of the clauses"):
        actions = joined.withColumn(_ACTION, action).where(F.col(_ACTION).isNotNull())
        assert actions.schema
    return actions, values


def _with_values(
    joined_rows: DataFrame,
    clauses: Clauses,
    values: Sequence[Sequence[Column]],
    functions: Any,
    ansi: bool,
    sees_target: bool,
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
    with analysed("the new values"):
        address = F.col(ADDRESS) if sees_target else F.lit(None).cast("long")
        frame = joined_rows.select(
            F.col(_ACTION).alias("action"),
            address.alias("address"),
            *[cases[top.name].alias(f"v{i}") for i, top in enumerate(fields)],
        )
        assert frame.schema
    return frame, tuple(actions)


def _types(joined_rows: DataFrame, values: Sequence[Sequence[Column]]) -> list[st.DataType]:
    with analysed("the new values"):
        return types_of(joined_rows, [value for each in values for value in each])
