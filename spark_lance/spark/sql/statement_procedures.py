"""Procedures for statements of other formats: clones, tags and branches with a retention, sort orders.

Statements store some facts about a table as properties, which other procedures read:

    sort-order            ALTER TABLE t WRITE ORDERED BY ...       writes, rewrite_data_files, OPTIMIZE t FULL
    clustering-columns    CLUSTER BY (a, b)                        writes (within a task), OPTIMIZE t [FULL]
    identifier-fields     ALTER TABLE t SET IDENTIFIER FIELDS ...  create_changelog_view
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_lance.datasets.versions import version_ref
from spark_lance.errors import (
    BranchNotFoundError,
    OptionError,
    SchemaError,
    TableNotFoundError,
    TagNotFoundError,
    UnsupportedFormatError,
)
from spark_lance.spark.options.options import SESSION_ZONE, in_zone
from spark_lance.spark.options.table_properties import (
    DISTRIBUTION,
    IDENTIFIERS,
    SORT_ORDER,
    clustering_columns,
)
from spark_lance.spark.schema.read_schema import find_column
from spark_lance.spark.schema.sort_keys import sort_key
from spark_lance.spark.sql.catalogs import BridgeRequest, catalog_name, is_path
from spark_lance.spark.sql.procedure import (
    REWRITTEN,
    Parameter,
    Procedure,
    check_exclusive,
    current_namespace,
    number,
    texts,
)
from spark_lance.spark.sql.tables import check_changes, open_writable_table
from spark_lance.spark.table.table import LanceTable
from spark_lance.table.inserts.clone import replace_branch
from spark_lance.table.versions.resolve import MAIN, Reference, version_as_of_time
from spark_lance.table.versions.retention import MAX_AGE_MS, MAX_REF_AGE_MS, MIN_VERSIONS, set_retention

_UNITS = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_FILES = re.compile(r"(parquet|orc|csv|json|avro|text)\.`(.*)`", re.IGNORECASE)
# A name in backquotes, or a transform and its arguments.
_TRANSFORM = re.compile(r"`(?:[^`]|``)*`|\w+\s*\(([^()]*)\)")
_LITERAL = r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\""
_PROPERTY = re.compile(rf"\s*['\"]?([\w.-]+)['\"]?\s*=\s*({_LITERAL}|[\w.-]+)\s*(?:,|$)", re.DOTALL)


def full_order(table: LanceTable) -> tuple[str, list[str]] | None:
    """Return the order of OPTIMIZE t FULL: "zorder" or "sort", and the columns. None if there is no order."""
    config = table.config
    columns = clustering_columns(config)
    if columns:
        return ("zorder" if len(columns) > 1 else "sort"), columns
    order = texts(config.get(SORT_ORDER, ""))
    return ("sort", order) if order else None


def _set_sort_order(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    order = _split_order(a["columns"] or "")
    schema = table.dataset().lance_schema
    for part in order:
        sort_key(part, schema)  # raises an error if the key does not fit the table
    mode = ("none" if a["locally"] else "range") if order else None
    table.setConfig({SORT_ORDER: ", ".join(order) or None, DISTRIBUTION: mode})


def _split_order(text: str) -> list[str]:
    """Return the sort keys in the text of WRITE ORDERED BY, which can have parentheses around them.

    Raises:
        OptionError: a sort key is a transform.
    """
    text = text.strip()
    inner = re.fullmatch(r"\((.*)\)", text, re.DOTALL)
    text = inner[1] if inner and "(" not in inner[1] else text

    def argument(match: re.Match[str]) -> str:
        return match[0] if match[1] is None else re.sub(r"\b\d+\s*,\s*|\s*,\s*\d+\b", "", match[1])

    columns = _TRANSFORM.sub(argument, text)
    if columns != text:
        raise OptionError(f"rows are ordered by columns, not by transforms: write ORDERED BY {columns}")
    return texts(text)


def _set_identifiers(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    schema = table.dataset().lance_schema
    names = [find_column(schema, name).name for name in texts(a["columns"])]
    table.setConfig({IDENTIFIERS: ", ".join(names)})


def _drop_identifiers(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    before = texts(table.config.get(IDENTIFIERS, ""))
    dropped = {name.lower() for name in texts(a["columns"])}
    if missing := dropped - {name.lower() for name in before}:
        raise SchemaError(
            f"{', '.join(sorted(missing))} is not an identifier field; fields: {', '.join(before) or 'none'}"
        )
    left = [name for name in before if name.lower() not in dropped]
    table.setConfig({IDENTIFIERS: ", ".join(left) or None})


def _purge(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> Any:
    work = table.optimize(materializeDeletionsThreshold=0.0)
    return (work if a["where"] is None else work.where(a["where"])).executeCompaction()


def _retention(a: Mapping[str, Any]) -> dict[str, int]:
    """Return the settings of RETAIN and WITH SNAPSHOT RETENTION; ages are in milliseconds.

    Raises:
        OptionError: an argument has another form.
    """
    values: dict[str, int] = {}
    retain, versions = a.get("retain"), a.get("retain_versions")
    if retain is not None:
        counts = _parse_counts(retain)
        if len(counts) != 1 or not counts.keys() <= _UNITS.keys():
            raise OptionError(
                f"retain must be a number of DAYS, HOURS or MINUTES, not {retain!r}: write '30 DAYS'"
            )
        values[MAX_REF_AGE_MS] = _millis(counts)
    if versions is not None:
        counts = _parse_counts(versions)
        number_of_versions = counts.pop("snapshot", None)
        if (
            len(counts) > 1
            or not counts.keys() <= _UNITS.keys()
            or (not counts and number_of_versions is None)
        ):
            raise OptionError(
                "retain_versions must be a number of SNAPSHOTS, a number of DAYS, HOURS or MINUTES, or both, "
                f"not {versions!r}: write '3 SNAPSHOTS 2 DAYS'"
            )
        if number_of_versions is not None:
            values[MIN_VERSIONS] = number_of_versions
        if counts:
            values[MAX_AGE_MS] = _millis(counts)
    return values


def _parse_counts(text: str) -> dict[str, int]:
    """Return the numbers in a text such as "3 SNAPSHOTS 2 DAYS" by unit; empty if it has another form."""
    words = text.lower().split()
    numbers, units = words[::2], [unit.removesuffix("s") for unit in words[1::2]]
    if len(numbers) != len(set(units)) or not all(re.fullmatch("[0-9]{1,9}", text) for text in numbers):
        return {}
    return dict(zip(units, map(int, numbers), strict=True))


def _millis(counts: Mapping[str, int]) -> int:
    return sum(count * _UNITS[unit] for unit, count in counts.items())


def _retain(table: LanceTable, kind: str, name: str, a: Mapping[str, Any]) -> None:
    values = _retention(a)
    if values:
        dataset = table.dataset()
        set_retention(dataset.main_line, kind, name, values)


def _check_new_ref(name: str, others: Iterable[str], kind: str) -> None:
    """Refuse a tag with the name of a branch, and a branch with the name of a tag.

    Raises:
        OptionError: the other kind has the name.
    """
    if name in others:
        raise OptionError(
            f"the table has a {kind} {name!r}, so VERSION AS OF {name!r} would be ambiguous: choose another "
            "name"
        )


def _create_tag(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    check_exclusive(a)
    _retention(a)
    exists = a["tag"] in table.tags.list()
    if exists and a["if_not_exists"]:
        return
    if not exists:
        _check_new_ref(a["tag"], table.branches.list(), "branch")
    (table.tags.update if exists and a["replace"] else table.tags.create)(a["tag"], number(a["version"]))
    _retain(table, "tag", a["tag"], a)


def _update_tag(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    _retention(a)
    table.tags.update(a["tag"], number(a["version"]))
    _retain(table, "tag", a["tag"], a)


def _create_branch(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    check_exclusive(a)
    _retention(a)
    exists = a["branch"] in table.branches.list()
    if exists and a["if_not_exists"]:
        return
    if exists and a["replace"]:
        _replace(table, a)
        return
    _check_new_ref(a["branch"], table.tags.list(), "tag")
    table.branches.create(a["branch"], number(a["version"]))
    _retain(table, "branch", a["branch"], a)


def _replace_branch(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    _retention(a)
    if a["branch"] == MAIN:
        raise OptionError(
            "the main line is not replaced: write RESTORE TABLE <table> TO VERSION AS OF <number>"
        )
    if a["branch"] not in table.branches.list():
        raise BranchNotFoundError(f"branch {a['branch']!r} does not exist: write CREATE OR REPLACE BRANCH")
    _replace(table, a)


def _replace(table: LanceTable, a: Mapping[str, Any]) -> None:
    dataset = table.dataset()
    start = version_ref(dataset, number(a["version"]))
    replace_branch(dataset.main_line, a["branch"], start)
    _retain(table, "branch", a["branch"], a)


def _drop_tag(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    try:
        table.tags.delete(a["tag"])
    except TagNotFoundError:
        if not a["if_exists"]:
            raise


def _drop_branch(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    try:
        table.branches.delete(a["branch"])
    except BranchNotFoundError:
        if not a["if_exists"]:
            raise


def parse_properties(
    request: BridgeRequest, text: str | None, clause: str = "TBLPROPERTIES"
) -> dict[str, str]:
    """Return the properties in the text of a clause.

    Args:
        request: the request, whose subject is the session.
        text: names and values in parentheses, as in the statement; None for no properties.
        clause: the keyword of the clause, for errors.

    Raises:
        OptionError: the text has another form.
    """
    inner = (text or "()").strip()[1:-1]
    values: dict[str, str] = {}
    at = 0
    while at < len(inner):
        match = _PROPERTY.match(inner, at)
        if match is None:
            raise OptionError(f"{clause} ({inner}) is not understood: write ('name' = 'value', ...)")
        values[match[1]] = _read_literal(request, match[2])
        at = match.end()
    return values


def _read_literal(request: BridgeRequest, text: str) -> str:
    """Return the value of a property, which Spark's parser reads if it has escapes."""
    if text[0] not in "'\"":
        return text
    value = text[1:-1]
    if "\\" not in value and text[0] not in value:
        return value
    parser = request.subject.sessionState().sqlParser()
    plan = parser.parsePlan(f"CREATE TABLE t (c INT) TBLPROPERTIES ('value' = {text})")
    return str(plan.tableSpec().properties().apply("value"))


