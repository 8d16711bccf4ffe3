"""Limits of the memory that the bytes of a file can request.

A few bytes can state a size of gigabytes: a compressed frame, a fixed-size type, the length prefix of an
Arrow buffer. These checks run before memory is allocated. If memory is still insufficient during decoding, a
`FormatError` names the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from spark_lance.errors import FormatError

# Limits of this reader. Sizes below `_FREE` bytes are allowed. Larger ones need one stored byte per `_RATIO`
# bytes. Writers start a new page after 8 to 32 MB of values, so a valid page exceeds this only if a single
# value is larger than `_FREE` and compresses by a factor of 1000.
_FREE = 1 << 28
_RATIO = 1000
# Further limits of this reader. Scans read values below this size in batches of limited bytes.
_LARGE_VALUE = 1 << 20
_MOST_BYTES = 1 << 29


def most_bytes(stored_bytes: int) -> int:
    """Return the maximum bytes that may be decoded from this many stored bytes."""
    return max(_FREE, _RATIO * stored_bytes)


def check_claim(claim: int, stored_bytes: int, what: str) -> None:
    """Raise an error if a stated size is impossible for the stored bytes.

    Args:
        claim: number of bytes to allocate.
        stored_bytes: number of bytes to decode.
        what: description of the data, for the message.

    Raises:
        FormatError: the stated size is too large.
    """
    if claim > most_bytes(stored_bytes):
        raise FormatError(
            f"{stored_bytes} bytes of {what} claim to be {claim} bytes; "
            f"a limit of this reader is {most_bytes(stored_bytes)}"
        )


def check_fixed_size(kind: pa.DataType, rows: int, stored_bytes: int = 0) -> None:
    """Raise an error if rows of a type with huge values need too much memory for the size of the file.

    Args:
        kind: type of the column.
        rows: number of rows to allocate.
        stored_bytes: bytes of the file.

    Raises:
        FormatError: the rows would need too much memory.
    """
    width = _fixed_bytes(kind)
    if width > _LARGE_VALUE and width * rows > max(_MOST_BYTES, _RATIO * stored_bytes):
        raise FormatError(
            f"{rows} values of {kind} take {width * rows} bytes, and the file has {stored_bytes}; "
            f"a limit of this reader is {max(_MOST_BYTES, _RATIO * stored_bytes)} bytes: read fewer rows"
        )


def _fixed_bytes(kind: pa.DataType) -> int:
    """Return the minimum bytes of a null or empty value of a type."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * max(1, _fixed_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return sum(_fixed_bytes(field.type) for field in kind)
    if isinstance(kind, pa.BaseExtensionType):
        return _fixed_bytes(kind.storage_type)
    try:
        return (int(kind.bit_width) + 7) // 8
    except ValueError:
        return 1  # values of any length


@contextmanager
def decoding(path: str) -> Iterator[None]:
    """Convert a MemoryError during the decoding of a file to a `FormatError`.

    Args:
        path: the file, for the message.
    """
    try:
        yield
    except MemoryError as error:
        raise FormatError(
            f"decoding needs more memory than there is: the file is damaged, or read fewer rows at once "
            f"({str(error) or 'out of memory'})",
            path=path,
        ) from error


def check_arrow_stream(data: bytes | memoryview) -> None:
    """Raise an error if the compressed buffers of an Arrow stream state impossible sizes.

    Raises:
        FormatError: a stated size is too large, or the stream is damaged.
    """
    view, position, claim = memoryview(data), 0, 0
    while (message := _message(view, position)) is not None:
        body = position + message[0]
        claim += _stated_size(view, message[1], body)
        position = body + message[2]
    check_claim(claim, len(view), "an Arrow stream")


def check_arrow_file(data: bytes | memoryview) -> None:
    """Raise an error if the compressed buffers of an Arrow file state impossible sizes.

    Raises:
        FormatError: a stated size is too large, or the file is damaged.
    """
    view = memoryview(data)
    claim = 0
    try:
        (size,) = struct.unpack_from("<i", view, len(view) - 10)
        footer = _Table.root(view[len(view) - 10 - size : len(view) - 10])
        for field in (2, 3):  # dictionaries, record batches
            for place in footer.structs(field, 24):
                offset, before_body = struct.unpack_from("<qi", footer.view, place)
                message = _message(view, offset)
                if message is not None:
                    claim += _stated_size(view, message[1], offset + before_body)
    except (struct.error, ValueError, IndexError) as error:
        raise FormatError(f"the footer of an Arrow file is damaged: {error}") from error
    check_claim(claim, len(view), "an Arrow file")


def _message(view: memoryview, position: int) -> tuple[int, memoryview, int] | None:
    """Return the size of a message's header, its description, and the size of its body."""
    try:
        (size,) = struct.unpack_from("<i", view, position)
        prefix = 4
        if size == -1:
            (size,) = struct.unpack_from("<i", view, position + 4)
            prefix = 8
        if size <= 0:
            return None
        description = view[position + prefix : position + prefix + size]
        (length,) = struct.unpack("<q", _Table.root(description).scalar(3, 8) or bytes(8))
    except (struct.error, ValueError, IndexError):
        return None  # Arrow reports the error
    return (prefix + size, description, length) if length >= 0 else None


def _stated_size(view: memoryview, description: memoryview, body: int) -> int:
    """Return the total decompressed size that the buffers of a message state."""
    try:
        message = _Table.root(description)
        header = message.scalar(1, 1)
        batch = message.table(2)
        if header == b"\2" and batch is not None:  # a dictionary contains a batch
            batch = batch.table(1)
        if header not in (b"\2", b"\3") or batch is None or batch.table(3) is None:
            return 0
        claim = 0
        for place in batch.structs(2, 16):
            offset, length = struct.unpack_from("<qq", batch.view, place)
            if length >= 8 and offset >= 0:
                (size,) = struct.unpack_from("<q", view, body + offset)
                claim += max(size, 0)
        return claim
    except (struct.error, ValueError, IndexError) as error:
        raise FormatError(f"a message of Arrow is damaged: {error}") from error


class _Table:
    """A FlatBuffers table, which describes an Arrow message. Fields are found by number."""

    def __init__(self, view: memoryview, position: int) -> None:
        self.view, self._position = view, position
        (back,) = struct.unpack_from("<i", view, position)
        self._fields = position - back
        if self._fields < 0:
            raise ValueError("a table begins before its message")
        (self._size,) = struct.unpack_from("<H", view, self._fields)

    @classmethod
    def root(cls, view: memoryview) -> _Table:
        return cls(view, *struct.unpack_from("<I", view))

    def _field_position(self, number: int) -> int | None:
        entry = 4 + 2 * number
        if entry + 2 > self._size:
            return None
        (offset,) = struct.unpack_from("<H", self.view, self._fields + entry)
        return self._position + offset if offset else None

    def scalar(self, number: int, size: int) -> bytes:
        place = self._field_position(number)
        return b"" if place is None else bytes(self.view[place : place + size])

    def table(self, number: int) -> _Table | None:
        place = self._field_position(number)
        if place is None:
            return None
        return _Table(self.view, place + struct.unpack_from("<I", self.view, place)[0])

    def structs(self, number: int, size: int) -> range:
        """Return the positions of the structs in a vector, each of `size` bytes."""
        place = self._field_position(number)
        if place is None:
            return range(0)
        start = place + struct.unpack_from("<I", self.view, place)[0]
        (count,) = struct.unpack_from("<I", self.view, start)
        if start + 4 + count * size > len(self.view):
            raise ValueError("a vector ends behind its message")
        return range(start + 4, start + 4 + count * size, size)
