"""Loads, alters and drops tables in SQL, by name or path, with versions, branches and metadata tables.

    t                  the newest version                 t@dev            the branch dev
    t VERSION AS OF 3  a version, or a tag by name        t TIMESTAMP AS OF '...'
    t.branch_dev       the branch dev                     t.tag_first      the version of the tag first
    t.history          a metadata table of t              `/data/t`        the table at a path

The functions answer the verbs of `bridge`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as st
from pyspark.sql.datasource import CaseInsensitiveDict

from spark_lance.catalog.names import Name, display_name
from spark_lance.datasets.dataset import LanceDataset, dataset
from spark_lance.errors import (
    LanceError,
    NamespaceNotFoundError,
    OptionError,
    SchemaError,
    TableNotFoundError,
    UnsupportedFormatError,
    suggestion,
)
from spark_lance.expressions.predicate import compile_tree
from spark_lance.file.base.schema import Field, Schema
from spark_lance.spark.options.option_fields import OPTIONS
from spark_lance.spark.options.options import check_by_name, check_known, read_options
from spark_lance.spark.options.table_properties import (
    CLUSTERING,
    DISTRIBUTION,
    PRIMARY_KEY,
    SORT_ORDER,
    check_setting,
    is_fixed,
    is_row_tracking,
    join_names,
)
from spark_lance.spark.scan import metadata
from spark_lance.spark.scan import rows as read
from spark_lance.spark.scan.kinds import read_kind
from spark_lance.spark.scan.predicates import pushdown_description, translate_conjunction
from spark_lance.spark.schema.new_fields import new_field
from spark_lance.spark.schema.read_schema import system_field
from spark_lance.spark.schema.sort_keys import sort_key, valid_sort_keys, write_order
from spark_lance.spark.schema.string_types import declared_schema
from spark_lance.spark.sql.catalogs import BridgeRequest, OpenCatalog, inside, is_path
from spark_lance.spark.sql.evolution import (
    VALUE_CHECKED,
    check_evolution,
    column_changes,
    fields_along,
    fitting_type,
    is_supported,
    match_name,
    merged_schema,
    parse_type,
    refuse_keys,
    replaces_columns,
)
from spark_lance.spark.sql.partition_fields import partitioning
from spark_lance.spark.sql.procedure import texts
from spark_lance.spark.sql.properties import fixed_properties
from spark_lance.spark.sql.protocol_objects import SortKey, WriteOrder
from spark_lance.spark.table.constraints import add_constraint
from spark_lance.spark.table.staging import check_evolution_staged, staged_options, staging_branch
from spark_lance.table.commits.idempotent_writes import has_damaged_record
from spark_lance.table.format.partitions import PARTITION_FIELDS, PartitionSpec
from spark_lance.table.format.reserved_names import check_settings
from spark_lance.table.metadata import METADATA_TABLES
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import filterable_schema
from spark_lance.table.rows.update import delete_rows
from spark_lance.table.schema.constraints import Constraint
from spark_lance.table.schema.defaults import EXISTS_DEFAULT
from spark_lance.table.schema.keys import check_droppable
from spark_lance.table.versions.resolve import MAIN
from spark_lance.table.versions.versions import list_versions

if TYPE_CHECKING:
    from spark_lance.spark.table.table import LanceTable

# System columns that SQL can name but `*` does not contain -> the option that reads the column.
# Only reads by path have `_rowoffset`.
_HIDDEN = {
    column: option.name
    for option in OPTIONS.values()
    for column in option.system_columns
    if column != "_rowoffset"
}
_BRANCH = "@"
# Requests that delete rows. A session may send them to a branch.
_ROW_VERBS = frozenset({"truncate_table", "delete_where", "delete_partitions"})
# The metadata table of all changes. It is read with the option readChangeFeed.
_CHANGES_TABLE = "changes"


def similar_table(request: BridgeRequest, name: Name) -> str:
    """Return "; did you mean 'x'?" with the most similar table of the namespace, or ""."""
    if is_path(name) or not name or not request.catalog.has_names:
        return ""
    try:
        tables = request.catalog.names.tables(name[:-1])
    except LanceError:
        return ""
    return suggestion(name[-1], [each[-1] for each in tables])


def list_tables(request: BridgeRequest) -> list[str]:
    """Return the names of the tables directly in a namespace."""
    if not request.catalog.has_names:
        return []
    return [name[-1] for name in request.catalog.names.tables(request.name)]


def load_table(request: BridgeRequest) -> dict[str, Any]:
    """Return the description of a table for Spark."""
    catalog = request.catalog
    name = catalog.stored_name(request.name)
    options, table = resolve_table(catalog, name)
    staging = request.body.get("staging")
    has_version = options.keys() & {"tag", "branch"} or request.body.keys() & {"version", "asof"}
    if staging and not table and not has_version:
        branch = staging_branch(options, staging, writes=request.body.get("writes", False))
        if branch is not None:
            # Later requests about the table use this name.
            name = (*name, f"branch_{branch}")
            return {**answer(catalog, name, {**options, "branch": branch}, {}), "name": list(name)}
    tag = options.pop("tag", None)
    if table == _CHANGES_TABLE:
        return _describe_changes_table(request, options)
    travel = {} if tag is None else {"tag": tag}
    if "version" in request.body:
        text = str(request.body["version"])
        travel = {"version": text} if text.isdigit() else {"tag": text}
        whole = name[:-1] if table else name
        if "tag" in travel and "branch" not in options and _is_branch(request, whole, text):
            options, travel = {**options, "branch": text}, {}
    elif "asof" in request.body:
        moment = datetime.fromtimestamp(request.body["asof"] / 1e6, timezone.utc)
        travel = {"asof": moment.isoformat()}
    table_answer = answer(catalog, name, options, {**travel, **({"table": table} if table else {})})
    return table_answer if name == request.name else {**table_answer, "name": list(name)}


def _is_branch(request: BridgeRequest, table: Name, name: str) -> bool:
    """Return whether a table has a branch of this name, or its main line has it, and no such tag."""
    dataset = open_writable_table(request, table).dataset()
    return name not in dataset.tags.list() and (name == MAIN or name in dataset.branches.list())


def _describe_changes_table(request: BridgeRequest, store_options: dict[str, str]) -> dict[str, Any]:
    """Return the description of the table `t.changes`, which has the changes of all existing versions.

    Raises:
        UnsupportedFormatError: the statement names a version.
    """
    if request.body.keys() & {"version", "asof"}:
        raise UnsupportedFormatError(
            f"{display_name(request.name)} has the changes of all versions: leave out VERSION AS OF, and "
            "write WHERE _commit_version <= n"
        )
    branch = store_options.get("branch")
    newest = dataset(store_options["path"], (branch, None) if branch else None, _storage_of(store_options))
    oldest = min(file.version for file in list_versions(newest.table))
    # The changes of the oldest version cannot be computed without the version before it.
    start = oldest if oldest == 1 else min(oldest + 1, newest.version)
    reads = {**store_options, "readChangeFeed": "true", "startingVersion": str(start)}
    return _changes_answer(request, reads, reads, ends=False)


def load_changes(request: BridgeRequest) -> dict[str, Any]:
    """Return the description of a table's changes for Java. `user_options` are the options of the read.

    Raises:
        OptionError: an option is unknown, or names one version.
        UnsupportedFormatError: the name is that of a metadata table.
    """
    catalog, name = request.catalog, request.name
    user_options = _user_options(request)
    check_known(user_options)
    store_options, table = resolve_table(catalog, name)
    if table:
        raise UnsupportedFormatError(f"{display_name(name)} is a metadata table: it has no change feed")
    options = read_options(CaseInsensitiveDict({**store_options, **user_options}))
    # A stream continues with later versions. A DataFrame always ends with the same version.
    ends = request.body["streams"] or options.endingVersion or options.endingTimestamp
    return _changes_answer(request, store_options, {**store_options, **user_options}, ends=bool(ends))


def _changes_answer(
    request: BridgeRequest, store_options: dict[str, str], reads: dict[str, str], *, ends: bool
) -> dict[str, Any]:
    """Return the description of changes for Java.

    Args:
        request: the request, which has the name.
        store_options: options of every read.
        reads: the same with the options of this read.
        ends: whether the options define the last version.
    """
    options = read_options(CaseInsensitiveDict(reads))
    ref, schema = read_kind(options).describe(options, None)
    return {
        "display_name": f"{request.catalog.name}.{display_name(request.name)}",
        "schema": schema.json(),
        "declared": schema.json(),
        "hidden": st.StructType().json(),
        "properties": {},
        "storeOptions": store_options,
        "versionOptions": {} if ends else {"endingVersion": str(ref.version)},
        "writable": False,
        "pushdown": None,
    }


def load_merged(request: BridgeRequest) -> dict[str, Any]:
    """Return the description of a table after a write with mergeSchema or overwriteSchema.

    `rows` is the schema of the rows, `by_name` is true if columns match by name, and `replaces` is true if
    the rows' columns replace the columns of the table.
    """
    table = load_table(request)
    rows = st.StructType.fromJson(json.loads(request.body["rows"]))
    if request.body["replaces"]:
        merged = rows
    else:
        schema = st.StructType.fromJson(json.loads(table["schema"]))
        merged = merged_schema(schema, rows, by_name=request.body["by_name"])
    return {**table, "schema": merged.json(), "declared": declared_schema(merged).json()}


def fitting_types(request: BridgeRequest) -> dict[str, str]:
    """Return the types for casts of a source's columns, so that evolution makes only supported changes.

    `rows` is the schema of the source.
    """
    manifest = open_writable_table(request).dataset().manifest
    table = st.StructType.fromJson(json.loads(load_table(request)["schema"]))
    rows = st.StructType.fromJson(json.loads(request.body["rows"]))
    result = {}
    for column in rows:
        own = match_name(table, column.name)
        if own is not None:
            kind = fitting_type(manifest, (own.name,), own.dataType, column.dataType)
            if kind != column.dataType:
                result[column.name] = kind.json()
    return result


def check_options(request: BridgeRequest) -> None:
    """Check the options of a statement, such as those of WITH (...).

    `user_options` are the options, `path` is the table's path, and `use` is "read" or "write".

    Raises:
        OptionError: an option is unknown, or names another table than the statement.
    """
    user_options = _user_options(request)
    for key, text in user_options.items():
        if key.lower() not in ("path", "paths"):
            continue
        if is_path(request.name) and str(Path(text).absolute()) == request.name[0]:
            return  # a write by path, whose options include the path
        if text != request.body["path"]:
            name = f"{request.catalog.name}.{display_name(request.name)}"
            raise OptionError(f"option {key!r} leads to another table than {name}: name that table itself")
    check_known(user_options)
    if request.body["use"] == "read":
        check_by_name({key: text for key, text in user_options.items() if key.lower() != "path"})


def _user_options(request: BridgeRequest) -> dict[str, str]:
    """Return the options of a statement without those that Spark adds."""
    options = request.body["user_options"]
    return {key: text for key, text in options.items() if not key.startswith("__")}


def answer(
    catalog: OpenCatalog, name: Name, store_options: dict[str, str], user_options: dict[str, str]
) -> dict[str, Any]:
    """Return the description of a table for Java.

    Args:
        catalog: the catalog.
        name: the table's name or path.
        store_options: options of every read and write.
        user_options: options of reads: the version by number, tag or time, and the metadata table, if any.
    """
    options = read_options({**store_options, **user_options})
    properties: dict[str, str] = {}
    constraints: list[dict[str, Any]] = []
    fields: list[dict[str, Any]] = []
    order = _write_order({}, Schema(()))
    if options.table:
        place, schema = metadata.describe(options, None)
        columns = Schema.from_arrow(metadata.MetadataReader.columns(options))
    else:
        place, snapshot = read.open_snapshot(options, None)
        schema, columns = read.requested_schema(snapshot, options), snapshot.schema
        newest = _newest_version(catalog, store_options, None if user_options else snapshot)
        properties = _table_properties(newest, store_options["path"])
        constraints = [one.to_dict() for one in newest.settings.constraints]
        fields = partitioning(newest.config(), snapshot.schema)
        if fields:
            properties.pop(PARTITION_FIELDS)  # it is part of PARTITIONED BY
        order = _write_order(newest.config(), snapshot.schema)
    version_options = {key: value for key, value in user_options.items() if key == "table"}
    version_options["version"] = str(place.version)
    plain = not user_options and not options.table
    return {
        "display_name": f"{catalog.name}.{display_name(name)}",
        "schema": schema.json(),
        "declared": declared_schema(schema).json(),
        "hidden": (st.StructType() if options.table else _hidden_columns()).json(),
        "properties": properties,
        "storeOptions": store_options,
        "versionOptions": version_options,
        "writable": plain,
        "constraints": constraints,
        "pushdown": pushdown_description(options, columns, schema),
        "partition_fields": fields,
        "write_order": order,
    }


def _write_order(config: Mapping[str, str], schema: Schema) -> WriteOrder:
    keys = [
        SortKey(path=path, descending=descends, nulls="last" if nulls_last else "first")
        for path, descends, nulls_last in write_order(config, schema)
    ]
    return WriteOrder(keys=keys, distributed=config.get(DISTRIBUTION) == "range")


def open_writable_table(request: BridgeRequest, name: Name | None = None) -> LanceTable:
    """Return a table by name for a statement that changes it.

    Raises:
        TableNotFoundError: the table does not exist.
        UnsupportedFormatError: the name is that of a metadata table or tag.
    """
    wanted_name = request.name if name is None else name
    try:
        options, table = resolve_table(request.catalog, wanted_name)
    except TableNotFoundError as error:
        raise TableNotFoundError(f"{error}{similar_table(request, wanted_name)}") from None
    if request.body["verb"] in _ROW_VERBS and not table and "tag" not in options:
        options = staged_options(options, request.body.get("staging"))
    if "tag" in options:
        raise UnsupportedFormatError(
            f"{display_name(request.name)} is the version of a tag, which cannot be changed: name "
            "the table itself"
        )
    if table:
        raise UnsupportedFormatError(f"{display_name(request.name)} tells of a table and cannot be changed")
    # Imported here because a SELECT by name does not need it.
    from spark_lance.spark.table.table import LanceTable

    return LanceTable.forPath(request.spark, options.pop("path"), **options)


def drop_table(request: BridgeRequest) -> bool:
    """Drop a table with its files; return False if it does not exist.

    Raises:
        UnsupportedFormatError: the name is a path, or the name of a branch.
    """
    if is_path(request.name):
        raise UnsupportedFormatError(
            f"{request.name[0]} is a path, not a name of the catalog: delete its folder, "
            "or delete its rows with TRUNCATE TABLE"
        )
    try:
        request.catalog.names.drop(request.name)
    except (TableNotFoundError, NamespaceNotFoundError):
        check_no_branch(request.catalog, request.name, "drop")
        return False
    return True


def rename_table(request: BridgeRequest) -> None:
    """Rename a table. A new name of one part stays in the table's namespace.

    Spark passes the new name as it was written, so its first part may be the catalog.
    """
    catalog, old, new = request.catalog, request.name, tuple(request.body["to"])
    if is_path(old) or is_path(new):
        raise UnsupportedFormatError("a path cannot be renamed: move its folder")
    catalog.names.rename(old, (*old[:-1], *new) if len(new) == 1 else inside(catalog, new))


def truncate_table(request: BridgeRequest) -> bool:
    """Delete all rows."""
    open_writable_table(request).delete()
    return True


def delete_where(request: BridgeRequest) -> None:
    """Delete the rows that meet all of Spark's predicates, in the form of `scan.predicates`."""
    table = open_writable_table(request)
    predicates = request.body["predicates"]
    if not predicates:
        table.delete()
        return
    snapshot = table.dataset().snapshot
    tree = translate_conjunction(predicates, snapshot.schema)
    delete_rows(snapshot, compile_tree(tree, filterable_schema(snapshot.schema)))