# Delta Lake's columns. The source's are null if it is not a table of the catalog.
_CLONED = (
    "source_table_size bigint, source_num_of_files bigint, num_removed_files bigint, "
    "num_copied_files bigint, removed_files_size bigint, copied_files_size bigint"
)


def _create_clone(request: BridgeRequest, _: None, a: Mapping[str, Any]) -> Any:
    """Create a clone of a table. If it replaces an existing table, the rows are copied."""
    check_exclusive(a)
    catalog = request.catalog
    target = catalog_name(catalog, a["target"], current_namespace(request))
    quoted_target = _quote_name(request, target)
    if a["location"] is not None:
        raise OptionError(
            f"catalog {catalog.name} chooses the location of its tables: leave out LOCATION, or use the path "
            f"as the name: CREATE TABLE {catalog.name}.`{a['location']}` SHALLOW CLONE {a['source']}"
        )
    properties = parse_properties(request, a["properties"])
    exists = request.spark.catalog.tableExists(quoted_target)
    if exists and a["if_not_exists"]:
        return request.spark.createDataFrame([], _CLONED)
    files = _FILES.fullmatch(a["source"])
    if a["must_exist"] and not exists:
        raise OptionError(f"there is no table {a['target']} to replace: write CREATE OR REPLACE TABLE")
    if exists and not (a["replace"] or a["must_exist"]):
        raise OptionError(f"there is a table {a['target']} already: write CREATE OR REPLACE TABLE")
    source = None if files else _find_source(request, a["source"])
    version = None if source is None else _resolve_version(request, source, a)
    sizes = None if source is None else _file_sizes(source, version)
    if source is None or exists:
        removed = _file_sizes(open_writable_table(request, target)) if exists else []
        rows = request.spark.sql(f"SELECT * FROM {a['source']}{_time_travel(a)}")
        writer = rows.writeTo(quoted_target).using("lance")
        for name, value in properties.items():
            writer = writer.tableProperty(name, value)
        (writer.createOrReplace if exists else writer.create)()
        return _describe_clone(request, sizes, removed, _file_sizes(open_writable_table(request, target)))
    settings = [{"kind": "set_property", "property": key, "value": text} for key, text in properties.items()]
    check_changes(source, settings)
    shallow = "DEEP" not in str(a["kind"] or "").upper()
    uri = target[0] if is_path(target) and catalog.paths else catalog.names.allocate_table_uri(target)
    clone = source.clone(uri, shallow, version=version)
    if not is_path(target):
        catalog.names.add(target, uri, {})
    if properties:
        replace(clone, options=source.options).setConfig(properties)
    return _describe_clone(request, sizes, [], [] if shallow else sizes)


