"""CREATE TABLE, REPLACE TABLE and CREATE TABLE ... AS SELECT.

A statement without AS SELECT creates an empty table immediately. A statement with AS SELECT is staged: one
commit creates or replaces the table and adds its rows. TBLPROPERTIES accept the options of
`df.write.format("lance")`; other properties become settings of the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.catalog.names import display_name
from spark_lance.errors import OptionError, TableExistsError, TableNotFoundError
from spark_lance.file.base.schema import Schema, split_path
from spark_lance.spark.driver.delta_settings import default_properties
from spark_lance.spark.options.options import write_options
from spark_lance.spark.options.table_properties import (
    CLUSTERING,
    PRIMARY_KEY,
    SORT_ORDER,
    TABLE_OPTIONS,
    check_setting,
    join_names,
    needs_stable_row_ids,
    split_names,
)
from spark_lance.spark.schema.new_fields import new_field
from spark_lance.spark.schema.sort_keys import sort_key
from spark_lance.spark.sink.table_columns import check_setting_columns
from spark_lance.spark.sql.catalogs import BridgeRequest, OpenCatalog, is_path
from spark_lance.spark.sql.partition_fields import partitioning
from spark_lance.spark.sql.properties import key_options
from spark_lance.spark.sql.session_names import described_columns, local_path
from spark_lance.spark.sql.tables import check_no_branch, load_table
from spark_lance.spark.table.builder import TableBuilder
from spark_lance.spark.table.table import LanceTable
from spark_lance.table.format.partitions import PARTITION_FIELDS, PartitionSpec, parse_transform
from spark_lance.table.format.reserved_names import check_settings
from spark_lance.table.schema.constraints import Constraint

# Properties that Spark itself sets or reads.
_RESERVED = frozenset(
    {
        "provider",
        "location",
        "owner",
        "comment",
        "external",
        "is_managed_location",
        "path",
        "table_type",
        "collation",
    }
)
_FORMAT = "lance"


def create_table(request: BridgeRequest) -> dict[str, Any]:
    """Create an empty table and return its description.

    If a LOCATION in the session's own catalog already has a table, the statement only registers it.
    """
    uri = _place(request, replaces=False)
    if request.catalog.session is not None and _location(request) and _is_table(request, uri):
        _check_same(request, uri)
        _register(request, uri, is_new=False)
    else:
        _create_table(request, "create", uri)
        _register(request, uri)
    return load_table(request)


def stage_table(request: BridgeRequest) -> dict[str, Any]:
    """Return the description of a table that a statement will create or replace, without any change."""
    mode = request.body["mode"]
    exists = _exists(request)
    if mode == "create" and exists:
        raise TableExistsError(f"there is a table {request.name[-1]!r} already")
    if mode == "replace" and not exists:
        raise TableNotFoundError(f"there is no table {request.name[-1]!r} to replace")
    uri = _place(request, replaces=mode != "create")
    options, _ = _split_request_properties(request)
    if key := request.body["properties"].get(PRIMARY_KEY):
        options |= key_options(key)
    catalog = request.catalog
    schema = st.StructType.fromJson(json.loads(request.body["schema"]))
    check_setting_columns(write_options({**options, "path": uri}).column_settings, schema)
    return {
        "display_name": f"{catalog.name}.{'.'.join(request.name)}",
        "schema": schema.json(),
        "declared": schema.json(),
        "hidden": st.StructType().json(),
        "partition_fields": partitioning(
            {PARTITION_FIELDS: _spec_setting(_declared_partitions(request))}, _storage_schema(schema)
        ),
        "properties": {},
        "storeOptions": catalog.options(uri, request.name),
        "versionOptions": {},
        "writable": True,
        "staged": {
            "uri": uri,
            "truncates": exists,
            "options": {**options, **({"overwriteSchema": "true"} if exists else {})},
            "declaration": _spec_setting(_declared_partitions(request)),
        },
    }


def commit_staged(request: BridgeRequest) -> None:
    """End a staged statement: create the table if no rows were written, and register its name."""
    staged = request.body["staged"]
    if not request.body["written"]:
        _create_table(request, "create_or_replace" if staged["truncates"] else "create", staged["uri"])
    elif (
        _split_request_properties(request)[1]
        or request.body["properties"].get("comment")
        or staged["truncates"]
    ):
        _describe(request, staged["uri"])
    if not staged["truncates"]:
        _register(request, staged["uri"])


def abort_staged(request: BridgeRequest) -> None:
    """End a failed staged statement. Nothing is left to do: the write has cleaned up, and no name exists."""


def _place(request: BridgeRequest, *, replaces: bool) -> str:
    """Return the path of a table that a statement creates or replaces.

    Raises:
        OptionError: the statement requests another format, or a location that does not fit the table's name.
        UnsupportedFormatError: the name refers to a branch.
    """
    catalog, name = request.catalog, request.name
    _check_format(request)
    location = _location(request)
    if is_path(name):
        if location not in (None, name[0]):
            raise OptionError(f"the table is named by its path {name[0]}: leave out LOCATION {location!r}")
        if not catalog.paths:
            raise OptionError(
                f"catalog {catalog.name} takes no paths (spark.sql.catalog.{catalog.name}.paths is false): "
                "give the table a name"
            )
        return name[0]
    if catalog.session is not None and location is not None:
        return _external_place(request, location, replaces=replaces)
    if location is not None:
        raise OptionError(
            f"tables of catalog {catalog.name} live where the catalog puts them: leave out LOCATION, "
            f"or name the path itself, {catalog.name}.`{location}`"
        )
    if replaces:
        try:
            return catalog.uri(name)
        except TableNotFoundError:
            pass
    check_no_branch(catalog, name, "create")
    return catalog.names.allocate_table_uri(name)


def _location(request: BridgeRequest) -> str | None:
    location: str | None = request.body["properties"].get("location")
    return location


def _external_place(request: BridgeRequest, location: str, *, replaces: bool) -> str:
    """Return the location of an external table of the session's own catalog.

    Raises:
        TableExistsError: a table with this name exists, and the statement does not replace it.
        OptionError: the location has other files, or the table to replace has another location.
    """
    catalog, name = request.catalog, request.name
    uri = local_path(location)
    if replaces and _exists(request):
        if (place := catalog.uri(name)) != uri:
            raise OptionError(
                f"{display_name(name)} is at {place}: leave out LOCATION '{location}', or write DROP TABLE "
                f"{display_name(name)} first"
            )
        return uri
    catalog.registry.check_free(name)
    is_staged = request.body["verb"] != "create_table"
    if is_staged or not _is_table(request, uri):
        catalog.registry.check_empty(uri, name)
    return uri


def _is_table(request: BridgeRequest, uri: str) -> bool:
    options = request.catalog.options(uri, request.name)
    return LanceTable.isLanceTable(request.spark, options.pop("path"), **options)


def _check_same(request: BridgeRequest, uri: str) -> None:
    """Check that an existing table matches the statement that registers it.

    Raises:
        OptionError: the columns differ, or the statement has properties or partitions for a new table only.
    """
    name = display_name(request.name)
    schema = st.StructType.fromJson(json.loads(request.body["schema"]))
    columns, _ = described_columns(uri, dict(request.catalog.storage))
    actual = [(column.name, column.dataType.simpleString()) for column in columns]
    expected = [(column.name, column.dataType.simpleString()) for column in schema]
    if expected and expected != actual:
        different = next((pair for pair in expected if pair not in actual), expected[0])
        raise OptionError(
            f"the table at {uri} has other columns than {name} is declared with, such as "
            f"{' '.join(different)}: leave the columns out"
        )
    # Without a list of columns, the names in these clauses cannot be checked.
    transforms, _ = _partition_items(request)
    if transforms:
        raise OptionError(
            f"the table at {uri} exists, and CREATE TABLE {name} cannot partition it: leave out PARTITIONED "
            f"BY, and then run ALTER TABLE {name} ADD PARTITION FIELD {parse_transform(transforms[0]).sql}"
        )
    if clustering := _clustering(request):
        raise OptionError(
            f"the table at {uri} exists, and CREATE TABLE {name} cannot cluster it: leave out CLUSTER BY, "
            f"and then run ALTER TABLE {name} CLUSTER BY ({', '.join(clustering)})"
        )
    options, settings = _split_request_properties(request)
    fixed = [key for key in options if not key.startswith("storage.")]
    if PRIMARY_KEY in request.body["properties"]:
        fixed.append(PRIMARY_KEY)
    if fixed:
        raise OptionError(
            f"the table at {uri} exists, and CREATE TABLE {name} cannot change its property {fixed[0]!r}: "
            "leave the property out"
        )
    explicit = [key for key in request.body["properties"] if key in settings]
    for key in explicit:
        value = settings[key].replace("\\", "\\\\").replace("'", "\\'")
        raise OptionError(
            f"the table at {uri} exists, and CREATE TABLE {name} cannot change its property {key!r}: leave "
            f"the property out, and then run ALTER TABLE {name} SET TBLPROPERTIES ('{key}' = '{value}')"
        )


def _check_format(request: BridgeRequest) -> None:
    provider = request.body["properties"].get("provider", _FORMAT)
    # If the user names no format, Spark's DataFrame writers name the session's default format.
    is_default = request.body["default_format"] and provider == request.spark.conf.get(
        "spark.sql.sources.default"
    )
    if provider.lower() != _FORMAT and not is_default:
        raise OptionError(
            f"catalog {request.catalog.name} keeps Lance tables, so none USING {provider}: leave it out, "
            "write USING lance, or name a table of another catalog"
        )


def _exists(request: BridgeRequest) -> bool:
    try:
        options = request.catalog.reads(request.name)
    except TableNotFoundError:
        return False
    return LanceTable.isLanceTable(request.spark, options.pop("path"), **options)


def _register(request: BridgeRequest, uri: str, *, is_new: bool = True) -> None:
    if is_path(request.name):
        return
    if request.catalog.session is not None:
        external = _location(request) is not None
        request.catalog.registry.register(request.name, uri, external=external, is_new=is_new)
    else:
        request.catalog.names.add(request.name, uri, {})


def _create_table(request: BridgeRequest, mode: str, uri: str) -> None:
    """Create an empty table, or replace a table by an empty version."""
    options, settings = _split_request_properties(request)
    catalog: OpenCatalog = request.catalog
    builder: TableBuilder[LanceTable] = getattr(LanceTable, _BUILDERS[mode])(request.spark)
    builder.location(uri)
    for key, value in catalog.options(uri, request.name).items():
        if key != "path":
            builder.option(key, value)
    for key in TABLE_OPTIONS & options.keys():
        builder.option(key, options[key])
    column_settings = write_options({**options, "path": uri}).column_settings
    schema = st.StructType.fromJson(json.loads(request.body["schema"]))
    check_setting_columns(column_settings, schema)
    for column in schema.fields:
        arrow = new_field(column, column_settings)
        metadata = {key.decode(): value.decode() for key, value in (arrow.metadata or {}).items()}
        comment = column.metadata.get("comment")
        builder.addColumn(column.name, arrow.type, column.nullable, comment, metadata=metadata)
    if key := request.body["properties"].get(PRIMARY_KEY):
        builder.primaryKey(*(part.strip() for part in key.split(",")))
    if comment := request.body["properties"].get("comment"):
        builder.comment(comment)
    for name, value in settings.items():
        if name != PARTITION_FIELDS:
            builder.property(name, value)
    if constraints := _constraints(request):
        builder.constraints(*constraints)
    builder.partition(PartitionSpec.of_config(settings)).execute()


def _constraints(request: BridgeRequest) -> list[Constraint]:
    """Return the constraints of a statement."""
    result = []
    for values in request.body["constraints"]:
        rest = dict(values)
        result.append(Constraint.of(rest.pop("name"), rest))
    return result


# Spark's names for the clauses CLUSTER BY (...), and CLUSTERED BY (a) SORTED BY (b) INTO 4 BUCKETS.
_CLUSTER_BY = re.compile(r"cluster_by\((.*)\)", re.DOTALL)
_SORTED_BUCKET = re.compile(r"sorted_bucket\((.+?), (\d+), (.+)\)", re.DOTALL)
_BUILDERS = {"create": "create", "create_or_replace": "createOrReplace"}


def _apply_settings(table: LanceTable, settings: Mapping[str, str]) -> None:
    """Apply the settings to a new or replaced table, and remove its former partition fields."""
    changed: dict[str, str | None] = dict(settings)
    dataset = table.dataset()
    if PARTITION_FIELDS in settings:
        changed[PARTITION_FIELDS] = PartitionSpec.of_config(settings).bound(dataset.lance_schema).text()
    elif PARTITION_FIELDS in dataset.config():
        changed[PARTITION_FIELDS] = None
    if changed:
        table.setConfig(changed)


def _describe(request: BridgeRequest, uri: str) -> None:
    _, settings = _split_request_properties(request)
    options = request.catalog.options(uri, request.name)
    table = LanceTable.forPath(request.spark, options.pop("path"), **options)
    _apply_settings(table, settings)
    if comment := request.body["properties"].get("comment"):
        table.dataset().update_schema_metadata({"comment": comment})


def _split_request_properties(request: BridgeRequest) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options and settings of TBLPROPERTIES, with CLUSTER BY and PARTITIONED BY."""
    options, settings = _split_properties({**default_properties(request.spark), **request.body["properties"]})
    if names := _clustering(request):
        fields = {
            field["name"].lower(): field["name"] for field in json.loads(request.body["schema"])["fields"]
        }
        if missing := [name for name in names if name.lower() not in fields]:
            raise OptionError(
                f"CLUSTER BY names {missing[0]!r}, and the table has {', '.join(fields.values())}"
            )
        settings[CLUSTERING] = join_names(fields[name.lower()] for name in names)
    if spec := _declared_partitions(request):
        settings[PARTITION_FIELDS] = _spec_setting(spec)
    _, order = _partition_items(request)
    if order:
        for key in split_names(order):
            sort_key(key, _storage_schema(st.StructType.fromJson(json.loads(request.body["schema"]))))
        settings.setdefault(SORT_ORDER, order)
    return options, settings


