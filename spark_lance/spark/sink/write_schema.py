"""Plans how the rows of a DataFrame are stored. This runs in the driver, before any task.

The effect of a write on the table's columns:

    append                            the table's columns stay; columns that the rows lack become null
    append, mergeSchema               ... and the write adds the columns that the table lacks
    overwrite                         the table gets the columns of the DataFrame; a column with the name and
                                      Spark type of an existing column keeps its Arrow type
    overwrite, overwriteSchema=true   ... and no former column keeps its Arrow type
    overwrite, overwriteSchema=false  the table's columns stay, as with append
    overwrite, mergeSchema            the table's columns stay, and the write adds the columns that it lacks
    overwrite, replaceWhere           as append; replaces only the rows that meet the condition
    overwrite, replaceUsing           as append; replaces only the rows that equal a new row in these columns
    overwrite, replaceOn              as append; replaces only the rows that a condition matches with a new
                                      row
    overwrite,                        as append; replaces only the partitions of the new rows, if the table
      partitionOverwriteMode=dynamic  declares partitions

A DataFrame can have descriptions instead of blobs: a new column of descriptions becomes a column of blobs. In
an existing table the table's column decides whether blobs or plain bytes are stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.errors import OptionError, SchemaError, suggestion
from spark_lance.expressions.expressions import Expression
from spark_lance.file.base.pages import PAGE_FORMATS
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.blob_writer import BLOB_KEY
from spark_lance.jsonb.columns import is_json_field, is_json_text
from spark_lance.spark.options.column_options import ENCODINGS
from spark_lance.spark.options.option_fields import WriteOptions
from spark_lance.spark.scan.predicates import translate_conjunction
from spark_lance.spark.schema.blobs import is_description
from spark_lance.spark.schema.new_fields import ColumnSettings, new_field, without_defaults
from spark_lance.spark.schema.string_types import has_collation
from spark_lance.spark.schema.types import (
    arrow_schema,
    covers,
    field_type,
    spark_field,
    spark_type,
)
from spark_lance.spark.schema.variants import without_variants
from spark_lance.spark.sink.table_columns import (
    check_fixed_settings,
    check_setting_columns,
    named_children,
    with_page_settings,
)
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import PARTITION_FIELDS, PartitionSpec, parse_transform
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts.replace_pairs import PairMatch
from spark_lance.table.inserts.replace_partitions import PartitionMatch
from spark_lance.table.inserts.write_plan import WritePlan, find_latest, plan_write
from spark_lance.table.writing.align import Aligner, TypeDifference, schema_difference_error
from spark_lance.table.writing.compression import compressed

# Options that select the rows that an overwrite replaces.
_REPLACING = ("replaceWhere", "replaceUsing", "replaceOn")


def plan_rows(
    table: TableRef,
    options: WriteOptions,
    schema: st.StructType,
    overwrite: bool,
    partitions: str | None = None,
) -> tuple[list[str], WritePlan]:
    """Plan the write of rows of `schema`, see `LanceWriter` for the arguments.

    Returns:
        The table's names for the columns of the rows, and the plan.

    Raises:
        SchemaError: the rows do not fit the table, or cannot be stored. The message lists all differences.
        OptionError: an option does not fit the table, the schema or the mode.
        ExpressionError: the condition of `replaceWhere` does not fit the table.
    """
    _check_mode(options, overwrite)
    latest = find_latest(table)
    check_names(schema, options.caseSensitive)
    arrow = arrow_schema(schema)
    replaces = any(getattr(options, name) is not None for name in _REPLACING)
    declared = PartitionSpec() if latest is None else PartitionSpec.of_config(latest.config)
    if options.partitionBy is not None and partitions is not None:
        raise OptionError(
            "option 'partitionBy' is for tables that exist, and for new ones by path: write PARTITIONED BY, "
            "or partitionedBy, for a new table by name"
        )
    dynamic = overwrite and not replaces and partitions is None and _is_dynamic(options, declared)
    replaces = replaces or dynamic
    keeps = not overwrite or replaces or _keeps_schema(options)
    if latest is not None and keeps:
        if not overwrite or replaces:
            _check_append_options(latest, options)
        rows = _rows_for_table_columns(schema, arrow, options, latest.schema)
    else:
        table_schema = None if latest is None or options.overwriteSchema else latest.schema
        rows = _rows_for_new_columns(schema, arrow, options, table_schema)
    try:
        plan = plan_write(
            table,
            latest,
            rows.source,
            "overwrite" if overwrite else "append",
            data_storage_version=options.data_storage_version,
            stable_row_ids=options.enable_stable_row_ids,
            new_columns=rows.new_columns,
            keep_schema=keeps,
            replace_where=_replace_condition(options.replaceWhere, latest),
            replace_using=options.replaceUsing or (),
            replace_on=None if options.replaceOn is None else (options.replaceOn, options.targetAlias),
            replace_partitions=dynamic,
        )
    except SchemaError as error:
        message = _with_spark_types(error)
        if rows.new_columns is None or latest is None:
            raise message from None
        raise SchemaError(f"{message}\nmergeSchema adds columns; it changes no type of a column") from error
    if latest is not None:
        _check_matches(plan, latest.schema)
    pages = with_page_settings(plan.schema, options.column_settings)
    plan = replace(plan, schema=compressed(pages, options.compression))
    if partitions is not None:
        declared = PartitionSpec.of_config({PARTITION_FIELDS: partitions})
    if options.partitionBy is not None:
        redeclares = latest is None or (overwrite and bool(options.overwriteSchema))
        plan, declared = _plan_partitions(plan, options.partitionBy, None if redeclares else latest, declared)
    plan = replace(plan, partitions=declared.present(plan.schema))
    # Tasks do the same first. Done here without rows, it refuses types that do not fit the table's types, or
    # that files of this version cannot store.
    Aligner(rows.arrow, plan.schema)
    for field in plan.schema.fields:
        PAGE_FORMATS[plan.version].writer(field, 0, plan.version)
    return rows.arrow.names, plan


def _plan_partitions(
    plan: WritePlan, items: Sequence[str], table: Manifest | None, declared: PartitionSpec
) -> tuple[WritePlan, PartitionSpec]:
    """Return a plan for a table with the partitions of option `partitionBy`, and these partitions.

    Without a table, the plan declares the partitions.

    Raises:
        OptionError: the table exists and has other partitions, or a column does not exist.
        SchemaError: the transform does not support the type of a column.
    """
    requested = PartitionSpec(tuple(parse_transform(item) for item in items))
    keeps = plan.operation != "overwrite" or plan.whole is not None
    schema = table.schema if table is not None and keeps else plan.schema
    names = [column.name.lower() for column in schema.fields]
    for source in requested.sources():
        if source.lower() not in names:
            raise OptionError(
                f"option 'partitionBy' names {source!r}, and the table has "
                f"{', '.join(column.name for column in schema.fields)}: name one of these"
                f"{suggestion(source, names)}"
            )
    requested = requested.bound(schema)
    if table is None:
        return replace(plan, config={**plan.config, PARTITION_FIELDS: requested.text()}), requested
    fields = [(field.source, field.transform, field.width) for field in requested.fields]
    present_fields = [
        (field.source, field.transform, field.width) for field in declared.present(schema).fields
    ]
    if fields != present_fields or len(present_fields) != len(declared.fields):
        texts = [", ".join(field.sql for field in spec.fields) or "nothing" for spec in (declared, requested)]
        raise OptionError(
            f"the table is partitioned by {texts[0]}, and option 'partitionBy' has {texts[1]}: leave out "
            "partitionBy, or run ALTER TABLE ... ADD, DROP or REPLACE PARTITION FIELD first"
        )
    return plan, requested


def _is_dynamic(options: WriteOptions, declared: PartitionSpec) -> bool:
    """Return whether an overwrite replaces only the partitions of its rows.

    Raises:
        OptionError: the options also replace the schema.
    """
    dynamic = bool(declared) and options.partitionOverwriteMode == "dynamic"
    if dynamic and options.overwriteSchema:
        raise OptionError(
            "option 'partitionOverwriteMode' = 'dynamic' keeps the other rows: leave out 'overwriteSchema'"
        )
    return dynamic


def _check_matches(plan: WritePlan, schema: Schema) -> None:
    """Check that the columns that select the rows to replace have no collation.

    Raises:
        OptionError: such a column has a collation.
    """
    if plan.check is not None:
        _check_bytes_are_compared("replaceWhere", plan.check.schema.names, schema)
    if plan.match is not None:
        names = {PartitionMatch: "partitionOverwriteMode", PairMatch: "replaceOn"}
        name = names.get(type(plan.match), "replaceUsing")
        _check_bytes_are_compared(name, plan.match.table_columns, schema)


def _check_bytes_are_compared(option: str, names: Sequence[str], schema: Schema) -> None:
    """Check that columns have no collation, so that comparing bytes is right.

    Raises:
        OptionError: a column, or a field in it, has a collation.
    """
    for name in names:
        if any(has_collation(field.metadata) for field in schema.field(name).walk()):
            raise OptionError(
                f"{option} compares bytes, but column {name!r} has a collation: "
                "run DELETE with the condition, then append the rows"
            )


def _replace_condition(condition: str | None, table: Manifest | None) -> str | Expression | None:
    """Return the condition of `replaceWhere`: SQL text, or the connector predicates that Java sends.

    Raises:
        ExpressionError: a predicate does not keep the same rows as in Spark.
    """
    if condition is None or not condition.startswith("[{") or table is None:
        return condition
    try:
        predicates = json.loads(condition)
    except ValueError:
        return condition  # the SQL parser reports the error
    return translate_conjunction(predicates, table.schema)


@dataclass(frozen=True)
class _Rows:
    """The columns of rows, with the table's names.

    Attributes:
        arrow: the columns of the rows.
        source: the columns as the table stores them.
        new_columns: see `plan_write`.
    """

    arrow: pa.Schema
    source: pa.Schema
    new_columns: pa.Schema | None


def _rows_for_table_columns(
    schema: st.StructType, arrow: pa.Schema, options: WriteOptions, table: Schema
) -> _Rows:
    """Return the columns of rows for a table that keeps its columns."""
    names = _table_names(table, arrow.names)
    documents = {field.name for field in table.fields if field.is_json}
    arrow = without_variants(_rename_columns(arrow, names), documents)
    new_columns = None
    added: set[str] = set()
    if options.mergeSchema:
        fresh = replace(options, column_settings=_settings_of_rows(options.column_settings, schema))
        new_columns = _rename_columns(_new_schema(schema, fresh, None), names)
        added = _added_paths(new_columns, table)
    check_fixed_settings(table, options.column_settings, added)
    return _Rows(arrow, arrow, new_columns)


def _rows_for_new_columns(
    schema: st.StructType, arrow: pa.Schema, options: WriteOptions, table_schema: Schema | None
) -> _Rows:
    """Return the columns of rows that become the table's columns. Known ones keep types of `table_schema`."""
    source = _new_schema(schema, options, table_schema)
    documents = {field.name for field in source if is_json_text(field) or is_json_field(field)}
    arrow = without_variants(_rename_columns(arrow, source.names), documents)
    return _Rows(arrow, source, source if options.mergeSchema else None)


