"""Text columns read as binary: for tables of writers that stored text which is not UTF-8.

Text is decoded by the type of its field. So a version whose fields say `binary` gives the bytes as they are
stored, and everything else of a read stays the same. Such a version is for reads alone and never committed.
"""

from __future__ import annotations

from dataclasses import replace

from spark_lance.errors import OptionError
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import Manifest

TEXT_TYPES = ("string", "binary")
_BINARY = {"string": "binary", "large_string": "large_binary"}
# Metadata of fields whose text has a meaning, such as documents.
_EXTENSION = "ARROW:extension:name"
# Metadata about text alone.
_OF_TEXT = "spark.string-type"


def check_text_as(value: str) -> None:
    """Check the option that says as what text is read.

    Raises:
        OptionError: it is neither "string" nor "binary".
    """
    if value not in TEXT_TYPES:
        raise OptionError(f"text_as is {' or '.join(TEXT_TYPES)}, not {value!r}")


def texts_as_binary(manifest: Manifest) -> Manifest:
    """Return a version whose text is read as binary, also inside lists, structs and maps; never commit it.

    Indices of these fields are left out, because they hold text.
    """
    message = table_pb2.Manifest()
    message.CopyFrom(manifest.message)
    changed = set()
    for field in message.fields:
        if _EXTENSION in field.metadata:
            continue
        kind = _as_binary(field.logical_type)
        if kind != field.logical_type:
            field.logical_type = kind
            field.metadata.pop(_OF_TEXT, None)
            changed.add(field.id)
    if not changed:
        return manifest
    section = table_pb2.IndexSection.FromString(manifest.index_section)
    rest = [index for index in section.indices if changed.isdisjoint(index.fields)]
    del section.indices[:]
    section.indices.extend(rest)
    return replace(manifest, message=message, index_section=section.SerializeToString())


def _as_binary(logical: str) -> str:
    """Return the logical type that has the bytes of text; others as they are."""
    head, separator, rest = logical.partition(":")
    if head == "dict":
        words, colon, indices = rest.partition(":")
        return f"{head}{separator}{_BINARY.get(words, words)}{colon}{indices}"
    return _BINARY.get(logical, logical)
