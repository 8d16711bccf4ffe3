"""The metadata of a fragment in a manifest, as values that can be sent as JSON."""

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
    """The name of a file, which scripts for old releases of pylance call."""

    def __call__(self) -> str:
        warnings.warn("DataFile.path is text: leave out the brackets", DeprecationWarning, stacklevel=2)
        return str(self)


@dataclass
class DataFile:
    """A data file of a fragment.

    Attributes:
        path: its name in the table's folder `data`.
        fields: ids of the fields that it has; -2 for one that counts no more.
        column_indices: where each of them is in the file.
        file_major_version, file_minor_version: of its format.
        file_size_bytes: None if unknown.
        base_id: the base path that it is under; None for the table's own root.
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
        """Return the ids of its fields."""
        return list(self.fields)

    @classmethod
    def of(cls, message: table_pb2.DataFile) -> DataFile:
        """Return what a message says."""
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
        """Return the message for a manifest."""
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
        read_version: the version that the deletion was computed from.
        id: its number.
        file_type: "array" or "bitmap".
        num_deleted_rows: rows that are deleted.
        base_id: the base path that it is under; None for the table's own root.
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
        """Return it as a dict."""
        names = ("read_version", "id", "file_type", "num_deleted_rows", "base_id")
        return {name: getattr(self, name) for name in names}

    def json(self) -> str:
        """Return it as JSON."""
        return json.dumps(self.asdict())

    @classmethod
    def from_json(cls, text: str) -> DeletionFile:
        """Return what JSON says."""
        return cls(**json.loads(text))

    def path(self, fragment_id: int, base_uri: str | None = None) -> str:
        """Return where it is, from the table's root or from `base_uri`."""
        path = deletion_path("", fragment_id, self.message()).lstrip("/")
        return path if base_uri is None else f"{base_uri.rstrip('/')}/{path}"

    @classmethod
    def of(cls, message: table_pb2.DeletionFile) -> DeletionFile:
        """Return what a message says."""
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
        """Return the message for a manifest."""
        return table_pb2.DeletionFile(
            file_type=_DELETION_TYPES[self.file_type],
            read_version=self.read_version,
            id=self.id,
            num_deleted_rows=self.num_deleted_rows,
            base_id=self.base_id,
        )


@dataclass(frozen=True, repr=False)
class _Sequence:
    """A sequence of numbers of rows, encoded as the manifest has it."""

    key: ClassVar[str] = "inline"
    data: bytes

    def asdict(self) -> dict[str, list[int]]:
        """Return it as a dict."""
        return {self.key: list(self.data)}

    def json(self) -> str:
        """Return it as JSON."""
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
        """Return what JSON says."""
        return cls(cls._parse(json.loads(text)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RowIdMeta:
        """Return what a dict says."""
        return cls(cls._parse(values))


class RowDatasetVersionMeta(_Sequence):
    """The versions in which the rows of a fragment were made or last changed."""

    @classmethod
    def from_json(cls, text: str) -> RowDatasetVersionMeta:
        """Return what JSON says."""
        return cls(cls._parse(json.loads(text)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RowDatasetVersionMeta:
        """Return what a dict says."""
        return cls(cls._parse(values))


@dataclass
class FragmentMetadata:
    """A fragment: its files, and what is known of its rows.

    Attributes:
        id: its number in the table; 0 for one that a commit is to number.
        files: its data files.
        physical_rows: rows stored, deleted ones included.
        deletion_file: None if no row is deleted.
        row_id_meta, created_at_version_meta, last_updated_at_version_meta: of tables with stable row ids.
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
        """Rows that are deleted."""
        return 0 if self.deletion_file is None else self.deletion_file.num_deleted_rows

    @property
    def num_rows(self) -> int:
        """Rows that are not deleted."""
        return self.physical_rows - self.num_deletions

    def data_files(self) -> list[DataFile]:
        """Return the data files."""
        return self.files

    def to_json(self) -> dict[str, Any]:
        """Return it as values that the module json takes."""
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
        """Return what JSON text, or the values of `to_json`, say.

        Raises:
            UnsupportedFormatError: it has overlays, or sequences that are no part of it.
            FormatError: a file lacks what it needs.
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
        """Return what a message says.

        Raises:
            UnsupportedFormatError: it has overlays, or row ids in a column.
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
        """Return the message for a manifest."""
        message = table_pb2.DataFragment(
            id=self.id, files=[file.message() for file in self.files], physical_rows=self.physical_rows
        )
        if self.deletion_file is not None:
            message.deletion_file.CopyFrom(self.deletion_file.message())
        for _, field_name, name, _ in _SEQUENCES:
            if (sequence := getattr(self, name)) is not None:
                setattr(message, field_name, sequence.data)
        return message


# Oneof of the message, its arm that holds bytes, attribute, class.
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


def messages_of(fragments: Iterable[Any]) -> list[table_pb2.DataFragment]:
    """Return the messages of fragments: of `FragmentMetadata`, or of what has it as `metadata`."""
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
