"""The metadata tables of the content of one version: fragments, files, schema, config."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from spark_lance.errors import UnsupportedFormatError
from spark_lance.file.base.schema import Field
from spark_lance.io.locations import join
from spark_lance.io.store import Store
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.paths import TRANSACTIONS_DIR
from spark_lance.table.format.reserved_names import visible_settings
from spark_lance.table.format.row_set import row_address
from spark_lance.table.format.rowids import row_id_bounds
from spark_lance.table.metadata.columns import TEXT_MAP, TEXTS, Column, MetadataTable
from spark_lance.table.reading.snapshot import Snapshot

_MAX_I64 = 2**63 - 1
# Storage of a fragment's row ids in the manifest -> value in the metadata table.
_ID_PLACES = {None: "address", "inline_row_ids": "inline", "column_row_ids": "file"}


@dataclass(frozen=True)
class _Names:
    """The column names of a version by field id."""

    snapshot: Snapshot

    @cached_property
    def top_columns(self) -> dict[int, str]:
        """Field id -> name of its top-level column."""
        return {
            node.id: column.name for column in self.snapshot.manifest.schema.fields for node in column.walk()
        }


@dataclass(frozen=True)
class _Fragment:
    names: _Names
    bases: Bases
    message: table_pb2.DataFragment

    @property
    def physical_rows(self) -> int:
        return physical_rows(self.bases.table, self.message, self.bases)

    @property
    def deleted_rows(self) -> int:
        return int(self.message.deletion_file.num_deleted_rows)


def _fragments(snapshot: Snapshot) -> Iterator[_Fragment]:
    names, bases = _Names(snapshot), snapshot.bases
    return (_Fragment(names, bases, message) for message in snapshot.manifest.fragments)


def _fragment_bytes(row: _Fragment) -> int | None:
    sizes = [file.file_size_bytes for file in row.message.files]
    return None if 0 in sizes else sum(sizes)


def _stored_columns(row: _Fragment) -> list[str]:
    """Return the top-level columns that are stored in the fragment; other columns are null in it."""
    columns = row.names.top_columns
    names = {columns[number] for file in row.message.files for number in file.fields if number in columns}
    return [column.name for column in row.names.snapshot.manifest.schema.fields if column.name in names]


def _deletion_file(row: _Fragment) -> str | None:
    if not row.message.HasField("deletion_file"):
        return None
    return _uri(row.bases.deletion_file(row.message.id, row.message.deletion_file))


def _row_ids(row: _Fragment) -> tuple[int | None, int | None]:
    """Return the lowest and the highest row id; None if ids are in a data file or there are no rows."""
    storage = row.message.WhichOneof("row_id_sequence")
    if storage == "column_row_ids" or not row.physical_rows:
        return None, None
    if storage is None:
        first = row_address(row.message.id, 0)
        bounds = (first, first + row.physical_rows - 1)
    else:
        bounds = row_id_bounds(row.message.inline_row_ids, row.physical_rows)
    return bounds if bounds[1] <= _MAX_I64 else (None, None)


FRAGMENTS = MetadataTable(
    (
        Column("id", pa.int64(), lambda row: row.message.id, "id of the fragment"),
        Column("rows", pa.int64(), lambda row: row.physical_rows - row.deleted_rows, "live rows"),
        Column("physical_rows", pa.int64(), lambda row: row.physical_rows, "stored rows"),
        Column("deleted_rows", pa.int64(), lambda row: row.deleted_rows, "deleted rows"),
        Column("bytes", pa.int64(), _fragment_bytes, "size of its data files"),
        Column(
            "data_files",
            TEXTS,
            lambda row: [file.path for file in row.message.files],
            "names of its data files",
        ),
        Column("columns", TEXTS, _stored_columns, "top-level columns in it; others are null"),
        Column("deletion_file", pa.string(), _deletion_file, "URI of its deletion file"),
        Column(
            "row_ids",
            pa.string(),
            lambda row: _ID_PLACES[row.message.WhichOneof("row_id_sequence")],
            "`address`: not stable; `inline`: ids in the manifest; `file`: ids in a data file",
        ),
        Column(
            "min_row_id",
            pa.int64(),
            lambda row: _row_ids(row)[0],
            "lowest row id; null for `file`",
        ),
        Column("max_row_id", pa.int64(), lambda row: _row_ids(row)[1], "highest row id"),
    ),
    _fragments,
)


@dataclass(frozen=True)
class _File:
    """A file of a version.

    Attributes:
        role: "manifest", "transaction", "data", "overlay", "deletion" or "index".
        locate: returns the store and the path of the file.
        fragment: the id of its fragment.
        message: its message in the manifest; None for some roles.
        names: the column names.
        index: the name of its index.
        size: its size, if the manifest has it.
    """

    role: str
    locate: Callable[[], tuple[Store, str]]
    fragment: int | None = None
    message: Any = None
    names: _Names | None = None
    index: str | None = None
    size: int | None = None

    @property
    def base(self) -> int | None:
        return self.message.base_id if self.message is not None and self.message.HasField("base_id") else None

    @property
    def file_version(self) -> str | None:
        if not isinstance(self.message, table_pb2.DataFile):
            return None
        return f"{self.message.file_major_version}.{self.message.file_minor_version}"

    @property
    def fields(self) -> list[str] | None:
        if self.names is None:
            return None
        paths = self.names.snapshot.manifest.schema.paths
        return [paths[number] for number in self.message.fields if number in paths]


def _files(snapshot: Snapshot) -> Iterator[_File]:
    store, manifest, bases, names = snapshot.store, snapshot.manifest, snapshot.bases, _Names(snapshot)
    yield _File("manifest", lambda: (store, manifest.path))
    if manifest.transaction_file:
        path = join(snapshot.root, TRANSACTIONS_DIR, manifest.transaction_file)
        yield _File("transaction", lambda: (store, path))
    for fragment in manifest.fragments:
        yield from _fragment_files(fragment, bases, names)
    for entry in manifest.indices:
        yield from _index_files(entry, bases, names)


def _fragment_files(fragment: table_pb2.DataFragment, bases: Bases, names: _Names) -> Iterator[_File]:
    parts = [("data", file) for file in fragment.files]
    parts += [("overlay", overlay.data_file) for overlay in fragment.overlays]
    for role, file in parts:
        locate = _defer(bases.data_file, file)
        yield _File(role, locate, fragment.id, file, names, size=file.file_size_bytes or None)
    if fragment.HasField("deletion_file"):
        entry = fragment.deletion_file
        yield _File("deletion", _defer(bases.deletion_file, fragment.id, entry), fragment.id, entry)


def _index_files(entry: table_pb2.IndexMetadata, bases: Bases, names: _Names) -> Iterator[_File]:
    """Yield the files of an index; its directory if the manifest does not list the files."""
    files: list[tuple[str, int | None]] = [(file.path, file.size_bytes) for file in entry.files]
    for path, size in files or [("", None)]:

        def locate(path: str = path) -> tuple[Store, str]:
            store, directory = bases.index_dir(entry)
            return store, join(directory, path) if path else directory

        yield _File("index", locate, None, entry, names, entry.name, size)


def _defer(find: Callable[..., tuple[Store, str]], *arguments: Any) -> Callable[[], tuple[Store, str]]:
    return lambda: find(*arguments)


def _uri(location: tuple[Store, str]) -> str:
    store, path = location
    return store.uri(path)


FILES = MetadataTable(
    (
        Column("path", pa.string(), lambda row: _uri(row.locate()), "URI of the file"),
        Column(
            "role",
            pa.string(),
            lambda row: row.role,
            "`manifest`, `transaction`, `data`, `deletion`, `overlay` or `index`",
        ),
        Column("bytes", pa.int64(), lambda row: row.size, "size"),
        Column("fragment", pa.int64(), lambda row: row.fragment, "id of its fragment"),
        Column("index", pa.string(), lambda row: row.index, "name of its index"),
        Column("fields", TEXTS, lambda row: row.fields, "paths of the columns in it"),
        Column("file_version", pa.string(), lambda row: row.file_version, "format version of a data file"),
        Column(
            "base",
            pa.int64(),
            lambda row: row.base,
            "id of its base path; null: the table's own folder",
        ),
    ),
    _files,
)


@dataclass(frozen=True)
class _Node:
    """A field of the schema with its path and the id of its parent."""

    field: Field
    path: str
    parent: int | None


def _schema(snapshot: Snapshot) -> Iterator[_Node]:
    return (node for field in snapshot.manifest.schema.fields for node in _nodes(field, "", None))


def _nodes(field: Field, above: str, parent: int | None) -> Iterator[_Node]:
    path = f"{above}.{field.name}" if above else field.name
    yield _Node(field, path, parent)
    for child in field.children:
        yield from _nodes(child, path, field.id)


def _arrow_type(row: _Node) -> str | None:
    try:
        return str(row.field.arrow_type())
    except UnsupportedFormatError:
        return None


SCHEMA = MetadataTable(
    (
        Column("id", pa.int64(), lambda row: row.field.id, "id of the field, also after renaming"),
        Column("parent_id", pa.int64(), lambda row: row.parent, "id of its parent field"),
        Column("path", pa.string(), lambda row: row.path, "its full name"),
        Column("name", pa.string(), lambda row: row.field.name, "its own name"),
        Column("type", pa.string(), lambda row: row.field.logical_type, "Lance's name of the type"),
        Column("arrow_type", pa.string(), _arrow_type, "Arrow type"),
        Column("nullable", pa.bool_(), lambda row: row.field.nullable, "whether it can have nulls"),
        Column(
            "key_position",
            pa.int64(),
            lambda row: row.field.key_position,
            "position in the primary key, from 1; 0: after fields with a position; null: not in the key",
        ),
        Column("metadata", TEXT_MAP, lambda row: dict(row.field.metadata), "metadata of the field"),
    ),
    _schema,
)


def _config(snapshot: Snapshot) -> Iterator[tuple[str, str, str]]:
    """Yield (scope, key, value) of all settings and of the metadata of the table and its schema."""
    manifest = snapshot.manifest
    scopes = {
        "config": visible_settings(manifest.config),
        "table metadata": manifest.table_metadata,
        "schema metadata": manifest.schema.metadata,
    }
    for scope, values in scopes.items():
        yield from ((scope, key, values[key]) for key in sorted(values))


CONFIG = MetadataTable(
    (
        Column("scope", pa.string(), lambda row: row[0], "`config`, `table metadata` or `schema metadata`"),
        Column("key", pa.string(), lambda row: row[1], "name of the setting"),
        Column("value", pa.string(), lambda row: row[2], "its value"),
    ),
    _config,
)