def _with_spark_types(error: SchemaError) -> SchemaError:
    """Return an error about types with Spark's type names, and the cast that may fix it."""
    differences = [line for line in error.differences if isinstance(line, (str, TypeDifference))]
    return schema_difference_error(differences, _difference_text) if differences else error


def _difference_text(difference: str | TypeDifference) -> str:
    if isinstance(difference, str):
        return difference
    try:
        target = spark_type(difference.target).simpleString()
        text = difference.describe(lambda kind: spark_type(kind).simpleString())
    except SchemaError:
        return str(difference)
    # If both have the same Spark type, they differ only in an Arrow type, which no cast can change.
    if spark_type(difference.source) == spark_type(difference.target):
        return str(difference)
    if not difference.is_castable:
        return text
    if difference.path.endswith("[]") and difference.path.count("[]") == 1 and "." not in difference.path:
        return f"{text}: write cast({difference.path.removesuffix('[]')} AS array<{target}>)"
    inside = "." in difference.path or "[]" in difference.path
    return f"{text}: cast its column" if inside else f"{text}: write cast({difference.path} AS {target})"


def _check_mode(options: WriteOptions, overwrite: bool) -> None:
    """Check that options do not contradict each other or the mode."""
    selectors = [name for name in _REPLACING if getattr(options, name) is not None]
    if not selectors:
        return
    if len(selectors) > 1:
        raise OptionError(f"give one of the options {', '.join(_REPLACING)}: each names the rows to replace")
    if not overwrite:
        raise OptionError(f"option {selectors[0]!r} is for mode overwrite: an append replaces nothing")
    if options.overwriteSchema:
        raise OptionError(f"option {selectors[0]!r} keeps the other rows: leave out 'overwriteSchema'")


