"""Objects inside the requests and answers of `protocol`: JSON objects, one type for each.

Schemas are JSON texts of Spark's StructType. Bytes are base64 texts, pickled Python unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict


class Constraint(TypedDict, total=False):
    """A constraint of a table, see `table.schema.constraints`."""

    name: str
    type: str
    expression: str | None
    columns: Sequence[str]
    enforced: bool
    rely: bool
    table: Sequence[str]
    references: Sequence[str]


class Read(TypedDict, total=False):
    """The table of a read.

    `token` identifies a table object, whose reads share a snapshot. `ref` is the version, if it is known.
    `pinned` says that the version among the options is the table's, and not the user's.
    """

    options: Mapping[str, str]
    schema: str
    token: str
    ref: Sequence[Any] | None
    pinned: bool


class Write(TypedDict, total=False):
    """The target of a write. Empty where the writer is known already.

    `declaration` is the setting `partition-fields` of a table that the write makes or replaces.
    """

    options: Mapping[str, str]
    schema: str
    overwrite: bool
    declaration: str | None


class Predicate(TypedDict, total=False):
    """A node of a predicate: a column (`path`), a literal (`type`, `value`), a list, or an operator.

    A DOCUMENT tests (`test`) the result of a `function` at a path of a JSON `column`, in one of some `types`.
    """

    path: Sequence[str] | str
    type: str
    value: str | None
    values: Sequence[Any]
    op: str
    args: Sequence[Any]
    test: str
    function: str
    column: str
    types: Sequence[str]


class Aggregate(TypedDict):
    """An aggregate of a column; `path` is None for all rows."""

    function: str
    distinct: bool
    path: Sequence[str] | None


class Top(TypedDict):
    """The order of a top-n query: a column, its direction, and whether nulls are first or last."""

    path: Sequence[str]
    descending: bool
    nulls: str
    rows: int


class TableChange(TypedDict, total=False):
    """A change of ALTER TABLE. `kind` names it; the other keys depend on the kind."""

    kind: str
    property: str
    value: str
    column: Sequence[str]
    columns: Sequence[str]
    type: str
    nullable: bool
    comment: str | None
    position: str | None
    after: str | None
    default: str | None
    exists_default: str | None
    to: str
    if_exists: bool
    constraint: Constraint


class Pushdown(TypedDict):
    """The predicates and limits that Spark may push down into a read.

    `values` are the paths of columns and fields whose values compare as in Spark, `nulls` those of others
    whose nulls are the same. `whole` says whether the read is of all rows of a version.
    """

    values: Sequence[Sequence[str]]
    nulls: Sequence[Sequence[str]]
    whole: bool


class Resolved(TypedDict):
    """An expression of a statement.

    `column` is its place in the subject's `columns`. `needs` are the columns of the table that it reads.
    `of_source` is its name if it is a column of the source.
    """

    column: int
    needs: Sequence[str]
    text: str | None
    of_source: str | None


class MergeClause(TypedDict, total=False):
    """A clause of MERGE: `rows` is matched, not matched, or not matched by source."""

    rows: str
    kind: str
    condition: Resolved | None
    values: Sequence[Sequence[Any]]


class Staging(TypedDict, total=False):
    """The settings spark.wap.branch and spark.wap.id of a session."""

    branch: str
    id: str


class Staged(TypedDict):
    """A table that a statement creates or replaces when its rows are written.

    `declaration` is its setting `partition-fields`, "" if it has none.
    """

    uri: str
    truncates: bool
    options: Mapping[str, str]
    declaration: str


class SortKey(TypedDict):
    """A key of the order of written rows: a path, its direction, and whether nulls are first or last."""

    path: Sequence[str]
    descending: bool
    nulls: str


class WriteOrder(TypedDict):
    """The order of written rows, and whether tasks get ranges of it."""

    keys: Sequence[SortKey]
    distributed: bool


class PartitionFieldAnswer(TypedDict):
    """A partition field: its name, column, transform, width or 0, and the type of its values."""

    name: str
    source: str
    transform: str
    width: int
    type: str


class Parameter(TypedDict):
    """A parameter of a procedure; `type` is the JSON text of a type of Spark."""

    name: str
    type: str
    comment: str
    default: str | None


class ColumnStatistics(TypedDict):
    """Statistics of a column; None where they are unknown."""

    nulls: int | None
    distinct: int | None


class Route(TypedDict, total=False):
    """How the rows of upserts are sent to tasks: by the values of a column, or all to one task."""

    partitions: int
    column: int | None
    values: Sequence[Any]


class Dependency(TypedDict):
    """A table or function (`kind`) that a view uses."""

    kind: str
    name: Sequence[str]


class ViewMembers(TypedDict):
    """A view, as `spark_lance.catalog.views` stores it."""

    query: str
    schema: str
    query_column_names: Sequence[str]
    schema_mode: str | None
    current_catalog: str | None
    current_namespace: Sequence[str]
    sql_configs: Mapping[str, str]
    properties: Mapping[str, str]
    dependencies: Sequence[Dependency] | None


class Subject(TypedDict, total=False):
    """Objects of a request, in a Java map. Python adds `result`, a DataFrame, and `thrown`, an exception."""

    session: Any
    columns: Any
    change: Any
    source: Any
    rows: Any
    result: Any
    thrown: Any


# All of them, for the constants of the Java class.
OBJECTS: Sequence[type] = (
    Constraint,
    Read,
    Write,
    Predicate,
    Aggregate,
    Top,
    TableChange,
    Pushdown,
    Resolved,
    MergeClause,
    Staging,
    Staged,
    SortKey,
    WriteOrder,
    PartitionFieldAnswer,
    Parameter,
    ColumnStatistics,
    Route,
    Dependency,
    ViewMembers,
    Subject,
)
