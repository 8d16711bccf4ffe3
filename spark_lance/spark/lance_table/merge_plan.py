"""A merge as one Spark job: a join that gives what is done with each row to change, and its new values.

Source and table are joined once, so the source is evaluated once (in each attempt), and what it gives is what
is written even if it would give something else the next time. Of the table only the columns are read that the
condition and the clauses name, with the rows' addresses. The kind of join follows from the clauses:

    matched                        inner
    not matched (insert)           left anti: what the table has does not matter
    matched, insert                left outer
    not matched by source          the table left anti the source
    matched, not by source         right outer
    insert, not by source          full outer

Where only rows of the table matter that have a key of the source, the keys are a condition of the read
(`rows`, see `merge_pruning`). An outer join of a large table with few rows of a source would still sort what
is read, so the rows that have a key are picked first, with the keys in the memory of every task (`narrow`).
For both the source is looked at twice and must be one that gives the same rows each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as st

from spark_lance.errors import ExpressionError, SchemaError
from spark_lance.file.schema import Field
from spark_lance.spark.lance_table.column_references import Expression, needed_columns, text_of
from spark_lance.spark.lance_table.expressions import (
    analysed,
    as_column,
    functions_of,
    is_ansi,
    quoted,
    types_of,
)
from spark_lance.spark.lance_table.merge_keys import column_path, equal_columns
from spark_lance.spark.lance_table.merge_pruning import KeyPair, SourceKeys, key_pairs
from spark_lance.spark.lance_table.reading import few_partitions, read_needed
from spark_lance.spark.lance_table.row_tasks import Action
from spark_lance.spark.lance_table.targets import Assignments
from spark_lance.spark.schema.types import spark_type
from spark_lance.table.manifest import Manifest
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.schema.keys import in_key_order

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_lance.spark.lance_table.base import TableBase

__all__ = ["MATCHED", "MISSING", "NEW", "Clause", "MergePlan"]

# Which rows a clause is about: pairs, rows of the source alone, rows of the table alone.
MATCHED, NEW, MISSING = "matched", "not matched", "not matched by source"

# Columns that the join carries beside those of table and source.
_ADDRESS = "__lance_address"
_PRESENT = "__lance_source"
_ACTION = "__lance_action"
_OLD = "__lance_old_"
_ALL = "__lance_all_"
_EARLY = "__lance_early_"
_KEY = "__lance_key_"


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
    def is_all(self) -> bool:
        """Whether it takes all columns from the source."""
        return self.kind != "delete" and self.values is None


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

        Raises:
            ExpressionError: an expression does not fit table and source.
            SchemaError: a column does not exist, is missing in the source, or cannot hold such values.
        """
        ordered = sorted(clauses, key=lambda clause: ("update", "insert", "delete").index(clause.kind))
        join = _Join(table, manifest, source, condition, ordered, evolving, narrow, rows)
        frame, actions = join.frame(clauses)
        assigned = [a for a in join.assigned if a is not None]
        inserts = any(clause.kind == "insert" for clause in clauses)
        ids = {node.id for node in manifest.schema.walk()} if inserts else set()
        ids.update(number for each in assigned for number in each.field_ids)
        key = join.key() if inserts else None
        return cls(frame, actions, sorted(ids), key, join.deciding_pairs(), join.can_narrow())


