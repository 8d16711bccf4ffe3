"""Checks that text is UTF-8 before it is stored, because one invalid byte makes the whole page unreadable.

The check is one Arrow call per text column of a batch. Only if it fails, the rows are checked one by one, to
report the first invalid row.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_lance.errors import FormatError, SchemaError

_LARGE = (pa.large_string(), pa.large_binary())
_REMEDY = (
    "store it as BINARY (CAST(x AS BINARY)), decode it (decode(x, 'ISO-8859-1')), or replace the wrong bytes "
    "(make_valid_utf8(x))"
)


def check_texts(array: pa.Array, name: str, first_row: int) -> None:
    """Check that the text of a column is UTF-8, including text in lists, structs, maps and dictionaries.

    Args:
        array: values of a top-level column.
        name: name of the column.
        first_row: position of the first value among the rows to write.

    Raises:
        SchemaError: a text is not UTF-8; the message names the field, the row and the byte.
    """
    if not _has_text(array.type) or all(_is_valid(leaf) for _, leaf in _text_arrays(array, name)):
        return
    start, stop = 0, len(array)
    if not _invalid_texts(array, name):
        # Invalid bytes under nulls are never stored.
        return
    while stop - start > 1:
        middle = (start + stop) // 2
        if _invalid_texts(array.slice(start, middle - start), name):
            stop = middle
        else:
            start = middle
    path, leaf = _invalid_texts(array.slice(start, 1), name)[0]
    value = next(value for value in _as_bytes(leaf).to_pylist() if value is not None and not _decodes(value))
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"column {path!r}, row {first_row + start} of the rows to write: the text is not UTF-8 (byte "
            f"0x{value[error.start]:02X} at {error.start}): {_REMEDY}"
        ) from None


def check_stored_text(array: pa.Array) -> None:
    """Check decoded text or binary, because other writers may store text unchecked.

    Raises:
        FormatError: offsets are damaged, or a text is not UTF-8. The message names its first invalid byte and
            the option to read it.
    """
    if _is_valid(array):
        return
    raw = array.view(pa.large_binary() if array.type in _LARGE else pa.binary())
    if not _is_valid(raw):
        raise FormatError("the offsets of texts are damaged")
    for value in raw.to_pylist():
        try:
            (value or b"").decode()
        except UnicodeDecodeError as error:
            raise FormatError(
                f"text is not UTF-8 (byte 0x{error.object[error.start]:02X}): read the column as bytes with "
                "text_as=binary; to change or compact these rows, write the table again with correct text"
            ) from None


def _has_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_text(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _has_text(kind.storage_type)
    if kind.num_fields:
        return any(_has_text(kind.field(place).type) for place in range(kind.num_fields))
    return is_text(kind)


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of a type are strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _text_arrays(array: pa.Array, name: str, *, visible: bool = False) -> Iterator[tuple[str, pa.Array]]:
    """Yield the text arrays in an array, with their paths. `visible` excludes values under nulls."""
    kind = array.type
    if not _has_text(kind):
        return
    if isinstance(array, pa.ExtensionArray):
        yield from _text_arrays(array.storage, name, visible=visible)
    elif isinstance(array, pa.DictionaryArray):
        words = array.dictionary
        if visible:
            words = words.take(array.indices.drop_null().unique())
        yield from _text_arrays(words, name, visible=visible)
    elif isinstance(array, pa.StructArray):
        parts = array.flatten() if visible else [array.field(place) for place in range(kind.num_fields)]
        for place, part in enumerate(parts):
            yield from _text_arrays(part, f"{name}.{kind.field(place).name}", visible=visible)
    elif isinstance(array, pa.MapArray):
        entries = _entries(array.drop_null() if visible else array)
        yield from _text_arrays(entries, name, visible=visible)
    elif kind.num_fields:
        yield from _text_arrays(
            array.flatten() if visible else _items(array), f"{name}.item", visible=visible
        )
    else:
        yield name, array


def _items(array: pa.Array) -> pa.Array:
    """Return the items of lists, including items under nulls."""
    if isinstance(array, pa.FixedSizeListArray):
        size = array.type.list_size
        return array.values.slice(array.offset * size, len(array) * size)
    if not len(array):
        return array.values.slice(0, 0)
    if isinstance(array, pa.ListViewArray | pa.LargeListViewArray):
        return array.flatten()
    start, stop = array.offsets[0].as_py(), array.offsets[len(array)].as_py()
    return array.values.slice(start, stop - start)


def _entries(array: pa.MapArray) -> pa.Array:
    start, stop = (array.offsets[0].as_py(), array.offsets[len(array)].as_py()) if len(array) else (0, 0)
    keys, items = array.keys.slice(start, stop - start), array.items.slice(start, stop - start)
    return pa.StructArray.from_arrays([keys, items], ["key", "value"])


def _is_valid(leaf: pa.Array) -> bool:
    try:
        leaf.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _invalid_texts(array: pa.Array, name: str) -> list[tuple[str, pa.Array]]:
    """Return the arrays of visible text with a value that is not UTF-8."""
    return [leaf for leaf in _text_arrays(array, name, visible=True) if not _is_valid(leaf[1])]


def _as_bytes(leaf: pa.Array) -> pa.Array:
    return leaf.cast(pa.large_binary() if not pa.types.is_string_view(leaf.type) else pa.binary_view())


def _decodes(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
