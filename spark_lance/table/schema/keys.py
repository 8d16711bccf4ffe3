"""Unenforced primary keys of a table.

Field metadata makes a field a part of the key: `lance-schema:unenforced-primary-key` (true, 1 or yes), or
`lance-schema:unenforced-primary-key:position` with its position, from 1. Fields with a position are first;
the others follow by id. A key is set once and cannot be changed. (Lance table format, primary key metadata.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.proto import file_pb2

_MARK = "lance-schema:unenforced-primary-key"


def primary_key(schema: Schema) -> tuple[Field, ...]:
    """Return the fields of the primary key in key order; empty if the table has no key."""
    fields = [field for field in schema.walk() if field.key_position is not None]
    return tuple(sorted(fields, key=lambda field: (not field.key_position, field.key_position, field.id)))


def sort_key_fields(schema: Schema, fields: Collection[Field]) -> tuple[Field, ...]:
    """Return key fields in primary-key order if they are the primary key; else sorted by id."""
    declared = primary_key(schema)
    return declared if set(declared) == set(fields) else tuple(sorted(fields, key=lambda field: field.id))


def check_keys(schema: Schema) -> None:
    """Refuse a primary key that the format does not allow.

    Raises:
        SchemaError: a field of the key or one of its parents is nullable, or the field is not a leaf, or is
            in a list or map.
    """

    def visit(field: Field, above: tuple[Field, ...]) -> None:
        if field.key_position is not None:
            if field.children:
                raise SchemaError(f"column {field.name!r} of the primary key has fields inside")
            if any(outer.kind != "struct" for outer in above):
                raise SchemaError(f"column {field.name!r} of the primary key is in a list or map")
            if any(part.nullable for part in (*above, field)):
                raise SchemaError(f"column {field.name!r} of the primary key may be null")
        for child in field.children:
            visit(child, (*above, field))

    for field in schema.fields:
        visit(field, ())


def check_droppable(schema: Schema, paths: Iterable[str]) -> None:
    """Refuse to drop fields of the primary key; unknown paths are ignored.

    Raises:
        SchemaError: a path names a field of the key, or a struct with such a field.
    """
    key = primary_key(schema)
    names = {path.lower() for path in paths}
    for field in key:
        path = next(path for path, leaf in _walk_paths(schema) if leaf.id == field.id)
        parts = path.lower().split(".")
        if any(".".join(parts[:count]) in names for count in range(1, len(parts) + 1)):
            columns = ", ".join(part.name for part in key)
            raise SchemaError(
                f"column {path!r} is a part of the primary key ({columns}): unset the key first, by ALTER "
                "TABLE t UNSET TBLPROPERTIES ('primary_key') or LanceTable.unsetPrimaryKey()"
            )


def forget_key(fields: Iterable[file_pb2.Field]) -> None:
    """Remove the primary key from the field messages of a schema; its columns stay NOT NULL."""
    for field in fields:
        field.ClearField("unenforced_primary_key")
        field.ClearField("unenforced_primary_key_position")
        for name in [name for name in field.metadata if name.startswith(_MARK)]:
            del field.metadata[name]


def _walk_paths(schema: Schema) -> Iterator[tuple[str, Field]]:
    def visit(field: Field, path: str) -> Iterator[tuple[str, Field]]:
        yield path, field
        for child in field.children:
            yield from visit(child, f"{path}.{child.name}")

    for field in schema.fields:
        yield from visit(field, field.name)


def check_same_keys(
    before: Schema, after: Schema, *, may_vanish: bool = False, replaced: Mapping[int, Field] | None = None
) -> None:
    """Refuse to change an existing primary key. Names and types of its fields may change.

    Args:
        before, after: the schema before and after a change.
        may_vanish: whether the whole key may be removed.
        replaced: old field id -> the new field that replaces it, for fields with new ids.

    Raises:
        SchemaError: the key would have other fields or another order.
    """
    old, new = primary_key(before), primary_key(after)
    if not old or (may_vanish and not new):
        return
    expected_ids = [(replaced or {}).get(field.id, field).id for field in old]
    if expected_ids != [field.id for field in new]:
        names = ", ".join(field.name for field in old)
        raise SchemaError(f"the table has the primary key ({names}), and its fields and their order stay")
