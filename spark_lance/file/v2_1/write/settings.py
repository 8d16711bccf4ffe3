"""Writer settings in field metadata, and checks of the types that versions 2.1 and 2.2 can store.

    lance-encoding:compression                   zstd, lz4 (for pages that become smaller), none; fsst means
                                                 the default
    lance-encoding:compression-level             a number, for zstd
    lance-encoding:rle-threshold                 use runs below this fraction of the values
    lance-encoding:bss                           on, off, auto: byte-stream split below zstd or lz4
    lance-encoding:dict-divisor                  a dictionary has at most one item per this many values
    lance-encoding:dict-size-ratio               and at most this fraction of the bytes without it
    lance-encoding:dict-values-compression       zstd, lz4, none: for the items of dictionaries (2.2)
    lance-encoding:dict-values-compression-level   a number, for zstd
    lance-encoding:structural-encoding           miniblock, fullzip
    lance-encoding:minichunk-size                target bytes of string chunks; at most 32 KiB in 2.1

The metadata belongs to the field of the leaf column. (Lance file format 2.1, field metadata for encodings.)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.encodings.general import Compression
from spark_lance.file.v2_1.encodings.packed_struct import check_packed

_PREFIX = "lance-encoding:"


@dataclass(frozen=True)
class Settings:
    """The settings of one field. None lets the writer choose.

    `plain` disables general compression, and `items_plain` disables it for dictionary items.
    """

    compression: Compression | None = None
    plain: bool = False
    rle_threshold: float | None = None
    split_bytes: str = "auto"
    dictionary_divisor: float | None = None
    dictionary_ratio: float | None = None
    items_compression: Compression | None = None
    items_plain: bool = False
    structure: str | None = None
    chunk_bytes: int | None = None

    @classmethod
    def of(cls, field: Field) -> Settings:
        """Read the settings from the metadata of a field.

        Raises:
            SchemaError: a value is invalid.
        """
        if not any(key.startswith(_PREFIX) for key in field.metadata):
            return _DEFAULT
        scheme = _read_word(field, "compression", ("zstd", "lz4", "none", "fsst"))
        items = _read_word(field, "dict-values-compression", ("zstd", "lz4", "none"))
        return cls(
            compression=_read_compression(field, scheme, "compression-level"),
            plain=scheme == "none",
            rle_threshold=_read_number(field, "rle-threshold"),
            split_bytes=_read_word(field, "bss", ("on", "off", "auto")) or "auto",
            dictionary_divisor=_read_number(field, "dict-divisor"),
            dictionary_ratio=_read_number(field, "dict-size-ratio"),
            items_compression=_read_compression(field, items, "dict-values-compression-level"),
            items_plain=items == "none",
            structure=_read_word(field, "structural-encoding", ("miniblock", "fullzip")),
            chunk_bytes=_read_integer(field, "minichunk-size"),
        )


_DEFAULT = Settings()


def _read_compression(field: Field, scheme: str | None, level_key: str) -> Compression | None:
    if scheme is None or scheme not in ("zstd", "lz4"):
        return None
    level = _read_number(field, level_key)
    return Compression(scheme, None if level is None else int(level))


def _read_word(field: Field, key: str, words: Collection[str]) -> str | None:
    text = field.metadata.get(_PREFIX + key)
    if text is None:
        return None
    if text.lower() not in words:
        raise _invalid_value(field, key, text)
    return text.lower()


def _read_number(field: Field, key: str) -> float | None:
    text = field.metadata.get(_PREFIX + key)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise _invalid_value(field, key, text) from None


def _read_integer(field: Field, key: str) -> int | None:
    number = _read_number(field, key)
    if number is None:
        return None
    if not 1 <= number < 2**31 or number % 1:
        raise _invalid_value(field, key, field.metadata[_PREFIX + key])
    return int(number)


def _invalid_value(field: Field, key: str, text: str) -> SchemaError:
    return SchemaError(f"column {field.name!r}: {_PREFIX}{key} is {text!r}, which has no meaning")


def check_storable(field: Field, version: FileVersion) -> None:
    """Check that files of this version, 2.1 or 2.2, can store a top-level field.

    Raises:
        SchemaError: this version, or Lance in general, cannot store a type at this position, or field
            metadata for the writer is invalid.
    """
    _check_type(field, field.name, version, False, False)


def _check_type(field: Field, path: str, version: FileVersion, in_list: bool, in_fixed_list: bool) -> None:
    """Raise an error for a type that the version cannot store. The flags describe the ancestors."""
    kind = field.kind
    if kind == "blob":
        return
    if kind == "packed_struct":
        check_packed(field, path)
        return
    if field.logical_type == "fixed_size_binary:0":
        raise SchemaError(f"column {path!r}: Lance cannot store values of zero width")
    if kind in ("map", "fsl_struct") and version is FileVersion.V2_1:
        name = "maps" if kind == "map" else "fixed-size lists of structs"
        raise SchemaError(f"column {path!r}: file version 2.1 has no {name}; use version 2.2")
    if kind in ("list", "map") and in_fixed_list:
        raise SchemaError(f"column {path!r}: Lance cannot store a list inside a fixed-size list of structs")
    if kind == "fsl_struct" and in_list:
        raise SchemaError(f"column {path!r}: Lance cannot store a fixed-size list of structs inside a list")
    field.refuse_packed_lists(path)
    if not field.children:
        Settings.of(field)
    in_list |= kind in ("list", "map")
    in_fixed_list |= kind == "fsl_struct"
    for child in field.children:
        _check_type(child, f"{path}.{child.name}", version, in_list, in_fixed_list)
