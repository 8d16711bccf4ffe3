"""Append rows with columns that the table lacks: the columns are added, with nulls in existing rows.

A separate version adds the new columns, and new fields of structs, before the version with the rows. Its
operation contains nothing else, so it does not conflict with other writers, and readers see the append as an
ordinary append. Tasks write files with the field ids that are next at that time. If another writer adds
fields first, the fields are matched by name, and the files are registered with the new ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from spark_lance.errors import IncompatibleConflictError, SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import commit_operation, retry_operation, retry_policy
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.operations.merge import merge_message
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.schema.changes import add_fields, schema_protos


def missing_columns(source: Schema, table: Schema) -> pa.Schema:
    """Return the columns of `source` that a table lacks, and the missing fields of existing structs.

    Raises:
        SchemaError: a name differs from a name of the table only in case.
    """
    missing = _missing_fields(source.fields, table.fields, "")
    return Schema(missing).to_arrow()


def _missing_fields(source: Iterable[Field], present: Sequence[Field], path: str) -> tuple[Field, ...]:
    exact = {field.name: field for field in present}
    folded = {field.name.lower(): field.name for field in present}
    missing = []
    for field in source:
        here = f"{path}{field.name}"
        same = exact.get(field.name)
        if same is None:
            if field.name.lower() in folded:
                raise SchemaError(
                    f"column {here!r} and column {folded[field.name.lower()]!r} of the table differ only in "
                    "the case of letters: name them alike"
                )
            missing.append(field)
        elif same.kind == field.kind == "struct":
            children = _missing_fields(field.children, same.children, f"{here}.")
            if children:
                missing.append(replace(field, children=children))
        elif same.kind == field.kind == "list":
            (item,), (other,) = field.children, same.children
            # The name of a list's item has no meaning.
            children = _missing_fields((replace(item, name=other.name),), (other,), f"{here}.")
            if children:
                missing.append(replace(field, children=children))
    return tuple(missing)


def add_missing_columns(base: Snapshot, source: Schema) -> Manifest:
    """Add the columns of `source` that the table lacks, null in every row, and return the newest version.

    Nothing is committed if no column is missing. Other writers can do the same concurrently.

    Raises:
        SchemaError: a column cannot be added; see `missing_columns` and `add_fields`.
        CommitError: a concurrent commit conflicted; see its subclasses.
    """

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        lacking = missing_columns(source, version.schema)
        if not lacking.names:
            return version
        schema, _ = add_fields(version, lacking)
        operation = merge_message(
            schema_protos(schema, version), version.message.schema_metadata, version.fragments
        )
        return commit_operation(at.table, operation, read_version=version.version)

    return retry_operation(base, attempt, retry_policy())


def renumber_fields(
    fragments: Iterable[bytes], file_schema: Schema, table: Schema
) -> list[table_pb2.DataFragment]:
    """Return fragments whose files have the field ids of the table's schema, matched by name.

    Args:
        fragments: serialized DataFragment messages.
        file_schema: the schema with which the files were written.
        table: the table's schema.

    Raises:
        IncompatibleConflictError: another writer dropped a field, or changed its type or nullability.
    """
    ids: dict[int, int] = {}
    reasons: list[str] = []
    _match_fields(file_schema.fields, table.fields, "", ids, reasons)
    if reasons:
        raise IncompatibleConflictError(
            f"another writer changed the table's columns ({'; '.join(reasons)}): write again"
        )
    messages = [table_pb2.DataFragment.FromString(data) for data in fragments]
    for message in messages:
        for file in message.files:
            file.fields[:] = [ids[number] for number in file.fields]
    return messages


def _match_fields(
    file_fields: Iterable[Field], table: Iterable[Field], path: str, ids: dict[int, int], reasons: list[str]
) -> None:
    by_name = {field.name: field for field in table}
    for field in file_fields:
        here = f"{path}{field.name}"
        now = by_name.get(field.name)
        if now is None:
            reasons.append(f"column {here!r} is gone")
        elif (now.logical_type, now.kind) != (field.logical_type, field.kind):
            reasons.append(f"column {here!r} is {now.logical_type}, not {field.logical_type}")
        elif field.nullable and not now.nullable:
            reasons.append(f"column {here!r} must not be null any more")
        else:
            ids[field.id] = now.id
            _match_fields(field.children, now.children, f"{here}.", ids, reasons)
