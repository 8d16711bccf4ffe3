"""Which types Lance 2.1 and 2.2 can store, and where."""

from __future__ import annotations

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.encodings.packed_struct import check_packed
from spark_lance.file.v2_1.write.settings import Settings


def check_storable(field: Field, version: FileVersion) -> None:
    """Refuse a top-level field that files of this version, 2.1 or 2.2, cannot store.

    Raises:
        SchemaError: a type that this version, or Lance as a whole, cannot store in this place; field metadata
            for the writer that has no meaning.
    """
    _check_type(field, field.name, version, False, False)


def _check_type(field: Field, path: str, version: FileVersion, in_list: bool, in_fixed_list: bool) -> None:
    """Refuse what the version cannot store; the flags tell what `field` is inside of."""
    kind = field.kind
    if kind == "blob":
        return
    if kind == "packed_struct":
        check_packed(field, path, version)
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
    if not field.children:
        Settings.of(field)
    in_list |= kind in ("list", "map")
    in_fixed_list |= kind == "fsl_struct"
    for child in field.children:
        _check_type(child, f"{path}.{child.name}", version, in_list, in_fixed_list)
