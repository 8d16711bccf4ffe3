"""Requests of the Java side to the driver's Python, and the answers: JSON objects, one type for each.

A request has a `verb`, which names the method and its type in `REQUESTS`. Objects that JSON cannot hold go
along as the request's subject. The Java class `Protocol` has all keys as constants;
`python -m tests.spark.protocol_java` generates it from this module.

Objects inside requests and answers: see `protocol_objects`.

Schemas are JSON texts of Spark's StructType. Bytes are base64 texts, pickled Python unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from spark_lance.spark.sql.protocol_objects import (
    OBJECTS,
    Aggregate,
    ColumnStatistics,
    Constraint,
    MergeClause,
    Parameter,
    PartitionFieldAnswer,
    Predicate,
    Pushdown,
    Read,
    Resolved,
    Route,
    Staged,
    Staging,
    TableChange,
    Top,
    ViewMembers,
    Write,
    WriteOrder,
)


class _SessionParts(TypedDict, total=False):
    """The part of a request of a session that directs writes to a branch."""

    staging: Staging


class Request(_SessionParts):
    """The part of every request."""

    verb: str


class CatalogRequest(Request):
    """A request to a catalog: its name, and its settings without their prefix."""

    catalog: str
    options: Mapping[str, str]


class NameRequest(CatalogRequest):
    """A request about a table or namespace: the parts of its name, or the path of a table."""

    name: Sequence[str]


class StartArguments(TypedDict, total=False):
    """The part of a `StartRequest` that concerns SQL.

    `catalog` is its name. `settings` are set in the session, `defaults` where the session has none.
    `sources` is the folder of Java sources, `units` the classes in it that are compiled at their first use,
    `compiledUnits` the folder of the results. `choices` has, by class, the units that it may extend and
    what each needs. `options` has lists of names of options, by purpose.
    """

    catalog: str
    settings: Mapping[str, str]
    defaults: Mapping[str, str]
    sources: str
    units: Sequence[str]
    compiledUnits: str
    choices: Mapping[str, Sequence[Sequence[str]]]
    functions: Sequence[Function]
    options: Mapping[str, Sequence[str]]


class StartRequest(StartArguments):
    """The request of `enable` to the Java class LanceStart, the only one from Python to Java.

    `parts` are classes, started in order; after a missing one of `vital` no other is. `contextSettings` are
    names of settings of Spark's context.
    """

    parts: Sequence[str]
    vital: Sequence[str]
    contextSettings: Sequence[str]
    newSessions: bool


class StartAnswer(TypedDict):
    """The reason by class that was not started, and the values of `contextSettings`."""

    missing: Mapping[str, str]
    settings: Mapping[str, str | None]


class Function(TypedDict):
    """A function of SQL: the `unit` that has it, and whether it returns `rows` or a value."""

    unit: str
    name: str
    usage: str
    rows: bool


# Requests about namespaces.


class CreateNamespace(NameRequest):
    """Create a namespace."""

    properties: Mapping[str, str]


class AlterNamespace(NameRequest):
    """Change properties of a namespace."""

    set: Mapping[str, str]
    removed: Sequence[str]


class DropNamespace(NameRequest):
    """Drop a namespace; with `cascade` also its tables."""

    cascade: bool


# Requests about tables.


class LoadTable(NameRequest, total=False):
    """Load a table: its newest version, a `version` by number or tag, or `asof` a time in microseconds.

    A statement that `writes` may be directed to a branch by `staging`; the answer has its `name` then.
    """

    version: str
    asof: int
    writes: bool


class LoadChanges(NameRequest):
    """Load the changes of a table between versions that the user's options choose."""

    user_options: Mapping[str, str]
    streams: bool


class CheckOptions(NameRequest):
    """Check the options of one statement; `use` is read or write, and `path` the table's."""

    path: str
    user_options: Mapping[str, str]
    use: str


class RenameTable(NameRequest):
    """Rename a table or view."""

    to: Sequence[str]


class AlterTable(NameRequest):
    """Change a table. `evolves` is set for a statement WITH SCHEMA EVOLUTION."""

    changes: Sequence[TableChange]
    evolves: bool


class SupportsChange(NameRequest):
    """Ask whether a statement WITH SCHEMA EVOLUTION may change the table so."""

    change: TableChange


class FittingTypes(NameRequest):
    """Ask for the types of a source's columns (`rows`, a schema) that a table takes by supported changes."""

    rows: str


class LoadMerged(NameRequest):
    """Load a table with the new columns of rows (a schema), which a write adds by name or by position."""

    rows: str
    by_name: bool
    replaces: bool


class DeleteWhere(NameRequest):
    """Delete the rows that meet all predicates."""

    predicates: Sequence[Predicate]


class DeletePartitions(NameRequest):
    """Delete the rows of partitions; each is a list of texts, one for each partition field."""

    partition_values: Sequence[Sequence[str | None]]


class CreateTable(NameRequest):
    """Create a table. `default_format` is set where the user did not name the format."""

    schema: str
    properties: Mapping[str, str]
    default_format: bool
    partitions: Sequence[str]
    constraints: Sequence[Constraint]


