"""Returns the TBLPROPERTIES of an existing table, with the names of CREATE TABLE."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.file.base.extensions import EXTENSION_NAME
from spark_lance.file.base.version import DEFAULT_VERSION
from spark_lance.spark.options.column_options import (
    AS_JSON,
    BLOB,
    ENCODINGS,
    FLOAT16,
    KEY,
    KEY_POSITION,
    LARGE,
    METADATA,
    VECTOR_SIZE,
)
from spark_lance.spark.options.table_properties import PRIMARY_KEY

_BLOB_V2 = "lance.blob.v2"
_BLOB_KEY = next(key for key, option in METADATA.items() if option == BLOB)


def key_options(names: str) -> dict[str, str]:
    """Return the column options that are equivalent to property `primary_key`."""
    parts = [part.strip() for part in names.split(",")]
    return {f"{part}.{KEY_POSITION}": str(position) for position, part in enumerate(parts, 1)}


def fixed_properties(dataset: LanceDataset) -> dict[str, str]:
    """Return the properties of a table that only CREATE TABLE can set."""
    manifest = dataset.manifest
    properties: dict[str, str] = {}
    if manifest.uses_stable_row_ids:
        properties["enable_stable_row_ids"] = "true"
    version = manifest.file_version
    if version.writable and version is not DEFAULT_VERSION:
        properties["data_storage_version"] = version.text
    schema = dataset.schema
    key = sorted((_key_position(field), field.name) for field in schema if _is_key(field))
    whole = bool(key) and all("," not in name for _, name in key)
    if whole:
        properties[PRIMARY_KEY] = ", ".join(name for _, name in key)
    for field in schema:
        for path, option, value in _column_options(field, (field.name,)):
            if not (whole and len(path) == 1 and option == KEY_POSITION):
                properties[f"{'.'.join(path)}.{option}"] = value
    return properties


def _column_options(field: pa.Field, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the storage options of a column and its nested fields: path, name, value."""
    kind = field.type
    metadata = _metadata(field)
    if _is_key(field):
        yield path, KEY_POSITION, str(_key_position(field))
    for option, key in ENCODINGS.items():
        if key in metadata:
            yield path, option, metadata[key]
    extension = (
        kind.extension_name if isinstance(kind, pa.BaseExtensionType) else metadata.get(EXTENSION_NAME)
    )
    if extension in ("arrow.json", "lance.json"):
        yield path, AS_JSON, "true"
        return
    if metadata.get(_BLOB_KEY) == "true" or extension == _BLOB_V2:
        yield path, BLOB, "blob"
        return
    if pa.types.is_fixed_size_list(kind):
        yield path, VECTOR_SIZE, str(kind.list_size)
        kind = kind.value_type
        if pa.types.is_float16(kind):
            yield path, FLOAT16, "true"
        return
    if pa.types.is_float16(kind):
        yield path, FLOAT16, "true"
    elif pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        yield path, LARGE, "true"
    elif pa.types.is_struct(kind):
        for child in kind:
            yield from _column_options(child, (*path, child.name))
    elif pa.types.is_map(kind):
        yield from _column_options(kind.key_field, (*path, "key"))
        yield from _column_options(kind.item_field, (*path, "value"))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _column_options(kind.value_field, (*path, "element"))


def _is_key(field: pa.Field) -> bool:
    metadata = _metadata(field)
    return metadata.get(KEY) == "true" or KEY_POSITION in metadata


def _key_position(field: pa.Field) -> int:
    return int(_metadata(field).get(KEY_POSITION) or 1)


def _metadata(field: pa.Field) -> Mapping[str, str]:
    return {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