def _split_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split TBLPROPERTIES into the options of the write and the settings of the table.

    Raises:
        OptionError: a setting is internal.
    """
    options: dict[str, str] = {}
    settings: dict[str, str] = {}
    for key, value in properties.items():
        if key.startswith("option."):
            continue  # Spark repeats OPTIONS (...) without the prefix
        if key in _RESERVED or key == PRIMARY_KEY:
            continue
        check_setting(key, value)
        column_option = "." in key and any(mark in key for mark in (".lance.", ".lance-", ".arrow."))
        (options if key in TABLE_OPTIONS or column_option else settings)[key] = value
    check_settings(settings)
    if needs_stable_row_ids(settings):
        options.setdefault("enable_stable_row_ids", "true")
    return options, settings


def _partition_items(request: BridgeRequest) -> tuple[list[str], str]:
    """Return the transforms of PARTITIONED BY and CLUSTERED BY, and the columns of SORTED BY."""
    items: list[str] = []
    order = ""
    for text in request.body["partitions"]:
        if sorted_bucket := _SORTED_BUCKET.fullmatch(text):
            names, count, order = sorted_bucket.groups()
            items.append(f"bucket({count}, {names})")
        elif not _CLUSTER_BY.fullmatch(text):
            items.append(text)
    return items, order


def _clustering(request: BridgeRequest) -> list[str]:
    """Return the columns of CLUSTER BY."""
    parts = [_CLUSTER_BY.fullmatch(text) for text in request.body["partitions"]]
    keys = [split_path(name) for part in parts if part for name in split_names(part[1])]
    return [".".join(key) for key in keys]


def _declared_partitions(request: BridgeRequest) -> PartitionSpec:
    """Return the declaration of PARTITIONED BY.

    Raises:
        OptionError: a transform does not exist, or uses a column that the table does not have.
        SchemaError: the transform does not support the type of a column.
    """
    items, _ = _partition_items(request)
    spec = PartitionSpec(tuple(parse_transform(item) for item in items))
    schema = st.StructType.fromJson(json.loads(request.body["schema"]))
    fields = {column.name.lower(): column for column in schema.fields}
    for field in spec.fields:
        if field.source.lower() not in fields:
            raise OptionError(
                f"PARTITIONED BY names {field.source!r}, and the table has {', '.join(schema.names)}"
            )
    columns = {fields[name.lower()].name: fields[name.lower()] for name in spec.sources()}
    return spec.bound(_storage_schema(st.StructType(list(columns.values()))))


def _storage_schema(schema: st.StructType) -> Schema:
    return Schema.from_arrow(pa.schema([new_field(column, {}) for column in schema.fields]))


def _spec_setting(spec: PartitionSpec) -> str:
    """Return the setting for a table that does not exist yet, without the ids of columns."""
    return PartitionSpec(tuple(replace(field, source_id=None) for field in spec.fields)).text()
