"""Maps the columns that Spark requests to the columns of a table."""

from __future__ import annotations

from dataclasses import replace

import pyspark.sql.types as st

from spark_lance.errors import SchemaError, suggestion
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.blob_writer import has_blobs
from spark_lance.spark.options.option_values import BlobHandling, Projection
from spark_lance.spark.schema.blobs import DESCRIPTIONS, LEFT_OUT, blob_column_type
from spark_lance.spark.schema.spatial import is_spatial, is_spatial_field, spatial_type
from spark_lance.spark.schema.types import covers, field_type, spark_field
from spark_lance.table.reading.system_columns import SYSTEM_COLUMNS, system_names


def system_field(name: str) -> st.StructField:
    """Return the Spark field of a system column. Its numbers are below 2^63."""
    return st.StructField(name, st.LongType(), False)


def to_spark_schema(schema: Schema, projection: Projection) -> st.StructType:
    """Return the Spark schema of a read of a table.

    Args:
        schema: the table's schema.
        projection: the columns to read and their types.

    Raises:
        SchemaError: a column does not exist, is named twice, or Spark has no type for it; or `blob_handling`
            names a column without blobs.
    """
    names = projection.columns
    if names is None:
        names = tuple(field.name for field in _default_fields(schema, projection.blob_handling))
    system = system_names(field.name for field in schema.fields)
    if clashes := [name for name in projection.system_columns if name not in system]:
        raise SchemaError(
            f"the table has a column {clashes[0]!r} of its own: leave out the option that adds it"
        )
    fields, reasons = [], []
    spellings: dict[str, str] = {}
    for name in [*names, *(name for name in projection.system_columns if name not in names)]:
        if name in system:
            fields.append(system_field(name))
            continue
        field = find_column(schema, name)
        if (other := spellings.setdefault(field.name, name)) != name:
            raise SchemaError(f"{other!r} and {name!r} are one column, {field.name!r}: name it once")
        try:
            fields.append(_spark_field(field, projection))
        except SchemaError as error:
            reasons.append(f"{field.name}: {error}")
    if reasons:
        raise SchemaError(
            f"Spark cannot read these columns; name the others in option 'columns': {'; '.join(reasons)}"
        )
    return st.StructType(fields)


def _spark_field(field: Field, projection: Projection) -> st.StructField:
    """Return the Spark field of a column.

    Raises:
        SchemaError: Spark has no type for it.
    """
    if has_blobs(field):
        handling = projection.blob_handling.of(field.name)
        kind = blob_column_type(field, DESCRIPTIONS if handling == LEFT_OUT else handling)
        return st.StructField(field.name, kind, field.nullable or field.is_blob)
    if field.is_json and projection.json_as == "variant":
        return st.StructField(field.name, st.VariantType(), field.nullable)
    if projection.geometry_as == "geometry" and is_spatial_field(field.read_field()):
        return st.StructField(field.name, spatial_type(field.read_field()), field.nullable)
    return spark_field(field.read_field())


def _default_fields(schema: Schema, blob_handling: BlobHandling) -> list[Field]:
    """Return the columns of a read without option `columns`.

    Raises:
        SchemaError: `blob_handling` names a column without blobs.
    """
    blobs = [field.name for field in schema.fields if has_blobs(field)]
    folded = {name.lower() for name in blobs}
    if wrong := [name for name, _ in blob_handling.columns if name.lower() not in folded]:
        there = f"there are {', '.join(blobs)}" if blobs else "the table has none"
        raise SchemaError(f"option 'blob_handling': {wrong[0]!r} is not a column of blobs; {there}")
    return [f for f in schema.fields if f.name not in blobs or blob_handling.of(f.name) != LEFT_OUT]


def find_column(schema: Schema, name: str) -> Field:
    """Return the top-level field `name`. Case matters only if several names differ only in case.

    Raises:
        SchemaError: the column does not exist, or several columns match. The message lists all columns.
    """
    folded = [field for field in schema.fields if field.name.lower() == name.lower()]
    exact = [field for field in folded if field.name == name]
    if len(exact) == 1 or len(folded) == 1:
        return (exact or folded)[0]
    table_names = [field.name for field in schema.fields]
    there = ", ".join(table_names)
    top = name.partition(".")[0]
    remedy = f"; write the whole column, {top!r}" if top in table_names else suggestion(name, table_names)
    raise SchemaError(f"no column {name!r} in the table, which has {there}{remedy}")


def resolve_projection(table: Schema, projection: st.StructType) -> tuple[tuple[str, ...], tuple[Field, ...]]:
    """Return the names and fields that a scan must read for the columns that Spark requests.

    Returns:
        The names of all columns, including system columns, in the table's spelling; and the fields of the
        table's columns, with only the nested fields of the projection, and blobs as descriptors. Both are in
        the order of `projection`.

    Raises:
        SchemaError: columns do not exist, are requested twice, or with types other than Spark's for them.
    """
    names, fields, reasons, unknown = [], [], [], []
    system = system_names(field.name for field in table.fields)
    for column in projection:
        if column.name in system:
            names.append(column.name)
            if column.dataType != st.LongType():
                reasons.append(f"column {column.name!r} is bigint, not {column.dataType.simpleString()}")
            continue
        try:
            field = find_column(table, column.name)
        except SchemaError:
            unknown.append(column.name)
            continue
        names.append(field.name)
        actual = _type_as_requested(field, column.dataType)
        if column.dataType != actual and not covers(actual, column.dataType):
            reasons.append(
                f"column {column.name!r} is {actual.simpleString()}, not {column.dataType.simpleString()}"
            )
        elif field.nullable and not column.nullable:
            reasons.append(f"column {column.name!r} may hold nulls, but the schema says NOT NULL")
        else:
            fields.append(narrow(field.as_descriptor(), column.dataType))
    if unknown:
        there = [field.name for field in table.fields]
        similar = suggestion(unknown[0], there)
        reasons.append(f"there is no column {', '.join(unknown)}, but {', '.join(there)}{similar}")
    if reasons:
        raise SchemaError(f"the schema does not fit the table: {'; '.join(reasons)}")
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise SchemaError(f"the schema names a column twice: {', '.join(duplicates)}")
    return tuple(names), tuple(fields)


def _type_as_requested(field: Field, target: st.DataType) -> st.DataType:
    """Return the Spark type of a column: the requested one if it is another form of blobs, JSON, geometry."""
    if has_blobs(field):
        return blob_column_type(field, target)
    if field.is_json and isinstance(target, (st.BinaryType, st.VariantType)):
        return target
    if is_spatial(target) and is_spatial_field(field.read_field()):
        return target
    return field_type(field.read_field())


def narrow(field: Field, target: st.DataType) -> Field:
    """Return the field with only the struct fields in `target`, so that no others are fetched."""
    if field.kind == "struct" and isinstance(target, st.StructType):
        parts = [
            narrow(child, target[child.name].dataType)
            for child in field.children
            if child.name in target.names
        ]
        # The first child is needed even if no field is requested: it has the null rows of the struct.
        return replace(field, children=tuple(parts) or field.children[:1])
    if field.kind == "list" and isinstance(target, st.ArrayType):
        return replace(field, children=(narrow(field.children[0], target.elementType),))
    return field


def with_nullable_system_columns(schema: st.StructType) -> st.StructType:
    """Return a schema with nullable system columns, as rows that are not in the table yet have no address."""
    fields = [
        st.StructField(
            field.name, field.dataType, field.nullable or field.name in SYSTEM_COLUMNS, field.metadata
        )
        for field in schema.fields
    ]
    return st.StructType(fields)
