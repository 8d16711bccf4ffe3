"""The options of single columns: `<column>.<name>`, where `<column>` is the path of a column or nested field.

The path of a nested field is as in Spark: `st.a`, the elements of an array `arr.element`, the parts of a map
`m.key` and `m.value`. Spark lower-cases the names of options, so the case of the column's name does not
matter. A column's metadata (`StructField.metadata`) can also contain the settings, by the names in
`METADATA`. An option overrides metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_lance.spark.options.option_values import boolean, choice, positive

VECTOR_SIZE = "arrow.fixed-size-list.size"
FLOAT16 = "arrow.float16"
LARGE = "arrow.large_var_char"
BLOB = "lance.encoding"
AS_JSON = "lance.json"
AS_GEOMETRY = "lance.geometry"
# In metadata of a column of geometries: the parameters of its type, such as the spatial reference.
GEOMETRY_METADATA = "lance.geometry.metadata"
# In metadata of a column of arrays: the prefix of settings for the elements.
INNER = "element."
KEY = "lance-schema:unenforced-primary-key"
KEY_POSITION = "lance-schema:unenforced-primary-key:position"


@dataclass(frozen=True)
class ColumnOption:
    """One option of columns: its name after the column's path, its parser, and its documentation."""

    name: str
    parse: Callable[[str], Any]
    expects: str
    doc: str


def _fraction(text: str) -> str:
    if not 0 <= float(text) <= 1:
        raise ValueError
    return text.strip()


def _level(text: str) -> str:
    return str(int(text))


def _extension(text: str) -> str:
    # Only the prefix is checked here, as every session imports this module. `new_fields` checks the rest.
    if not text.strip().startswith(("geoarrow.", "ogc.")):
        raise ValueError
    return text.strip()


COLUMN_OPTIONS: tuple[ColumnOption, ...] = (
    ColumnOption(
        VECTOR_SIZE,
        positive,
        "a vector length, 1 or more",
        "Length of the vectors of an array column in a new table (a fixed-size list).",
    ),
    ColumnOption(
        FLOAT16,
        boolean,
        "true or false",
        "Store floats of a new column in half precision, which must represent them exactly.",
    ),
    ColumnOption(
        LARGE,
        boolean,
        "true or false",
        "Store text or binary of a new column with 64-bit offsets (large_string, large_binary).",
    ),
    ColumnOption(
        BLOB,
        choice("blob", "binary"),
        "blob or binary",
        "`blob`: store a binary column as [blobs](blobs.md). `binary`: store values of a blob column as "
        "plain bytes.",
    ),
    ColumnOption(
        AS_JSON,
        boolean,
        "true or false",
        "`true`: store text of a new column as [JSON](json.md). `false`: store values of a JSON column as "
        "plain text.",
    ),
    ColumnOption(
        AS_GEOMETRY,
        _extension,
        "the name of a GeoArrow type",
        "[Geometry type](geometry.md) of a new column, such as geoarrow.wkb for binary or geoarrow.point for "
        "`struct<x: double, y: double>`.",
    ),
    ColumnOption(
        "lance.compression",
        choice("zstd", "lz4", "fsst", "none"),
        "zstd, lz4, fsst or none",
        "Compression of the column: `fsst` (the default), `zstd`, `lz4` or `none`. Long vectors are "
        "compressed only if they shrink much.",
    ),
    ColumnOption("lance.compression-level", _level, "a whole number", "Compression level of zstd."),
    ColumnOption(
        "lance.structural-encoding",
        choice("miniblock", "fullzip"),
        "miniblock or fullzip",
        "Layout of pages: `miniblock` (good for scans) or `fullzip` (good for single rows).",
    ),
    ColumnOption(
        "lance.rle-threshold",
        _fraction,
        "a number from 0 to 1",
        "Use run-length encoding if the number of runs is below this fraction of the values.",
    ),
    ColumnOption(
        "lance.bss",
        choice("on", "off", "auto"),
        "on, off or auto",
        "Byte-stream split of numbers before compression: `on`, `off` or `auto`.",
    ),
    ColumnOption(
        KEY,
        boolean,
        "true or false",
        "Make the column, without nulls, part of the primary key of a new table.",
    ),
    ColumnOption(
        KEY_POSITION,
        positive,
        "a place, 1 or more",
        "The same, with the column's position in the key.",
    ),
)

# Options about pages -> the key of the field metadata for the file writer.
ENCODINGS: Mapping[str, str] = {
    option.name: "lance-encoding:" + option.name.removeprefix("lance.")
    for option in COLUMN_OPTIONS
    if option.name.startswith("lance.") and option.name not in (BLOB, AS_JSON, AS_GEOMETRY)
}

# Names in a column's metadata -> option. Keys `lance-encoding:` about pages are used as field metadata.
METADATA: Mapping[str, str] = {
    VECTOR_SIZE: VECTOR_SIZE,
    FLOAT16: FLOAT16,
    LARGE: LARGE,
    AS_JSON: AS_JSON,
    AS_GEOMETRY: AS_GEOMETRY,
    "arrow:large-var-char": LARGE,
    KEY: KEY,
    KEY_POSITION: KEY_POSITION,
    "lance-encoding:blob": BLOB,
}

_BY_SUFFIX = {
    f".{option.name}": option for option in sorted(COLUMN_OPTIONS, key=lambda option: -len(option.name))
}


def column_option(name: str) -> tuple[str, ColumnOption] | None:
    """Split a lower-cased option name into the column and the option; None if it is not a column option."""
    for suffix, option in _BY_SUFFIX.items():
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix), option
    return None


def read_column_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a column's metadata, by the names of options.

    Invalid values are returned unchanged, so that code that knows the column can refuse them.
    """
    column_settings: dict[str, Any] = {}
    for key, name in METADATA.items():
        if key not in metadata:
            continue
        value = metadata[key]
        if name in (FLOAT16, AS_JSON, LARGE, KEY, BLOB) and not isinstance(value, bool):
            value = str(value).strip().lower() in ("true", "1", "yes")
        if name == BLOB:
            if value:
                column_settings[name] = "blob"
        else:
            column_settings[name] = value
    return column_settings