def alter_table(request: BridgeRequest) -> dict[str, Any]:
    """Apply the changes of an ALTER TABLE in their order, and return the description of the table."""
    table = open_writable_table(request)
    if request.body["evolves"]:
        check_evolution_staged({**table.options, "path": table.path}, request.body.get("staging"))
        check_evolution(table.dataset().manifest, request.body["changes"])
    changes = request.body["changes"]
    schema = st.StructType.fromJson(json.loads(load_table(request)["declared"]))
    if replaces_columns(schema, changes):
        changes = column_changes(f"{request.catalog.name}.{display_name(request.name)}", schema, changes)
    check_changes(table, changes)
    # First the changes that the values of rows can forbid.
    for change in sorted(changes, key=lambda change: change["kind"] not in VALUE_CHECKED):
        _CHANGES[change["kind"]](table, change)
    return load_table(request)


def supports_change(request: BridgeRequest) -> bool:
    """Return whether a statement WITH SCHEMA EVOLUTION may make a change of the schema."""
    return is_supported(open_writable_table(request).dataset().manifest, request.body["change"])


def check_changes(table: LanceTable, changes: Sequence[Mapping[str, Any]]) -> None:
    """Check all changes before the first one is applied, because each change is a version of its own.

    Raises:
        UnsupportedFormatError, SchemaError, LanceError: a change cannot be made.
    """
    manifest = table.dataset().manifest
    for change in changes:
        refuse_keys(manifest.schema.fields, change)
        if change["kind"] == "set_property" or (
            change["kind"] == "remove_property" and not has_damaged_record(manifest)
        ):
            check_settings({change["property"]: change.get("value")})
        if change["kind"] == "set_property" and change["property"] == "location":
            raise UnsupportedFormatError(
                f"ALTER TABLE ... SET LOCATION cannot move a Lance table: the table stays at {table.path}; "
                f"name the other place itself, as in SELECT * FROM lance.`{change['value']}`"
            )
        if change["kind"] == "set_property":
            check_setting(change["property"], change.get("value"))
            if not manifest.uses_stable_row_ids and is_row_tracking(change["property"], change["value"]):
                raise UnsupportedFormatError(
                    f"rows of {table.path} have no ids that stay, which only a new table gets: write CREATE "
                    "TABLE new TBLPROPERTIES ('enable_stable_row_ids' = 'true') AS SELECT * FROM t"
                )
        if change["kind"] == "remove_property" and change["property"] == PRIMARY_KEY:
            continue
        if change["kind"].endswith("_property") and is_fixed(change["property"]):
            raise UnsupportedFormatError(
                f"property {change['property']!r} says how the table was made and stays: make a new "
                "one, by CREATE TABLE ... TBLPROPERTIES (...) AS SELECT"
            )
        if change["kind"] not in _CHANGES:
            raise UnsupportedFormatError(
                f"ALTER TABLE cannot make the change {change['kind']} on Lance tables"
            )
        if change["kind"] == "add_column":
            _check_added_column(change)
    whole = [change["column"] for change in changes if change["kind"] == "drop_column"]
    _check_ordering_columns(
        table, [change["column"] for change in changes if change["kind"] in ("drop_column", "rename_column")]
    )
    if whole:
        _check_partition_columns(table, whole)
    if whole:
        check_droppable(table.dataset().lance_schema, [".".join(path) for path in whole])
    dropped = {path[0] for path in whole if len(path) == 1}
    if dropped and dropped >= {field.name for field in manifest.schema.fields}:
        raise UnsupportedFormatError(
            "ALTER TABLE cannot drop all columns, as their values would be lost: make the table "
            "anew, by CREATE OR REPLACE TABLE ... AS SELECT"
        )


