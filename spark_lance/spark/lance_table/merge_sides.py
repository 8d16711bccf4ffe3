"""The join of a merge: its two sides, how they are joined, and what an expression can name.

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

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from spark_lance.errors import ExpressionError
from spark_lance.spark.lance_table.column_references import Expression, needed_columns, text_of
from spark_lance.spark.lance_table.expressions import analysed, as_column, functions_of, quoted, types_of
from spark_lance.spark.lance_table.merge_clauses import MATCHED, MISSING, NEW, Clause, Clauses
from spark_lance.spark.lance_table.merge_keys import equal_columns
from spark_lance.spark.lance_table.merge_pruning import KeyPair, SourceKeys, key_pairs
from spark_lance.spark.lance_table.reading import AS_THEY_ARE, Widened, read_needed
from spark_lance.table.manifest import Manifest
from spark_lance.table.reading.system_columns import ROW_ADDRESS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_lance.spark.lance_table.base import TableBase

__all__ = ["ADDRESS", "OLD", "Sides"]

# Columns that the join carries in addition to the columns of table and source.
ADDRESS = "__lance_address"
# The old values of columns that are set in part.
OLD = "__lance_old_"
_PRESENT = "__lance_source"
_EARLY = "__lance_early_"
_KEY = "__lance_key_"


class Sides:
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
        widened: Widened = AS_THEY_ARE,
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
        needed = [*expressions, *map(quoted, partly)]
        frame = self._widened.table(read_needed(self._table, self._manifest, needed, only))
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

    def _seen(self, rows: str) -> DataFrame:
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
        own = self._seen(clause.rows)
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
