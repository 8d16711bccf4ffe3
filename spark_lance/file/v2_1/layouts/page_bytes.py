"""The input and output of page layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_lance.arrow.buffers import as_bytes
from spark_lance.errors import FormatError
from spark_lance.file.v2_1.base.blocks import Block
from spark_lance.file.v2_1.base.chunks import Bytes
from spark_lance.file.v2_1.levels.sparse import SparseLevels
from spark_lance.file.v2_1.levels.unravel import Levels


@dataclass(frozen=True)
class PageBytes:
    """The buffers of a page, its number of rows, and the leaf's Arrow type.

    A layout needs the type only where the bytes do not determine the width of a value. `partial` means that
    the buffers contain only some of the page's rows, so the page's description counts more levels.
    """

    buffers: Sequence[Any]
    rows: int
    arrow: pa.DataType
    partial: bool = False

    def buffer(self, index: int) -> Bytes:
        """Return buffer `index` as bytes.

        Raises:
            FormatError: the page has fewer buffers.
        """
        if index >= len(self.buffers):
            raise FormatError(f"the page has {len(self.buffers)} buffers, buffer {index} is missing")
        return as_bytes(self.buffers[index])


@dataclass(frozen=True)
class DecodedPage:
    """The levels of a page and the values of its visible levels."""

    levels: Levels | SparseLevels
    values: Block
