"""The metadata of a fragment in a manifest, with conversion to and from JSON."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.proto import table_pb2
from spark_lance.table.format.paths import deletion_path

_KINDS = table_pb2.DeletionFile
_DELETION_TYPES = {"array": _KINDS.ARROW_ARRAY, "bitmap": _KINDS.BITMAP}


class _PathText(str):
    """The path of a file. It is callable for scripts for old releases of pylance."""

    def __call__(self) -> str:
        warnings.warn("DataFile.path is text: leave out the brackets", DeprecationWarning, stacklevel=2)
        return str(self)


@dataclass
class DataFile:
    """A data file of a fragment.

    Attributes:
        path: file name in the table's folder `data`.
        fields: ids of the fields in the file; -2 for a field that is no longer valid.
        column_indices: index of each field's first column in the file.
        file_major_version, file_minor_version: format version of the file.
        file_size_bytes: size of the file; None if it is unknown.
        base_id: id of the file's base path; None for the table's root.
    """

    path: str
    fields: list[int]
    column_indices: list[int] = field(default_factory=list)
    file_major_version: int = 0
    file_minor_version: int = 0
    file_size_bytes: int | None = None
    base_id: int | None = None

    def __post_init__(self) -> None:
        self.path = _PathText(self.path)

    def __repr__(self) -> str:
        base = "" if self.base_id is None else f", base_id={self.base_id}"
        return (
            f"DataFile(path={self.path!r}, fields={self.fields}, column_indices={self.column_indices}, "
            f"file_major_version={self.file_major_version}, file_minor_version={self.file_minor_version}, "
            f"file_size_bytes={self.file_size_bytes}{base})"
        )

    def field_ids(self) -> list[int]:
        """Return the ids of the fields in the file."""
        return list(self.fields)

    @classmethod
    def of(cls, message: table_pb2.DataFile) -> DataFile:
        """Parse a protobuf message."""
        return cls(
            message.path,
            list(message.fields),
            list(message.column_indices),
            message.file_major_version,
            message.file_minor_version,
            message.file_size_bytes or None,
            message.base_id if message.HasField("base_id") else None,
        )

    def message(self) -> table_pb2.DataFile:
        """Return the protobuf message for a manifest."""
        return table_pb2.DataFile(
            path=self.path,
            fields=self.fields,
            column_indices=self.column_indices or [],
            file_major_version=self.file_major_version,
            file_minor_version=self.file_minor_version,
            file_size_bytes=self.file_size_bytes or 0,
            base_id=self.base_id,
        )


@dataclass(frozen=True)
class DeletionFile:
    """The deletion file of a fragment.

    Attributes:
        read_version: the version that the deletion is based on.
        id: id of the file.
        file_type: "array" or "bitmap".
        num_deleted_rows: number of deleted rows.
        base_id: id of the file's base path; None for the table's root.
    """

    read_version: int
    id: int
    file_type: str
    num_deleted_rows: int
    base_id: int | None = None

    def __post_init__(self) -> None:
        if self.file_type not in _DELETION_TYPES:
            raise FormatError(f"a deletion file is of type array or bitmap, not {self.file_type!r}")

    def __repr__(self) -> str:
        return f"DeletionFile(type={self.file_type!r}, num_deleted_rows={self.num_deleted_rows})"

    def asdict(self) -> dict[str, Any]:
        """Return the values as a dict."""
        names = ("read_version", "id", "file_type", "num_deleted_rows", "base_id")
        return {name: getattr(self, name) for name in names}

    def json(self) -> str:
        """Return the values as JSON text."""
        return json.dumps(self.asdict())

    @classmethod
    def from_json(cls, text: str) -> DeletionFile:
        """Parse JSON text."""
        return cls(**json.loads(text))

    def path(self, fragment_id: int, base_uri: str | None = None) -> str:
        """Return the path of the file, relative to the table's root or below `base_uri`."""
        path = deletion_path("", fragment_id, self.message()).lstrip("/")
        return path if base_uri is None else f"{base_uri.rstrip('/')}/{path}"

    @classmethod
    def of(cls, message: table_pb2.DeletionFile) -> DeletionFile:
        """Parse a protobuf message."""
        types = {number: name for name, number in _DELETION_TYPES.items()}
        if message.file_type not in types:
            raise UnsupportedFormatError(f"deletion file type {message.file_type}")
        return cls(
            message.read_version,
            message.id,
            types[message.file_type],
            message.num_deleted_rows,
            message.base_id if message.HasField("base_id") else None,
        )

    def message(self) -> table_pb2.DeletionFile:
        """Return the protobuf message for a manifest."""
        return table_pb2.DeletionFile(
            file_type=_DELETION_TYPES[self.file_type],
            read_version=self.read_version,
            id=self.id,
            num_deleted_rows=self.num_deleted_rows,
            base_id=self.base_id,
        )


