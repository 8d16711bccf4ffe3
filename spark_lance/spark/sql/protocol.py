"""The types of the requests that Java sends to the driver's Python, and of the answers, as JSON objects.

The `verb` of a request selects the function that answers it and the request's type in `REQUESTS`. Objects
that JSON cannot represent are passed as the request's subject. The Java class `Protocol` has a constant for
each key. `python -m tests.spark.protocol_java` generates it from this module.

`protocol_objects` has the types of objects inside requests and answers.

A schema is the JSON text of a Spark StructType. Bytes are base64 texts, of pickled Python objects unless
stated otherwise.
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
    """Settings of the session that concern writes.

    `staging` directs writes to a branch. `ignored_setting` is the name of a setting of Delta Lake against
    repeated writes, which has no effect here.
    """

    staging: Staging
    ignored_setting: str


class Request(_SessionParts):
    """The keys of every request."""

    verb: str


class CatalogRequest(Request):
    """A request to a catalog: the catalog's name, and its settings without the prefix."""

    catalog: str
    options: Mapping[str, str]


class NameRequest(CatalogRequest):
    """A request about a table or namespace: the parts of its name, or the path of a table."""

    name: Sequence[str]


class StartArguments(TypedDict, total=False):
    """The keys of a `StartRequest` that concern SQL.

    `catalog` is the catalog's name. `settings` are set in the session. `defaults` are set only if the session
    has no value. `sources` is the folder of the Java sources. `units` are the classes that are compiled at
    their first use, and `compiledUnits` is the folder for the compiled classes. `choices` maps a class to the
    units that it can extend, each with the class of Spark that it needs. `options` maps a purpose to names of
    options.
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
    """The request of `enable` to the Java class LanceStart. It is the only request from Python to Java.

    `parts` are the classes to start, in order. If a class of `vital` is missing, no later class is started.
    `contextSettings` are names of settings of Spark's context.
    """

    parts: Sequence[str]
    vital: Sequence[str]
    contextSettings: Sequence[str]
    newSessions: bool


class StartAnswer(TypedDict):
    """For each class that was not started the reason, and the values of `contextSettings`."""

    missing: Mapping[str, str]
    settings: Mapping[str, str | None]


class Function(TypedDict):
    """An SQL function: the `unit` that implements it, and whether it returns `rows` or a value."""

    unit: str
    name: str
    usage: str
    rows: bool


# Requests about namespaces.


class CreateNamespace(NameRequest):
    """Create a namespace."""

    properties: Mapping[str, str]


class AlterNamespace(NameRequest):
    """Set and remove properties of a namespace."""

    set: Mapping[str, str]
    removed: Sequence[str]


class DropNamespace(NameRequest):
    """Drop a namespace. With `cascade`, its tables are dropped, too."""

    cascade: bool


# Requests about tables.


class LoadTable(NameRequest, total=False):
    """Load a table: the newest version, a `version` by number or tag, or the version at a time.

    `asof` is the time in microseconds. If the statement `writes`, `staging` can direct it to a branch, which
    is created if it does not exist. Then the answer has the `name` of the branch.
    """

    version: str
    asof: int
    writes: bool


class LoadChanges(NameRequest):
    """Load the changes of a table between two versions, which the user's options select."""

    user_options: Mapping[str, str]
    streams: bool


class CheckOptions(NameRequest):
    """Check the options of a statement. `use` is "read" or "write", and `path` is the table's path."""

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
    """Ask whether a statement WITH SCHEMA EVOLUTION can make a change of the table."""

    change: TableChange


class FittingTypes(NameRequest):
    """Ask for the types to cast a source's columns to, so that the table needs only supported changes.

    `rows` is the schema of the source.
    """

    rows: str


class LoadMerged(NameRequest):
    """Load a table with the columns that a write adds.

    `rows` is the schema of the written rows. With `by_name`, columns match by name, otherwise by position.
    With `replaces`, the columns of the rows replace those of the table.
    """

    rows: str
    by_name: bool
    replaces: bool


class DeleteWhere(NameRequest):
    """Delete the rows that meet all predicates."""

    predicates: Sequence[Predicate]


class DeletePartitions(NameRequest):
    """Delete the rows of partitions. A partition is a list of texts, one for each partition field."""

    partition_values: Sequence[Sequence[str | None]]


class CreateTable(NameRequest):
    """Create a table. `default_format` is true if the user did not name a format."""

    schema: str
    properties: Mapping[str, str]
    default_format: bool
    partitions: Sequence[str]
    constraints: Sequence[Constraint]


class StageTable(CreateTable):
    """Check a statement that creates or replaces a table, without any change.

    `mode` is "create", "replace" or "create_or_replace".
    """

    mode: str


class EndStaged(StageTable):
    """End a staged statement. `written` is true if rows were written."""

    written: bool
    staged: Staged


# Requests about views.


class WriteView(NameRequest):
    """Create a view."""

    view: ViewMembers


class ReplaceView(WriteView):
    """Replace a view. With `creates`, create it if it does not exist."""

    creates: bool


# Requests about statements.


class _ChangeParts(Request, total=False):
    """The keys that only some statements have."""

    source: Sequence[str]
    equal: Sequence[Sequence[str]]
    clauses: Sequence[MergeClause]
    values: Sequence[Sequence[Any]]


class ChangeRows(_ChangeParts):
    """Run a DELETE, UPDATE or MERGE. The subject is a `Subject`, and `display_name` is for messages."""

    kind: str
    display_name: str
    options: Mapping[str, str]
    condition: Resolved | None
    session: str


