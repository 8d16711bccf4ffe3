"""Fields and schemas of Lance tables and files, and the fields that own a column of a data file.

A schema is a list of field trees. On disk it is flattened depth first, parents before children, each
field naming its parent by id (-1 for the top level). Ids identify columns for the life of a table;
names do not. (Lance table format, schema encoding.)

These fields own a column, in column order. Version 2.0: structs, lists and leaves, depth first. Versions 2.1
and 2.2: leaves only, because lists and structs live in the levels of their leaves. Packed structs, blobs,
dictionaries and fixed-size lists of primitives are one column in all versions. (Lance file format, "which
fields own a column".)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from spark_lance.errors import ColumnNotFoundError, FormatError, SchemaError, suggestion
from spark_lance.file.base.extensions import EXTENSION_NAME, extension_metadata
from spark_lance.file.base.logical import (
    LIST_TYPES,
    STRUCT_FSL_PREFIX,
    from_logical,
    is_nested_logical,
    to_logical,
)
from spark_lance.file.base.version import FileVersion
from spark_lance.jsonb.binary import JSON_EXTENSION
from spark_lance.jsonb.columns import is_json_field, stored_field, text_field
from spark_lance.proto import file_pb2

_TRUE = frozenset({"true", "1", "yes"})
_MAX_DEPTH = 64
_KIND_NAMES = {"list": "list", "map": "map", "fsl_struct": "fixed-size list of structs"}
_PRIMARY_KEY = "lance-schema:unenforced-primary-key"
_CLUSTERING_KEY = "lance-schema:unenforced-clustering-key"


@dataclass(frozen=True)
class Field:
    """One field of a table: a top-level column or a part of one.

    `kind` describes the storage. The children of "list", "map", "struct" and "fsl_struct" (fixed-size list of
    structs) are stored on their own. "packed_struct" and "blob" are one column whatever their children;
    every other field is a "leaf".
    """

    id: int
    name: str
    logical_type: str
    nullable: bool = True
    children: tuple[Field, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)

    @cached_property
    def kind(self) -> str:
        """How the field is stored; see the class."""
        logical = self.logical_type
        if self.is_blob:
            return "blob"
        if logical in LIST_TYPES:
            return "list"
        if logical == "map":
            return "map"
        if logical.startswith(STRUCT_FSL_PREFIX):
            return "fsl_struct"
        if logical == "struct":
            return "packed_struct" if self.is_packed else "struct" if self.children else "leaf"
        return "leaf"

    @property
    def is_packed(self) -> bool:
        """Whether the field metadata requests one row-major column for all children."""
        return any(self.metadata.get(key, "").lower() in _TRUE for key in ("lance-encoding:packed", "packed"))

    def refuse_packed_lists(self, path: str) -> None:
        """Refuse the setting `packed` on lists and maps: pylance writes them, but reads nulls or fails.

        Raises:
            SchemaError: the field is a list, a map or a fixed-size list of structs with the setting. The
                error has the path.
        """
        if self.is_packed and self.kind in _KIND_NAMES:
            raise SchemaError(
                f"column {path!r}: pylance cannot read a {_KIND_NAMES[self.kind]} with lance-encoding:packed,"
                " which is for structs; remove this metadata key"
            )

    @property
    def key_position(self) -> int | None:
        """Position in the primary key, starting at 1. 0: after all numbered fields. None: not in the key."""
        position = self.metadata.get(_PRIMARY_KEY + ":position", "")
        if position.isdecimal():
            return int(position)
        return 0 if self.metadata.get(_PRIMARY_KEY, "").lower() in _TRUE else None

    @property
    def is_blob(self) -> bool:
        """Whether values are stored outside the column, which contains descriptors."""
        return (
            self.metadata.get("lance-encoding:blob", "").lower() in _TRUE
            or self.metadata.get(EXTENSION_NAME) == "lance.blob.v2"
        )

    @property
    def is_json(self) -> bool:
        """Whether values are JSON documents."""
        return self.metadata.get(EXTENSION_NAME) == JSON_EXTENSION

    def as_descriptor(self) -> Field:
        """Return the field as scans return it: blobs, also nested ones, become descriptor structs.

        Version 1 blobs (logical type large_binary) become struct<position, size>, version 2 blobs (struct)
        become struct<kind, position, size, blob_id, blob_uri>. Single files of pylance can have packed
        structs whose fields have the blob setting: these fields are plain values. (Lance file format, blobs.)
        """
        if self.kind == "blob":
            descriptor = _DESCRIPTORS.get(self.logical_type)
            if descriptor is None or self.is_descriptor:
                return self
            children, metadata = descriptor
            return replace(self, logical_type="struct", children=children, metadata=metadata)
        if not self.children or self.kind == "packed_struct":
            return self
        children = tuple(child.as_descriptor() for child in self.children)
        return self if children == self.children else replace(self, children=children)

    @property
    def is_descriptor(self) -> bool:
        """Whether `as_descriptor` returned this field. Its children are no table fields and have id -1."""
        return self.kind == "blob" and bool(self.children) and all(c.id == -1 for c in self.children)

    @property
    def list_size(self) -> int:
        """Length of a fixed-size list of structs.

        Raises:
            FormatError: the logical type has no length.
        """
        length = self.logical_type.removeprefix(STRUCT_FSL_PREFIX)
        if not (length.isdecimal() and len(length) <= 10 and 0 < int(length) < 2**31):
            raise FormatError(f"field {self.name!r} has the malformed logical type {self.logical_type!r}")
        return int(length)

    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type of this field with its remaining children.

        Raises:
            UnsupportedFormatError: the logical type is unknown.
        """
        logical = self.logical_type
        if not is_nested_logical(logical):
            return from_logical(logical)
        fields = [child.arrow_field() for child in self.children]
        if logical == "struct":
            return pa.struct(fields)
        if len(fields) != 1:
            raise FormatError(f"field {self.name!r} of type {logical} must have one child, not {len(fields)}")
        if logical == "map":
            entries = self.children[0].children
            if len(entries) != 2:
                raise FormatError(f"map field {self.name!r} must have a key and a value")
            return pa.map_(entries[0].arrow_field().with_nullable(False), entries[1].arrow_field())
        if logical.startswith(STRUCT_FSL_PREFIX):
            return pa.list_(fields[0], self.list_size)
        return pa.large_list(fields[0]) if logical.startswith("large_") else pa.list_(fields[0])

    def arrow_field(self) -> pa.Field:
        """Return the Arrow field: name, type, nullability and metadata."""
        arrow = self.arrow_type()
        # Arrow's null type must be nullable.
        return pa.field(
            self.name, arrow, self.nullable or pa.types.is_null(arrow), dict(self.metadata) or None
        )

    def read_field(self) -> pa.Field:
        """Return the Arrow field as users read it: blobs as descriptors, JSON as text."""
        return text_field(self.as_descriptor().arrow_field())

    def walk(self) -> Iterator[Field]:
        """Yield this field and all its descendants, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def find_path(self, names: Sequence[str]) -> tuple[Field, ...] | None:
        """Return this field and the nested fields along `names`, through structs; None if one is missing."""
        fields = [self]
        for name in names:
            children = fields[-1].children if fields[-1].kind == "struct" else ()
            child = next((child for child in children if child.name == name), None)
            if child is None:
                return None
            fields.append(child)
        return tuple(fields)

    def prune(self, keep: Callable[[Field], bool]) -> Field | None:
        """Return the field with only the leaves for which `keep` is true.

        Lists, maps and structs without remaining children are removed. Returns None if nothing remains.
        """
        if self.kind not in ("list", "map", "struct", "fsl_struct"):
            return self if keep(self) else None
        children = tuple(pruned for child in self.children if (pruned := child.prune(keep)) is not None)
        return replace(self, children=children) if children else None


_DESCRIPTORS: dict[str, tuple[tuple[Field, ...], dict[str, str]]] = {
    "large_binary": (
        (Field(-1, "position", "uint64"), Field(-1, "size", "uint64")),
        {"lance-encoding:blob": "true"},
    ),
    "struct": (
        (
            Field(-1, "kind", "uint8", nullable=False),
            Field(-1, "position", "uint64", nullable=False),
            Field(-1, "size", "uint64", nullable=False),
            Field(-1, "blob_id", "uint32", nullable=False),
            Field(-1, "blob_uri", "string", nullable=False),
        ),
        {"lance-encoding:blob": "true", "lance-encoding:packed": "true"},
    ),
}


def _from_arrow(arrow: pa.Field, ids: Iterator[int], depth: int = 0) -> Field:
    """Build a field tree. Ids are assigned depth first, parents before children."""
    if depth > _MAX_DEPTH:
        raise SchemaError(f"column {arrow.name!r} is nested more than {_MAX_DEPTH} levels deep")
    own_id = next(ids)
    arrow = stored_field(arrow)
    metadata = _decode_metadata(arrow.metadata, f"column {arrow.name!r}")
    if is_json_field(arrow):
        return Field(own_id, arrow.name, "json", arrow.nullable, (), metadata)
    kind = arrow.type
    if isinstance(kind, pa.BaseExtensionType):
        try:
            metadata.update(extension_metadata(kind))
        except SchemaError as error:
            raise SchemaError(f"column {arrow.name!r}: {error}") from None
        kind = kind.storage_type
    try:
        logical = to_logical(kind)
    except SchemaError as error:
        raise SchemaError(f"column {arrow.name!r}: {error}") from None
    parts: list[pa.Field] = []
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field.with_nullable(False), kind.item_field])
        parts = [pa.field("entries", entries, nullable=False)]
    elif pa.types.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
    elif is_nested_logical(logical):
        parts = [kind.value_field]
    children = tuple(_from_arrow(part, ids, depth + 1) for part in parts)
    return Field(own_id, arrow.name, logical, arrow.nullable, children, metadata)


def _decode_metadata(metadata: Mapping[bytes, bytes] | None, where: str) -> dict[str, str]:
    try:
        return {key.decode(): value.decode() for key, value in (metadata or {}).items()}
    except UnicodeDecodeError:
        raise SchemaError(f"{where} has metadata that is not text, and Lance keeps text: remove it") from None


def _encoding_hint(logical: str) -> int:
    """Return the encoding number of version 0.1, which writers still set and readers of 2.x ignore."""
    if logical in ("struct", "null", "map"):
        return 0
    if logical.removeprefix("large_") in ("string", "binary") or logical == "json":
        return 2
    return 3 if logical.startswith("dict:") else 1


@dataclass(frozen=True)
class Schema:
    """The top-level fields of a table or file, and the schema's own metadata."""

    fields: tuple[Field, ...]
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def from_arrow(cls, schema: pa.Schema, first_id: int = 0, *, reserved: bool = False) -> Schema:
        """Build a schema with new ids, depth first from `first_id`.

        Args:
            reserved: whether columns may have the names of system columns, as in index files.

        Raises:
            SchemaError: Lance does not support a type, or a column name is reserved or occurs twice.
        """
        ids = iter(range(first_id, 2**31))
        fields = tuple(_from_arrow(arrow, ids) for arrow in schema)
        if not reserved:
            _check_names(fields)
        return cls(fields, _decode_metadata(schema.metadata, "the schema"))

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema, including metadata."""
        return pa.schema([f.arrow_field() for f in self.fields], dict(self.metadata) or None)

    @classmethod
    def from_protos(
        cls, messages: Iterable[file_pb2.Field], metadata: Mapping[str, bytes] | None = None
    ) -> Schema:
        """Rebuild the trees from the flattened list.

        Raises:
            FormatError: an id occurs twice, or a parent is missing or comes after its child.
        """
        flat = list(messages)
        children: dict[int, list[file_pb2.Field]] = {-1: []}
        blob_id = -1
        for message in flat:
            if message.parent_id not in children:
                raise FormatError(
                    f"field {message.name!r} names a parent {message.parent_id} that is not before it"
                )
            if message.id < 0:
                # In file schemas the children of blob descriptors have neither id nor parent. They follow
                # their field and have no children.
                parent = blob_id if message.parent_id == -1 else message.parent_id
                children[parent].append(message)
                continue
            if message.id in children:
                raise FormatError(f"field id {message.id} occurs twice")
            children[message.id] = []
            children[message.parent_id].append(message)
            blob_id = message.id if "lance-encoding:blob" in message.metadata else -1

        def build(message: file_pb2.Field, depth: int) -> Field:
            if depth > _MAX_DEPTH:
                raise FormatError(f"field {message.name!r} is nested more than {_MAX_DEPTH} levels deep")
            below = children.get(message.id, []) if message.id >= 0 else []
            parts = tuple(build(child, depth + 1) for child in below)
            return _from_proto(message, parts)

        decoded = {k: v.decode("utf-8", "replace") for k, v in (metadata or {}).items()}
        return cls(tuple(build(message, 0) for message in children[-1]), decoded)

    def to_protos(self) -> list[file_pb2.Field]:
        """Return the flattened list, parents before children."""
        out: list[file_pb2.Field] = []

        def emit(node: Field, parent: int) -> None:
            message = file_pb2.Field(
                name=node.name,
                id=node.id,
                parent_id=parent,
                logical_type=node.logical_type,
                nullable=node.nullable,
                encoding=_encoding_hint(node.logical_type),  # type: ignore[arg-type]
            )
            if EXTENSION_NAME in node.metadata:
                message.extension_name = node.metadata[EXTENSION_NAME]
            for key, value in node.metadata.items():
                message.metadata[key] = value.encode()
            if node.key_position is not None:
                message.unenforced_primary_key = True
                message.unenforced_primary_key_position = node.key_position
            if (position := node.metadata.get(_CLUSTERING_KEY + ":position", "")).isdecimal():
                message.unenforced_clustering_key_position = int(position)
            out.append(message)
            for child in node.children:
                # In files the children of blob descriptors have no parent; see `from_protos`.
                emit(child, node.id if child.id >= 0 else -1)

        for top in self.fields:
            emit(top, -1)
        return out

    def field(self, name: str) -> Field:
        """Return the top-level field called `name`.

        Raises:
            SchemaError: the field does not exist; the message lists the existing ones.
        """
        for candidate in self.fields:
            if candidate.name == name:
                return candidate
        names = [field.name for field in self.fields]
        raise ColumnNotFoundError(
            f"no column {name!r}; the table has {', '.join(names)}{suggestion(name, names)}"
        )

    def find(self, path: str, *, only_structs: bool = False) -> tuple[Field, ...]:
        """Return the field at a dotted path, preceded by its ancestors.

        A top-level column whose name is the whole path, including dots, takes precedence.

        Args:
            path: a column, or a field in it: `d.e`. Names with dots are in backticks: d.`e.f`
            only_structs: exclude parts of lists, maps and blobs, because a row may have none or several of
                them.

        Raises:
            ColumnNotFoundError: the field does not exist; the message lists its siblings.
        """
        steps = [path] if any(top.name == path for top in self.fields) else split_path(path)
        result = [self.field(steps[0])]
        for step in steps[1:]:
            here = result[-1]
            children = {child.name: child for child in here.children}
            if only_structs and here.kind != "struct":
                children = {}
            if step not in children:
                raise ColumnNotFoundError(
                    f"there is no field {path!r}: {here.name!r} has {', '.join(children) or 'no fields'}"
                    f"{suggestion(step, children)}"
                )
            result.append(children[step])
        return tuple(result)

    def find_path(self, names: Sequence[str]) -> tuple[Field, ...] | None:
        """Return the fields along `names`, through structs; None if one is missing."""
        top = next((top for top in self.fields if top.name == names[0]), None)
        return None if top is None else top.find_path(names[1:])

    def field_path(self, field_id: int) -> str:
        """Return the path of a field, in the form that `find` accepts.

        Raises:
            ColumnNotFoundError: the schema does not have the field.
        """
        try:
            return self.paths[field_id]
        except KeyError:
            raise ColumnNotFoundError(f"the table has no field with the id {field_id}") from None

    @cached_property
    def paths(self) -> dict[int, str]:
        """Field id -> path, in the form that `find` accepts."""
        paths: dict[int, str] = {}
        for node in self.walk():
            path = paths.setdefault(node.id, node.name)
            start = quote_name(path) if path == node.name else path
            paths.update((child.id, f"{start}.{quote_name(child.name)}") for child in node.children)
        return paths

    def select(self, names: Sequence[str]) -> Schema:
        """Return the schema of the named top-level columns, in the order of `names`."""
        return Schema(tuple(self.field(name) for name in names), self.metadata)

    def walk(self) -> Iterator[Field]:
        """Yield every field, depth first, parents first."""
        for top in self.fields:
            yield from top.walk()

    def prune(self, ids: Collection[int]) -> Schema:
        """Return the schema with only the leaves whose id is in `ids`."""
        pruned = (top.prune(lambda leaf: leaf.id in ids) for top in self.fields)
        return Schema(tuple(top for top in pruned if top is not None), self.metadata)


def _from_proto(message: file_pb2.Field, parts: tuple[Field, ...]) -> Field:
    metadata = {k: v.decode("utf-8", "replace") for k, v in message.metadata.items()}
    if message.extension_name and EXTENSION_NAME not in metadata:
        metadata[EXTENSION_NAME] = message.extension_name
    return Field(message.id, message.name, message.logical_type, message.nullable, parts, metadata)


_STEP = re.compile(r"(?:`((?:[^`]|``)+)`|([^.]*))(?:\.|$)")


def split_path(path: str) -> list[str]:
    """Return the names in a dotted path. A name in backticks can have dots, and `` for a backtick."""
    if "`" not in path:
        return path.split(".")
    names, position = [], 0
    while position <= len(path):
        step = _STEP.match(path, position)
        if step is None:
            return path.split(".")
        names.append(step[2] if step[1] is None else step[1].replace("``", "`"))
        if step.end() == len(path) and not step[0].endswith("."):
            break
        position = step.end()
    return names


def quote_name(name: str) -> str:
    """Return a name as a step of a path: in backticks if it has dots or starts with a backtick."""
    return f"`{name.replace('`', '``')}`" if "." in name or name.startswith("`") else name


_RESERVED = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)


def _check_names(fields: Sequence[Field]) -> None:
    names: set[str] = set()
    for top in fields:
        if not top.name:
            raise SchemaError("a column has no name, and Lance finds columns by name: rename the column")
        if top.name in _RESERVED:
            raise SchemaError(
                f"column name {top.name!r} is reserved by Lance for what a read adds; leave the column out, "
                "or rename it"
            )
        if "." in top.name:
            raise SchemaError(f"column name {top.name!r} has a dot, which Lance reserves; rename the column")
        if top.name in names:
            raise SchemaError(f"column name {top.name!r} occurs twice: choose another name for one of them")
        names.add(top.name)


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
