"""Read text columns as binary, for tables whose writer stored text that is not valid UTF-8.

The type of the field determines the decoding. So a version whose fields have the type `binary` returns the
stored bytes, and nothing else about a read changes. Such a version is only for reading and never committed.
"""

from __future__ import annotations

from dataclasses import replace

from spark_lance.errors import OptionError
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import Manifest

TEXT_TYPES = ("string", "binary")
_BINARY = {"string": "binary", "large_string": "large_binary"}
# Metadata of fields of extension types, such as JSON, whose text is not changed.
_EXTENSION = "ARROW:extension:name"
# Metadata that applies only to text.
_STRING_TYPE = "spark.string-type"


def check_text_as(value: str) -> None:
    """Check the value of the option `text_as`.

    Raises:
        OptionError: it is neither "string" nor "binary".
    """
    if value not in TEXT_TYPES:
        raise OptionError(f"text_as is {' or '.join(TEXT_TYPES)}, not {value!r}")


def texts_as_binary(manifest: Manifest) -> Manifest:
    """Return a version whose text is read as binary, also inside lists, structs and maps. Never commit it.

    Indexes of these fields are left out, because they contain text.
    """
    message = table_pb2.Manifest()
    message.CopyFrom(manifest.message)
    changed = set()
    for field in message.fields:
        if _EXTENSION in field.metadata:
            continue
        kind = _to_binary_type(field.logical_type)
        if kind != field.logical_type:
            field.logical_type = kind
            field.metadata.pop(_STRING_TYPE, None)
            changed.add(field.id)
    if not changed:
        return manifest
    section = table_pb2.IndexSection.FromString(manifest.index_section)
    rest = [index for index in section.indices if changed.isdisjoint(index.fields)]
    del section.indices[:]
    section.indices.extend(rest)
    return replace(manifest, message=message, index_section=section.SerializeToString())


def _to_binary_type(logical: str) -> str:
    """Return the binary type for a text type; other logical types are unchanged."""
    head, separator, rest = logical.partition(":")
    if head == "dict":
        words, colon, indices = rest.partition(":")
        return f"{head}{separator}{_BINARY.get(words, words)}{colon}{indices}"
    return _BINARY.get(logical, logical)
