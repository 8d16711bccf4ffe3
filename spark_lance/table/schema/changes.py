"""Change a schema, and assign the ids of changed fields. This module reads no data.

A field never changes its id. A new field, or a field with a new type, gets the next id that no field of the
schema and no data file has. In a table that never reuses ids, it gets the next id after the recorded highest
id. Ids ascend depth first, parents before children. (Lance table format, schema evolution.)

A column can be cast when it is altered, as in pylance. Types of one family can be cast to each other.
Integers can also be cast to floats and decimals. A value that the new type cannot represent is an error,
except that floating-point numbers are rounded. For lists and vectors, the type of the items counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import pyarrow as pa

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.blob_references import is_descriptor
from spark_lance.file.blob_writer import blobs_as_stored
from spark_lance.proto import file_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.schema.keys import check_keys, check_same_keys

_TypeTest = Callable[[pa.DataType], bool]


def _any_type(*tests: _TypeTest) -> _TypeTest:
    return lambda kind: any(test(kind) for test in tests)


_text = _any_type(pa.types.is_string, pa.types.is_large_string)
_list = _any_type(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)

# (from, to) -> castable.
_FAMILIES: Sequence[tuple[_TypeTest, _TypeTest]] = (
    (pa.types.is_boolean, pa.types.is_boolean),
    (pa.types.is_integer, pa.types.is_integer),
    # Not float16: large integers would become infinity.
    (pa.types.is_integer, _any_type(pa.types.is_float32, pa.types.is_float64, pa.types.is_decimal)),
    (pa.types.is_floating, pa.types.is_floating),
    (_text, _text),
    (
        _any_type(pa.types.is_binary, pa.types.is_large_binary),
        _any_type(pa.types.is_binary, pa.types.is_large_binary),
    ),
    (_any_type(pa.types.is_date, pa.types.is_timestamp), _any_type(pa.types.is_date, pa.types.is_timestamp)),
    (_any_type(pa.types.is_time, pa.types.is_timestamp), pa.types.is_time),
    (pa.types.is_duration, pa.types.is_duration),
    (pa.types.is_decimal, pa.types.is_decimal),
)


def check_cast(field: Field, target: pa.DataType, path: str) -> None:
    """Refuse to cast a field to a type of another family.

    Raises:
        SchemaError: the target type is of another family, or the field is a struct, whose fields are cast one
            by one.
    """
    if field.kind in ("blob", "packed_struct") or not _can_cast(field.arrow_type(), target):
        raise SchemaError(
            f"column {path!r} of type {field.arrow_type()} cannot be cast to {target}: add a new column with "
            "the converted values instead"
        )


def _can_cast(source: pa.DataType, target: pa.DataType) -> bool:
    if isinstance(source, pa.BaseExtensionType) or isinstance(target, pa.BaseExtensionType):
        return False
    if pa.types.is_dictionary(source):
        return _can_cast(source.value_type, target)
    if pa.types.is_dictionary(target):
        return _can_cast(source, target.value_type)
    if _list(source) and _list(target):
        sizes = {kind.list_size for kind in (source, target) if pa.types.is_fixed_size_list(kind)}
        return len(sizes) < 2 and _can_cast(source.value_type, target.value_type)
    return any(one(source) and other(target) for one, other in _FAMILIES)


def cast_column(array: pa.Array, target: pa.DataType, name: str) -> pa.Array:
    """Return an array cast to the new type of a column.

    Args:
        array: the column, or its altered parts.
        target: the new type.
        name: the name of the column.

    Raises:
        SchemaError: the new type cannot represent a value.
    """
    try:
        return _cast(array, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"column {name!r} has a value that {target} cannot hold: {error}") from error


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if pa.types.is_dictionary(source) and source != target:
        return _cast(array.dictionary_decode(), target)
    if pa.types.is_dictionary(target) and source != target:
        encoded = _cast(array, target.value_type).dictionary_encode()
        indices = encoded.indices.cast(target.index_type)
        return pa.DictionaryArray.from_arrays(indices, encoded.dictionary, ordered=target.ordered)
    return array.cast(target, safe=True)


# Versions of data files in which pylance does not add fields to structs.
_WITHOUT_GROWTH = (FileVersion.V2_0, FileVersion.V2_1)


@dataclass(frozen=True)
class Alteration:
    """The changes of one field; None keeps a property.

    Attributes:
        path: the path of the field, such as "a.b" or "list.item.x".
        added: fields to add to a struct in the values of a map. They are null in all rows.
    """

    path: str
    name: str | None = None
    nullable: bool | None = None
    data_type: pa.DataType | None = None
    added: pa.Schema | None = None


@dataclass(frozen=True)
class AlteredSchema:
    """A new schema, and its fields with a new type.

    Attributes:
        schema: the new schema.
        replaced: id of a removed field -> the new field in its place.
    """

    schema: Schema
    replaced: dict[int, Field]


def new_field_ids(manifest: Manifest) -> Iterator[int]:
    """Yield the ids for new fields of a version, in order."""
    message = manifest.message
    if message.HasField("max_allocated_field_id"):
        return count(message.max_allocated_field_id + 1)
    highest = max((field.id for field in message.fields), default=-1)
    for fragment in message.fragments:
        for file in fragment.files:
            highest = max(highest, *file.fields, -1)
    return count(highest + 1)


def schema_protos(schema: Schema, manifest: Manifest) -> list[file_pb2.Field]:
    """Return a schema's field messages; they keep unknown fields of the manifest's messages."""
    protos = {field.id: field for field in manifest.message.fields}
    messages = []
    for message in schema.to_protos():
        if message.id in protos:
            copy = file_pb2.Field()
            copy.CopyFrom(protos[message.id])
            copy.name, copy.nullable, copy.parent_id = message.name, message.nullable, message.parent_id
            message = copy
        messages.append(message)
    return messages


def add_fields(manifest: Manifest, arrow: pa.Schema) -> tuple[Schema, tuple[Field, ...]]:
    """Return a version's schema with new fields, and the new fields separately, in the order of `arrow`.

    If a column is an existing struct or list of structs, its new fields are added to it.

    Args:
        manifest: the version.
        arrow: the new columns.

    Raises:
        SchemaError: a field exists already, has a reserved name or a type that Lance lacks, or would hold
            descriptors of blobs; a new field of a struct in files before 2.2; another primary key.
    """
    for column in arrow:
        if is_descriptor(column.type):
            raise SchemaError(
                f"column {column.name!r} would hold descriptors of blobs, which mean nothing outside of the "
                "blob's own column: take the bytes (take_blobs) and add these"
            )
    storage_fields = [blobs_as_stored(field, manifest.file_version) for field in arrow]
    new_fields = Schema.from_arrow(pa.schema(storage_fields, arrow.metadata)).fields
    ids = new_field_ids(manifest)
    fields = {field.name: field for field in manifest.schema.fields}
    added = []
    for field in new_fields:
        if field.name in fields:
            if manifest.file_version in _WITHOUT_GROWTH and _can_grow(fields[field.name], field):
                raise SchemaError(f"column {field.name!r}: fields can be added to structs from 2.2 on")
            fields[field.name], part = _merge_fields(fields[field.name], field, ids, field.name)
        else:
            fields[field.name] = part = _assign_ids(field, ids)
        added.append(part)
    schema = Schema(tuple(fields.values()), manifest.schema.metadata)
    check_keys(schema)
    check_same_keys(manifest.schema, schema)
    return schema, tuple(added)


def _assign_ids(field: Field, ids: Iterator[int]) -> Field:
    """Return a field with new ids for itself and then for its children."""
    number = next(ids)
    return replace(field, id=number, children=tuple(_assign_ids(child, ids) for child in field.children))


def _can_grow(field: Field, addition: Field) -> bool:
    lists = ("list.struct", "large_list.struct")
    kinds = {field.logical_type, addition.logical_type}
    return len(kinds) == 1 and (kinds == {"struct"} or field.logical_type in lists) and field.kind != "blob"


def _merge_fields(field: Field, addition: Field, ids: Iterator[int], path: str) -> tuple[Field, Field]:
    """Return a field with the new fields of `addition` added, and the field with only the new fields."""
    if not _can_grow(field, addition) or field.kind == "packed_struct":
        raise SchemaError(
            f"column {path!r} exists already, with the type {field.logical_type}: choose another name, or "
            "change its values by an update (only structs and lists of structs get new fields)"
        )
    children = {child.name: child for child in field.children}
    if field.kind == "list":
        # Ignore the name of a list's item: it differs between Arrow libraries.
        (item,), (other,) = field.children, addition.children
        new_item, part = _merge_fields(item, other, ids, f"{path}.{item.name}")
        return replace(field, children=(new_item,)), replace(field, children=(part,))
    parts = []
    for child in addition.children:
        if child.name in children:
            children[child.name], part = _merge_fields(
                children[child.name], child, ids, f"{path}.{child.name}"
            )
        else:
            children[child.name] = part = _assign_ids(child, ids)
        parts.append(part)
    return replace(field, children=tuple(children.values())), replace(field, children=tuple(parts))


def drop_fields(schema: Schema, paths: Sequence[str]) -> Schema:
    """Return a schema without the named fields, and without structs that would be empty.

    Raises:
        SchemaError: a field does not exist, is a part of the key of a map, or is all that the value of a map
            has; no field would be left, or a part of the primary key would be dropped.
    """
    dropped_ids = set()
    for path in paths:
        nested = schema.find(path)
        if any(field.kind in ("packed_struct", "blob") for field in nested[:-1]) or _is_frame(nested):
            raise SchemaError(f"{path!r} is a part that its column cannot be without: drop the whole column")
        dropped_ids.add(nested[-1].id)
    for field in schema.walk():
        if field.kind == "map" and _drop_below(field.children[0].children[1], dropped_ids) is None:
            raise SchemaError(
                f"map {schema.field_path(field.id)!r} would have values without fields: drop the whole column"
            )
    fields = tuple(
        remaining for field in schema.fields if (remaining := _drop_below(field, dropped_ids)) is not None
    )
    if not fields:
        raise SchemaError("a table cannot lose all its columns: keep one, or delete the table")
    smaller = Schema(fields, schema.metadata)
    check_same_keys(schema, smaller, may_vanish=True)
    return smaller


def move_field(schema: Schema, path: str, after: str | None) -> Schema:
    """Return a schema with a field moved after another field of the same struct, or to the first position.

    Args:
        schema: the schema.
        path: the field.
        after: the field before it; None moves it to the first position.

    Raises:
        SchemaError: a field does not exist, the fields are not in the same struct, or are parts of a map.
    """
    *outer, moving_field = schema.find(path)
    if outer and outer[-1].kind != "struct":
        raise SchemaError(f"{path!r}: only columns and fields of structs have an order")
    siblings = outer[-1].children if outer else schema.fields
    others = [field for field in siblings if field.id != moving_field.id]
    place = 0
    if after is not None:
        *around, before = schema.find(after)
        if [field.id for field in around] != [field.id for field in outer] or before.id == moving_field.id:
            raise SchemaError(f"{path!r} cannot be behind {after!r}, which is not another field next to it")
        place = 1 + next(number for number, field in enumerate(others) if field.id == before.id)
    order = (*others[:place], moving_field, *others[place:])
    for field in reversed(outer):
        changed = replace(field, children=order)
        level = next((up.children for up in outer if field in up.children), schema.fields)
        order = tuple(changed if one.id == field.id else one for one in level)
    return Schema(order, schema.metadata)


def _drop_below(field: Field, dropped_ids: Collection[int]) -> Field | None:
    if field.id in dropped_ids:
        return None
    children = tuple(
        remaining for child in field.children if (remaining := _drop_below(child, dropped_ids)) is not None
    )
    if field.children and not children:
        return None
    return (
        field
        if len(children) == len(field.children) and children == field.children
        else replace(field, children=children)
    )


def alter_fields(manifest: Manifest, alterations: Sequence[Alteration]) -> AlteredSchema:
    """Return a version's schema after the alterations; new ids are in the order of the alterations.

    Raises:
        SchemaError: a field does not exist, a new name is reserved or exists already, a cast is not possible,
            a field of the primary key would be nullable, or fields are added to anything but a struct in the
            values of a map.
    """
    ids = new_field_ids(manifest)
    changed: dict[int, Field] = {}
    replaced: dict[int, Field] = {}
    for alteration in alterations:
        nested = manifest.schema.find(alteration.path)
        old = nested[-1]
        new = changed.get(old.id, old)
        if alteration.name is not None:
            if _is_frame(nested):
                raise SchemaError(f"{alteration.path!r}: the keys and values of a map keep their names")
            new = replace(new, name=alteration.name)
        if alteration.nullable is not None:
            new = replace(new, nullable=alteration.nullable)
        if alteration.data_type is not None:
            check_cast(old, alteration.data_type, alteration.path)
            new = _change_type(new, alteration.data_type, ids)
            replaced[old.id] = new
        if alteration.added is not None:
            new = _grow_map_value(nested, new, alteration, ids)
            replaced[old.id] = new
        changed[old.id] = new
    for inner in changed:
        if any(inner != outer and inner in _ids_below(manifest.schema, outer) for outer in replaced):
            raise SchemaError("a column cannot get a new type while a part of it is altered")
    fields = tuple(_alter_field(field, changed, replaced) for field in manifest.schema.fields)
    schema = Schema(fields, manifest.schema.metadata)
    _check_names(manifest.schema, schema, {field.name for field in changed.values()})
    check_keys(schema)
    check_same_keys(manifest.schema, schema, replaced=replaced)
    return AlteredSchema(
        schema, {number: _find_field(schema, field.id) for number, field in replaced.items()}
    )


def _is_frame(nested: Sequence[Field]) -> bool:
    """Return whether the last field of a path is the entries, the key or the value of a map, or in a key."""
    for depth, field in enumerate(nested[:-1]):
        if field.kind == "map":
            below = nested[depth + 1 :]
            entries = field.children[0]
            if len(below) < 3 or below[1].id == entries.children[0].id:
                return True
    return False


def _grow_map_value(
    nested: Sequence[Field], field: Field, alteration: Alteration, ids: Iterator[int]
) -> Field:
    """Return the struct at the end of a path with new fields. It keeps the ids of the fields that it has."""
    assert alteration.added is not None
    value_ids = {part.children[0].children[1].id for part in nested if part.kind == "map"}
    if field.kind != "struct" or not value_ids.intersection(part.id for part in nested):
        raise SchemaError(f"{alteration.path!r} is no struct in the values of a map, and gets no new fields")
    new_fields = Schema.from_arrow(alteration.added).fields
    names = {child.name for child in field.children}
    if twice := next((new.name for new in new_fields if new.name in names), None):
        raise SchemaError(f"{alteration.path!r} has a field {twice!r} already: choose another name")
    return replace(field, children=(*field.children, *(_assign_ids(new, ids) for new in new_fields)))


def _change_type(field: Field, kind: pa.DataType, ids: Iterator[int]) -> Field:
    """Return a field with a new type and new ids; keep its name, nullability and metadata."""
    (typed,) = Schema.from_arrow(pa.schema([pa.field("x", kind)])).fields
    numbered = _assign_ids(typed, ids)
    return replace(numbered, name=field.name, nullable=field.nullable, metadata=field.metadata)


def _alter_field(field: Field, changed: dict[int, Field], replaced: dict[int, Field]) -> Field:
    if field.id in replaced:
        return changed[field.id]
    children = tuple(_alter_field(child, changed, replaced) for child in field.children)
    return replace(changed.get(field.id, field), children=children)


def _ids_below(schema: Schema, number: int) -> set[int]:
    return {field.id for field in _find_field(schema, number).walk()}


def _find_field(schema: Schema, number: int) -> Field:
    return next(field for field in schema.walk() if field.id == number)


def _check_names(before: Schema, after: Schema, new_names: set[str]) -> None:
    """Refuse names that are reserved, have a dot, or occur twice in the same struct."""
    for name in new_names - {field.name for field in before.walk()}:
        if "." in name:
            raise SchemaError(f"column name {name!r}: a name cannot contain a dot")
    Schema.from_arrow(pa.schema([pa.field(field.name, pa.null()) for field in after.fields]))
    for field in after.walk():
        names = [child.name for child in field.children]
        if len(set(names)) < len(names):
            raise SchemaError(f"a name would occur twice in {field.name!r}: {', '.join(names)}")


def tightened_fields(schema: Schema, alterations: Sequence[Alteration]) -> list[int]:
    """Return the ids of the nullable fields that the alterations make NOT NULL."""
    fields = [schema.find(change.path)[-1] for change in alterations if change.nullable is False]
    return [field.id for field in fields if field.nullable]
