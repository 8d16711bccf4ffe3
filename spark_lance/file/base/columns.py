"""Which fields own a column of a data file, in column order.

Version 2.0: structs, lists and leaves, depth first. Versions 2.1 and 2.2: leaves only, because lists and
structs live in the levels of their leaves. Packed structs, blobs, dictionaries and fixed-size lists of
primitives are one column in all versions. (Lance file format, "which fields own a column".)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from spark_lance.file.base.schema import Field
from spark_lance.file.base.version import FileVersion


def owned_columns(fields: Iterable[Field], version: FileVersion) -> list[Field]:
    """Return the fields that own columns 0, 1, 2, ... of a file with these top-level fields."""
    return [owner for top in fields for owner in _owners(top, version)]


def _owners(node: Field, version: FileVersion) -> Iterator[Field]:
    structural = node.kind in ("list", "map", "struct", "fsl_struct")
    if not structural or version is FileVersion.V2_0:
        yield node
    if structural:
        for child in node.children:
            yield from _owners(child, version)


def paths(top: Field) -> list[tuple[Field, ...]]:
    """Return, for each leaf below `top`, the chain of fields from `top` down to that leaf."""
    if top.kind not in ("list", "map", "struct", "fsl_struct"):
        return [(top,)]
    return [(top, *rest) for child in top.children for rest in paths(child)]
