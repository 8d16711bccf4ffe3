"""Flat: values of one width, back to back.

    bits_per_value = 1      a bitmap, least significant bit first
    bits_per_value = 8 * k  k bytes per value, little-endian

Example: int16 values 1, 2 are the bytes 01 00 02 00. The whole buffer may be compressed (compression.py).
An uncompressed range of values is a slice of the file, without a copy.

(Lance file format 2.0, `Flat`.)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.file.v2_0.compression import ByteRun, open_bytes
from spark_lance.file.v2_0.decoder import PageView, Range
from spark_lance.proto import encodings20_pb2 as pb

__all__ = ["encode_flat", "fixed_width", "open_flat"]


def fixed_width(kind: pa.DataType) -> int | None:
    """Return the bits per value of a type that Flat can hold, None for all other types."""
    if pa.types.is_dictionary(kind) or pa.types.is_nested(kind) or pa.types.is_null(kind):
        return None
    try:
        return int(kind.bit_width)
    except ValueError:
        return None


class _Flat:
    def __init__(self, run: ByteRun, kind: pa.DataType, bits: int) -> None:
        self._run = run
        self._kind = kind
        self._bits = bits

    def _bytes(self, start: int, stop: int) -> Range:
        if self._bits == 1:
            return start // 8, (stop + 7) // 8
        return start * self._bits // 8, stop * self._bits // 8

    def ranges(self, start: int, stop: int) -> list[Range]:
        return self._run.ranges(*self._bytes(start, stop))

    def read(self, start: int, stop: int) -> pa.Array:
        data = self._run.read(*self._bytes(start, stop))
        # Arrow wants values on multiples of their width; the format does not promise that of 2.0 pages.
        if data.address % min(8, (self._bits & -self._bits) // 8 or 1):
            data = pa.py_buffer(np.frombuffer(data, dtype=np.uint8).copy())
        offset = start % 8 if self._bits == 1 else 0
        return pa.Array.from_buffers(self._kind, stop - start, [None, data], null_count=0, offset=offset)


def open_flat(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> _Flat:
    """Open a Flat encoding; see `decoder.Open`."""
    flat = encoding.flat
    bits = fixed_width(kind)
    if bits is None or flat.bits_per_value != bits:
        raise FormatError(f"values of {flat.bits_per_value} bits cannot be {kind}")
    run = open_bytes(flat, page)
    # The size of a compressed run is only known after decompressing it; `read` checks its bounds then.
    if flat.compression.scheme in ("", "none") and count * bits > run.size * 8:
        raise FormatError(f"{count} values of {bits} bits do not fit a buffer of {run.size} bytes")
    return _Flat(run, kind, bits)


def encode_flat(bits: int, buffer_index: int) -> pb.ArrayEncoding:
    """Describe values of `bits` bits that are in buffer `buffer_index` of the page."""
    flat = pb.Flat(bits_per_value=bits, buffer=pb.Buffer(buffer_index=buffer_index))
    return pb.ArrayEncoding(flat=flat)
