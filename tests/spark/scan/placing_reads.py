"""Reads of tasks that use memory shared with their executor in unusual ways. Workers import this."""

from __future__ import annotations

import fcntl
import os
import random
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from spark_lance.spark.worker import transport
from spark_lance.spark.worker import transport as task_read
from spark_lance.spark.worker.transport import TaskRead


@dataclass(frozen=True)
class PlacingRead(TaskRead):
    """Places the smallest batches, too."""

    def batches(self, given: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transport, "LEAST_PLACED", 1)
            self.change(patch)
            yield from super().batches(given)

    def change(self, patch: pytest.MonkeyPatch) -> None:
        """What else is unusual."""


@dataclass(frozen=True)
class ReadElsewhere(PlacingRead):
    """Finds another process below the executor's number, or nothing."""

    def change(self, patch: pytest.MonkeyPatch) -> None:
        plain = transport.open_shared_memory

        def opened(path: str, key: bytes, stream: Any) -> Any:
            return plain(path + "0000", key, stream) or plain(path, bytes(16), stream)

        patch.setattr(task_read, "open_shared_memory", opened)


@dataclass(frozen=True)
class ReadWithoutStream(PlacingRead):
    """Does not find what it would have to flush."""

    def change(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(task_read, "socket_stream", lambda: None)


@dataclass(frozen=True)
class ReadOfLatecomer(PlacingRead):
    """Comes to memory that another worker writes to."""

    def change(self, patch: pytest.MonkeyPatch) -> None:
        def locked(*_: object) -> None:
            raise BlockingIOError("somebody has it")

        patch.setattr(fcntl, "lockf", locked)


def _other_number(words: list[int], _: bytearray) -> None:
    words[0] += 1


def _in_header(words: list[int], _: bytearray) -> None:
    words[1] = 1024


def _negative(words: list[int], _: bytearray) -> None:
    words[1] = -8


def _unaligned(words: list[int], _: bytearray) -> None:
    words[1] += 4


def _beyond(words: list[int], _: bytearray) -> None:
    words[1] = 1 << 62


def _too_long(words: list[int], _: bytearray) -> None:
    words[2] = 1 << 62


def _shorter(words: list[int], _: bytearray) -> None:
    words[2] -= 64


def _nothing(words: list[int], _: bytearray) -> None:
    words[2] = 0


def _no_message(_: list[int], message: bytearray) -> None:
    message[0:4] = bytes(4)


def _long_metadata(_: list[int], message: bytearray) -> None:
    message[4:8] = struct.pack("i", 1 << 30)


def _no_metadata(_: list[int], message: bytearray) -> None:
    message[8:] = bytes(len(message) - 8)


def _other_message(_: list[int], message: bytearray) -> None:
    schema = pa.schema({"id": pa.int64()}).serialize().to_pybytes()
    message[: len(schema)] = schema


def _all_offsets(_: list[int], message: bytearray) -> None:
    start = 8 + struct.unpack("i", message[4:8])[0]
    message[start:] = b"\xff" * (len(message) - start)


def _other_columns(_: list[int], message: bytearray) -> None:
    rows = pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int64())}).serialize().to_pybytes()
    message[: len(rows)] = rows


# Changes of the words of a record, and of the bytes of the message that it names.
DAMAGES = {
    change.__name__[1:]: change
    for change in (
        _other_number,
        _in_header,
        _negative,
        _unaligned,
        _beyond,
        _too_long,
        _shorter,
        _nothing,
        _no_message,
        _long_metadata,
        _no_metadata,
        _other_message,
        _all_offsets,
        _other_columns,
    )
}


@dataclass(frozen=True)
class DamagingRead(PlacingRead):
    """Damages what it has placed, as a name says, or by random bytes of metadata (a number)."""

    how: str = ""

    def change(self, patch: pytest.MonkeyPatch) -> None:
        plain = transport.SharedMemory._place

        def placed(memory: Any, batch: pa.RecordBatch) -> pa.RecordBatch | None:
            mark = plain(memory, batch)
            assert mark is not None
            at = 1024 + memory._num_sent % 64 * 32
            words = list(struct.unpack("3q", os.pread(memory._file, 24, at)))
            _, start, size = words
            message = bytearray(os.pread(memory._file, size, start))
            if self.how in DAMAGES:
                DAMAGES[self.how](words, message)
            else:
                draw = random.Random(int(self.how))
                length = struct.unpack("i", message[4:8])[0]
                for _ in range(draw.choice((1, 1, 2, 8))):
                    message[draw.randrange(8, 8 + length)] = draw.choice((0, 1, 8, 64, 127, 128, 255))
            os.pwrite(memory._file, message[:size], start)
            os.pwrite(memory._file, struct.pack("3q", *words), at)
            return mark

        patch.setattr(transport.SharedMemory, "_place", placed)