@dataclass(frozen=True, repr=False)
class _Sequence:
    """A sequence of one number per row, in the encoding of the manifest."""

    key: ClassVar[str] = "inline"
    data: bytes

    def asdict(self) -> dict[str, list[int]]:
        """Return the values as a dict."""
        return {self.key: list(self.data)}

    def json(self) -> str:
        """Return the values as JSON text."""
        return json.dumps(self.asdict(), separators=(",", ":"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.data)} bytes)"

    @classmethod
    def _parse(cls, document: Mapping[str, Any]) -> bytes:
        values = next((value for key, value in document.items() if key.lower() == "inline"), None)
        if values is None:
            raise UnsupportedFormatError(
                f"{cls.__name__} that is {', '.join(document) or 'empty'}, not inline"
            )
        return bytes(values)


class RowIdMeta(_Sequence):
    """The stable row ids of a fragment."""

    key: ClassVar[str] = "Inline"

    @classmethod
    def from_json(cls, text: str) -> RowIdMeta:
        """Parse JSON text."""
        return cls(cls._parse(json.loads(text)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RowIdMeta:
        """Parse a dict."""
        return cls(cls._parse(values))


class RowDatasetVersionMeta(_Sequence):
    """The versions in which the rows of a fragment were created or last updated."""

    @classmethod
    def from_json(cls, text: str) -> RowDatasetVersionMeta:
        """Parse JSON text."""
        return cls(cls._parse(json.loads(text)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RowDatasetVersionMeta:
        """Parse a dict."""
        return cls(cls._parse(values))


@dataclass
class FragmentMetadata:
    """The metadata of a fragment: files, number of rows, deletions and row ids.

    Attributes:
        id: id of the fragment; 0 if the commit assigns it.
        files: the data files.
        physical_rows: number of stored rows, including deleted rows.
        deletion_file: the deletion file; None if no row is deleted.
        row_id_meta, created_at_version_meta, last_updated_at_version_meta: row ids and row versions, only in
            tables with stable row ids.
    """

    id: int
    files: list[DataFile]
    physical_rows: int = 0
    deletion_file: DeletionFile | None = None
    row_id_meta: RowIdMeta | None = None
    created_at_version_meta: RowDatasetVersionMeta | None = None
    last_updated_at_version_meta: RowDatasetVersionMeta | None = None

    @property
    def num_deletions(self) -> int:
        """The number of deleted rows."""
        return 0 if self.deletion_file is None else self.deletion_file.num_deleted_rows

    @property
    def num_rows(self) -> int:
        """The number of live rows."""
        return self.physical_rows - self.num_deletions

    def data_files(self) -> list[DataFile]:
        """Return the data files."""
        return self.files

    def to_json(self) -> dict[str, Any]:
        """Return the fragment as a dict for the module json."""
        sequences = ("row_id_meta", "created_at_version_meta", "last_updated_at_version_meta")
        return {
            "id": self.id,
            "files": [dict(file.__dict__) for file in self.files],
            "physical_rows": self.physical_rows,
            "deletion_file": None if self.deletion_file is None else self.deletion_file.asdict(),
            **{
                name: None if getattr(self, name) is None else getattr(self, name).asdict()
                for name in sequences
            },
        }

    @classmethod
    def from_json(cls, json_data: str | Mapping[str, Any]) -> FragmentMetadata:
        """Parse a fragment from JSON text or from the dict of `to_json`.

        Raises:
            UnsupportedFormatError: the fragment has overlays, or sequences that are not inline.
            FormatError: the JSON is invalid or lacks a required value.
        """
        try:
            values = json.loads(json_data) if isinstance(json_data, str) else json_data
        except ValueError as error:
            raise FormatError(f"this describes no fragment, for it is no JSON: {error}") from None
        if not isinstance(values, Mapping):
            raise FormatError(f"this JSON describes no fragment: it is {type(values).__name__}, no object")
        if values.get("overlays"):
            raise UnsupportedFormatError("fragments with overlays are not taken as JSON")
        names = DataFile.__dataclass_fields__
        try:
            files = [
                DataFile(**{key: value for key, value in file.items() if key in names})
                for file in values["files"]
            ]
            deletion, row_ids = values.get("deletion_file"), values.get("row_id_meta")
            created, updated = (
                values.get("created_at_version_meta"),
                values.get("last_updated_at_version_meta"),
            )
            return cls(
                values["id"],
                files,
                values.get("physical_rows") or 0,
                DeletionFile(**deletion) if deletion else None,
                RowIdMeta.from_dict(row_ids) if row_ids else None,
                RowDatasetVersionMeta.from_dict(created) if created else None,
                RowDatasetVersionMeta.from_dict(updated) if updated else None,
            )
        except (KeyError, TypeError) as error:
            raise FormatError(f"this JSON describes no fragment: {error}") from error

    @classmethod
    def of(cls, message: table_pb2.DataFragment) -> FragmentMetadata:
        """Parse a protobuf message.

        Raises:
            UnsupportedFormatError: the fragment has overlays, or stores row ids in a column.
        """
        if message.overlays:
            raise UnsupportedFormatError(f"fragment {message.id} has overlays")
        result = cls(message.id, [DataFile.of(file) for file in message.files], message.physical_rows)
        if message.HasField("deletion_file"):
            result.deletion_file = DeletionFile.of(message.deletion_file)
        for arm, field_name, name, kind in _SEQUENCES:
            which = message.WhichOneof(arm)
            if which == field_name:
                setattr(result, name, kind(getattr(message, field_name)))
            elif which is not None:
                raise UnsupportedFormatError(f"fragment {message.id} has its {name} in a column")
        return result

    def message(self) -> table_pb2.DataFragment:
        """Return the protobuf message for a manifest."""
        message = table_pb2.DataFragment(
            id=self.id, files=[file.message() for file in self.files], physical_rows=self.physical_rows
        )
        if self.deletion_file is not None:
            message.deletion_file.CopyFrom(self.deletion_file.message())
        for _, field_name, name, _ in _SEQUENCES:
            if (sequence := getattr(self, name)) is not None:
                setattr(message, field_name, sequence.data)
        return message


# Oneof of the message, its field with bytes, attribute of `FragmentMetadata`, class.
_SEQUENCES: tuple[tuple[str, str, str, type[RowIdMeta] | type[RowDatasetVersionMeta]], ...] = (
    ("row_id_sequence", "inline_row_ids", "row_id_meta", RowIdMeta),
    (
        "created_at_version_sequence",
        "inline_created_at_versions",
        "created_at_version_meta",
        RowDatasetVersionMeta,
    ),
    (
        "last_updated_at_version_sequence",
        "inline_last_updated_at_versions",
        "last_updated_at_version_meta",
        RowDatasetVersionMeta,
    ),
)


def fragment_messages(fragments: Iterable[Any]) -> list[table_pb2.DataFragment]:
    """Return the protobuf messages of `FragmentMetadata`, or of objects with it as `metadata`."""
    result = []
    for fragment in fragments:
        metadata = getattr(fragment, "metadata", fragment)
        if isinstance(metadata, FragmentMetadata):
            result.append(metadata.message())
        elif isinstance(metadata, table_pb2.DataFragment):
            result.append(metadata)
        else:
            raise TypeError(f"a fragment is FragmentMetadata, not {type(fragment).__name__}")
    return result
