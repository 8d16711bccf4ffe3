"""JSON columns: stored as documents, presented to users as text of Arrow's JSON type.

    stored    large_binary, metadata ARROW:extension:name = lance.json    logical type "json"
    outside   extension arrow.json over text

JSON can also be nested in structs, lists and maps. (Lance table format, JSON columns.)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from spark_lance.arrow.arrays import numpy_type
from spark_lance.arrow.texts import is_text
from spark_lance.errors import FormatError, SchemaError, UnsupportedFormatError
from spark_lance.jsonb.binary import JSON_EXTENSION, json_documents, json_texts

_NAME, _PARAMETERS = b"ARROW:extension:name", b"ARROW:extension:metadata"
_ARROW_JSON = b"arrow.json"
_STORED_METADATA = {_NAME: JSON_EXTENSION.encode(), _PARAMETERS: b""}
_HAS_TYPE = hasattr(pa, "json_")


def is_json_field(field: pa.Field) -> bool:
    """Return whether a field contains documents in their stored form."""
    return pa.types.is_large_binary(field.type) and _name(field) == JSON_EXTENSION.encode()


def is_json_text(field: pa.Field) -> bool:
    """Return whether a field is JSON text: by its type, or by its metadata if pyarrow has no JSON type."""
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType):
        return bool(kind.extension_name == _ARROW_JSON.decode())
    return is_text(kind) and _name(field) == _ARROW_JSON


def json_field(name: str, nullable: bool = True) -> pa.Field:
    """Return a field of JSON text, as users see it."""
    field = pa.field(name, pa.large_binary(), nullable, _STORED_METADATA)
    return text_field(field)


def _name(field: pa.Field) -> bytes:
    return bytes((field.metadata or {}).get(_NAME, b""))


def holds_json(field: pa.Field) -> bool:
    """Return whether a field is or contains stored documents."""
    if is_json_field(field):
        return True
    kind = field.type
    if pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        return False
    return any(holds_json(kind.field(i)) for i in range(kind.num_fields))


def stored_field(field: pa.Field) -> pa.Field:
    """Return the stored field of a JSON text field. Other fields are returned unchanged."""
    if not is_json_text(field):
        return field
    metadata = {**(field.metadata or {}), **_STORED_METADATA}
    return pa.field(field.name, pa.large_binary(), field.nullable, metadata)


def text_field(field: pa.Field) -> pa.Field:
    """Return a field as users see it: stored documents, also nested ones, become JSON text."""
    if not holds_json(field):
        return field
    if is_json_field(field):
        left = {k: v for k, v in field.metadata.items() if k not in (_NAME, _PARAMETERS)}
        if _HAS_TYPE:
            return pa.field(field.name, pa.json_(), field.nullable, left or None)
        metadata = {**left, _NAME: _ARROW_JSON, _PARAMETERS: b""}
        return pa.field(field.name, pa.string(), field.nullable, metadata)
    return field.with_type(_with_parts(field.type, text_field))


def _with_parts(kind: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Return a nested type with `change` applied to its fields."""
    if pa.types.is_struct(kind):
        return pa.struct([change(part) for part in kind])
    if pa.types.is_map(kind):
        return pa.map_(change(kind.key_field), change(kind.item_field))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(change(kind.value_field), kind.list_size)
    make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
    return make(change(kind.value_field))


def text_array(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return the values of a field with its stored documents, also nested ones, as text.

    Args:
        array: the values.
        field: the stored field.

    Raises:
        FormatError, UnsupportedFormatError: a document is damaged or has an unknown kind of value.
    """
    if not holds_json(field):
        return array
    target = text_field(field).type
    if is_json_field(field):
        texts = json_texts(array)
        return pa.ExtensionArray.from_storage(target, texts) if _HAS_TYPE else texts
    kind = field.type
    mask = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        parts = [text_array(array.field(i), kind.field(i)) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)
    if pa.types.is_fixed_size_list(kind):
        values = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
        inner = text_array(values, kind.value_field)
        return pa.FixedSizeListArray.from_arrays(inner, type=target, mask=mask)
    offsets = array.offsets
    first = offsets[0].as_py() if len(offsets) else 0
    last = offsets[-1].as_py() if len(offsets) else 0
    shifts = pa.array(offsets.to_numpy() - np.array(first, numpy_type(offsets.type)))
    if pa.types.is_map(kind):
        keys = text_array(array.keys.slice(first, last - first), kind.key_field)
        items = text_array(array.items.slice(first, last - first), kind.item_field)
        return pa.MapArray.from_arrays(shifts, keys, items, type=target, mask=mask)
    inner = text_array(array.values.slice(first, last - first), kind.value_field)
    make = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return make.from_arrays(shifts, inner, type=target, mask=mask)


def to_json_documents(array: pa.Array) -> pa.Array | None:
    """Return values as stored documents. Accepts JSON text, stored documents and nulls; None for other types.

    Raises:
        SchemaError: a text is not JSON, or bytes are not documents.
    """
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), pa.large_binary())
    if isinstance(kind, pa.BaseExtensionType):
        return to_json_documents(array.storage) if kind.extension_name == _ARROW_JSON.decode() else None
    if pa.types.is_dictionary(kind):
        return to_json_documents(array.dictionary_decode())
    if is_text(kind):
        return json_documents(array)
    if not pa.types.is_large_binary(kind):
        return None
    try:
        json_texts(array)
    except (FormatError, UnsupportedFormatError) as error:
        raise SchemaError(f"binary values of a JSON column must be stored documents: {error}") from None
    return array
