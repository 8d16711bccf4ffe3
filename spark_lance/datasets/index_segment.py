"""A segment of an index as a value, for programs that build one and commit it themselves."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone

from pyroaring import BitMap

from spark_lance.proto import table_pb2
from spark_lance.table.format.coverage import covered_ids


@dataclass(frozen=True)
class IndexFile:
    """A file of an index: its name in the index's folder, and its bytes."""

    path: str
    size_bytes: int


@dataclass
class Index:
    """A segment of an index, as an operation brings it.

    Attributes:
        uuid: names the folder of its files.
        name: of the index.
        fields: ids of the indexed fields.
        dataset_version: the version that it was built from.
        fragment_ids: the fragments that it covers.
        index_version: version of its format.
        created_at: when it was built.
        base_id: the base path of its files; None for the table's own root.
        files: its files.
        index_details: the type of its details, and their bytes.
        covering_fields: ids of fields whose values it holds besides its own.
    """

    uuid: str
    name: str
    fields: list[int]
    dataset_version: int
    fragment_ids: Iterable[int]
    index_version: int
    created_at: datetime | None = None
    base_id: int | None = None
    files: list[IndexFile] | None = None
    index_details: tuple[str, bytes] | None = None
    covering_fields: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, message: table_pb2.IndexMetadata) -> Index:
        """Return what a message says."""
        created_at = message.created_at / 1000 if message.HasField("created_at") else None
        details = message.index_details
        return cls(
            str(uuids.UUID(bytes=message.uuid.uuid)),
            message.name,
            list(message.fields),
            message.dataset_version,
            covered_ids(message) or set(),
            message.index_version,
            None if created_at is None else datetime.fromtimestamp(created_at, timezone.utc),
            message.base_id if message.HasField("base_id") else None,
            [IndexFile(file.path, file.size_bytes) for file in message.files] or None,
            (details.type_url, details.value) if details.type_url else None,
            list(message.covering_fields),
        )

    def message(self) -> table_pb2.IndexMetadata:
        """Return the message for a manifest."""
        message = table_pb2.IndexMetadata(
            uuid=table_pb2.UUID(uuid=uuids.UUID(self.uuid).bytes),
            name=self.name,
            fields=self.fields,
            dataset_version=self.dataset_version,
            fragment_bitmap=BitMap(self.fragment_ids).serialize(),
            index_version=self.index_version,
            base_id=self.base_id,
            files=[table_pb2.IndexFile(path=f.path, size_bytes=f.size_bytes) for f in self.files or ()],
            covering_fields=self.covering_fields,
        )
        if self.created_at is not None:
            message.created_at = int(self.created_at.timestamp() * 1000)
        if self.index_details is not None:
            message.index_details.type_url, message.index_details.value = self.index_details
        return message
