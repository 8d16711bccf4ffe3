"""TBLPROPERTIES of a table that exists, by the names that CREATE TABLE takes."""

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
    """Return the options of columns that say the same as `primary_key`."""
    parts = [part.strip() for part in names.split(",")]
    return {f"{part}.{KEY_POSITION}": str(place) for place, part in enumerate(parts, 1)}


def fixed_properties(dataset: LanceDataset) -> dict[str, str]:
    """Return what a table says of itself by the names that CREATE TABLE takes."""
    manifest = dataset.manifest
    properties: dict[str, str] = {}
    if manifest.uses_stable_row_ids:
        properties["enable_stable_row_ids"] = "true"
    version = manifest.file_version
    if version.writable and version is not DEFAULT_VERSION:
        properties["data_storage_version"] = version.text
    schema = dataset.schema
    key = sorted((_place(field), field.name) for field in schema if _is_key(field))
    whole = bool(key) and all("," not in name for _, name in key)
    if whole:
        properties[PRIMARY_KEY] = ", ".join(name for _, name in key)
    for field in schema:
        for path, option, value in _options(field, (field.name,)):
            if not (whole and len(path) == 1 and option == KEY_POSITION):
                properties[f"{'.'.join(path)}.{option}"] = value
    return properties


def _options(field: pa.Field, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the options that say how a column, and what is in it, is stored: path, name, value."""
    kind = field.type
    metadata = _metadata(field)
    if _is_key(field):
        yield path, KEY_POSITION, str(_place(field))
    for option, key in ENCODINGS.items():
        if key in metadata:
            yield path, option, metadata[key]
    named = kind.extension_name if isinstance(kind, pa.BaseExtensionType) else metadata.get(EXTENSION_NAME)
    if named in ("arrow.json", "lance.json"):
        yield path, AS_JSON, "true"
        return
    if metadata.get(_BLOB_KEY) == "true" or named == _BLOB_V2:
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
            yield from _options(child, (*path, child.name))
    elif pa.types.is_map(kind):
        yield from _options(kind.key_field, (*path, "key"))
        yield from _options(kind.item_field, (*path, "value"))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _options(kind.value_field, (*path, "element"))


def _is_key(field: pa.Field) -> bool:
    metadata = _metadata(field)
    return metadata.get(KEY) == "true" or KEY_POSITION in metadata


def _place(field: pa.Field) -> int:
    return int(_metadata(field).get(KEY_POSITION) or 1)


def _metadata(field: pa.Field) -> Mapping[str, str]:
    return {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
