"""Manifests: one file per table version, with all metadata of the version.

All integers are little-endian. The first two sections are optional; a section is a length and a protobuf
message, and is found by the absolute offset of its length:

    index section        u32 length | IndexSection          at Manifest.index_section
    inline transaction   u32 length | Transaction           at Manifest.transaction_section, up to 20 MiB
    manifest             u32 length | Manifest              at the offset named by the footer
    footer               i64 manifest offset | u16 0 | u16 2 | "LANC"          16 bytes, the end of the file

The two numbers of the footer have no meaning: writers before Lance 1.0 wrote (0, 1), and readers ignore them.
The feature flags contain the requirements for readers.

Example, the first commit of a small table:

    `b3 00 00 00` and 179 bytes of transaction, `e9 00 00 00` and 233 bytes of manifest,
    `b7 00 00 00 00 00 00 00  00 00  02 00  4c 41 4e 43`

Offset 0 is valid: a section exists if its offset field is present.

`Manifest` keeps the protobuf message itself, so fields that this release does not know survive a commit.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property

from google.protobuf.message import DecodeError

from spark_lance.errors import FormatError, OptionError, TornManifestError, UnsupportedFormatError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import DEFAULT_VERSION, FileVersion
from spark_lance.io.store import Store
from spark_lance.io.stored_names import check_message
from spark_lance.proto import table_pb2
from spark_lance.table.format.features import RETIRED_V2_MARK, STABLE_ROW_IDS, FragmentFacts
from spark_lance.table.format.paths import ManifestNaming

MAX_INLINE_TRANSACTION = 20 * 1024 * 1024
_MAGIC = b"LANC"
_FORMAT_NUMBERS = (0, 2)
_FOOTER = struct.Struct("<qHH4s")
_LENGTH = struct.Struct("<I")
_TAIL = 64 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@dataclass(frozen=True, eq=False)
class Manifest:
    """One version of a table. `message` and the rest are never changed after construction.

    Attributes:
        message: the decoded Manifest message.
        index_section: the serialized IndexSection, empty if the version has no indexes.
        naming: the naming scheme of the table's manifests.
        path: the path at which the manifest is or will be stored.
        inline_transaction: the serialized Transaction, if the read of the manifest included it.
        inferred: uuid of an index entry -> type URL of its details, for entries without details.
    """

    message: table_pb2.Manifest
    index_section: bytes
    naming: ManifestNaming
    path: str
    inline_transaction: bytes | None = field(default=None, repr=False)
    inferred: Mapping[bytes, str] = field(default_factory=dict, repr=False)

    def __getstate__(self) -> dict[str, object]:
        # Messages can be pickled, but cached properties with lists inside of messages cannot.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @property
    def version(self) -> int:
        """The version number, counted from 1."""
        return self.message.version

    @cached_property
    def schema(self) -> Schema:
        """The table's schema with field ids.

        Raises:
            FormatError: the field list is not a valid tree, or a field has a negative id.
        """
        try:
            if negative := [field.name for field in self.message.fields if field.id < 0]:
                raise FormatError(f"field {negative[0]!r} has a negative id")
            return Schema.from_protos(self.message.fields, self.message.schema_metadata)
        except FormatError as error:
            raise error.at(path=self.path, place="schema") from error

    @property
    def fragments(self) -> Sequence[table_pb2.DataFragment]:
        """The fragments in scan order."""
        return self.message.fragments

    @cached_property
    def facts(self) -> FragmentFacts:
        """Facts about all fragments."""
        return FragmentFacts.of(self.message.fragments)

    def with_inline_transaction(self, transaction: bytes) -> Manifest:
        """Return this version as a reader reads it, after it was packed with a transaction."""
        inline = transaction if self.message.HasField("transaction_section") else None
        return replace(self, inline_transaction=inline, inferred={}).with_facts(self.facts)

    def with_facts(self, facts: FragmentFacts) -> Manifest:
        """Set the facts about the fragments, so that they are not computed again, and return this version."""
        self.__dict__["facts"] = facts  # where cached_property stores it
        return self

    @cached_property
    def timestamp(self) -> datetime:
        """The commit time of the version (UTC, microseconds); 1970 if the writer did not record it.

        Raises:
            FormatError: the time is outside the calendar.
        """
        timestamp = self.message.timestamp
        try:
            return _EPOCH + timedelta(seconds=timestamp.seconds, microseconds=timestamp.nanos // 1000)
        except OverflowError as error:
            raise FormatError(
                f"timestamp {timestamp.seconds} s is outside the calendar", path=self.path
            ) from error

    @cached_property
    def file_version(self) -> FileVersion:
        """The version of the table's data files; taken from the files if the manifest does not record it.

        Without files, a flag of old writers distinguishes version 2.0 or newer from legacy files.

        Raises:
            UnsupportedFormatError: this release neither reads nor writes files of this version.
        """
        name = self.message.data_format.version
        try:
            if name:
                return FileVersion.from_data_format(name)
            for fragment in self.fragments:
                for file in fragment.files:
                    return FileVersion.from_manifest(file.file_major_version, file.file_minor_version)
        except (OptionError, UnsupportedFormatError) as error:
            raise UnsupportedFormatError(f"the table's data files: {error}", path=self.path) from error
        has_mark = self.message.writer_feature_flags & RETIRED_V2_MARK
        return DEFAULT_VERSION if has_mark else FileVersion.V0_1

    @property
    def uses_stable_row_ids(self) -> bool:
        """Whether rows keep their `_rowid` when they move."""
        return bool(self.message.reader_feature_flags & STABLE_ROW_IDS)

    @property
    def next_row_id(self) -> int:
        """The next stable row id to assign; no row ever had it."""
        return self.message.next_row_id

    @property
    def max_fragment_id(self) -> int | None:
        """The highest fragment id ever assigned; None if there was none."""
        return self.message.max_fragment_id if self.message.HasField("max_fragment_id") else None

    @property
    def first_new_field_id(self) -> int:
        """The first field id of a replacing schema: 0, unless the table never reuses field ids."""
        if self.message.HasField("max_allocated_field_id"):
            return self.message.max_allocated_field_id + 1
        return 0

    @property
    def config(self) -> Mapping[str, str]:
        """The table's settings (keys beginning with `lance.` belong to the format)."""
        return self.message.config

    @property
    def table_metadata(self) -> Mapping[str, str]:
        """User-defined key-value pairs about the table."""
        return self.message.table_metadata

    @property
    def transaction_file(self) -> str:
        """The file name in `_transactions` of the transaction that created this version; may be empty."""
        return self.message.transaction_file

    @cached_property
    def indices(self) -> Sequence[table_pb2.IndexMetadata]:
        """The index entries. If an entry has no index kind, the inferred kind is filled in.

        Raises:
            FormatError: the index section cannot be decoded, or refers to a file outside the index.
        """
        try:
            section = table_pb2.IndexSection.FromString(self.index_section)
        except DecodeError as error:
            raise FormatError(f"undecodable index section: {error}", path=self.path) from error
        check_message(section, self.path)
        entries = section.indices
        if self.inferred:
            for entry in entries:
                if not entry.HasField("index_details") and entry.uuid.uuid in self.inferred:
                    entry.index_details.type_url = self.inferred[entry.uuid.uuid]
        return entries