def _check_partition_columns(table: LanceTable, dropped: Sequence[Sequence[str]]) -> None:
    """Check that dropped columns do not partition the table."""
    names = {path[0].lower() for path in dropped if len(path) == 1}
    for field in PartitionSpec.of_config(table.config).present(table.dataset().lance_schema).fields:
        if field.source.lower() in names:
            raise UnsupportedFormatError(
                f"column {field.source!r} partitions the table: run ALTER TABLE ... DROP PARTITION FIELD "
                f"{field.sql} first"
            )


def _check_ordering_columns(table: LanceTable, changed: Sequence[Sequence[str]]) -> None:
    """Check that dropped or renamed columns do not order the rows of the table."""
    paths = [[part.lower() for part in path] for path in changed]
    schema = table.dataset().lance_schema
    for setting, statement in ((CLUSTERING, "CLUSTER BY NONE"), (SORT_ORDER, "WRITE UNORDERED")):
        for key, _, _ in valid_sort_keys(texts(table.config.get(setting, "")), schema):
            if any([name.lower() for name in key[: len(path)]] == path for path in paths):
                raise UnsupportedFormatError(
                    f"column {'.'.join(key)!r} orders the rows of the table ({setting}): run ALTER TABLE ... "
                    f"{statement} first"
                )