def _keeps_schema(options: WriteOptions) -> bool:
    """Return whether an overwrite keeps the table's columns."""
    return options.overwriteSchema is False or (options.mergeSchema and not options.overwriteSchema)


def _rename_columns(schema: pa.Schema, names: list[str]) -> pa.Schema:
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def _settings_of_rows(column_settings: ColumnSettings, schema: st.StructType) -> ColumnSettings:
    """Return the settings for columns of the rows, without settings for columns that only the table has."""
    names = {name.lower() for name in schema.names}
    return {
        path: settings
        for path, settings in column_settings.items()
        if path in names or path.split(".")[0] in names
    }


def _added_paths(arrow: pa.Schema, table: Schema) -> set[str]:
    """Return the lower-cased paths of columns and fields that are new to the table."""
    existing = {path for field in table.fields for path in _paths(field, "")}
    return {path for field in Schema.from_arrow(arrow).fields for path in _paths(field, "")} - existing


def _paths(field: Field, path: str) -> Iterator[str]:
    here = f"{path}{field.name}".lower()
    yield here
    for child in named_children(field):
        yield from _paths(child, f"{here}.")


def check_names(schema: st.StructType, case_sensitive: bool = False) -> None:
    """Check that Spark can distinguish all columns by name.

    Raises:
        SchemaError: there are no columns, a name occurs twice, or names differ only in case.
    """
    if not schema.fields:
        raise SchemaError("the DataFrame has no columns")
    duplicates = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if duplicates:
        raise SchemaError(f"column names that occur twice: {', '.join(duplicates)}")
    alike = [] if case_sensitive else list(_names_differing_in_case(schema, ""))
    if alike:
        raise SchemaError(
            f"names that differ in case alone: {'; '.join(alike)}. Spark could select none of them: rename "
            "them, or set the option caseSensitive=true for sessions with spark.sql.caseSensitive=true"
        )


