"""The option `compression` of a table: the compression of every column without its own setting."""

from __future__ import annotations

from dataclasses import replace

from spark_lance.errors import OptionError, suggestion
from spark_lance.file.base.schema import Field, Schema

SCHEMES = ("zstd", "lz4", "fsst", "none")
_KEY = "lance-encoding:compression"


def compressed(schema: Schema, scheme: str | None) -> Schema:
    """Return the schema with field metadata that sets the compression.

    Args:
        schema: the schema of a table or of files.
        scheme: one of `SCHEMES`; None changes nothing. Columns with their own setting, blobs and packed
            structs are not changed.

    Raises:
        OptionError: the scheme does not exist.
    """
    if scheme is None:
        return schema
    if scheme.lower() not in SCHEMES:
        similar = suggestion(scheme, SCHEMES)
        raise OptionError(f"compression {scheme!r} does not exist; use one of {', '.join(SCHEMES)}{similar}")
    return replace(schema, fields=tuple(_set_compression(field, scheme.lower()) for field in schema.fields))


def _set_compression(field: Field, scheme: str) -> Field:
    if field.kind in ("blob", "packed_struct"):
        return field
    if field.children:
        return replace(field, children=tuple(_set_compression(child, scheme) for child in field.children))
    return field if _KEY in field.metadata else replace(field, metadata={**field.metadata, _KEY: scheme})
