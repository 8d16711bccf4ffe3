"""The roles of an encoding: one function type per role.

    mini_block  value buffers of all chunks of a mini-block page
    block       one buffer on its own: levels of a chunk, the levels of a constant page, a dictionary
    zipped      full-zip values of one width, as rows of bytes
    zipped_variable  full-zip values of varying width, lengths and control words removed

A role that an encoding does not have is None in the `ENCODINGS` table and refused by `Resolver`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_1.base import blocks
from spark_lance.file.v2_1.base.blocks import Block, FixedWidth
from spark_lance.file.v2_1.base.chunks import Bytes, Chunks
from spark_lance.proto import encodings21_pb2 as pb

_ChunkDecoder: TypeAlias = "Callable[[Any, Chunks, Resolver], Block]"
_RowDecoder: TypeAlias = "Callable[[Any, Bytes, Resolver], Block]"
_VariableDecoder: TypeAlias = "Callable[[Any, blocks.Variable, Resolver], Block]"


class Codec(NamedTuple):
    """The functions of one encoding, by role; each takes the encoding's message, the bytes and a resolver."""

    mini_block: _ChunkDecoder | None = None
    block: _ChunkDecoder | None = None
    zipped: _RowDecoder | None = None
    zipped_variable: _VariableDecoder | None = None


def compression_name(encoding: pb.CompressiveEncoding) -> str:
    """Return which encoding a message names.

    Raises:
        UnsupportedFormatError: none that this release knows.
    """
    name: str | None = encoding.WhichOneof("compression")
    if name is None:
        raise UnsupportedFormatError("a page uses an encoding that this release does not know")
    return name


def has_buffer(encoding: pb.CompressiveEncoding) -> bool:
    """Return whether a block of integers has bytes. Some sequences of 2.3 are in the description alone.

    Raises:
        UnsupportedFormatError: an encoding that is not known.
    """
    name = compression_name(encoding)
    if name == "delta":
        return has_buffer(encoding.delta.deltas)
    if name == "rle":
        return has_buffer(encoding.rle.values) or has_buffer(encoding.rle.run_lengths)
    return name not in ("range", "constant")


@dataclass(frozen=True)
class Resolver:
    """Finds the codec of a nested encoding in the table."""

    table: Mapping[str, Codec]

    def _find(self, encoding: pb.CompressiveEncoding, role: str) -> tuple[Any, Any]:
        name = compression_name(encoding)
        decode = getattr(self.table.get(name, Codec()), role)
        if decode is None:
            raise UnsupportedFormatError(
                f"encoding {name!r} is not supported for {role.replace('_', ' ')} values"
            )
        return decode, getattr(encoding, name)

    def mini_block(self, encoding: pb.CompressiveEncoding, chunks: Chunks) -> Block:
        """Decode the value buffers of all chunks of a page into one block of chunks.total values."""
        decode, message = self._find(encoding, "mini_block")
        return _counted(decode(message, chunks, self), chunks.total)

    def block(self, encoding: pb.CompressiveEncoding, chunks: Chunks) -> Block:
        """Decode buffers that stand on their own: the levels of all chunks, or a dictionary (one chunk)."""
        decode, message = self._find(encoding, "block")
        return _counted(decode(message, chunks, self), chunks.total)

    def levels(self, encoding: pb.CompressiveEncoding, chunks: Chunks) -> npt.NDArray[np.uint16]:
        """Decode the buffers of repetition or definition levels, u16 values, of all chunks into one array.

        Raises:
            FormatError: they do not decode to u16 values.
        """
        block: Any = self.block(encoding, chunks)
        if not isinstance(block, FixedWidth) or block.bits != 16 or len(block.data) < block.count * 2:
            raise FormatError("levels must be 16 bit values")
        return block.data[: block.count * 2].view("<u2")

    def zipped(self, encoding: pb.CompressiveEncoding, rows: Bytes) -> Block:
        """Decode full-zip values of one width; `rows` is uint8 of shape (values, bytes)."""
        decode, message = self._find(encoding, "zipped")
        return _counted(decode(message, rows, self), len(rows))

    def zipped_variable(self, encoding: pb.CompressiveEncoding, values: blocks.Variable) -> Block:
        """Decode full-zip values of varying width."""
        decode, message = self._find(encoding, "zipped_variable")
        return _counted(decode(message, values, self), values.count)


def _counted(block: Block, count: int) -> Block:
    if block.count != count:
        raise FormatError(f"a page of {count} values decodes to {block.count}")
    return block