def _check_added_column(change: Mapping[str, Any]) -> None:
    if change["default"] is not None and len(change["column"]) > 1:
        raise UnsupportedFormatError(
            f"{'.'.join(change['column'])} is a field, and only columns have defaults: leave out DEFAULT"
        )
    if not change["nullable"] and change["default"] is None:
        raise SchemaError(
            f"column {'.'.join(change['column'])} is new, so it is null in all rows: drop NOT NULL, or add "
            "DEFAULT"
        )
    new_field(st.StructField(change["column"][-1], parse_type(change["type"]), True), {})


def _fields(table: LanceTable, parts: Sequence[str]) -> list[Field | None]:
    return fields_along(table.dataset().lance_schema.fields, parts)


def _path(table: LanceTable, parts: Sequence[str]) -> str:
    """Return the path of a column or field in the form that `LanceTable` expects."""
    field = _fields(table, parts)[-1]
    return ".".join(parts) if field is None else table.dataset().lance_schema.field_path(field.id)


def _add_column(table: LanceTable, change: Mapping[str, Any]) -> None:
    added = st.StructField(change["column"][-1], parse_type(change["type"]), True)
    if change["default"] is not None:
        details = {"comment": change["comment"], EXISTS_DEFAULT: change["exists_default"]}
        details = {key: text for key, text in details.items() if text}
        table.columns.addDefault(st.StructField(added.name, added.dataType, True, details), change["default"])
        if not change["nullable"]:
            table.alterColumn(_path(table, change["column"]), nullable=False)
        _move_column(table, change)
        return
    outer = _fields(table, change["column"])[:-1]
    if any(field is not None and field.kind == "map" for field in outer):
        parent = outer[-1]
        assert parent is not None
        struct = parent.children[0] if parent.kind == "list" else parent
        path = table.dataset().lance_schema.field_path(struct.id)
        table.columns.addToMapValues(path, st.StructType([added]))
    else:
        for name, field in zip(change["column"][-2::-1], reversed(outer), strict=True):
            # Wrap the new field in its parent, which is a struct or a list of structs.
            is_list = field is not None and field.kind == "list"
            added = st.StructField(
                name, st.ArrayType(added.dataType) if is_list else st.StructType([added]), True
            )
        table.addColumns(st.StructType([added]))
    if change["comment"]:
        table.alterColumn(_path(table, change["column"]), comment=change["comment"])
    _move_column(table, change)


