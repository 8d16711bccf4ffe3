"""The clauses of a merge, and what each of them sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as st

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.spark.schema.types import field_type
from spark_lance.spark.table.assignments import Assignments
from spark_lance.spark.table.expressions import Expression, quoted
from spark_lance.spark.table.merge_keys import column_path
from spark_lance.table.schema.defaults import default_sql
from spark_lance.table.schema.keys import in_key_order

if TYPE_CHECKING:
    from pyspark.sql import Column

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
        return assigned
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
        if not alike and evolving:
            continue
        if len(exact or alike) != 1:
            reason = "lacks" if not alike else "has several times"
            raise SchemaError(
                f"{clause.name} takes all columns, but the source {reason} {top.name!r}; name the "
                "columns, leave some out, or use withSchemaEvolution()"
            )
        values[quoted(top.name)] = copies.take((exact or alike)[0])
    if not values:
        raise SchemaError(f"{clause.name}: the source has none of the table's columns")
    assigned = Assignments.of(schema, values)
    return _with_defaults(values, assigned, schema, None) if clause.kind == "insert" else assigned


def _with_defaults(
    values: Mapping[str, Expression], assigned: Assignments, schema: Schema, alias: str | None
) -> Assignments:
    """Return what an insert sets, with the defaults of the columns that it leaves out."""
    defaults = {
        quoted(top.name): sql
        for top in schema.fields
        if top not in assigned.fields and (sql := default_sql(top)) is not None
    }
    return Assignments.of(schema, {**values, **defaults}, alias) if defaults else assigned


def _alike(fields: Sequence[Field], keys: Mapping[str, str], source: st.StructType) -> bool:
    """Whether equal keys are stored with equal bytes: no casts but those between integers."""
    whole = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
    schema = {one.name.lower(): one.dataType for one in source.fields}
    for top in fields:
        actual, stored = schema[keys[top.name.lower()]], field_type(top.read_field())
        if (
            top.is_blob
            or top.is_json
            or not (actual == stored or (isinstance(actual, whole) and isinstance(stored, whole)))
        ):
            return False
    return True
