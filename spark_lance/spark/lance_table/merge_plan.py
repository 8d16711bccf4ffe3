"""A merge as one Spark job: a join that returns the action for each row to change, and its new values.

`merge_sides` builds the join; `merge_clauses` computes the values of each clause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as st

from spark_lance.file.base.schema import Field
from spark_lance.spark.lance_table.column_references import Expression
from spark_lance.spark.lance_table.expressions import analysed, functions_of, is_ansi, quoted, types_of
from spark_lance.spark.lance_table.merge_clauses import MATCHED, MISSING, NEW, Clause, Clauses
from spark_lance.spark.lance_table.merge_pruning import KeyPair, SourceKeys
from spark_lance.spark.lance_table.merge_sides import ADDRESS, OLD, Sides
from spark_lance.spark.lance_table.reading import AS_THEY_ARE, Widened, few_partitions
from spark_lance.spark.lance_table.row_tasks import Action
from spark_lance.table.manifest import Manifest

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_lance.spark.lance_table.base import TableBase

__all__ = ["MATCHED", "MISSING", "NEW", "Clause", "MergePlan"]

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
        widened: Widened = AS_THEY_ARE,
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
        fitted = Clauses.of(clauses, manifest.schema, table.aliased, names, evolving, functions)
        sides = Sides(table, manifest, source, condition, fitted, narrow, rows, widened)
        chosen, values = _chosen(sides, fitted, clauses, functions)
        frame, actions = _with_values(
            chosen, fitted, values, functions, is_ansi(table.spark), sides.sees_target
        )
        if sides.sees_target and len(frame.columns) > _WITHOUT_VALUES:
            frame = few_partitions(frame, manifest, functions)
            frame = frame.sortWithinPartitions("action", "address")
        key = fitted.inserted_key(sides.equal, source.schema)
        ids = sorted(fitted.field_ids)
        return cls(frame, actions, ids, key, sides.deciding_pairs(), sides.can_narrow())


def _chosen(
    sides: Sides, fitted: Clauses, clauses: Sequence[Clause], functions: Any
) -> tuple[DataFrame, list[list[Column]]]:
    """Return the joined rows that a clause applies to, and what each fitted clause sets.

    The first clause of the user's order, `clauses`, that applies to a row is the one that counts.
    """
    F = functions
    conditions: list[list[Column]] = []
    values: list[list[Column]] = []
    for clause, assigned in zip(fitted.ordered, fitted.assigned, strict=True):
        conditions.append(sides.resolved(clause, [] if clause.condition is None else [clause.condition]))
        values.append(sides.resolved(clause, [] if assigned is None else assigned.expressions))
    joined = sides.joined()
    action: Any = F
    for clause in clauses:
        number = next(i for i, other in enumerate(fitted.ordered) if other is clause)
        applies = sides.applies(clause)
        for condition in conditions[number]:
            applies = applies & condition
        action = action.when(applies, F.lit(number))
    with analysed("the conditions of the clauses"):
        chosen = joined.withColumn(_ACTION, action).where(F.col(_ACTION).isNotNull())
        assert chosen.schema
    return chosen, values


def _with_values(
    chosen: DataFrame,
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
    every = iter(_types(chosen, values))
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
        frame = chosen.select(
            F.col(_ACTION).alias("action"),
            address.alias("address"),
            *[cases[top.name].alias(f"v{i}") for i, top in enumerate(fields)],
        )
        assert frame.schema
    return frame, tuple(actions)


def _types(chosen: DataFrame, values: Sequence[Sequence[Column]]) -> list[st.DataType]:
    with analysed("the new values"):
        return types_of(chosen, [value for each in values for value in each])