def _move_column(table: LanceTable, change: Mapping[str, Any]) -> None:
    """Move a column or field to the position in a change, if the change has one."""
    if change["position"] is None:
        return
    *outer, _ = change["column"]
    after = None if change["after"] is None else _path(table, [*outer, change["after"]])
    table.moveColumn(_path(table, change["column"]), after=after)


def _move_columns(table: LanceTable, change: Mapping[str, Any]) -> None:
    moves = []
    for column, before in change["moves"]:
        after = None if before is None else _path(table, [*column[:-1], before])
        moves.append((_path(table, column), after))
    table.columns.moveAll(*moves)


def _drop_column(table: LanceTable, change: Mapping[str, Any]) -> None:
    table.dropColumns(_path(table, change["column"]))


def _change_type(table: LanceTable, change: Mapping[str, Any]) -> None:
    table.alterColumn(_path(table, change["column"]), type=parse_type(change["type"]))


def _unset_property(table: LanceTable, change: Mapping[str, Any]) -> None:
    if change["property"] == PRIMARY_KEY:
        table.unsetPrimaryKey()
    else:
        table.setConfig({change["property"]: None})


def _set_clustering(table: LanceTable, change: Mapping[str, Any]) -> None:
    schema = table.dataset().lance_schema
    paths = [sort_key(name, schema)[0] for name in change["columns"]]
    if nested := next((".".join(path) for path in paths if len(path) > 1), None):
        raise SchemaError(f"CLUSTER BY {nested}: cluster by whole columns, not by a field of a struct")
    names = [path[0] for path in paths]
    table.setConfig({CLUSTERING: join_names(names) or None})