def read_manifest(
    store: Store, path: str, naming: ManifestNaming, size: int | None = None, data: bytes | None = None
) -> Manifest:
    """Read a manifest with its index section: one request for up to 64 KiB, a few more for larger files.

    Args:
        size: the size of the file in bytes, if known; otherwise one more request is needed.
        data: the content of the file, if it was read already.

    Raises:
        FileNotFoundError: there is no such object.
        TornManifestError: the bytes are not a complete manifest file.
        FormatError: the manifest names a file outside the table.
    """
    try:
        manifest = _read_whole(store, path, naming, size, data)
    except FormatError as error:
        raise TornManifestError(
            f"the manifest is not whole: {error.message}. It was cut off or damaged, for example by a power "
            "failure; `spark-lance verify --repair` moves it aside",
            path=path,
            place=error.place,
        ) from error
    check_message(manifest.message, path)
    return manifest


def _read_whole(
    store: Store, path: str, naming: ManifestNaming, size: int | None, data: bytes | None
) -> Manifest:
    if data is not None:
        size = len(data)
    elif size is None:
        size = store.size(path)
    if size < _FOOTER.size:
        raise FormatError(f"{size} bytes are too short", path=path)
    window = _Window(store, path, size, data)
    position, _, _, magic = _FOOTER.unpack(window.footer())
    if magic != _MAGIC:
        raise FormatError("it does not end with its magic number", path=path, place="footer")
    body = window.section(position, size - _FOOTER.size, "manifest")
    if position + _LENGTH.size + len(body) + _FOOTER.size != size:
        raise FormatError("its length does not fit the file", path=path, place="manifest")
    try:
        message = table_pb2.Manifest.FromString(body)
    except DecodeError as error:
        raise FormatError(f"undecodable message: {error}", path=path, place="manifest") from error
    if message.version == 0:
        raise FormatError("it has no version number", path=path, place="manifest")
    index_section = b""
    if message.HasField("index_section"):
        stop = _section_end(message, message.index_section, position)
        index_section = window.section(message.index_section, stop, "index section")
        if not index_section:
            raise FormatError("an empty index section", path=path, place="index section")
    transaction = None
    place = _transaction_offset(message)
    if place is not None and place >= window.start:
        transaction = window.section(place, _section_end(message, place, position), "inline transaction")
    return Manifest(message, index_section, naming, path, transaction)