def _file_sizes(table: LanceTable, version: Reference | None = None) -> list[int]:
    """Return the sizes of the data files of a table's version."""
    dataset = table.dataset()
    if version is not None:
        dataset = dataset.checkout_version(version)
    return [file.file_size_bytes for fragment in dataset.manifest.fragments for file in fragment.files]


def _describe_clone(
    request: BridgeRequest, source: list[int] | None, removed: list[int], copied: list[int] | None
) -> Any:
    """Return the result of a clone from the sizes of files; `source` is None if they are not known."""
    copied = copied or []
    size, count = (None, None) if source is None else (sum(source), len(source))
    row = (size, count, len(removed), len(copied), sum(removed), sum(copied))
    return request.spark.createDataFrame([row], _CLONED)


def _find_source(request: BridgeRequest, text: str) -> LanceTable | None:
    """Return the table of this catalog that a text names; None for another one."""
    try:
        return open_writable_table(request, catalog_name(request.catalog, text, current_namespace(request)))
    except (TableNotFoundError, OptionError, UnsupportedFormatError):
        return None


def _quote_name(request: BridgeRequest, name: Sequence[str]) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in (request.catalog.name, *name))


def _time_travel(a: Mapping[str, Any]) -> str:
    if a["version"] is not None:
        return f" VERSION AS OF '{a['version']}'"
    return "" if a["timestamp"] is None else f" TIMESTAMP AS OF '{a['timestamp']}'"


