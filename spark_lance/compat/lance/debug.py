"""Stored metadata as text, for debugging."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from spark_lance.datasets.fragment_metadata import FragmentMetadata
from spark_lance.file.base.schema import Field, Schema
from spark_lance.table.format.manifest import Manifest

__all__ = ["format_fragment", "format_manifest", "format_schema", "list_transactions"]


def format_schema(dataset: Any) -> str:
    """Return the schema of a dataset as text, one property per line."""
    return "\n".join(_schema(dataset.value.lance_schema))


def format_manifest(dataset: Any) -> str:
    """Return the manifest of a dataset as text, one property per line."""
    manifest: Manifest = dataset.value.manifest
    message = manifest.message
    writer = message.writer_version
    lines = [
        "Manifest {",
        *_indent("schema: ", _schema(manifest.schema)),
        f"    version: {manifest.version},",
    ]
    lines += ["    writer_version: Some(", "        WriterVersion {"]
    lines += [f'            library: "{writer.library}",', f'            version: "{writer.version}",']
    lines += ["        },", "    ),", "    fragments: ["]
    for fragment in message.fragments:
        lines += [f"        {line}" for line in _message("Fragment", fragment)]
    lines += ["    ],", f"    reader_feature_flags: {message.reader_feature_flags},"]
    lines += [f"    writer_feature_flags: {message.writer_feature_flags},", "}"]
    return "\n".join(lines)


def format_fragment(fragment: FragmentMetadata, dataset: Any) -> str:
    """Return a fragment and the columns of its files as text, one property per line."""
    ids = {number for file in fragment.files for number in file.fields}
    schema = dataset.value.lance_schema.prune(ids)
    lines = ["PrettyPrintableFragment {", f"    id: {fragment.id},", "    files: ["]
    for file in fragment.files:
        lines += [f"        {line}" for line in _message("DataFile", file.message())]
    lines += [
        "    ],",
        *_indent("schema: ", _schema(schema)),
        f"    physical_rows: {fragment.physical_rows},",
        "}",
    ]
    return "\n".join(lines)


def list_transactions(dataset: Any, max_transactions: int = 10) -> list[str]:
    """Return the transactions of the newest versions as text, newest first."""
    transactions = dataset.value.get_transactions(max_transactions)
    return ["\n".join(_message("Transaction", each.message)) for each in transactions if each is not None]


def _schema(schema: Schema) -> list[str]:
    lines = ["Schema {", "    fields: ["]
    for field in schema.fields:
        lines += [f"        {line}" for line in _field(field, -1)]
    return [*lines, "    ],", f"    metadata: {dict(schema.metadata)},", "}"]


def _field(field: Field, parent: int) -> list[str]:
    lines = ["Field {", f'    name: "{field.name}",', f"    id: {field.id},", f"    parent_id: {parent},"]
    lines += ["    logical_type: LogicalType(", f'        "{field.logical_type}",', "    ),"]
    lines += [f"    metadata: {dict(field.metadata)},", f"    nullable: {str(field.nullable).lower()},"]
    lines += ["    children: ["]
    for child in field.children:
        lines += [f"        {line}" for line in _field(child, field.id)]
    return [*lines, "    ],", "},"]


def _message(name: str, message: Message) -> list[str]:
    lines = [f"{name} {{"]
    for descriptor, value in message.ListFields():
        label = f"{descriptor.name}: "
        if descriptor.message_type is None:
            items = list(value) if descriptor.is_repeated else value
            lines.append(f"    {label}{items!r},")
        elif descriptor.message_type.GetOptions().map_entry:
            lines.append(f"    {label}{dict(value)!r},")
        elif descriptor.is_repeated:
            lines.append(f"    {label}[")
            for item in value:
                lines += [f"        {line}" for line in _message(descriptor.message_type.name, item)]
            lines.append("    ],")
        elif descriptor.containing_oneof is not None and descriptor.containing_oneof.name == "operation":
            lines += _indent("operation: ", _message(descriptor.message_type.name, value))
        else:
            lines += _indent(label, _message(descriptor.message_type.name, value))
    return [*lines, "}"]


def _indent(label: str, lines: list[str]) -> list[str]:
    """Return the lines indented and labelled, as one property of an object."""
    first, *rest = lines
    result = [f"    {label}{first}", *(f"    {line}" for line in rest)]
    return [*result[:-1], f"{result[-1].rstrip(',')},"]
