"""The types of JSON objects inside the requests and answers of `protocol`.

A schema is the JSON text of a Spark StructType. Bytes are base64 texts, of pickled Python objects unless
stated otherwise.
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

    `cacheKey` identifies a Java table object. All its reads share a snapshot. `ref` is the version, if it is
    known. With `pinned`, the version in `options` comes from the table, not from the user.
    """

    options: Mapping[str, str]
    schema: str
    cacheKey: str
    ref: Sequence[Any] | None
    pinned: bool


class Write(TypedDict, total=False):
    """The target of a write. It is empty if the request has the writer.

    `declaration` is the setting `partition-fields` of a table that the write creates or replaces.
    """

    options: Mapping[str, str]
    schema: str
    overwrite: bool
    declaration: str | None


class Predicate(TypedDict, total=False):
    """A node of a predicate: a column (`path`), a literal (`type`, `value`), a list, or an operator.

    The operator DOCUMENT applies `test` to the result of `function` at a path of a JSON `column`. `types` are
    the types that the result can have.
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
    """An aggregate of a column. `path` is None for an aggregate of rows, such as COUNT(*)."""

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
    """A change of ALTER TABLE. The other keys depend on its `kind`."""

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
    """The predicates and limits that Spark can push down into a read.

    `values` are the paths of columns and fields whose values compare as in Spark. `nulls` are the paths of
    other columns and fields that have the same nulls as in Spark. With `whole`, the read returns all rows of
    a version.
    """

    values: Sequence[Sequence[str]]
    nulls: Sequence[Sequence[str]]
    whole: bool


class Resolved(TypedDict):
    """An expression of a statement.

    `column` is the index of the expression in the subject's `columns`. `needs` are the columns of the table
    that the expression reads. If the expression is a column of the source, `of_source` is its name.
    """

    column: int
    needs: Sequence[str]
    text: str | None
    of_source: str | None


class MergeClause(TypedDict, total=False):
    """A clause of MERGE. `rows` is "matched", "not matched" or "not matched by source"."""

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

    `declaration` is the table's setting `partition-fields`; "" if the table has no partitions.
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
    """The order of written rows. With `distributed`, each task gets a range of the order."""

    keys: Sequence[SortKey]
    distributed: bool


class PartitionFieldAnswer(TypedDict):
    """A partition field: its name, column, transform, width (0 if it has none), and type of values."""

    name: str
    source: str
    transform: str
    width: int
    type: str


class Parameter(TypedDict):
    """A parameter of a procedure. `type` is the JSON text of a Spark type."""

    name: str
    type: str
    comment: str
    default: str | None


class ColumnStatistics(TypedDict):
    """Statistics of a column. Unknown ones are None."""

    nulls: int | None
    distinct: int | None


class Route(TypedDict, total=False):
    """The distribution of upserted rows: by the values of a column, or all rows to one task."""

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
    """The objects of a request, in a Java map. Python adds a DataFrame `result` or an exception `thrown`."""

    session: Any
    columns: Any
    change: Any
    source: Any
    rows: Any
    result: Any
    thrown: Any


# All types of this module. The Java class has a constant for each of their keys.
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
