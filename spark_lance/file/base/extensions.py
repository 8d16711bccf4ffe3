"""Extension types: how a schema stores and restores them.

Lance stores values of an extension type as values of its storage type. The field's metadata contains the name
and the parameters, under Arrow's keys:

    ARROW:extension:name        such as "arrow.fixed_shape_tensor"
    ARROW:extension:metadata    parameters of the type, as text

Arrow exposes them for any type through its C data interface. `ArrowSchema.metadata` is, in native byte order,

    int32 pairs   { int32 bytes, key   int32 bytes, value } * pairs

(Lance table format, schema encoding; Arrow C data interface, metadata.)

Some of these types are geometries. (GeoArrow format, extension types.)
"""

from __future__ import annotations

import ctypes
import struct

import pyarrow as pa

from spark_lance.errors import SchemaError
from spark_lance.jsonb.columns import text_array, text_field

# Geometry types -> nesting depth of the coordinates in lists.
NATIVE_DEPTHS = {
    "geoarrow.point": 0,
    "geoarrow.linestring": 1,
    "geoarrow.multipoint": 1,
    "geoarrow.polygon": 2,
    "geoarrow.multilinestring": 2,
    "geoarrow.multipolygon": 3,
}
BOX = "geoarrow.box"
WELL_KNOWN_BINARY = ("geoarrow.wkb", "ogc.wkb")
WELL_KNOWN_TEXT = ("geoarrow.wkt",)
GEOMETRY_TYPES = (*NATIVE_DEPTHS, BOX, *WELL_KNOWN_BINARY, *WELL_KNOWN_TEXT)


EXTENSION_NAME = "ARROW:extension:name"
EXTENSION_METADATA = "ARROW:extension:metadata"
_KEYS = (EXTENSION_NAME.encode(), EXTENSION_METADATA.encode())
# Types of the Lance format itself have logical types here, even if the process has registered others.
_OWN_PREFIX = b"lance."
# These types are opaque: only applications can interpret their arrays.
_PROGRAMS_PREFIXES = (b"lance.arrow.", b"lance.bfloat16")


class _CSchema(ctypes.Structure):
    """The first members of a struct ArrowSchema."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def extension_metadata(kind: pa.BaseExtensionType) -> dict[str, str]:
    """Return the field metadata of an extension type.

    Raises:
        SchemaError: the parameters of the type are not text, so a Lance schema cannot store them.
    """
    capsule = pa.field("", kind).__arrow_c_schema__()
    address = _CSchema.from_address(_pointer_of(capsule, b"arrow_schema")).metadata
    pairs = _pairs(address)
    try:
        return {key.decode(): pairs[key].decode() for key in _KEYS if key in pairs}
    except UnicodeDecodeError:
        raise SchemaError(
            f"the parameters of the extension type {kind.extension_name!r} are bytes that are not text, and "
            f"Lance keeps text: store the column as {kind.storage_type}"
        ) from None


def _pairs(address: int | None) -> dict[bytes, bytes]:
    if not address:
        return {}
    (count,) = struct.unpack("=i", ctypes.string_at(address, 4))
    position = address + 4
    parts = []
    for _ in range(2 * count):
        (size,) = struct.unpack("=i", ctypes.string_at(position, 4))
        parts.append(ctypes.string_at(position + 4, size))
        position += 4 + size
    return dict(zip(parts[::2], parts[1::2], strict=True))


class _Exported:
    """A schema, or an array with its schema, in the form of Arrow's C data interface."""

    def __init__(self, schema: object, array: object = None) -> None:
        self._schema, self._array = schema, array

    def __arrow_c_schema__(self) -> object:
        return self._schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema, self._array


def restore_schema_types(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose fields have the extension types that their metadata names.

    Only types that pyarrow has built in or registered are used. A field whose metadata does not match its
    type is unchanged. Stored JSON becomes Arrow's JSON text type.
    """
    return pa.schema([_restore_field_type(field) for field in schema], schema.metadata)


def _restore_field_type(field: pa.Field) -> pa.Field:
    field = text_field(field)
    if not _names_type(field):
        return field
    try:
        return pa.schema(_Exported(pa.schema([field]).__arrow_c_schema__())).field(0)
    except (pa.ArrowException, ValueError, TypeError, KeyError):
        # Types raise this for invalid parameters. User types may be written in Python.
        return field


def _names_type(field: pa.Field) -> bool:
    """Return whether a field or a descendant names an extension type that pyarrow may have."""
    name = (field.metadata or {}).get(_KEYS[0], _OWN_PREFIX)
    kind = field.type
    if not name.startswith(_OWN_PREFIX) or name.startswith(_PROGRAMS_PREFIXES):
        return True
    if pa.types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        return False
    return any(_names_type(kind.field(i)) for i in range(kind.num_fields))


def restore_table_types(table: pa.Table) -> pa.Table:
    """Return a table with the types of `restore_schema_types`. Only JSON is copied; it becomes text."""
    schema = restore_schema_types(table.schema)
    return _cast_table(table, schema)


def _cast_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if schema.equals(table.schema, check_metadata=True):
        return table
    columns = [
        pa.chunked_array(
            [_view_as_type(text_array(chunk, source_field), field) for chunk in column.chunks], field.type
        )
        for column, source_field, field in zip(table.columns, table.schema, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _view_as_type(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return an array with another type of the same memory layout."""
    if array.type.equals(field.type):
        return array
    _, data = array.__arrow_c_array__()
    return pa.array(_Exported(field.__arrow_c_schema__(), data))
