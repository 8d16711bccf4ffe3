"""Damages small data files in every way and reads them, in a process of its own with limits.

    python -m tests.file.damage FOLDER SECONDS_PER_FILE DAMAGES_PER_FILE SEED

reads FOLDER/*.lance and prints one JSON line per file: outcomes counted, and what went wrong. A read must end
in the same values, in other values of the right number of rows, or in a LanceError; within `TIME_LIMIT`, and
within the address space that the process may have. FOLDER/at holds the damaged file that is being read, so
that one can tell what killed the process.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from spark_lance.errors import FormatError, LanceError
from spark_lance.file.base.metadata import (
    ARRAY_ENCODING_URL,
    COLUMN_ENCODING_URL,
    FOOTER_SIZE,
    PAGE_LAYOUT_URL,
    Footer,
)
from spark_lance.file.base.pages import RowReader
from spark_lance.file.base.schema import Field
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import open_file, read_field, take_field
from spark_lance.io.local import LocalStore
from spark_lance.io.memory import MemoryStore
from spark_lance.io.store import Store
from spark_lance.proto import encodings20_pb2, encodings21_pb2, file2_pb2, file_pb2

__all__ = ["Damage", "FileParts", "damages", "read_everything", "run"]

HUGE = (0, 1, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
# Beyond what the process has when it begins.
MEMORY = 1 << 30
# Seconds of CPU time, so that a busy machine does not matter.
TIME_LIMIT = 5.0
_PAIR = struct.Struct("<QQ")


@dataclass(frozen=True)
class Known:
    """What a manifest tells about a file."""

    fields: Sequence[Field]
    columns: Mapping[int, int]
    rows: int

    @classmethod
    def of(cls, store: Store, path: str) -> Known:
        """Learn it from the undamaged file."""
        reader = open_file(store, path)
        fields = [
            field.as_descriptor()
            for field in reader.schema.fields
            if field.kind != "blob" or reader.version is not FileVersion.V0_1
        ]
        return cls(fields, reader.columns, reader.num_rows)


def read_everything(store: Store, path: str, known: Known) -> pa.Table:
    """Return all rows of a file, after having taken some of them one by one and read its statistics.

    As from inside a table: fields and columns are known, and the number of rows is checked.
    """
    reader = open_file(store, path, columns=known.columns)
    list(reader.schema.walk())
    fields, rows = known.fields, known.rows
    if reader.num_rows != rows:
        raise FormatError("another number of rows than the manifest says")
    columns = []
    for field in fields:
        opened = reader.open_field(field)
        if isinstance(opened, RowReader) and rows:
            take_field(opened, field, path, np.unique([0, rows // 2, rows - 1]))
        columns.append(read_field(reader.open_field(field), field, path, 0, rows))
        statistics = getattr(reader, "statistics", None)
        if statistics is not None:
            statistics(field.id)
    return pa.Table.from_arrays(columns, schema=pa.schema([field.arrow_field() for field in fields]))


@dataclass(frozen=True)
class Damage:
    """Bytes that stand at a position instead of those that were there; or all, or nothing from there on."""

    kind: str
    position: int
    instead: bytes = b""

    def apply(self, data: bytes) -> bytes:
        """Return the damaged file."""
        if self.kind == "cut":
            return data[: self.position]
        if self.kind == "metadata":
            return self.instead
        return data[: self.position] + self.instead + data[self.position + len(self.instead) :]


def damages(data: bytes, rng: random.Random) -> Iterator[Damage]:
    """Yield every damage of a file; some hold random values."""
    for position in range(len(data)):
        yield Damage("cut", position)
        yield Damage("bit", position, bytes([data[position] ^ (1 << rng.randrange(8))]))
        for value in {0, 255, rng.randrange(256)} - {data[position]}:
            yield Damage("byte", position, bytes([value]))
    for width in (2, 4, 8):
        for position in range(0, len(data) - width + 1, width):
            for number in (2 ** (8 * width - 1) - 1, 2 ** (8 * width) - 1, rng.randrange(1 << 8 * width)):
                yield Damage(f"number of {width}", position, number.to_bytes(width, "little"))
    if struct.unpack("<HH", data[-8:-4]) > (0, 2):
        for changed in metadata_damages(data):
            yield Damage("metadata", 0, changed)


@dataclass(frozen=True)
class FileParts:
    """The metadata of a data file (2.0 and newer), which can be replaced.

    Attributes:
        data: the whole file.
        descriptor: its first global buffer.
        columns: the metadata of each column.
    """

    data: bytes
    descriptor: bytes
    columns: tuple[bytes, ...]

    @classmethod
    def parse(cls, data: bytes) -> FileParts:
        """Parse the tables at the end of a file."""
        footer = Footer.parse(data[-FOOTER_SIZE:])
        position, size = _PAIR.unpack_from(data, footer.global_table_start)
        columns = []
        for i in range(footer.num_columns):
            offset, length = _PAIR.unpack_from(data, footer.column_table_start + i * _PAIR.size)
            columns.append(data[offset : offset + length])
        return cls(data, data[position : position + size], tuple(columns))

    def rebuilt(self, descriptor: bytes, columns: Sequence[bytes]) -> bytes:
        """Return the file with other metadata behind its bytes; other global buffers stay where they are."""
        footer = Footer.parse(self.data[-FOOTER_SIZE:])
        first = footer.global_table_start + _PAIR.size
        others = self.data[first : first + (footer.num_global_buffers - 1) * _PAIR.size]
        out = bytearray(self.data)
        places = []
        for block in (descriptor, *columns):
            places.append(_PAIR.pack(len(out), len(block)))
            out += block
        column_table = len(out)
        out += b"".join(places[1:])
        global_table = len(out)
        out += places[0] + others
        numbers = (footer.num_global_buffers, len(columns), footer.major, footer.minor)
        out += Footer(len(self.data), column_table, global_table, *numbers).pack()
        return bytes(out)


def metadata_damages(data: bytes) -> Iterator[bytes]:
    """Yield the file (2.0 and newer) with each number of its metadata replaced, in messages that parse."""
    parts = FileParts.parse(data)
    descriptor, columns = file_pb2.FileDescriptor.FromString(parts.descriptor), parts.columns
    yield from (parts.rebuilt(changed, columns) for changed in _changed(descriptor))
    for i, block in enumerate(columns):
        for changed in _changed(file2_pb2.ColumnMetadata.FromString(block)):
            yield parts.rebuilt(parts.descriptor, [*columns[:i], changed, *columns[i + 1 :]])


_KINDS: dict[str, Callable[[], Message]] = {
    ARRAY_ENCODING_URL: encodings20_pb2.ArrayEncoding,
    PAGE_LAYOUT_URL: encodings21_pb2.PageLayout,
    COLUMN_ENCODING_URL: encodings20_pb2.ColumnEncoding,
}


def _changed(message: Message) -> Iterator[bytes]:
    """Yield the message once for each number in it and each replacement."""
    for change in list(_changes(message)):
        for undo in change():
            yield message.SerializeToString()
            undo()


def _changes(message: Message) -> Iterator[Callable[[], Iterator[Callable[[], None]]]]:
    for field, value in message.ListFields():
        repeated = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                continue
            for inner in value if repeated else [value]:
                yield from _changes(inner)
        elif field.name == "encoding" and isinstance(value, bytes):
            yield lambda m=message, v=value: _changes_inside(m, v)  # type: ignore[misc]
        elif isinstance(value, (int, bool)) or (repeated and value and isinstance(value[0], int)):
            yield lambda m=message, f=field, r=repeated: _replacements(m, f.name, r)  # type: ignore[misc]


def _replacements(message: Any, name: str, repeated: bool) -> Iterator[Callable[[], None]]:
    old = list(getattr(message, name)) if repeated else getattr(message, name)
    for number in HUGE:
        try:
            if repeated:
                getattr(message, name)[0] = number
            else:
                setattr(message, name, number)
        except (ValueError, TypeError, OverflowError):
            continue

        def undo() -> None:
            if repeated:
                getattr(message, name)[:] = old
            else:
                setattr(message, name, old)

        yield undo


def _changes_inside(message: Any, value: bytes) -> Iterator[Callable[[], None]]:
    """Replace numbers of an encoding that is packed into an Any."""
    holder = AnyMessage.FromString(value)
    kind = _KINDS.get(holder.type_url)
    if kind is None:
        return
    inner: Any = kind()
    inner.ParseFromString(holder.value)
    for changed in _changed(inner):
        message.encoding = AnyMessage(type_url=holder.type_url, value=changed).SerializeToString()

        def undo() -> None:
            message.encoding = value

        yield undo


class TooSlow(BaseException):
    """A read took longer than `TIME_LIMIT`."""


def run(folder: Path, seconds: float, most: int, seed: int) -> Iterator[dict[str, Any]]:
    """Try damages on each file of a folder, within so many seconds and damages a file; yield reports."""
    memory, disk = MemoryStore(), LocalStore()
    place = folder / "damaged"

    def stop(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, stop)
    for file in sorted(folder.glob("*.lance")):
        data = file.read_bytes()
        known = Known.of(disk, str(file))
        good = read_everything(disk, str(file), known)
        rng = random.Random(f"{file.name} {seed}")
        tried = list(damages(data, rng))
        rng.shuffle(tried)
        report: dict[str, Any] = {"file": file.name, "bytes": len(data), "possible": len(tried), "wrong": []}
        counts: Counter[str] = Counter()
        kinds: Counter[str] = Counter()
        begin, slowest = time.monotonic(), 0.0
        for number, damage in enumerate(tried[:most]):
            if time.monotonic() - begin > seconds:
                break
            changed = damage.apply(data)
            (folder / "at").write_bytes(changed)
            started = time.monotonic()
            signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT)
            try:
                if number % 2:
                    memory.put("/damaged", changed)
                    got = read_everything(memory, "/damaged", known)
                else:
                    place.unlink(missing_ok=True)
                    place.write_bytes(changed)
                    got = read_everything(disk, str(place), known)
                got.validate()
                outcome = _judge(good, got)
            except LanceError:
                outcome = "refused"
            except TooSlow:
                outcome = f"took more than {TIME_LIMIT} s"
            except BaseException as error:  # noqa: BLE001 (whatever else a read does is what is looked for)
                outcome = f"{type(error).__name__}: {error}"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.monotonic() - started)
            kinds[damage.kind] += 1
            if outcome in ("equal", "other values", "refused"):
                counts[outcome] += 1
            else:
                counts["wrong"] += 1
                if len(report["wrong"]) < 20:
                    (folder / f"wrong-{file.stem}-{number}.bin").write_bytes(changed)
                    where = f"{damage.kind} at {damage.position} (damage {number})"
                    report["wrong"].append(f"{where}: {outcome[:300]}")
        report |= {"outcomes": dict(counts), "kinds": dict(kinds), "slowest": round(slowest, 3)}
        report["seconds"] = round(time.monotonic() - begin, 1)
        yield report


def _judge(good: pa.Table, got: pa.Table) -> str:
    if got.num_rows != good.num_rows:
        return f"{got.num_rows} rows instead of {good.num_rows}"
    return "equal" if got.equals(good) else "other values"


def main() -> None:
    """Run with the arguments of the command line."""
    folder, seconds, most, seed = sys.argv[1:]
    status = Path("/proc/self/statm").read_text().split()
    used = int(status[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    for report in run(Path(folder), float(seconds), int(most), int(seed)):
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
