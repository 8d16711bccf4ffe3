"""Repetition and definition levels as stored: u16 values in the block form of some encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.errors import FormatError
from spark_lance.file.v2_1.blocks import FixedWidth
from spark_lance.file.v2_1.chunks import Chunks
from spark_lance.file.v2_1.codec import Resolver
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["decode_levels"]


def decode_levels(
    encoding: pb.CompressiveEncoding, chunks: Chunks, resolver: Resolver
) -> npt.NDArray[np.uint16]:
    """Decode the level buffers of all chunks of a page into one array of chunks.total levels.

    Raises:
        FormatError: they do not decode to u16 values.
    """
    block: Any = resolver.block(encoding, chunks)
    if not isinstance(block, FixedWidth) or block.bits != 16 or len(block.data) < block.count * 2:
        raise FormatError("levels must be 16 bit values")
    return block.data[: block.count * 2].view("<u2")