class CallProcedure(NameRequest):
    """Run a procedure. `arguments` has the values of all parameters, in order. The subject is the session."""

    arguments: Sequence[Any]
    session: str


class Search(NameRequest):
    """Describe a search. `each` has the arguments that are columns of another relation."""

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
    """Describe the index search for ORDER BY distance LIMIT k. `reads` are options of the read."""

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
    """Choose the version for all reads of a table. `has_user_schema` is true if the user set the schema."""

    has_user_schema: bool


class ScanRequest(ReadRequest):
    """A scan, with the operations that Spark pushed down.

    The scan applies `predicates` exactly as Spark would. Spark applies `candidates` again, so the scan uses
    them only to leave out rows. With `byOneTask`, only the scan applies the limit. `localRows` and
    `localBytes` limit what the driver reads itself. They are the texts of settings.
    """

    columns: str
    predicates: Sequence[Predicate]
    candidates: Sequence[Predicate]
    limit: int | None
    byOneTask: bool
    offset: int
    top: Top | None
    cores: int
    localRows: str
    localBytes: str


class PushAggregates(ScanRequest):
    """Ask for the result of aggregates, grouped by columns."""

    aggregates: Sequence[Aggregate]
    groups: Sequence[Sequence[str]]


class _PlanParts(ScanRequest, total=False):
    """The runtime filters of a join, and the forms of plans that the caller supports.

    `columnar` is for batches of columns, `grouped` for tasks grouped by partition, `files` for a file.
    """

    columnar: bool
    grouped: bool
    files: bool
    runtime: Sequence[Predicate]


class PlanScan(_PlanParts):
    """Plan a scan."""


# Requests about writes.


class PlanWrite(Request):
    """Plan a write by tasks. With `batches`, tasks get batches of columns instead of rows."""

    write: Write
    streams: bool
    batches: bool


class PlanUpserts(Request):
    """Plan a micro-batch of upserts. `epoch` is its number, `partitions` the maximum number of tasks."""

    write: Write
    epoch: int
    partitions: int


class FinishWrite(Request):
    """Commit a write. With `aborts`, delete its files. `messages` has None for unfinished tasks."""

    write: Write
    writer: str
    messages: Sequence[str | None]
    epoch: int | None
    aborts: bool
    execution: str | None


class WriteRows(Request):
    """Write and commit rows. `arrow` is an Arrow stream in base64."""

    write: Write
    arrow: str


# Answers.


class Answer(TypedDict, total=False):
    """The answer, or the kind of an `error`, its `message`, the missing `name` and Spark's `condition`."""

    answer: Any
    error: str
    message: str
    name: Sequence[str]
    hint: str | None
    condition: str
    parameters: Mapping[str, str]


class _TableParts(TypedDict, total=False):
    """The keys that only some tables have. `name` replaces the name in the request."""

    name: Sequence[str]
    pushdown: Pushdown | None
    partition_fields: Sequence[PartitionFieldAnswer]
    write_order: WriteOrder
    staged: Staged
    constraints: Sequence[Constraint]


class TableAnswer(_TableParts):
    """A table.

    `declared` is the schema with CHAR and VARCHAR. `hidden` has the columns that a query must name, because
    `*` does not contain them. `storeOptions` belong to every read and write, `versionOptions` to reads.
    """

    display_name: str
    schema: str
    declared: str
    hidden: str
    properties: Mapping[str, str]
    storeOptions: Mapping[str, str]
    versionOptions: Mapping[str, str]
    writable: bool


class ViewAnswer(TypedDict):
    """A view."""

    view: ViewMembers


class ProcedureAnswer(TypedDict, total=False):
    """A procedure. If it does not exist, `problem` is the error."""

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
    """A search as a relation: its options, its line in EXPLAIN (`plan`), and its maximum number of `rows`."""

    display_name: str
    schema: str
    options: Mapping[str, str]
    plan: str
    rows: int


class DescribeAnswer(TypedDict):
    """The schema and version of a read, and the operations that Spark can push down."""

    schema: str
    ref: Sequence[Any]
    pushdown: Pushdown


class ScanAnswer(TypedDict, total=False):
    """The plan of a scan: an Arrow stream of rows, a file of columns or rows, or tasks.

    Java deletes the file after it has read it. A file contains several streams; `parts` has their lengths.
    EXPLAIN shows `explanation`. The driver knows `metrics`, and tasks count `taskMetrics`. With `ordered`,
    tasks return the rows of a top-n query. `rows` and `bytes` are upper bounds, or None.
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
    explanation: str
    metrics: Sequence[Sequence[Any]]
    taskMetrics: Sequence[Sequence[Any]]
    ordered: bool
    schema: str


class StatisticsAnswer(ScanAnswer):
    """Statistics by column, and two rows: the minimum and the maximum of each column."""

    columns: Mapping[str, ColumnStatistics]


class WriteAnswer(TypedDict, total=False):
    """The plan of a write: the `function` of its tasks, the `writer` that commits, and the upserts' route."""

    writer: str
    function: str
    route: Route | None


class ChangeAnswer(TypedDict):
    """The counts of a DELETE, UPDATE or MERGE, with Delta Lake's names."""

    num_affected_rows: int
    num_updated_rows: int
    num_deleted_rows: int
    num_inserted_rows: int


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
# Verb -> the type of the answer, if it is an object.
ANSWERS: Mapping[str, type] = {
    "load_table": TableAnswer,
    # "load_relation" has a TableAnswer or a ViewAnswer.
    "load_view": ViewAnswer,
    "load_changes": TableAnswer,
    "alter_table": TableAnswer,
    "change_rows": ChangeAnswer,
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
