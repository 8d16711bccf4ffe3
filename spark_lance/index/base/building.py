"""Input and output location of the build of a scalar index segment."""

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
    """Location and file format version of a new segment's files, and the options of its index kind."""

    store: Store
    directory: str
    version: FileVersion
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rows:
    """The rows that an index segment is built from.

    Attributes:
        pieces: yields (values, row numbers uint64) in scan order. Row numbers are row ids or addresses.
        kind: Arrow type of the values.
        fragments: fragment id -> number of physical rows.
        extension: name of the column's Arrow extension type, or "".
    """

    pieces: Callable[[], Iterator[tuple[pa.Array, Numbers]]]
    kind: pa.DataType
    fragments: Mapping[int, int]
    extension: str = ""
