"""Checks column options of an append or partial overwrite against the existing table's columns.

Options about the type of a column (vectors, half floats, large types, blobs) and about the primary key are
fixed when the table is created. A write may repeat the same value; a different value is refused. Options
about the storage of pages apply to the files of this write. They do not change the table's settings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyspark.sql.types as st

from spark_lance.errors import OptionError, suggestion
from spark_lance.expressions.geo_functions import extension_name
from spark_lance.file.base.schema import Field, Schema
from spark_lance.spark.options.column_options import (
    AS_GEOMETRY,
    AS_JSON,
    BLOB,
    ENCODINGS,
    FLOAT16,
    KEY,
    KEY_POSITION,
    LARGE,
    VECTOR_SIZE,
)
from spark_lance.spark.schema.new_fields import ColumnSettings


def check_setting_columns(column_settings: ColumnSettings, schema: st.StructType) -> None:
    """Check that each setting refers to one column of the rows, ignoring case.

    Raises:
        OptionError: a setting names no column, or columns whose names differ only in case.
    """
    paths = [path.lower() for path in _spark_paths(schema)]
    for column, settings in column_settings.items():
        name = f"{column}.{next(iter(settings))}"
        if column not in paths:
            raise OptionError(
                f"option {name!r}: there is no column {column!r}; there are {', '.join(schema.names)}"
            )
        if paths.count(column) > 1:
            raise OptionError(
                f"option {name!r}: several columns are called {column!r} but for the case: set metadata of "
                "the column instead"
            )


def _spark_paths(kind: st.DataType, path: str = "") -> Iterator[str]:
    """Yield the dotted paths of everything inside a type."""
    parts: list[tuple[str, st.DataType]] = []
    if isinstance(kind, st.StructType):
        parts = [(field.name, field.dataType) for field in kind]
    elif isinstance(kind, st.ArrayType):
        parts = [("element", kind.elementType)]
    elif isinstance(kind, st.MapType):
        parts = [("key", kind.keyType), ("value", kind.valueType)]
    elif isinstance(kind, st.UserDefinedType):
        yield from _spark_paths(kind.sqlType(), path)
    for name, inner in parts:
        yield path + name
        yield from _spark_paths(inner, f"{path}{name}.")


def check_fixed_settings(table: Schema, column_settings: ColumnSettings, added: Collection[str] = ()) -> None:
    """Check that settings match the columns of a table.

    Args:
        table: the table's schema.
        column_settings: settings of columns from options.
        added: lower-cased paths of columns that the write adds to the table. Their settings are not checked.

    Raises:
        OptionError: a setting differs from the column's, or the column does not exist.
    """
    table_fields = {path.lower(): field for path, field in _table_paths(table.fields)}
    for column, settings in column_settings.items():
        if column in added:
            continue
        field = table_fields.get(column)
        for name, value in settings.items():
            if field is None:
                raise OptionError(
                    f"option '{column}.{name}': the table has no column {column!r}; it has "
                    f"{', '.join(table_fields)}{suggestion(column, table_fields)}"
                )
            matches = _MATCHES.get(name)
            if matches is not None and not matches(field, value):
                raise OptionError(
                    f"option '{column}.{name}' is {value}, but the column of the table is "
                    f"{_type_text(field)}: "
                    "only an overwrite changes that"
                )


def _type_text(field: Field) -> str:
    keys = {key: value for key, value in field.metadata.items() if key.startswith("lance-schema:")}
    blob = " (blobs)" if field.is_blob else ""
    return f"{field.logical_type}{blob}{f' with {keys}' if keys else ''}"


def _has_vector_size(field: Field, size: int) -> bool:
    parts = field.logical_type.split(":")
    return parts[0] == "fixed_size_list" and parts[-1] == str(size)


def _is_half(field: Field, setting: bool) -> bool:
    kinds = [field.logical_type, *(child.logical_type for child in field.children)]
    return any("halffloat" in kind for kind in kinds) == setting


def _is_large(field: Field, setting: bool) -> bool:
    return field.logical_type.startswith("large_") == setting


# Option -> whether a column of a table matches the option's value. All other options are about pages.
_MATCHES: Mapping[str, Callable[[Field, Any], bool]] = {
    VECTOR_SIZE: _has_vector_size,
    FLOAT16: _is_half,
    LARGE: _is_large,
    AS_JSON: lambda field, setting: field.is_json == setting,
    AS_GEOMETRY: lambda field, setting: extension_name(field.arrow_field()) == setting,
    BLOB: lambda field, kind: field.is_blob == (kind == "blob"),
    KEY: lambda field, setting: (field.key_position is not None) == setting,
    KEY_POSITION: lambda field, place: field.key_position == place,
}


def _table_paths(fields: Collection[Field], path: str = "") -> Iterator[tuple[str, Field]]:
    for field in fields:
        yield path + field.name, field
        yield from _table_paths(named_children(field), f"{path}{field.name}.")


def named_children(field: Field) -> tuple[Field, ...]:
    """Return the children of a field, with the names that Spark has for them."""
    if field.kind == "list":
        return (replace(field.children[0], name="element"),)
    if field.kind == "map":
        key, value = field.children[0].children
        return replace(key, name="key"), replace(value, name="value")
    return field.children if field.kind == "struct" else ()


def with_page_settings(schema: Schema, column_settings: ColumnSettings) -> Schema:
    """Return a schema for writing files, whose field metadata has the options about pages."""
    pages = {
        column: {ENCODINGS[name]: str(value) for name, value in settings.items() if name in ENCODINGS}
        for column, settings in column_settings.items()
    }
    if not any(pages.values()):
        return schema
    return replace(
        schema, fields=tuple(_with_settings(field, field.name, pages, {}) for field in schema.fields)
    )


def _with_settings(
    field: Field, path: str, pages: Mapping[str, Mapping[str, str]], outer: Mapping[str, str]
) -> Field:
    settings = {**outer, **pages.get(path.lower(), {})}
    children = field.children
    if field.kind == "list":
        children = (_with_settings(children[0], f"{path}.element", pages, settings),)
    elif field.kind == "map":
        entries = children[0]
        parts = tuple(
            _with_settings(part, f"{path}.{name}", pages, {})
            for part, name in zip(entries.children, ("key", "value"), strict=True)
        )
        children = (replace(entries, children=parts),)
    elif field.kind == "struct":
        children = tuple(_with_settings(child, f"{path}.{child.name}", pages, {}) for child in children)
    return replace(field, children=children, metadata={**field.metadata, **settings})
