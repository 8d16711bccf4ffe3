"""The input of a segment of an index of single values, and the place of its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.file.base.version import FileVersion
from spark_lance.io.store import Store

Numbers = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class SegmentTarget:
    """Where the files of a segment go, their version, and options of the kind of index."""

    store: Store
    directory: str
    version: FileVersion
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """The rows of some fragments, as an index is built of them.

    Attributes:
        pieces: yields (values, row numbers uint64) in scan order: row ids or addresses, see `numbers_of`.
        kind: type of the values.
        fragments: fragment id -> physical rows.
        extension: name of the Arrow extension type of the column; "" if it has none.
    """

    pieces: Callable[[], Iterator[tuple[pa.Array, Numbers]]]
    kind: pa.DataType
    fragments: Mapping[int, int]
    extension: str = ""