def _add_constraint(table: LanceTable, change: Mapping[str, Any]) -> None:
    values = dict(change["constraint"])
    add_constraint(table.spark, table.dataset(), Constraint.of(values.pop("name"), values))


_CHANGES: dict[str, Any] = {
    "add_constraint": _add_constraint,
    "drop_constraint": lambda table, change: table.dropConstraint(
        change["constraint"]["name"], ifExists=change["if_exists"]
    ),
    "cluster_by": _set_clustering,
    "add_column": _add_column,
    "drop_column": _drop_column,
    "rename_column": lambda table, change: table.renameColumn(_path(table, change["column"]), change["to"]),
    "column_type": _change_type,
    "column_nullability": lambda table, change: table.alterColumn(
        _path(table, change["column"]), nullable=change["nullable"]
    ),
    "column_comment": lambda table, change: table.alterColumn(
        _path(table, change["column"]), comment=change["comment"] or ""
    ),
    "column_default": lambda table, change: table.alterColumn(
        _path(table, change["column"]), default=change["default"] or ""
    ),
    "column_position": _move_column,
    "column_positions": _move_columns,
    "set_property": lambda table, change: table.setConfig({change["property"]: change["value"]}),
    "remove_property": _unset_property,
}


def resolve_table(catalog: OpenCatalog, name: Name) -> tuple[dict[str, str], str | None]:
    """Return the options with a table's location, and the metadata table in the name; None without one.

    Raises:
        TableNotFoundError, NamespaceNotFoundError: the table does not exist.
    """
    try:
        return _location_options(catalog, name), None
    except (TableNotFoundError, NamespaceNotFoundError):
        if len(name) < 2:
            raise
        kind, mark, reference = name[-1].partition("_")
        if mark and reference and kind.lower() in ("branch", "tag"):
            return {**_location_options(catalog, name[:-1]), kind.lower(): reference}, None
        if name[-1].lower() not in (*METADATA_TABLES, _CHANGES_TABLE):
            raise
    return _location_options(catalog, name[:-1]), name[-1].lower()