def _names_differing_in_case(kind: st.DataType, path: str) -> Iterator[str]:
    """Yield groups of column or field names that differ only in case, each as one text."""
    if isinstance(kind, st.StructType):
        folded: dict[str, list[str]] = {}
        for field in kind.fields:
            folded.setdefault(field.name.lower(), []).append(f"{path}{field.name}")
            yield from _names_differing_in_case(field.dataType, f"{path}{field.name}.")
        yield from (", ".join(names) for names in folded.values() if len(names) > 1)
    elif isinstance(kind, st.ArrayType):
        yield from _names_differing_in_case(kind.elementType, path)
    elif isinstance(kind, st.MapType):
        yield from _names_differing_in_case(kind.keyType, path)
        yield from _names_differing_in_case(kind.valueType, path)


def _table_names(table: Schema, names: list[str]) -> list[str]:
    """Return the table's spelling of column names. Case matters only if the table has both spellings."""
    exact = {field.name for field in table.fields}
    folded: dict[str, list[str]] = {}
    for field in table.fields:
        folded.setdefault(field.name.lower(), []).append(field.name)
    matching = []
    for name in names:
        alike = folded.get(name.lower(), [])
        matching.append(alike[0] if name not in exact and len(alike) == 1 else name)
    return matching


def _check_append_options(table: Manifest, options: WriteOptions) -> None:
    """Check that options do not contradict properties of the table."""
    version = options.data_storage_version
    if version is not None and FileVersion.parse(version) is not table.file_version:
        raise OptionError(
            f"option 'data_storage_version' is {version}, but the table's is {table.file_version.text}; "
            "only overwrite changes it"
        )
    stable = options.enable_stable_row_ids
    if stable is not None and stable != table.uses_stable_row_ids:
        raise OptionError("option 'enable_stable_row_ids' is only for new tables: leave it out")


