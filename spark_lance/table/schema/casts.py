"""Which types a column may be cast to when it is altered, as in pylance, and the cast.

Types of one family can be cast to each other; values that the new type cannot hold are an error, except that
floating-point numbers are rounded. Lists and vectors follow their items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field

_Is = Callable[[pa.DataType], bool]


def _any(*tests: _Is) -> _Is:
    return lambda kind: any(test(kind) for test in tests)


_text = _any(pa.types.is_string, pa.types.is_large_string)
_list = _any(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)

# (from, to) -> castable.
_FAMILIES: Sequence[tuple[_Is, _Is]] = (
    (pa.types.is_boolean, pa.types.is_boolean),
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_floating, pa.types.is_floating),
    (_text, _text),
    (_any(pa.types.is_binary, pa.types.is_large_binary), _any(pa.types.is_binary, pa.types.is_large_binary)),
    (_any(pa.types.is_date, pa.types.is_timestamp), _any(pa.types.is_date, pa.types.is_timestamp)),
    (_any(pa.types.is_time, pa.types.is_timestamp), pa.types.is_time),
    (pa.types.is_duration, pa.types.is_duration),
    (pa.types.is_decimal, pa.types.is_decimal),
)


def check_cast(field: Field, target: pa.DataType, path: str) -> None:
    """Refuse to cast a field to a type of another family.

    Raises:
        SchemaError: that is so; or the field is a struct, whose fields are cast one by one.
    """
    if field.kind in ("blob", "packed_struct") or not _castable(field.arrow_type(), target):
        raise SchemaError(f"column {path!r} of type {field.arrow_type()} cannot be cast to {target}")


def _castable(source: pa.DataType, target: pa.DataType) -> bool:
    if isinstance(source, pa.BaseExtensionType) or isinstance(target, pa.BaseExtensionType):
        return False
    if pa.types.is_dictionary(source):
        return _castable(source.value_type, target)
    if pa.types.is_dictionary(target):
        return _castable(source, target.value_type)
    if _list(source) and _list(target):
        sizes = {kind.list_size for kind in (source, target) if pa.types.is_fixed_size_list(kind)}
        return len(sizes) < 2 and _castable(source.value_type, target.value_type)
    return any(one(source) and other(target) for one, other in _FAMILIES)


def cast_column(array: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    """Return an array with the values that altered fields of a column get.

    Args:
        array: the column, or the parts of it that are altered.
        target: the type with the altered parts in place.
        name: of the column.

    Raises:
        SchemaError: a value cannot be kept.
    """
    try:
        return _cast(array, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"column {name!r} has a value that {target} cannot hold: {error}") from error


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if pa.types.is_dictionary(source) and source != target:
        return _cast(array.dictionary_decode(), target)
    if pa.types.is_dictionary(target) and source != target:
        encoded = _cast(array, target.value_type).dictionary_encode()
        indices = encoded.indices.cast(target.index_type)
        return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=target.ordered)
    return array.cast(target, safe=True)
