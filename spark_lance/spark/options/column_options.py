"""The options of single columns: `<column>.<name>`, for a column by its name or the path of a nested field.

A nested field is named as in Spark: `st.a`, the elements of an array `arr.element`, the parts of a map
`m.key` and `m.value`. Spark lower-cases the names of options, so the case of the column's name does not
count. They may also stand in a column's metadata (`StructField.metadata`), by the names in `METADATA`;
an option goes before metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_lance.spark.options.option_values import boolean, one_of, positive

VECTOR_SIZE = "arrow.fixed-size-list.size"
FLOAT16 = "arrow.float16"
LARGE = "arrow.large_var_char"
BLOB = "lance.encoding"
AS_JSON = "lance.json"
AS_GEOMETRY = "lance.geometry"
# In metadata of a column of geometries: what else its type tells, such as the spatial reference.
GEOMETRY_METADATA = "lance.geometry.metadata"
# In metadata of a column of arrays, before what is asked of their elements.
INNER = "element."
KEY = "lance-schema:unenforced-primary-key"
KEY_POSITION = "lance-schema:unenforced-primary-key:position"


@dataclass(frozen=True)
class ColumnOption:
    """One option of columns: its name behind the column's and a dot, how its text is parsed, what it does."""

    name: str
    parse: Callable[[str], Any]
    expects: str
    doc: str


def _share(text: str) -> str:
    if not 0 <= float(text) <= 1:
        raise ValueError
    return text.strip()


def _level(text: str) -> str:
    return str(int(text))


def _extension(text: str) -> str:
    # Which there are is known where columns are made: names are looked for in every session.
    if not text.strip().startswith(("geoarrow.", "ogc.")):
        raise ValueError
    return text.strip()


COLUMN_OPTIONS: tuple[ColumnOption, ...] = (
    ColumnOption(
        VECTOR_SIZE,
        positive,
        "a vector length, 1 or more",
        "Store an array column of a new table as vectors of this length (a fixed-size list).",
    ),
    ColumnOption(
        FLOAT16,
        boolean,
        "true or false",
        "Store the floats of a new column, or of its arrays, in half precision; values must be exact in it.",
    ),
    ColumnOption(
        LARGE,
        boolean,
        "true or false",
        "Store text or binary of a new column with 64-bit offsets (large_string, large_binary).",
    ),
    ColumnOption(
        BLOB,
        one_of("blob", "binary"),
        "blob or binary",
        "Store a binary column as blobs, whose bytes are fetched when asked for; or, with `binary`, what was "
        "read from a blob column as plain bytes.",
    ),
    ColumnOption(
        AS_JSON,
        boolean,
        "true or false",
        "Store the text of a new column as JSON documents; or, with `false`, what was read from a column of "
        "them as plain text.",
    ),
    ColumnOption(
        AS_GEOMETRY,
        _extension,
        "the name of a GeoArrow type",
        "Store a new column as geometries of this type: binary as geoarrow.wkb, struct<x: double, y: double> "
        "as geoarrow.point, arrays of these as geoarrow.linestring, and so on.",
    ),
    ColumnOption(
        "lance.compression",
        one_of("zstd", "lz4", "fsst", "none"),
        "zstd, lz4, fsst or none",
        "Compress the column's pages by this scheme (long vectors only if they shrink much); fsst stands for "
        "the default choice.",
    ),
    ColumnOption("lance.compression-level", _level, "a whole number", "Level of the compression by zstd."),
    ColumnOption(
        "lance.structural-encoding",
        one_of("miniblock", "fullzip"),
        "miniblock or fullzip",
        "Layout of pages: chunks of values (good for scans), or value by value (good for single rows).",
    ),
    ColumnOption(
        "lance.rle-threshold",
        _share,
        "a number from 0 to 1",
        "Store numbers as runs if there are less runs than this share of the values.",
    ),
    ColumnOption(
        "lance.bss",
        one_of("on", "off", "auto"),
        "on, off or auto",
        "Sort the bytes of numbers by their place before compression (byte-stream split).",
    ),
    ColumnOption(
        KEY,
        boolean,
        "true or false",
        "Make the column part of the primary key that a new table declares; it must hold no nulls then.",
    ),
    ColumnOption(
        KEY_POSITION,
        positive,
        "a place, 1 or more",
        "The same, with its place in the key.",
    ),
)

# Options about pages -> the key of the field metadata that tells the file writer.
ENCODINGS: Mapping[str, str] = {
    option.name: "lance-encoding:" + option.name.removeprefix("lance.")
    for option in COLUMN_OPTIONS
    if option.name.startswith("lance.") and option.name not in (BLOB, AS_JSON, AS_GEOMETRY)
}

# Names in a column's metadata -> option. `lance-encoding:` keys of pages are field metadata as they are.
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
    """Return the column and the option that a lower-cased name is about, None if it is about neither."""
    for suffix, option in _BY_SUFFIX.items():
        if name.endswith(suffix) and len(name) > len(suffix):
            return name.removesuffix(suffix), option
    return None


def column_settings_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a column's metadata asks, by the names of options.

    Values that mean nothing are kept as they are, so that code that knows the column can refuse them.
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
