"""Primary keys that a table declares and nobody enforces.

The metadata of a field makes it a part of the key: `lance-schema:unenforced-primary-key` (true, 1 or yes), or
a place in it, `lance-schema:unenforced-primary-key:position` from 1 on. Fields with a place come first, the
others follow by id. A key is set once and then stays. (Lance table format, primary key metadata.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.proto import file_pb2

_MARK = "lance-schema:unenforced-primary-key"


def primary_key(schema: Schema) -> tuple[Field, ...]:
    """Return the fields of the primary key in their order; none if the table declares no key."""
    fields = [field for field in schema.walk() if field.key_position is not None]
    return tuple(sorted(fields, key=lambda field: (not field.key_position, field.key_position, field.id)))


def in_key_order(schema: Schema, fields: Collection[Field]) -> tuple[Field, ...]:
    """Return the fields of a key in the order of the primary key if they are that, by id otherwise."""
    declared = primary_key(schema)
    return declared if set(declared) == set(fields) else tuple(sorted(fields, key=lambda field: field.id))


def check_keys(schema: Schema) -> None:
    """Refuse a primary key that the format does not allow.

    Raises:
        SchemaError: a field of the key, or one that it is in, may be null; or it is not a leaf, or in a list.
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
    """Refuse to drop fields that the primary key needs; paths that lead to no field are left to others.

    Raises:
        SchemaError: a field of the key, or a struct that holds one, is among the fields.
    """
    key = primary_key(schema)
    names = {path.lower() for path in paths}
    for field in key:
        path = next(path for path, leaf in _paths(schema) if leaf.id == field.id)
        parts = path.lower().split(".")
        if any(".".join(parts[:count]) in names for count in range(1, len(parts) + 1)):
            columns = ", ".join(part.name for part in key)
            raise SchemaError(
                f"column {path!r} is a part of the primary key ({columns}): unset the key first, by ALTER "
                "TABLE t UNSET TBLPROPERTIES ('primary_key') or LanceTable.unsetPrimaryKey()"
            )


def forget_key(fields: Iterable[file_pb2.Field]) -> None:
    """Take the marks of a primary key away from the messages of a schema; its columns stay NOT NULL."""
    for field in fields:
        field.ClearField("unenforced_primary_key")
        field.ClearField("unenforced_primary_key_position")
        for name in [name for name in field.metadata if name.startswith(_MARK)]:
            del field.metadata[name]


def _paths(schema: Schema) -> Iterator[tuple[str, Field]]:
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
        may_vanish: the whole key may go.
        replaced: ids of fields before -> the fields that stand for them after, where they have other ids.

    Raises:
        SchemaError: the key would have other fields, or the same ones in another order.
    """
    old, new = primary_key(before), primary_key(after)
    if not old or (may_vanish and not new):
        return
    standing = [(replaced or {}).get(field.id, field).id for field in old]
    if standing != [field.id for field in new]:
        names = ", ".join(field.name for field in old)
        raise SchemaError(f"the table has the primary key ({names}), and its fields and their order stay")