def read_inline_transaction(store: Store, manifest: Manifest) -> bytes | None:
    """Return the serialized transaction inside a manifest file; None if there is none.

    Raises:
        FormatError: the offset or the length of the transaction is outside the file.
    """
    position = _transaction_offset(manifest.message)
    if manifest.inline_transaction is not None or position is None:
        return manifest.inline_transaction
    window = _Window(store, manifest.path, store.size(manifest.path))
    return window.section(position, window.size - _FOOTER.size, "inline transaction")


def _transaction_offset(message: table_pb2.Manifest) -> int | None:
    """Return the offset of the inline transaction; None if there is none."""
    if message.HasField("transaction_section"):
        return message.transaction_section
    if message.HasField("transaction_section_deprecated"):
        return message.transaction_section_deprecated
    return None


def pack_manifest(message: table_pb2.Manifest, index_section: bytes, transaction: bytes) -> bytes:
    """Return the content of a manifest file.

    Args:
        message: the manifest; its section offsets are set here, so it must belong to the caller.
        index_section: serialized IndexSection, empty for none.
        transaction: serialized Transaction; left out if it is longer than 20 MiB.
    """
    parts: list[bytes] = []
    position = 0
    message.ClearField("index_section")
    message.ClearField("transaction_section")
    message.ClearField("transaction_section_deprecated")
    if index_section:
        message.index_section = position
        parts += [_LENGTH.pack(len(index_section)), index_section]
        position += _LENGTH.size + len(index_section)
    if len(transaction) <= MAX_INLINE_TRANSACTION:
        message.transaction_section = position
        parts += [_LENGTH.pack(len(transaction)), transaction]
        position += _LENGTH.size + len(transaction)
    body = message.SerializeToString()
    parts += [_LENGTH.pack(len(body)), body, _FOOTER.pack(position, *_FORMAT_NUMBERS, _MAGIC)]
    return b"".join(parts)


def _section_end(message: table_pb2.Manifest, position: int, manifest_position: int) -> int:
    """Return the start of the next section after `position`: the end of the section at `position`."""
    starts = [manifest_position]
    if message.HasField("index_section"):
        starts.append(message.index_section)
    if (transaction := _transaction_offset(message)) is not None:
        starts.append(transaction)
    return min((start for start in starts if start > position), default=manifest_position)


class _Window:
    """A manifest file whose last bytes are in memory; earlier sections are read on request."""

    def __init__(self, store: Store, path: str, size: int, data: bytes | None = None) -> None:
        self._store = store
        self._path = path
        self.size = size
        self.start = max(0, size - _TAIL) if data is None else 0
        self._tail = self._read(self.start, size) if data is None else data

    def footer(self) -> bytes:
        """Return the last bytes of the file."""
        return self._tail[-_FOOTER.size :]

    def section(self, position: int, stop: int, place: str) -> bytes:
        """Return the message whose length prefix is at `position` and which ends at or before `stop`."""
        if not 0 <= position <= stop - _LENGTH.size or stop > self.size:
            raise FormatError(f"offset {position} is outside the file", path=self._path, place=place)
        data = self._get(position, stop)
        (length,) = _LENGTH.unpack_from(data)
        if length > len(data) - _LENGTH.size:
            raise FormatError(
                f"length {length} runs over the end of the section", path=self._path, place=place
            )
        return data[_LENGTH.size : _LENGTH.size + length]

    def _get(self, start: int, stop: int) -> bytes:
        if start >= self.start:
            return self._tail[start - self.start : stop - self.start]
        head = self._read(start, min(stop, self.start))
        return head + self._tail[: stop - self.start] if stop > self.start else head

    def _read(self, start: int, stop: int) -> bytes:
        (buffer,) = self._store.read_ranges(self._path, [(start, stop - start)])
        if buffer.size != stop - start:
            raise FormatError(f"{stop - start} bytes expected at {start}, got {buffer.size}", path=self._path)
        return bytes(buffer)