def _resolve_version(request: BridgeRequest, source: LanceTable, a: Mapping[str, Any]) -> Reference | None:
    """Return the version that a clone begins as; None for the newest one."""
    if a["timestamp"] is None:
        version = number(a["version"])
        is_name = isinstance(version, str) and version not in source.tags.list()
        return (version, None) if is_name and version in source.branches.list() else version
    dataset = source.dataset()
    moment = in_zone(str(a["timestamp"]), request.spark.conf.get(SESSION_ZONE))
    return version_as_of_time(dataset.table, moment)


def _analyze(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    """Check the names of columns. Statistics need no update, because every write stores them."""
    schema = table.dataset().lance_schema
    for name in texts(a["columns"] or ""):
        find_column(schema, name.strip("`"))
    if a["partition"] is not None:
        raise UnsupportedFormatError(
            "a Lance table has no statistics of partitions: leave out PARTITION, as in ANALYZE TABLE t "
            "COMPUTE STATISTICS"
        )


def _analyze_tables(request: BridgeRequest, _: None, a: Mapping[str, Any]) -> None:
    request.spark.sql(f"DESCRIBE NAMESPACE {a['namespace']}").collect()


def _convert(request: BridgeRequest, _: None, a: Mapping[str, Any]) -> None:
    """Create a Lance table from the files in a folder, in the same folder."""
    LanceTable.convertToLance(request.spark, a["source"], a["partitions"])


_VERSION = Parameter("version", "string", "a version number or a tag; by default the newest version", "NULL")
_TAG = Parameter("tag", "string", "tag name")
_BRANCH = Parameter("branch", "string", "branch name")
REPLACE = Parameter("replace", "boolean", "replace it if it exists", "false")
IF_NOT_EXISTS = Parameter("if_not_exists", "boolean", "do nothing if it exists", "false")
_CONSTRAINT = Parameter("name", "string", "name of the constraint or index")
IF_EXISTS = Parameter("if_exists", "boolean", "do nothing if it does not exist", "false")
_RETAIN = Parameter("retain", "string", "how long to keep it, such as '30 DAYS'", "NULL")
_RETAIN_VERSIONS = Parameter(
    "retain_versions", "string", "its versions to keep, such as '3 SNAPSHOTS 2 DAYS'", "NULL"
)
_COLUMNS = Parameter("columns", "string", "names separated by commas")

STATEMENT_PROCEDURES: dict[str, Procedure] = {
    "alter_column": Procedure(
        lambda _, table, a: table.alterColumn(a["column"], type=a["type"], comment=a["comment"]),
        (
            Parameter("column", "string", "the column, or the path of a nested field"),
            Parameter("type", "string", "the new type", "NULL"),
            Parameter("comment", "string", "the new comment", "NULL"),
        ),
        "Change the type or the comment of a column.",
    ),
    "add_constraint": Procedure(
        lambda _, table, a: table.addConstraint(a["name"], a["expression"]),
        (_CONSTRAINT, Parameter("expression", "string", "SQL of the condition")),
        "Add a CHECK constraint, as ALTER TABLE t ADD CONSTRAINT does.",
    ),
    "drop_constraint": Procedure(
        lambda _, table, a: table.dropConstraint(a["name"], ifExists=a["if_exists"]),
        (_CONSTRAINT, IF_EXISTS),
        "Drop a constraint.",
    ),
    "create_tag": Procedure(
        _create_tag, (_TAG, _VERSION, REPLACE, IF_NOT_EXISTS, _RETAIN), "Give a version a name."
    ),
    "update_tag": Procedure(_update_tag, (_TAG, _VERSION, _RETAIN), "Move a tag to another version."),
    "drop_tag": Procedure(_drop_tag, (_TAG, IF_EXISTS), "Delete a tag. Its version is kept."),
    "create_branch": Procedure(
        _create_branch,
        (_BRANCH, _VERSION, REPLACE, IF_NOT_EXISTS, _RETAIN, _RETAIN_VERSIONS),
        "Create a branch.",
    ),
    "replace_branch": Procedure(
        _replace_branch,
        (_BRANCH, _VERSION, _RETAIN, _RETAIN_VERSIONS),
        "Restart a branch at another version. Its own versions are deleted.",
    ),
    "drop_branch": Procedure(_drop_branch, (_BRANCH, IF_EXISTS), "Delete a branch."),
    "purge": Procedure(
        _purge,
        (Parameter("where", "string", "only files with a row for which this is true", "NULL"),),
        "Rewrite the files with deleted rows.",
        results=(REWRITTEN,),
    ),
    "set_sort_order": Procedure(
        _set_sort_order,
        (
            Parameter("columns", "string", "columns with ASC, DESC, NULLS LAST; by default no order", "NULL"),
            Parameter("locally", "boolean", "each task sorts its rows; otherwise tasks get ranges", "false"),
        ),
        "Set the sort order of writes, rewrite_data_files and OPTIMIZE t FULL.",
    ),
    "set_identifier_fields": Procedure(
        _set_identifiers, (_COLUMNS,), "Set the columns that identify rows in change logs."
    ),
    "drop_identifier_fields": Procedure(_drop_identifiers, (_COLUMNS,), "Remove identifier fields."),
    "analyze": Procedure(
        _analyze,
        (
            Parameter("partition", "string", "not supported", "NULL"),
            Parameter("columns", "string", "names separated by commas", "NULL"),
        ),
        "Check the names of columns. Every write keeps statistics up to date.",
    ),
    "analyze_tables": Procedure(
        _analyze_tables,
        (Parameter("namespace", "string", "as SQL names it"),),
        "Check the name of the namespace. Every write keeps statistics up to date.",
        on_table=False,
    ),
    "clone_table": Procedure(
        _create_clone,
        (
            Parameter("target", "string", "the new table's name in the catalog"),
            Parameter("source", "string", "a table, or files such as parquet.`/path`"),
            Parameter("kind", "string", "SHALLOW (shares files) or DEEP", "'SHALLOW'"),
            _VERSION,
            Parameter("timestamp", "string", "a time, instead of a version", "NULL"),
            Parameter("replace", "boolean", "replace an existing table with copies of the rows", "false"),
            IF_NOT_EXISTS,
            Parameter("properties", "string", "TBLPROPERTIES, as in SQL", "NULL"),
            Parameter("location", "string", "not supported", "NULL"),
            Parameter("must_exist", "boolean", "replace a table that must exist", "false"),
        ),
        "Create a table with the rows of another table.",
        results=(", ".join(column.split()[0] for column in _CLONED.split(", ")),),
        on_table=False,
    ),
    "convert": Procedure(
        _convert,
        (
            Parameter("source", "string", "files such as parquet.`/path`"),
            Parameter("partitions", "string", "columns of partitions with their types", "NULL"),
        ),
        "Convert a folder of Parquet files to a Lance table in the same folder.",
        on_table=False,
    ),
}