class StageTable(CreateTable):
    """Check a table that is to be created or replaced, and change nothing. `mode` is Spark's statement."""

    mode: str


class EndStaged(StageTable):
    """End a staged statement. `written` is set if rows were written."""

    written: bool
    staged: Staged


# Requests about views.


class WriteView(NameRequest):
    """Create a view."""

    view: ViewMembers


class ReplaceView(WriteView):
    """Replace a view, or create it if `creates` is set."""

    creates: bool


# Requests about statements.


class _ChangeParts(Request, total=False):
    """The parts of some statements."""

    source: Sequence[str]
    equal: Sequence[Sequence[str]]
    clauses: Sequence[MergeClause]
    values: Sequence[Sequence[Any]]


class ChangeRows(_ChangeParts):
    """Run a DELETE, UPDATE or MERGE. The subject is a `Subject`; `display_name` is for messages."""

    kind: str
    display_name: str
    options: Mapping[str, str]
    condition: Resolved | None
    session: str


class CallProcedure(NameRequest):
    """Run a procedure with the values of all parameters, in order. The subject is the session."""

    arguments: Sequence[Any]
    session: str


class Search(NameRequest):
    """Describe a search. `each` are the arguments that are columns of another relation."""

    function: str
    arguments: Sequence[Any]
    named: Mapping[str, Any]
    each: Sequence[str]


class SearchEach(Request):
    """Search for each row of a DataFrame. The subject is a `Subject`; `search` are options of the read."""

    search: Mapping[str, str]
    arguments: Sequence[str]
    columns: Sequence[str]


class Nearest(Request):
    """Describe the search of an index for ORDER BY distance LIMIT k; `reads` are options of the read."""

    display_name: str
    reads: Mapping[str, str]
    version: str
    column: str
    vector: Sequence[float]
    metric: str
    k: int
    columns: Sequence[str]


# Requests about reads.


class ReadRequest(Request):
    """A request about the table of a read."""

    read: Read


class PinRead(ReadRequest):
    """Choose the version of all reads of a table. `has_user_schema` is set if the schema is the user's."""

    has_user_schema: bool


class ScanRequest(ReadRequest):
    """A scan, with the parts that Spark pushed down.

    The scan applies `predicates` exactly as Spark would; `candidates` may only leave out rows. `alone`
    says that Spark leaves the limit to the scan. `localRows` and `localBytes` bound the rows that the
    driver reads; they are settings as texts.
    """

    columns: str
    predicates: Sequence[Predicate]
    candidates: Sequence[Predicate]
    limit: int | None
    alone: bool
    offset: int
    top: Top | None
    cores: int
    localRows: str
    localBytes: str


class PushAggregates(ScanRequest):
    """Ask for the rows of aggregates, grouped by columns."""

    aggregates: Sequence[Aggregate]
    groups: Sequence[Sequence[str]]


class _PlanParts(ScanRequest, total=False):
    """Keys of the join (`runtime`), and the answers that the caller can take: columns, `grouped` tasks."""

    columnar: bool
    grouped: bool
    files: bool
    runtime: Sequence[Predicate]


class PlanScan(_PlanParts):
    """Plan a scan."""


# Requests about writes.


class PlanWrite(Request):
    """Plan a write by tasks. `batches` says that tasks get batches of columns in place of rows."""

    write: Write
    streams: bool
    batches: bool


class PlanUpserts(Request):
    """Plan a micro-batch of upserts: its number, and the tasks that it may have."""

    write: Write
    epoch: int
    partitions: int


class FinishWrite(Request):
    """Commit a write, or with `aborts` delete its files. `messages` has None for unfinished tasks."""

    write: Write
    writer: str
    messages: Sequence[str | None]
    epoch: int | None
    aborts: bool
    execution: str | None


class WriteRows(Request):
    """Write and commit rows, an Arrow stream."""

    write: Write
    arrow: str


# Answers.


class Answer(TypedDict, total=False):
    """The answer, or the kind of an `error`, its `message`, missing `name` and Spark's `condition`."""

    answer: Any
    error: str
    message: str
    name: Sequence[str]
    hint: str | None
    condition: str
    parameters: Mapping[str, str]


class _TableParts(TypedDict, total=False):
    """The parts of some tables: pushdown of reads, partition fields, order, and the plan of a staged table.

    `name` replaces the name of the request.
    """

    name: Sequence[str]
    pushdown: Pushdown | None
    partition_fields: Sequence[PartitionFieldAnswer]
    write_order: WriteOrder
    staged: Staged
    constraints: Sequence[Constraint]


class TableAnswer(_TableParts):
    """A table.

    `declared` is the schema with CHAR and VARCHAR; `hidden` has the columns that a read gets by their names
    only. `always` are options of every read and write, `pinned` those of reads.
    """

    display_name: str
    schema: str
    declared: str
    hidden: str
    properties: Mapping[str, str]
    always: Mapping[str, str]
    pinned: Mapping[str, str]
    writable: bool


class ViewAnswer(TypedDict):
    """A view."""

    view: ViewMembers


