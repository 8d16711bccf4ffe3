"""Procedures: CALL <catalog>.system.<name>(...). They call the methods of `LanceTable`.

The first argument of most procedures is the name of a table, as in SQL ("db.t", "`t@dev`", a path).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any

import pyspark.sql.types as st

from spark_lance.datasets.spelling import camel_case
from spark_lance.errors import OptionError
from spark_lance.spark.base.compat import python_session, type_of_ddl
from spark_lance.spark.sql.catalogs import BridgeRequest, catalog_name, is_path
from spark_lance.spark.sql.iceberg_procedures import ICEBERG_PROCEDURES
from spark_lance.spark.sql.partitions import PARTITION_PROCEDURES
from spark_lance.spark.sql.procedure import (
    REWRITTEN,
    Parameter,
    Procedure,
    check_exclusive,
    current_namespace,
    number,
    texts,
)
from spark_lance.spark.sql.row_level import last_change
from spark_lance.spark.sql.statement_procedures import (
    IF_EXISTS,
    IF_NOT_EXISTS,
    REPLACE,
    STATEMENT_PROCEDURES,
    full_order,
    parse_properties,
)
from spark_lance.spark.sql.tables import open_writable_table
from spark_lance.spark.table.maintaining import VacuumRequest, VacuumWords, vacuum
from spark_lance.spark.table.table import LanceTable
from spark_lance.table.maintenance.verify import verify
from spark_lance.table.versions.ages import age_of_hours

_NAME = Parameter("name", "string", "index name; by default the column name with _idx", "NULL")


def _optimize(table: LanceTable, a: Mapping[str, Any], **options: Any) -> Any:
    """Return the optimizer of a table, restricted to the fragments that match the argument `where`."""
    optimizer = table.optimize(**{name: value for name, value in options.items() if value is not None})
    return optimizer if a["where"] is None else optimizer.where(a["where"])


def _compact(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> Any:
    order = full_order(table) if a["full"] else None
    if order is not None:
        optimizer = _optimize(table, a, targetRowsPerFragment=a["target_rows"])
        return (optimizer.executeZOrderBy if order[0] == "zorder" else optimizer.executeSortBy)(*order[1])
    threshold = a["materialize_deletions_threshold"]
    return _optimize(
        table, a, targetRowsPerFragment=a["target_rows"], materializeDeletionsThreshold=threshold
    ).executeCompaction()


def _vacuum(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> Any:
    request = VacuumRequest(
        a["retention_hours"],
        bool(a["dry_run"]),
        a["retain_versions"],
        bool(a["delete_unverified"]),
        bool(a["allow_short_retention"]),
    )
    return vacuum(table, request, _SQL_WORDS)


_SQL_WORDS = VacuumWords("retention_hours", "retain_versions", "allow_short_retention => true")


def _restore(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> Any:
    if (a["version"] is None) == (a["timestamp"] is None):
        raise OptionError("restore needs either a version or a timestamp: version => '1'")
    if a["timestamp"] is not None:
        return table.restoreToTimestamp(a["timestamp"])
    to = number(a["version"])
    return table.restoreToVersion(to) if isinstance(to, int) else table.restoreToTag(str(to))


def _create_index(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> Any:
    kind = str(a["type"]).upper()
    if kind.startswith("IVF_"):
        return table.createIndex(
            a["column"], kind, a["name"], a["metric"], numPartitions=a["partitions"], replace=a["replace"]
        )
    return table.createScalarIndex(a["column"], kind, a["name"], replace=a["replace"])


def _create_named_index(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> Any:
    check_exclusive(a)
    if a["if_not_exists"] and a["name"] in _index_names(table):
        return None
    if "," in a["column"]:
        raise OptionError(f"an index has one column, not ({a['column']}): create one index for each column")
    kind = str(a["type"]).upper()
    options = {
        camel_case(name): _option_value(text)
        for name, text in parse_properties(request, a["options"], "OPTIONS").items()
    }
    create = table.createIndex if kind.startswith("IVF_") else table.createScalarIndex
    return create(a["column"].replace("`", ""), kind, a["name"], replace=a["replace"], **options)


def _option_value(text: str) -> Any:
    """Return the value of an index option: a number, true, false, or a text."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def _index_names(table: LanceTable) -> set[str]:
    return {entry.name for entry in table.dataset().manifest.indices}


