"""Creates the Arrow fields of new columns from Spark's columns.

Fields are nullable at every level, as in Spark's own new tables. The nullability that Spark reports to a
writer is what the optimizer knows about this query, and the next query that appends to the table may differ.
Only columns of a primary key, and the structs that contain them, are NOT NULL.

Column options and column metadata become part of the type (vectors, half floats, large types) or become field
metadata, which the file writer follows. Metadata about pages is on the field and also on the elements of an
array, because arrays are stored by their elements.

A column of blob descriptions becomes a column of blobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.errors import SchemaError
from spark_lance.expressions.geo_functions import is_geometry, stored_type
from spark_lance.file.base.extensions import EXTENSION_METADATA, EXTENSION_NAME
from spark_lance.spark.options.column_options import (
    AS_GEOMETRY,
    AS_JSON,
    BLOB,
    ENCODINGS,
    FLOAT16,
    GEOMETRY_METADATA,
    INNER,
    KEY,
    KEY_POSITION,
    LARGE,
    VECTOR_SIZE,
    read_column_settings,
)
from spark_lance.spark.schema.blobs import is_description
from spark_lance.spark.schema.spatial import is_spatial, spatial_metadata
from spark_lance.spark.schema.string_types import declared_type, precise_metadata, string_metadata
from spark_lance.spark.schema.types import arrow_type, is_shared
from spark_lance.table.schema.defaults import DECLARATION_KEYS

# Lower-cased dotted path of a column -> column options and their values.
ColumnSettings = Mapping[str, Mapping[str, Any]]

_BLOB_KEY = "lance-encoding:blob"


def new_field(field: st.StructField, column_settings: ColumnSettings, path: Sequence[str] = ()) -> pa.Field:
    """Return the Arrow field for a column, or for a field of a struct.

    Args:
        field: the column.
        column_settings: settings of columns from options.
        path: the names of the parent fields.

    Raises:
        SchemaError: the type is unknown, or a setting does not fit the type.
    """
    here = (*path, field.name)
    field_metadata = field.metadata or {}
    request = {
        **_drop_misfit_options(read_column_settings(field_metadata), field.dataType),
        **column_settings.get(".".join(here).lower(), {}),
    }
    if is_description(field.dataType):
        request.setdefault(BLOB, "blob")
    if is_spatial(field.dataType):
        request.setdefault(AS_GEOMETRY, "geoarrow.wkb")
        field_metadata = {GEOMETRY_METADATA: spatial_metadata(field.dataType), **field_metadata}
    metadata = {k: v for k, v in field_metadata.items() if is_shared(k) and isinstance(v, str)}
    metadata.update({ENCODINGS[name]: str(value) for name, value in request.items() if name in ENCODINGS})
    spark: st.DataType = declared_type(field)
    metadata.update(string_metadata(spark))
    metadata.update(precise_metadata(spark))
    if request.get(AS_JSON) and isinstance(spark, st.VariantType) and not path:
        spark = st.StringType()  # the writer converts it to text
    arrow = _apply_type_options(
        _new_type(spark, column_settings, here, field_metadata), request, ".".join(here)
    )
    arrow = _with_page_metadata(arrow, metadata)
    if request.get(AS_JSON):
        metadata.update(_json_metadata(arrow, ".".join(here)))
    if request.get(AS_GEOMETRY):
        arrow = _geometry_type(arrow, request[AS_GEOMETRY], ".".join(here))
        metadata[EXTENSION_NAME] = request[AS_GEOMETRY]
        metadata[EXTENSION_METADATA] = str(field_metadata.get(GEOMETRY_METADATA, "{}"))
    if request.get(BLOB) == "blob":
        metadata[_BLOB_KEY] = "true"
    key = request.get(KEY) or request.get(KEY_POSITION) is not None
    for name in (KEY, KEY_POSITION):
        metadata.pop(name, None)
        if request.get(name):
            metadata[name] = str(request[name]).lower()
    if key and KEY_POSITION not in metadata:
        metadata[KEY] = "true"
    nullable = not (key or _contains_key(arrow))
    return pa.field(field.name, arrow, nullable, metadata or None)


def without_defaults(field: st.StructField) -> st.StructField:
    """Return a column without the default values and other declarations of the table where it was read."""
    metadata = {key: value for key, value in (field.metadata or {}).items() if key not in DECLARATION_KEYS}
    return st.StructField(field.name, field.dataType, field.nullable, metadata)


def _drop_misfit_options(request: dict[str, Any], spark: st.DataType) -> dict[str, Any]:
    """Return the options in metadata, without a vector length if the items cannot be stored in vectors.

    A column read from a table has such metadata if the table's vectors have items of types that Spark lacks.
    """
    item = spark.elementType if isinstance(spark, st.ArrayType) else None
    if isinstance(item, (st.StringType, st.BinaryType, st.ArrayType, st.MapType, st.NullType)):
        return {name: value for name, value in request.items() if name != VECTOR_SIZE}
    return request


def _new_type(
    spark: st.DataType,
    column_settings: ColumnSettings,
    path: Sequence[str],
    metadata: Mapping[str, Any] | None = None,
) -> pa.DataType:
    if isinstance(spark, st.UserDefinedType):
        return _new_type(spark.sqlType(), column_settings, path, metadata)
    if is_description(spark) or is_spatial(spark):
        return pa.binary()
    if isinstance(spark, st.StructType):
        return pa.struct([new_field(child, column_settings, path) for child in spark])
    if isinstance(spark, st.ArrayType):
        # Other writers of Lance call the child "item".
        inner = {k.removeprefix(INNER): v for k, v in (metadata or {}).items() if k.startswith(INNER)}
        element = st.StructField("element", spark.elementType, metadata=inner)
        item = new_field(element, column_settings, path)
        return pa.list_(item.with_name("item"))
    if isinstance(spark, st.MapType):
        key = new_field(st.StructField("key", spark.keyType), column_settings, path)
        return pa.map_(
            key.with_nullable(False),
            new_field(st.StructField("value", spark.valueType), column_settings, path),
        )
    return arrow_type(spark)


def _apply_type_options(arrow: pa.DataType, request: Mapping[str, Any], column: str) -> pa.DataType:
    """Return a type after applying the column options.

    Raises:
        SchemaError: an option does not fit the type.
    """
    if request.get(FLOAT16):
        arrow = _half_precision_type(arrow, column)
    size = request.get(VECTOR_SIZE)
    if size is not None:
        arrow = _vector_type(arrow, size, column)
    if request.get(LARGE):
        if not (pa.types.is_string(arrow) or pa.types.is_binary(arrow)):
            raise SchemaError(f"column {column!r} is neither text nor binary, so {LARGE} does not fit it")
        arrow = pa.large_string() if pa.types.is_string(arrow) else pa.large_binary()
    if request.get(BLOB) and not (pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow)):
        raise SchemaError(
            f"column {column!r} is not binary, so it cannot be stored as {_storage_text(request)}"
        )
    return arrow


def _json_metadata(arrow: pa.DataType, column: str) -> dict[str, str]:
    """Return the field metadata that marks text as JSON."""
    if not (pa.types.is_string(arrow) or pa.types.is_large_string(arrow)):
        raise SchemaError(f"column {column!r} is not text, so it cannot be stored as JSON")
    return {EXTENSION_NAME: "arrow.json"}


def _geometry_type(arrow: pa.DataType, extension: str, column: str) -> pa.DataType:
    """Return the storage type of a column of geometries."""
    if not is_geometry(extension, arrow):
        raise SchemaError(f"column {column!r} is {arrow}, which cannot be stored as {extension}")
    return stored_type(extension, arrow)


def _storage_text(request: Mapping[str, Any]) -> str:
    return "blobs" if request[BLOB] == "blob" else "plain bytes"


def _half_precision_type(arrow: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_float32(arrow):
        return pa.float16()
    if pa.types.is_list(arrow) and pa.types.is_float32(arrow.value_type):
        return pa.list_(arrow.value_field.with_type(pa.float16()))
    raise SchemaError(
        f"column {column!r} is neither float nor an array of float, so {FLOAT16} does not fit it"
    )


def _vector_type(arrow: pa.DataType, size: Any, column: str) -> pa.DataType:
    if not pa.types.is_list(arrow):
        raise SchemaError(f"column {column!r} is not an array, so it cannot be stored as vectors")
    if isinstance(size, bool) or not str(size).isdecimal() or int(size) < 1:
        raise SchemaError(f"column {column!r} has metadata {VECTOR_SIZE} = {size!r}, which is not a length")
    return pa.list_(arrow.value_field.with_metadata(None), int(size))


def _with_page_metadata(arrow: pa.DataType, metadata: Mapping[str, str]) -> pa.DataType:
    """Return an array's type with the metadata about pages on its elements."""
    pages = {key: metadata[key] for key in ENCODINGS.values() if key in metadata}
    if not pages or not pa.types.is_list(arrow):
        return arrow
    item = arrow.value_field
    present = {key.decode(): value.decode() for key, value in (item.metadata or {}).items()}
    inner = _with_page_metadata(item.type, pages)
    return pa.list_(pa.field(item.name, inner, item.nullable, {**pages, **present}))


def _contains_key(arrow: pa.DataType) -> bool:
    """Return whether a field of a struct belongs to the primary key."""
    if not pa.types.is_struct(arrow):
        return False
    keys = {KEY.encode(), KEY_POSITION.encode()}
    return any(keys & (child.metadata or {}).keys() or _contains_key(child.type) for child in arrow)
