"""Schemas with field ids, and schemas as JSON.

    schema: {"fields": [field], "metadata"?: {}}
    field:  {"name", "type": {"type": name, "fields"?: [field], "length"?: n}, "nullable", "metadata"?: {}}

Type names are those of pylance 14. Lists, structs and fixed-size lists have their children as fields.
Fixed-size lists and fixed-size binary have a length. Any other name is the logical type of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as kinds

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets.lance_schema import LanceSchema
from spark_lance.errors import SchemaError
from spark_lance.file.base.logical import from_logical, is_nested_logical, to_logical

__all__ = ["LanceSchema", "json_to_schema", "schema_to_json"]

_LISTS: Mapping[str, Callable[[pa.Field], pa.DataType]] = {"list": pa.list_, "large_list": pa.large_list}


@raises_os_errors
def schema_to_json(schema: pa.Schema) -> dict[str, Any]:
    """Return a schema as JSON.

    Raises:
        SchemaError: a type, such as a map, has no JSON form.
    """
    return _with_metadata({"fields": [_field_to_json(field) for field in schema]}, schema.metadata)


@raises_os_errors
def json_to_schema(schema: Mapping[str, Any]) -> pa.Schema:
    """Return the schema from its JSON.

    Raises:
        SchemaError: a key is missing, or a type is unknown.
    """
    try:
        return pa.schema([_field(each) for each in schema["fields"]], schema.get("metadata"))
    except (KeyError, TypeError, IndexError) as error:
        raise SchemaError(f"this JSON describes no schema: {error!r}") from error


def _field_to_json(field: pa.Field) -> dict[str, Any]:
    description = {"name": field.name, "type": _type_to_json(field.type), "nullable": field.nullable}
    return _with_metadata(description, field.metadata)


def _type_to_json(arrow: pa.DataType) -> dict[str, Any]:
    if kinds.is_struct(arrow):
        return {"type": "struct", "fields": [_field_to_json(child) for child in arrow]}
    if kinds.is_fixed_size_list(arrow):
        child = _field_to_json(arrow.value_field)
        return {"type": "fixed_size_list", "fields": [child], "length": arrow.list_size}
    if kinds.is_fixed_size_binary(arrow):
        return {"type": "fixed_size_binary", "length": arrow.byte_width}
    for name, is_kind in (("list", kinds.is_list), ("large_list", kinds.is_large_list)):
        if is_kind(arrow):
            return {"type": name, "fields": [_field_to_json(arrow.value_field)]}
    logical = to_logical(arrow)
    if is_nested_logical(logical):
        raise SchemaError(f"a schema as JSON cannot have the type {arrow}")
    return {"type": logical}


def _with_metadata(description: dict[str, Any], metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    if metadata:
        description["metadata"] = {key.decode(): value.decode() for key, value in metadata.items()}
    return description


def _field(description: Mapping[str, Any]) -> pa.Field:
    return pa.field(
        description["name"],
        _type(description["type"]),
        description.get("nullable", True),
        description.get("metadata"),
    )


def _type(description: Mapping[str, Any]) -> pa.DataType:
    name = description["type"]
    if name == "struct":
        return pa.struct([_field(child) for child in description["fields"]])
    if name == "fixed_size_list":
        return pa.list_(_field(description["fields"][0]), int(description["length"]))
    if name == "fixed_size_binary":
        return pa.binary(int(description["length"]))
    if name in _LISTS:
        return _LISTS[name](_field(description["fields"][0]))
    return from_logical(name)