def _drop_index(_: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    if a["name"] in _index_names(table) or not a["if_exists"]:
        table.dropIndex(a["name"])


def _clone(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> None:
    catalog, target = (
        request.catalog,
        catalog_name(request.catalog, a["target"], current_namespace(request)),
    )
    uri = target[0] if is_path(target) and catalog.paths else catalog.names.allocate_table_uri(target)
    table.clone(uri, bool(a["shallow"]), version=number(a["version"]))
    if not is_path(target):
        catalog.names.add(target, uri, {})


def _add_columns_from(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> Any:
    source, keys = request.spark.table(a["source"]), texts(a["keys"])
    if a["columns"] is not None:
        source = source.select(*keys, *texts(a["columns"]))
    return table.addColumns(source, on=keys)


def _verify(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> Any:
    if a["repair"]:
        table.repair()
    dataset = table.dataset()
    report = verify(dataset.snapshot)
    rows = [(finding.level, finding.where, finding.message) for finding in report.findings]
    return request.spark.createDataFrame(rows, "level string, place string, message string")


def _compact_wal(request: BridgeRequest, table: LanceTable, a: Mapping[str, Any]) -> Any:
    if a["retention_hours"] is not None:
        age_of_hours(a["retention_hours"], "retention_hours")  # raises before the table changes
    result = table.compactWal(flush=bool(a["flush"]))
    collection = table.collectWal(a["retention_hours"])
    row = (
        result.version,
        result.shards,
        result.sstables,
        result.rows_upserted,
        result.rows_deleted,
        collection.bytes_removed,
    )
    return request.spark.createDataFrame(
        [row],
        "version bigint, shards bigint, sstables bigint, rows_upserted bigint, rows_deleted bigint, "
        "bytes_removed bigint",
    )


def _last_change(request: BridgeRequest, _: None, __: Mapping[str, Any]) -> Any:
    change = last_change(request.body["session"])
    return request.spark.createDataFrame([] if change is None else [change.row()], _LAST_CHANGE)


_LAST_CHANGE = (
    "statement string, table string, version bigint, num_updated_rows bigint, num_deleted_rows bigint, "
    "num_inserted_rows bigint, bytes_written bigint, seconds double"
)
_VERSION = Parameter("version", "string", "a version number or a tag; by default the newest version", "NULL")
_WHERE = Parameter("where", "string", "only files with a row for which this is true", "NULL")
_COLUMNS = Parameter("columns", "string", "names separated by commas")
_FULL = Parameter("full", "boolean", "order all rows by CLUSTER BY or WRITE ORDERED BY", "false")

_INDEXES = "name, type, columns, segments, fragments, rows_indexed, rows_not_indexed, size_bytes"

PROCEDURES: dict[str, Procedure] = {
    "compact": Procedure(
        _compact,
        (
            Parameter("target_rows", "bigint", "maximum number of rows per file", "NULL"),
            _WHERE,
            Parameter(
                "materialize_deletions_threshold",
                "double",
                "share of deleted rows that may stay in a file",
                "NULL",
            ),
            _FULL,
        ),
        "Merge small files and remove deleted rows.",
        results=(REWRITTEN,),
    ),
    "compact_wal": Procedure(
        _compact_wal,
        (
            Parameter(
                "flush", "boolean", "include rows that are only in logs; stops pylance's writers", "false"
            ),
            Parameter("retention_hours", "double", "delete merged files older than this", "NULL"),
        ),
        "Move logged rows (MemWAL) into the table, and delete unneeded log files.",
        results=("version, shards, sstables, rows_upserted, rows_deleted, bytes_removed",),
    ),
    "sort": Procedure(
        lambda _, table, a: _optimize(table, a).executeSortBy(*texts(a["columns"])),
        (_COLUMNS, _WHERE),
        "Sort the rows by columns, so that filters on these columns skip files.",
        results=(REWRITTEN,),
    ),
    "zorder": Procedure(
        lambda _, table, a: _optimize(table, a).executeZOrderBy(*texts(a["columns"])),
        (_COLUMNS, _WHERE, _FULL),
        "Order the rows so that filters on any of several columns skip files.",
        results=(REWRITTEN,),
    ),
    "vacuum": Procedure(
        _vacuum,
        (
            Parameter("retention_hours", "double", "delete versions older than this", "NULL"),
            Parameter("dry_run", "boolean", "delete nothing; return the files to delete", "false"),
            Parameter("retain_versions", "int", "number of newest versions to keep", "NULL"),
            Parameter(
                "delete_unverified",
                "boolean",
                "delete unreferenced files of any age",
                "false",
            ),
            Parameter("allow_short_retention", "boolean", "delete versions younger than a day", "false"),
        ),
        "Delete old versions and the files that only they use.",
        results=(
            "bytes_removed, old_versions, data_files_removed, transaction_files_removed, "
            "index_files_removed, deletion_files_removed, failed_deletes, path",
            "path, kind, size_bytes, unverified",
        ),
    ),
    "restore": Procedure(
        _restore,
        (
            Parameter("version", "string", "a version number or a tag", "NULL"),
            Parameter("timestamp", "string", "a time, instead of a version", "NULL"),
        ),
        "Make an older version the newest one.",
        results=(
            "table_size_after_restore, num_of_files_after_restore, num_removed_files, "
            "num_restored_files, removed_files_size, restored_files_size",
        ),
    ),
    "history": Procedure(
        lambda _, table, a: table.history(a["limit"]),
        (Parameter("limit", "int", "maximum number of versions", "NULL"),),
        "Return the history, newest version first.",
        results=(
            "version, timestamp, userId, userName, operation, operationParameters, job, notebook, "
            "clusterId, readVersion, isolationLevel, isBlindAppend, operationMetrics, userMetadata, "
            "engineInfo, made_current_at, snapshot_id, parent_id, is_current_ancestor",
        ),
    ),
    "detail": Procedure(
        lambda _, table, a: table.detail(),
        (),
        "Return one row about the table.",
        results=(
            "format, id, name, description, location, createdAt, lastModified, partitionColumns, "
            "clusteringColumns, numFiles, sizeInBytes, properties, minReaderVersion, "
            "minWriterVersion, tableFeatures, version, branch, numVersions, numRows, "
            "numDeletedRows, numFragments, dataStorageVersion, stableRowIds, primaryKey, indices",
        ),
    ),
    "create_index": Procedure(
        _create_index,
        (
            Parameter("column", "string", "the column"),
            Parameter("type", "string", "BTREE, BITMAP, INVERTED, IVF_PQ and others", "'BTREE'"),
            _NAME,
            Parameter("metric", "string", "for vectors: l2, cosine, dot, hamming", "'l2'"),
            Parameter("partitions", "int", "for vectors: number of partitions", "NULL"),
            Parameter("replace", "boolean", "replace an index of the same name", "true"),
        ),
        "Build an index over a column.",
        results=("fragments_indexed, index_name",),
    ),
    "drop_index": Procedure(
        _drop_index,
        (Parameter("name", "string", "name of the constraint or index"), IF_EXISTS),
        "Drop an index.",
    ),
    "add_index": Procedure(
        _create_named_index,
        (
            Parameter("name", "string", "name of the constraint or index"),
            Parameter("column", "string", "the column"),
            Parameter("type", "string", "BTREE, BITMAP, INVERTED, IVF_PQ and others", "'BTREE'"),
            Parameter("options", "string", "options of the index type, as in SQL", "NULL"),
            REPLACE,
            IF_NOT_EXISTS,
        ),
        "Build an index over a column, as CREATE INDEX does.",
        results=("fragments_indexed, index_name", "done"),
    ),
    "show_indexes": Procedure(
        lambda _, table, a: table.indices(),
        (),
        "Return one row for each index.",
        results=(_INDEXES,),
    ),
    "optimize_indices": Procedure(
        lambda _, table, a: table.optimizeIndices(a["name"]),
        (Parameter("name", "string", "index name; all by default", "NULL"),),
        "Add rows to the indexes that do not cover them yet.",
        results=(_INDEXES,),
    ),
    "clone": Procedure(
        _clone,
        (
            Parameter("target", "string", "the new table's name in the catalog"),
            Parameter("shallow", "boolean", "share the files of the table", "true"),
            _VERSION,
        ),
        "Create a table that begins as a version of this one.",
    ),
    "add_columns_from": Procedure(
        _add_columns_from,
        (
            Parameter("source", "string", "the table or view with the values"),
            Parameter("keys", "string", "key columns of both tables, separated by commas"),
            Parameter("columns", "string", "columns to add; by default all but the keys", "NULL"),
        ),
        "Add columns with values from another table or view, without rewriting files.",
        results=("version, num_fragments, num_rows, num_files_written, num_files_reused, bytes_written",),
    ),
    "verify": Procedure(
        _verify,
        (Parameter("repair", "boolean", "first move incomplete manifests aside", "false"),),
        "Read and check the whole table; return one row for each finding.",
        results=("level, place, message",),
    ),
    "last_change": Procedure(
        _last_change,
        (),
        "Return the counts of this session's last DELETE, UPDATE or MERGE, if any.",
        on_table=False,
        results=(
            "statement, table, version, num_updated_rows, num_deleted_rows, num_inserted_rows, "
            "bytes_written, seconds",
        ),
    ),
    **STATEMENT_PROCEDURES,
    **PARTITION_PROCEDURES,
    **ICEBERG_PROCEDURES,
}


def list_procedures(request: BridgeRequest) -> list[str]:
    """Return the names of all procedures."""
    return sorted(PROCEDURES)


def load_procedure(request: BridgeRequest) -> dict[str, Any]:
    """Return the description of a procedure for Spark. If it does not exist, `problem` is the error."""
    name = request.name[-1].lower()
    if request.name[:-1] != ("system",) or name not in PROCEDURES:
        place = f"{request.catalog.name}.system"
        close = get_close_matches(name, PROCEDURES, 1)
        names = ", ".join(sorted(PROCEDURES))
        remedy = f"did you mean {place}.{close[0]}?" if close else f"{place} has {names}"
        problem = f"procedure {'.'.join(request.name)} does not exist: {remedy}"
        return {"name": name, "description": problem, "parameters": [], "problem": problem}
    procedure = PROCEDURES[name]
    arguments = ", ".join(f"{one.name} {one.type}" for one in procedure.all_parameters)
    return {
        "name": name,
        # Some releases of Spark show the description, but not the parameters.
        "description": f"{procedure.doc} Arguments: {arguments or 'none'}.",
        "parameters": [
            {
                "name": one.name,
                "type": type_of_ddl(one.type).json(),
                "comment": one.comment,
                "default": one.default,
            }
            for one in procedure.all_parameters
        ],
    }


def call_procedure(request: BridgeRequest) -> dict[str, Any]:
    """Run a procedure in the session of the caller.

    Returns:
        The schema and rows of the result, and the full name of the table that the procedure may have changed.
    """
    procedure = PROCEDURES[request.name[-1].lower()]
    request = replace(request, spark=python_session(request.spark, request.subject))
    names = [one.name for one in procedure.all_parameters]
    arguments = dict(zip(names, request.body["arguments"], strict=True))
    if not procedure.on_table:
        return _result_rows(procedure.run(request, None, arguments))
    text = arguments.pop("table")
    if text is None:
        raise OptionError(f"{request.name[-1]} needs the name of a table")
    name = catalog_name(request.catalog, str(text), current_namespace(request))
    rows = _result_rows(
        procedure.run(request, open_writable_table(request, name), {**arguments, "named": str(text)})
    )
    return {**rows, "changed": [request.catalog.name, *name]}


def _result_rows(result: Any) -> dict[str, Any]:
    """Return a result as a schema and rows. Columns of types that Java does not read become JSON text."""
    if result is None:
        return {"schema": st.StructType([st.StructField("done", st.BooleanType())]).json(), "rows": [[True]]}
    read = [_is_read_by_java(field.dataType) for field in result.schema.fields]
    fields = [
        st.StructField(field.name, field.dataType if is_read else st.StringType())
        for field, is_read in zip(result.schema.fields, read, strict=True)
    ]
    rows = [
        [
            _row_value(value) if is_read or value is None else _json_text(value)
            for value, is_read in zip(row, read, strict=True)
        ]
        for row in result.collect()
    ]
    return {"schema": st.StructType(fields).json(), "rows": rows}


# LanceProcedures.java reads values of these types, and nested ones of them.
_JAVA_TYPES = (
    *(st.LongType, st.IntegerType, st.DoubleType, st.BooleanType, st.StringType),
    st.TimestampType,
)


def _is_read_by_java(kind: st.DataType) -> bool:
    if isinstance(kind, st.ArrayType):
        return _is_read_by_java(kind.elementType)
    if isinstance(kind, st.MapType):
        return isinstance(kind.keyType, st.StringType) and _is_read_by_java(kind.valueType)
    if isinstance(kind, st.StructType):
        return all(_is_read_by_java(field.dataType) for field in kind)
    return isinstance(kind, _JAVA_TYPES)


def _row_value(value: Any) -> Any:
    if isinstance(value, datetime):
        # PySpark returns times without a zone, in the time zone of the process.
        return round(value.timestamp() * 1_000_000)
    if isinstance(value, dict):
        return {key: _row_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):  # a struct is a tuple
        return [_row_value(item) for item in value]
    return value


def _json_text(value: Any) -> str:
    return json.dumps(value.asDict(True) if hasattr(value, "asDict") else value, default=str)