@dataclass
class _Join:
    """The join of a merge in the making.

    Attributes:
        clauses: updates, then inserts, then deletes: the order in which tasks want rows.
        assigned: what each clause sets; None for deletes.
        early: expressions that are computed before the join, for a name in them means two columns after it.
    """

    table: TableBase
    manifest: Manifest
    source: DataFrame
    condition: Expression
    clauses: Sequence[Clause]
    evolving: bool
    narrow: bool
    rows: SourceKeys | None
    assigned: list[Assignments | None] = field(init=False)
    early: dict[str, list[Column]] = field(default_factory=lambda: {NEW: [], MISSING: []})

    def __post_init__(self) -> None:
        self.functions: Any = functions_of(self.table.spark)
        with analysed("the source"):
            self.source_names = list(self.source.columns)
        self.copied: dict[str, Column] = {}
        self.assigned = [self._assign(clause) for clause in self.clauses]
        self.target = self._target()
        self.side = self._source()
        if self.narrow and self.can_narrow():
            self.target = self._narrowed()

    def _assign(self, clause: Clause) -> Assignments | None:
        """Return what a clause sets."""
        if clause.kind == "delete":
            return None
        schema = self.manifest.schema
        if clause.values is not None:
            assigned = Assignments.of(schema, clause.values, self.table.aliased)
            if clause.kind == "insert" and assigned.partly:
                raise SchemaError(f"{clause.name}: an insert sets whole columns, not {assigned.partly[0]!r}")
            return assigned
        values: dict[str, Expression] = {}
        left_out = {name.lower() for name in clause.without}
        own = {top.name.lower() for top in schema.fields}
        if unknown := sorted(left_out - own):
            raise SchemaError(f"{clause.name}: there is no column {', '.join(unknown)} to leave out")
        for top in schema.fields:
            if top.name.lower() in left_out:
                continue
            alike = [name for name in self.source_names if name.lower() == top.name.lower()]
            exact = [name for name in alike if name == top.name]
            if not alike and self.evolving:
                continue
            if len(exact or alike) != 1:
                reason = "lacks" if not alike else "has several times"
                raise SchemaError(
                    f"{clause.name} takes all columns, but the source {reason} {top.name!r}; name the "
                    "columns, leave some out, or use withSchemaEvolution()"
                )
            values[quoted(top.name)] = self._copy((exact or alike)[0])
        if not values:
            raise SchemaError(f"{clause.name}: the source has none of the table's columns")
        return Assignments.of(schema, values)

    def _copy(self, name: str) -> Column:
        """Return a column of the source under a name that nothing else has."""
        copy = f"{_ALL}{self.source_names.index(name)}"
        self.copied[copy] = self.functions.col(quoted(name)).alias(copy)
        found: Column = self.functions.col(copy)
        return found

    def _target(self) -> DataFrame:
        """Return the table's side: needed columns, addresses, old values of columns that are set in part."""
        F = self.functions
        expressions: list[Expression] = [self.condition]
        partly: list[str] = []
        for clause, assigned in zip(self.clauses, self.assigned, strict=True):
            expressions += [] if clause.condition is None else [clause.condition]
            expressions += [] if clause.values is None else clause.values.values()
            partly += [] if assigned is None else assigned.partly
        named = needed_columns([ROW_ADDRESS], expressions, self.table.aliased)
        pairs = self.deciding_pairs()
        only = self.rows.condition if pairs and self.rows is not None and self.rows.pairs == pairs else None
        frame = read_needed(self.table, self.manifest, [*expressions, *map(quoted, partly)], only)
        old = [F.col(quoted(name)).alias(f"{_OLD}{name}") for name in dict.fromkeys(partly)]
        frame = frame.select("*", F.col(ROW_ADDRESS).alias(_ADDRESS), *old)
        return frame if named else frame.drop(ROW_ADDRESS)

    def _source(self) -> DataFrame:
        with analysed("the source"):
            side = self.source.select("*", self.functions.lit(True).alias(_PRESENT), *self.copied.values())
            assert side.schema
        return side

    def can_narrow(self) -> bool:
        """See `MergePlan`."""
        return self._how() in ("new", "left_outer") and bool(self._pairs_of_keys())

    def deciding_pairs(self) -> list[KeyPair]:
        """See `MergePlan.pairs`."""
        if self._how() not in ("inner", "new", "left_outer"):
            return []
        return key_pairs(self.manifest.schema, self.source.schema, self._pairs_of_keys())

    def _pairs_of_keys(self) -> list[tuple[str, str]]:
        names = [top.name for top in self.manifest.schema.fields]
        return equal_columns(self.condition, self.table.aliased, names, self.source_names)

    def _narrowed(self) -> DataFrame:
        """Return the rows of the table that have a key of the source."""
        F = self.functions
        pairs = self._pairs_of_keys()
        keys = self.source.select(
            *[F.col(quoted(theirs)).alias(f"{_KEY}{i}") for i, (_, theirs) in enumerate(pairs)]
        )
        equal = [F.col(quoted(mine)) == F.col(f"{_KEY}{i}") for i, (mine, _) in enumerate(pairs)]
        return self.target.join(F.broadcast(keys), equal, "left_semi")

    def frame(self, clauses: Sequence[Clause]) -> tuple[DataFrame, tuple[Action, ...]]:
        """Return the rows to change, and the actions; `clauses` are in the order of the user."""
        F = self.functions
        conditions: list[list[Column]] = []
        values: list[list[Column]] = []
        for clause, assigned in zip(self.clauses, self.assigned, strict=True):
            given = [] if clause.condition is None else [clause.condition]
            conditions.append(self._resolved(clause, given))
            values.append(self._resolved(clause, [] if assigned is None else assigned.expressions))
        joined = self._joined()
        action: Any = F
        for clause in clauses:
            number = next(i for i, other in enumerate(self.clauses) if other is clause)
            applies = self._guard(clause)
            for condition in conditions[number]:
                applies = applies & condition
            action = action.when(applies, F.lit(number))
        with analysed("the conditions of the clauses"):
            chosen = joined.withColumn(_ACTION, action).where(F.col(_ACTION).isNotNull())
            assert chosen.schema
        return self._with_values(chosen, values)

    def _guard(self, clause: Clause) -> Column:
        F = self.functions
        there: Column = F.lit(True)
        if self._how() in ("inner", "new", "missing"):
            return there
        if clause.rows == NEW:
            there = F.col(_ADDRESS).isNull()
        elif clause.rows == MISSING:
            there = F.col(_PRESENT).isNull()
        else:
            there = F.col(_ADDRESS).isNotNull() & F.col(_PRESENT).isNotNull()
        return there

    def _how(self) -> str:
        kinds = {clause.rows for clause in self.clauses}
        if kinds == {MATCHED}:
            return "inner"
        if len(kinds) == 1:
            return "new" if kinds == {NEW} else "missing"
        return {
            frozenset({MATCHED, NEW}): "left_outer",
            frozenset({MATCHED, MISSING}): "right_outer",
        }.get(frozenset(kinds), "full_outer")

    def _joined(self) -> DataFrame:
        F = self.functions
        how = self._how()
        side = self.side
        if self.early[NEW]:
            side = side.select("*", *self.early[NEW])
        target = self.target
        if self.early[MISSING]:
            target = target.select("*", *self.early[MISSING])
        with analysed(f"the merge condition {text_of(self.condition)!r}"):
            on = as_column(F, self.condition)
            if how == "missing":
                joined = target.join(side, on, "left_anti")
            else:
                joined = side.join(target, on, "left_anti" if how == "new" else how)
            assert joined.schema
        return joined

    def _probe(self, rows: str) -> DataFrame:
        """Return what expressions of a clause may name."""
        if rows == NEW:
            return self.side
        if rows == MISSING:
            return self.target
        if not hasattr(self, "_pairs"):
            with analysed(f"the merge condition {text_of(self.condition)!r}"):
                self._pairs = self.side.join(self.target, as_column(self.functions, self.condition), "inner")
                assert self._pairs.schema
        return self._pairs

    def _resolved(self, clause: Clause, expressions: Sequence[Expression]) -> list[Column]:
        """Return expressions as Columns that the join resolves.

        Raises:
            ExpressionError: one names what the clause cannot see.
        """
        if not expressions:
            return []
        F = self.functions
        columns = []
        for expression in expressions:
            with analysed(f"{clause.name}, {text_of(expression)!r}"):
                columns.append(as_column(F, expression))
        own = self._probe(clause.rows)
        if not _resolves(own, columns):
            for column, expression in zip(columns, expressions, strict=True):
                with analysed(f"{clause.name}, {text_of(expression)!r}"):
                    types_of(own, [column])
        if clause.rows == MATCHED or self._how() in ("new", "missing"):
            return columns
        pairs = self._probe(MATCHED)
        if _resolves(pairs, columns):
            return columns
        return [
            column if _resolves(pairs, [column]) else self._early(clause.rows, column) for column in columns
        ]

    def _early(self, rows: str, column: Column) -> Column:
        """Let an expression with a name that both sides have be computed before the join, on its own side."""
        name = f"{_EARLY}{rows.replace(' ', '_')}_{len(self.early[rows])}"
        self.early[rows].append(column.alias(name))
        found: Column = self.functions.col(name)
        return found

    def _with_values(
        self, chosen: DataFrame, values: Sequence[Sequence[Column]]
    ) -> tuple[DataFrame, tuple[Action, ...]]:
        """Return action, address and a value column for each column that any clause sets."""
        F = self.functions
        ansi = is_ansi(self.table.spark)
        set_anywhere = {name for a in self.assigned if a is not None for name in a.targets}
        fields = [top for top in self.manifest.schema.fields if top.name in set_anywhere]
        cases: dict[str, Any] = {}
        actions = []
        every = iter(self._types(chosen, values))
        given = [[next(every) for _ in each] for each in values]
        referenced: set[str] = set()
        for assigned, types in zip(self.assigned, given, strict=True):
            referenced |= set() if assigned is None else assigned.referenced(types)
        for number, (clause, assigned) in enumerate(zip(self.clauses, self.assigned, strict=True)):
            if assigned is None:
                actions.append(Action("delete"))
                continue
            columns = assigned.columns(
                F,
                values[number],
                given[number],
                ansi,
                lambda name: F.col(quoted(f"{_OLD}{name}")),
                referenced,
            )
            for top, column in zip(assigned.fields, columns, strict=True):
                case = cases.get(top.name)
                cases[top.name] = (F if case is None else case).when(F.col(_ACTION) == number, column)
            names = tuple(top.name for top in assigned.fields)
            places = tuple(next(i for i, top in enumerate(fields) if top.name == name) for name in names)
            actions.append(Action(clause.kind, names, places))
        with analysed("the new values"):
            sees_target = self._how() != "new"
            address = F.col(_ADDRESS) if sees_target else F.lit(None).cast("long")
            frame = chosen.select(
                F.col(_ACTION).alias("action"),
                address.alias("address"),
                *[cases[top.name].alias(f"v{i}") for i, top in enumerate(fields)],
            )
            assert frame.schema
        if fields and sees_target:
            frame = few_partitions(frame, self.manifest, F)
            frame = frame.sortWithinPartitions("action", "address")
        return frame, tuple(actions)

    def _types(self, chosen: DataFrame, values: Sequence[Sequence[Column]]) -> list[st.DataType]:
        with analysed("the new values"):
            return types_of(chosen, [value for each in values for value in each])

    def key(self) -> tuple[Field, ...] | None:
        """Return the key columns whose inserted values are those that the condition compares."""
        schema = self.manifest.schema
        keys: dict[str, str] = {}
        for mine, theirs in self._pairs_of_keys():
            keys.setdefault(mine, theirs)
        fields = [top for top in schema.fields if top.name.lower() in keys]
        if not keys or len(fields) != len(keys):
            return None
        inserts = [clause for clause in self.clauses if clause.kind == "insert"]
        fits = all(self._stores(clause, top, keys[top.name.lower()]) for clause in inserts for top in fields)
        if not fits or not self._alike(fields, keys):
            return None
        return in_key_order(schema, fields)

    def _stores(self, clause: Clause, top: Field, source: str) -> bool:
        """Whether a clause stores a column of the source, as it is, in a column of the table."""
        if clause.values is None:
            left_out = {name.lower() for name in clause.without}
            return source == top.name.lower() and source not in left_out
        own = [
            value
            for name, value in clause.values.items()
            if Assignments.of(self.manifest.schema, {name: value}, self.table.aliased).fields == [top]
        ]
        path = column_path(own[0]) if own else None
        if path is None or path[-1] != source:
            return False
        structs = [name.lower() for name in self.source_names]
        return len(path) == 1 or (len(path) == 2 and path[0] not in structs)

    def _alike(self, fields: Sequence[Field], keys: Mapping[str, str]) -> bool:
        """Whether equal keys are stored with equal bytes: no casts but those between integers."""
        whole = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
        schema = {one.name.lower(): one.dataType for one in self.source.schema.fields}
        for top in fields:
            given, kept = schema[keys[top.name.lower()]], spark_type(top.arrow_type())
            if top.is_blob or not (given == kept or (isinstance(given, whole) and isinstance(kept, whole))):
                return False
        return True


def _resolves(frame: DataFrame, columns: Sequence[Column]) -> bool:
    """Whether Spark can resolve expressions over a DataFrame."""
    try:
        with analysed("an expression"):
            types_of(frame, columns)
    except ExpressionError:
        return False
    return True