def _location_options(catalog: OpenCatalog, name: Name) -> dict[str, str]:
    try:
        return catalog.reads(name)
    except (TableNotFoundError, OptionError):
        selector = _split_branch(name)
        if selector is None:
            raise
    table, branch = selector
    return {**catalog.reads(table), "branch": branch}


def _split_branch(name: Name) -> tuple[Name, str] | None:
    """Split a name `table@branch` into the table's name and the branch; None if it has another form."""
    head, mark, branch = name[-1].rpartition(_BRANCH)
    return ((*name[:-1], head), branch) if mark and head else None


def check_no_branch(catalog: OpenCatalog, name: Name, verb: str) -> None:
    """Check that a name is not that of a branch of a table.

    Args:
        catalog: the catalog, which has no table of this name.
        name: the name.
        verb: the verb of the procedure to call instead, for the error: create or drop.

    Raises:
        UnsupportedFormatError: the part before the @ is a table.
    """
    selector = _split_branch(name)
    if selector is None:
        return
    try:
        catalog.reads(selector[0])
    except (TableNotFoundError, NamespaceNotFoundError, OptionError):
        return
    table, branch = display_name(selector[0]), selector[1]
    raise UnsupportedFormatError(
        f"{display_name(name)} is the name of branch {branch!r} of table {table}: write "
        f"CALL {catalog.name}.system.{verb}_branch('{table}', '{branch}')"
    )


def _hidden_columns() -> st.StructType:
    """Return the hidden columns. Their metadata `lance.option` names the option that reads the column."""
    return st.StructType(
        [
            st.StructField(name, system_field(name).dataType, True, {"lance.option": option})
            for name, option in _HIDDEN.items()
        ]
    )


def _newest_version(
    catalog: OpenCatalog, store_options: Mapping[str, str], snapshot: Snapshot | None
) -> LanceDataset:
    """Return the newest version of a table: `snapshot`, or the loaded one if it is None or of a branch."""
    path, branch = store_options["path"], store_options.get("branch")
    if snapshot is None or branch:
        return dataset(path, (branch, None) if branch else None, _storage_of(store_options))
    return LanceDataset(path, snapshot.table, snapshot.manifest)


def _storage_of(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the store among those of the data source."""
    return dict(read_options(CaseInsensitiveDict(options)).storage)


def _table_properties(dataset: LanceDataset, path: str) -> dict[str, str]:
    # Without is_managed_location, Spark assumes that CREATE TABLE has named the location.
    properties = {"provider": "lance", "location": path, "is_managed_location": "true"}
    comment = (dataset.schema.metadata or {}).get(b"comment", b"").decode()
    result = {"comment": comment} if comment else {}
    return {**fixed_properties(dataset), **dataset.config(), **properties, **result}