def _new_schema(schema: st.StructType, options: WriteOptions, old: Schema | None) -> pa.Schema:
    """Return the Arrow schema of a table that the write creates or overwrites."""
    check_setting_columns(options.column_settings, schema)
    fields, reasons = [], []
    for column in schema:
        try:
            field = new_field(without_defaults(column), options.column_settings)
            keep = old is not None and not _is_typed(column.name, options.column_settings)
            fields.append(_keep_type(field, column, old) if keep and old is not None else field)
        except SchemaError as error:
            reasons.append(f"{column.name}: {error}")
    if reasons:
        raise SchemaError(f"these columns cannot be stored: {'; '.join(reasons)}")
    return pa.schema(fields)


def _is_typed(column: str, column_settings: ColumnSettings) -> bool:
    """Return whether options set the type of a column or of a field in it."""
    name = column.lower()
    return any(
        (path == name or path.startswith(f"{name}.")) and not settings.keys() <= ENCODINGS.keys()
        for path, settings in column_settings.items()
    )


def _keep_type(new: pa.Field, column: st.StructField, old: Schema) -> pa.Field:
    """Return the new column with the type and NOT NULL of the old one, if both have the same Spark type.

    This keeps vectors, unsigned and large types if a table is overwritten with rows that were read from it.
    """
    former = next((field for field in old.fields if field.name == column.name), None)
    if former is None:
        return new
    table_field = former.read_field()
    if former.is_blob and (isinstance(column.dataType, st.BinaryType) or is_description(column.dataType)):
        places = {key: value for key, value in former.metadata.items() if key.startswith(f"{BLOB_KEY}-")}
        new_metadata = {key.decode(): value.decode() for key, value in (new.metadata or {}).items()}
        return pa.field(
            new.name, pa.large_binary(), new.nullable, {**places, **new_metadata, BLOB_KEY: "true"}
        )
    if pa.types.is_fixed_size_list(new.type) and new.type.list_size != getattr(
        table_field.type, "list_size", None
    ):
        return new
    try:
        # The types without and with the collation of the column.
        kinds = (field_type(table_field), spark_field(table_field).dataType)
    except SchemaError:
        return new
    input_type = column.dataType
    if not any(
        kind.simpleString() == input_type.simpleString() and covers(input_type, kind) for kind in kinds
    ):
        return new
    metadata = {**(table_field.metadata or {}), **(new.metadata or {})}
    nullable = new.nullable and (table_field.nullable or column.nullable)
    return pa.field(new.name, table_field.type, nullable, metadata or None)
