"""Converts Lance's logical types, the type names in a Lance schema, to Arrow types and back.

    int32  double  halffloat  string  large_binary        plain names
    date32:day  time64:us  timestamp:us:UTC  timestamp:ns:-  duration:ms
    decimal:128:10:2                                      width, precision, scale
    fixed_size_binary:16
    fixed_size_list:float:768                             item type, length; nested: the outer length is last
    fixed_size_list:lance.bfloat16:768                    numbers without an Arrow type of their own
    dict:string:int32:false                               value type, index type, ordered
    list  list.struct  large_list  struct  map            these have child fields

(Lance file format, logical types.)
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from spark_lance.errors import SchemaError, UnsupportedFormatError

FSL_PREFIX = "fixed_size_list:"
STRUCT_FSL_PREFIX = "fixed_size_list:struct:"
LIST_TYPES = frozenset({"list", "list.struct", "large_list", "large_list.struct"})

_BFLOAT16 = "lance.bfloat16"
_PLAIN: dict[str, pa.DataType] = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "json": pa.large_binary(),
    "date32:day": pa.date32(),
    "date64:ms": pa.date64(),
    "time32:s": pa.time32("s"),
    "time32:ms": pa.time32("ms"),
    "time64:us": pa.time64("us"),
    "time64:ns": pa.time64("ns"),
    "duration:s": pa.duration("s"),
    "duration:ms": pa.duration("ms"),
    "duration:us": pa.duration("us"),
    "duration:ns": pa.duration("ns"),
    _BFLOAT16: pa.binary(2),
}
_PLAIN_NAMES: dict[pa.DataType, str] = {
    arrow: name for name, arrow in _PLAIN.items() if name not in ("json", _BFLOAT16)
}
# In Arrow this is an extension type over two bytes.
_EXTENSION = b"ARROW:extension:name"
_ITEM_METADATA = {_BFLOAT16: {_EXTENSION: _BFLOAT16.encode()}}


# One name contains all nested types, so damage could nest them without limit.
_MAX_PARTS = 100


def is_nested_logical(logical: str) -> bool:
    """Return whether a logical type has child fields: list, struct, map, fixed-size list of structs."""
    return logical in LIST_TYPES or logical in ("struct", "map") or logical.startswith(STRUCT_FSL_PREFIX)


def from_logical(logical: str) -> pa.DataType:
    """Return the Arrow type of a logical type without child fields.

    Raises:
        UnsupportedFormatError: the name is unknown.
    """
    if logical in _PLAIN:
        return _PLAIN[logical]
    kind, _, rest = logical.partition(":")
    parse = _PARAMETRIC.get(kind)
    try:
        if parse is not None and logical.count(":") <= _MAX_PARTS:
            return parse(rest)
    except (ValueError, OverflowError, TypeError) as error:
        raise UnsupportedFormatError(f"logical type {logical!r} is malformed: {error}") from error
    raise UnsupportedFormatError(f"logical type {logical!r} is not supported")


def _parse_timestamp(rest: str) -> pa.DataType:
    unit, _, zone = rest.partition(":")
    return pa.timestamp(unit, tz=None if zone in ("", "-") else zone)


def _parse_decimal(rest: str) -> pa.DataType:
    width, precision, scale = (int(part) for part in rest.split(":"))
    if width not in (128, 256):
        raise ValueError(f"decimal width {width}")
    return (pa.decimal128 if width == 128 else pa.decimal256)(precision, scale)


def _parse_fixed_binary(rest: str) -> pa.DataType:
    width = int(rest)
    if width < 0:
        raise ValueError("negative width")
    return pa.binary(width)


def _parse_fixed_list(rest: str) -> pa.DataType:
    item, _, length = rest.rpartition(":")
    if int(length) <= 0:
        raise ValueError("a fixed-size list needs a positive length")
    kind = from_logical(item)
    if not _is_fixed_width(kind):
        raise ValueError("a fixed-size list has items of fixed width")
    return pa.list_(pa.field("item", kind, metadata=_ITEM_METADATA.get(item)), int(length))


def _parse_dictionary(rest: str) -> pa.DataType:
    value, index, ordered = rest.rsplit(":", 2)
    if value.startswith("dict:"):
        raise ValueError("a dictionary of dictionaries")
    return pa.dictionary(from_logical(index), from_logical(value), ordered == "true")


_PARAMETRIC: dict[str, Callable[[str], pa.DataType]] = {
    "timestamp": _parse_timestamp,
    "decimal": _parse_decimal,
    "fixed_size_binary": _parse_fixed_binary,
    "fixed_size_list": _parse_fixed_list,
    "dict": _parse_dictionary,
}


def to_logical(arrow: pa.DataType) -> str:
    """Return the logical type of an Arrow type. For a nested type, it is the name without the child fields.

    Raises:
        SchemaError: Lance has no such type.
    """
    if isinstance(arrow, pa.BaseExtensionType):
        # Only for nested types: a column of an extension type is stored as its storage type.
        if arrow.extension_name == _BFLOAT16:
            return _BFLOAT16
        raise SchemaError(
            f"Lance stores lists of the type {arrow.storage_type}, but not of the extension "
            f"{arrow.extension_name} over it: cast the values to a type of Arrow's own"
        )
    if arrow in _PLAIN_NAMES:
        return _PLAIN_NAMES[arrow]
    for test, name in _NAMERS:
        if test(arrow):
            return name(arrow)
    raise SchemaError(f"Lance cannot store the Arrow type {arrow}")


def _name_fixed_list(arrow: pa.DataType) -> str:
    item = arrow.value_type
    if pa.types.is_struct(item):
        return f"{STRUCT_FSL_PREFIX}{arrow.list_size}"
    is_named = (arrow.value_field.metadata or {}).get(_EXTENSION) == _BFLOAT16.encode()
    item_name = _BFLOAT16 if is_named else to_logical(item)
    if is_nested_logical(item_name) or not _is_fixed_width(item) or arrow.list_size <= 0:
        raise SchemaError(f"Lance stores fixed-size lists of fixed-width values or structs, not {arrow}")
    return f"{FSL_PREFIX}{item_name}:{arrow.list_size}"


def _is_fixed_width(arrow: pa.DataType) -> bool:
    if isinstance(arrow, pa.BaseExtensionType):
        return _is_fixed_width(arrow.storage_type)
    if pa.types.is_fixed_size_list(arrow):
        return _is_fixed_width(arrow.value_type)
    if pa.types.is_dictionary(arrow) or pa.types.is_null(arrow):
        return False
    try:
        return bool(arrow.bit_width > 0)
    except ValueError:
        return False


def _name_dictionary(arrow: pa.DataType) -> str:
    value = to_logical(arrow.value_type)
    if is_nested_logical(value) or ":" in value:
        # The name of a type with parameters would be ambiguous before the index type.
        raise SchemaError(f"Lance stores dictionaries of values whose type has no parameters, not {arrow}")
    return f"dict:{value}:{to_logical(arrow.index_type)}:{'true' if arrow.ordered else 'false'}"


def _name_list(arrow: pa.DataType) -> str:
    name = "large_list" if pa.types.is_large_list(arrow) else "list"
    item = arrow.value_type
    if isinstance(item, pa.BaseExtensionType):
        item = item.storage_type
    return f"{name}.struct" if pa.types.is_struct(item) else name


def _name_decimal(arrow: pa.DataType) -> str:
    return f"decimal:{arrow.bit_width}:{arrow.precision}:{arrow.scale}"


_NAMERS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], str]]] = [
    (pa.types.is_timestamp, lambda t: f"timestamp:{t.unit}:{t.tz or '-'}"),
    (lambda t: pa.types.is_decimal128(t) or pa.types.is_decimal256(t), _name_decimal),
    (pa.types.is_fixed_size_binary, lambda t: f"fixed_size_binary:{t.byte_width}"),
    (pa.types.is_fixed_size_list, _name_fixed_list),
    (pa.types.is_dictionary, _name_dictionary),
    (lambda t: pa.types.is_list(t) or pa.types.is_large_list(t), _name_list),
    (pa.types.is_struct, lambda _: "struct"),
    (pa.types.is_map, lambda _: "map"),
    (pa.types.is_string_view, lambda _: "string"),
    (pa.types.is_binary_view, lambda _: "binary"),
]
