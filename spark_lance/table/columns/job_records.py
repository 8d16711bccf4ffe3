"""Results of a column change for fragments, and the records of a job, so that a failed job can resume.

    {root}/_column_jobs/{job}/{fragment id}-{stem of the data file}.json      one for each finished fragment

    {"request": text                  the request; only the same request resumes a job
     "fragment": id, "deletion": base64(DeletionFile) or null, "deleted": base64(Roaring bitmap)
     "homes": {"field id": "data file"}        the data files of the input values
     "ids": [field ids, depth first], "file": base64(DataFile)
     "offsets": base64(Roaring bitmap) or null          the rows that got new values
     "values": number of rows that got a value}

The records belong to no version. They are written after the data file, and deleted with the job. A clean-up
deletes the remains of a dead job, like other files that no version uses.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError
from pyroaring import BitMap

from spark_lance.errors import FormatError, OptionError
from spark_lance.file.base.schema import Field
from spark_lance.io.locations import join
from spark_lance.io.stored_json import parse_object
from spark_lance.io.stored_names import check_message, check_path
from spark_lance.io.stored_object import StoredObject
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.bitmaps import parse_bitmap
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.paths import COLUMN_JOBS_DIR, DATA_DIR
from spark_lance.table.format.table_ref import TableRef, TableRefMixin

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}", re.ASCII)
_RECORD = re.compile(r"[0-9]+-[0-9a-f]+\.json", re.ASCII)
_THREADS = 16


@dataclass(frozen=True)
class FragmentResult:
    """The result of a column change for one fragment. Can be pickled.

    Attributes:
        fragment: the fragment's id.
        deletion: the fragment's serialized DeletionFile at that time; empty if it had none.
        deleted: the rows that were deleted at that time, as a Roaring bitmap.
        homes: field id -> data file of the input values; see `data_files_by_field`.
        ids: the ids of the fields with new values, depth first.
        file: the serialized DataFile; None if the fragment does not change.
        offsets: the rows with new values, as a Roaring bitmap; None if all rows have new values.
        values: the number of rows that got a value.
    """

    fragment: int
    deletion: bytes
    deleted: bytes
    homes: dict[int, str]
    ids: tuple[int, ...]
    file: bytes | None
    offsets: bytes | None = None
    values: int = 0

    @property
    def data_file(self) -> table_pb2.DataFile | None:
        """The file's message for the manifest; None if the fragment does not change."""
        return None if self.file is None else table_pb2.DataFile.FromString(self.file)

    @classmethod
    def of(
        cls,
        fragment: table_pb2.DataFragment,
        sources: Sequence[Field],
        ids: tuple[int, ...],
        file: table_pb2.DataFile | None,
        deleted: npt.NDArray[np.uint32],
        *,
        offsets: BitMap | None = None,
        values: int = 0,
    ) -> FragmentResult:
        """Return the result for a fragment, with the state that `is_valid` checks before a reuse."""
        return cls(
            fragment.id,
            fragment.deletion_file.SerializeToString() if fragment.HasField("deletion_file") else b"",
            BitMap(deleted).serialize(),
            data_files_by_field(fragment, sources),
            ids,
            None if file is None else file.SerializeToString(),
            None if offsets is None else offsets.serialize(),
            values,
        )

    def is_valid(
        self,
        table: TableRef,
        fragment: table_pb2.DataFragment,
        sources: Sequence[Field],
        bases: Bases,
    ) -> bool:
        """Return whether the result is valid for the current state of the fragment.

        A fragment keeps its id as long as it has the same physical rows. So the result is valid as long as
        the input columns are in the same files, and no deleted row was restored.
        """
        if self.homes != data_files_by_field(fragment, sources):
            return False
        now = fragment.deletion_file.SerializeToString() if fragment.HasField("deletion_file") else b""
        if self.deletion == now:
            return True
        deleted = read_deletions(table, fragment, fragment.physical_rows or None, bases)
        return parse_bitmap(self.deleted, "deleted rows of a job").issubset(BitMap(deleted))

    def renumbered(self, ids: tuple[int, ...]) -> FragmentResult:
        """Return the result with the current ids of its fields."""
        if ids == self.ids or self.file is None:
            return replace(self, ids=ids)
        now = dict(zip(self.ids, ids, strict=True))
        file = table_pb2.DataFile.FromString(self.file)
        file.fields[:] = [now[number] for number in file.fields]
        return replace(self, ids=ids, file=file.SerializeToString())