class ProcedureAnswer(TypedDict, total=False):
    """A procedure; `problem` says why it does not exist."""

    name: str
    description: str
    parameters: Sequence[Parameter]
    problem: str


class CallAnswer(TypedDict, total=False):
    """The result of a procedure, and the name of the table that it may have changed."""

    schema: str
    rows: Sequence[Sequence[Any]]
    changed: Sequence[str]


class SearchAnswer(TypedDict):
    """A search as a relation; `plan` is its line in EXPLAIN, `rows` the most rows that it has."""

    display_name: str
    schema: str
    always: Mapping[str, str]
    plan: str
    rows: int


class DescribeAnswer(TypedDict):
    """The schema and version that a read sees, and what Spark may push down."""

    schema: str
    ref: Sequence[Any]
    pushdown: Pushdown


class ScanAnswer(TypedDict, total=False):
    """The plan of a scan: an Arrow stream of rows, a file of columns or rows that Java deletes, or tasks.

    A file has several streams (`parts`: their lengths). EXPLAIN shows `about`; `amounts`, `taskAmounts` are
    metrics. `ordered` tasks have the rows of a top-n query. `rows` and `bytes` are upper bounds, or None.
    """

    kind: str
    ref: Sequence[Any]
    rows: int | None
    bytes: int | None
    arrow: str
    file: str
    parts: Sequence[int]
    function: str
    partitions: Sequence[str]
    partition_fields: Sequence[PartitionFieldAnswer]
    partition_values: Sequence[Sequence[str | None]]
    about: str
    amounts: Sequence[Sequence[Any]]
    taskAmounts: Sequence[Sequence[Any]]
    ordered: bool
    schema: str


class StatisticsAnswer(ScanAnswer):
    """Statistics by column, and two rows: the least and the greatest values."""

    columns: Mapping[str, ColumnStatistics]


class WriteAnswer(TypedDict, total=False):
    """The plan of a write: the `function` of its tasks, the `writer` that commits, the route of upserts."""

    writer: str
    function: str
    route: Route | None


class RowsAnswer(TypedDict):
    """The number of rows written."""

    rows: int


# Verb -> the type of the request.
REQUESTS: Mapping[str, type] = {
    "open_catalog": CatalogRequest,
    "list_namespaces": NameRequest,
    "load_namespace": NameRequest,
    "create_namespace": CreateNamespace,
    "alter_namespace": AlterNamespace,
    "drop_namespace": DropNamespace,
    "list_tables": NameRequest,
    "load_table": LoadTable,
    "load_relation": LoadTable,
    "load_view": NameRequest,
    "list_views": NameRequest,
    "create_view": WriteView,
    "replace_view": ReplaceView,
    "drop_view": NameRequest,
    "rename_view": RenameTable,
    "load_changes": LoadChanges,
    "check_options": CheckOptions,
    "drop_table": NameRequest,
    "rename_table": RenameTable,
    "alter_table": AlterTable,
    "supports_change": SupportsChange,
    "fitting_types": FittingTypes,
    "load_merged": LoadMerged,
    "truncate_table": NameRequest,
    "delete_where": DeleteWhere,
    "list_partitions": NameRequest,
    "delete_partitions": DeletePartitions,
    "change_rows": ChangeRows,
    "create_table": CreateTable,
    "stage_table": StageTable,
    "commit_staged": EndStaged,
    "abort_staged": EndStaged,
    "list_procedures": CatalogRequest,
    "load_procedure": NameRequest,
    "call_procedure": CallProcedure,
    "describe_read": ReadRequest,
    "pin_read": PinRead,
    "describe_pushdown": ReadRequest,
    "push_aggregates": PushAggregates,
    "column_statistics": PlanScan,
    "plan_scan": PlanScan,
    "plan_write": PlanWrite,
    "plan_upserts": PlanUpserts,
    "finish_write": FinishWrite,
    "write_rows": WriteRows,
    "make_format": Request,
    "make_blob_function": Request,
    "search": Search,
    "search_each": SearchEach,
    "nearest": Nearest,
}
# Verb -> the type of the answer, for those that are objects.
ANSWERS: Mapping[str, type] = {
    "load_table": TableAnswer,
    # "load_relation" has a TableAnswer or a ViewAnswer.
    "load_view": ViewAnswer,
    "load_changes": TableAnswer,
    "alter_table": TableAnswer,
    "create_table": TableAnswer,
    "stage_table": TableAnswer,
    "load_procedure": ProcedureAnswer,
    "call_procedure": CallAnswer,
    "describe_read": DescribeAnswer,
    "describe_pushdown": Pushdown,
    "push_aggregates": ScanAnswer,
    "column_statistics": StatisticsAnswer,
    "plan_scan": ScanAnswer,
    "plan_write": WriteAnswer,
    "plan_upserts": WriteAnswer,
    "write_rows": RowsAnswer,
    "search": SearchAnswer,
    "nearest": SearchAnswer,
}
# Objects in requests and answers.
PARTS: Sequence[type] = (Answer, *OBJECTS)