def data_files_by_field(fragment: table_pb2.DataFragment, fields: Sequence[Field]) -> dict[int, str]:
    """Return field id -> path of the data file that has the field's values."""
    ids = {part.id for top in fields for part in top.walk()}
    return {number: file.path for file in fragment.files for number in file.fields if number in ids}


@dataclass(frozen=True)
class JobRecords(TableRefMixin):
    """The records of one job. Can be pickled: tasks add records.

    Attributes:
        table: the table.
        job: the name of the job and of its folder.
        request: the request, as text.
    """

    table: TableRef
    job: str
    request: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.job):
            raise OptionError(f"{self.job!r} is not a name for a job: use letters, digits, '-', '_' and '.'")

    @property
    def folder(self) -> str:
        """The folder of the records."""
        return join(self.root, COLUMN_JOBS_DIR, self.job)

    def add(self, result: FragmentResult) -> None:
        """Write the record of a fragment, unless the fragment does not change."""
        if result.file is None:
            return
        record = {
            "request": self.request,
            "fragment": result.fragment,
            "deletion": _encode(result.deletion),
            "deleted": _encode(result.deleted),
            "homes": {str(number): path for number, path in result.homes.items()},
            "ids": list(result.ids),
            "file": _encode(result.file),
            "offsets": None if result.offsets is None else _encode(result.offsets),
            "values": result.values,
        }
        stem = table_pb2.DataFile.FromString(result.file).path.removesuffix(".lance")
        self.store.put(join(self.folder, f"{result.fragment}-{stem}.json"), json.dumps(record).encode())

    def load(self) -> list[FragmentResult]:
        """Return the recorded fragments whose data file still exists, in any order.

        Raises:
            OptionError: a job with this name was started with another request.
            FormatError: a record is damaged.
        """
        paths = [record.path for record in self._records()]
        with ThreadPoolExecutor(_THREADS) as pool:
            return [result for result in pool.map(self._read, paths) if result is not None]

    def _read(self, path: str) -> FragmentResult | None:
        try:
            record = parse_object(self.store.read(path))
            result, request = _parse_record(record), record["request"]
        except (ValueError, KeyError, TypeError, AttributeError, DecodeError, OverflowError) as error:
            raise FormatError(f"a record of a job cannot be read: {error}", path) from error
        if request != self.request:
            raise OptionError(
                f"job {self.job!r} was started to {request}, not to {self.request}: use another name"
            )
        file = result.data_file
        if file is None or not self.store.exists(join(self.root, DATA_DIR, file.path)):
            return None
        return result

    def data_file_names(self) -> list[str]:
        """Return the names of the recorded data files."""
        return [f"{record.name.partition('-')[2].removesuffix('.json')}.lance" for record in self._records()]

    def _records(self) -> list[StoredObject]:
        return [entry for entry in self.store.list_objects(self.folder) if _RECORD.fullmatch(entry.name)]

    def clear(self) -> None:
        """Delete the records."""
        objects = self.store.list_to_delete(self.folder, self.root)
        self.store.delete_many((entry.path for entry in objects), self.root)
        # Another job may have its records in the same folder.
        for folder in (self.folder, join(self.root, COLUMN_JOBS_DIR)):
            self.store.remove_empty(folder, self.root)


def _parse_record(record: dict[str, Any]) -> FragmentResult:
    file = base64.b64decode(record["file"])
    check_message(table_pb2.DataFile.FromString(file))
    deleted = base64.b64decode(record["deleted"])
    offsets = None if record["offsets"] is None else base64.b64decode(record["offsets"])
    for bitmap in (deleted, offsets):
        if bitmap is not None:
            parse_bitmap(bitmap, "rows of a fragment")
    return FragmentResult(
        int(record["fragment"]),
        base64.b64decode(record["deletion"]),
        deleted,
        {int(number): check_path(path, "data file path") for number, path in record["homes"].items()},
        tuple(int(number) for number in record["ids"]),
        file,
        offsets,
        int(record["values"]),
    )


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()
