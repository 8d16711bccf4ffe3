"""Points that are stored as codes, in a fraction of the bytes of floats, and decoded a few at a time.

A comparison with many queries decodes some rows at a time, as many as stay in the caches of a core, and
multiplies them. The time of decoding is little compared with the products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.index.vector.base.metrics import Vectors

Matrix = npt.NDArray[np.float32]
# Which rows: some one after the other, or any.
Rows = slice | npt.NDArray[np.integer[Any]]

# Values that are decoded at a time for one query: a quarter of the 1 MB that caches of level 2 often have.
_TILE_VALUES = 1 << 16
# And for several, whose products BLAS spreads over all cores: these wait for each other after each tile.
_SHARED_TILE_VALUES = 1 << 20


class QuantizedPoints(ABC):
    """Points (n, width) float32 as codes."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """How many points there are, of how many values."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory."""

    @abstractmethod
    def part(self, rows: slice) -> QuantizedPoints:
        """Return some of the points."""

    @abstractmethod
    def decode(self, rows: Rows, out: Matrix) -> None:
        """Write the points of some rows into an array of their shape, C-contiguous."""

    def __getitem__(self, rows: npt.NDArray[np.integer[Any]]) -> Matrix:
        """Return some points as floats."""
        result = np.empty((len(rows), self.shape[1]), dtype=np.float32)
        self.decode(rows, result)
        return result

    def floats(self) -> Matrix:
        """Return all points as floats."""
        result = np.empty(self.shape, dtype=np.float32)
        for rows, tile in self._tiles(_TILE_VALUES):
            result[rows] = tile
        return result

    def squares(self) -> Matrix:
        """Return the squared lengths of the points (n,)."""
        result = np.empty(self.shape[0], dtype=np.float32)
        for rows, tile in self._tiles(_TILE_VALUES):
            result[rows] = squares(tile)
        return result

    def products(self, queries: Matrix, out: Matrix) -> None:
        """Write the products of queries (q, width) with all points into an array (q, n)."""
        alone = len(queries) == 1
        for rows, tile in self._tiles(_TILE_VALUES if alone else _SHARED_TILE_VALUES):
            if alone:
                np.matmul(tile, queries[0], out=out[0, rows])
            else:
                np.matmul(queries, tile.T, out=out[:, rows])

    @classmethod
    def products_of_each(
        cls, parts: Sequence[QuantizedPoints], queries: Sequence[Matrix], out: Matrix
    ) -> None:
        """Write the products of one query with the points of several partitions, one after the other.

        Args:
            parts: the points of each partition, all of this class.
            queries: (1, width) each: the query as each partition sees it.
            out: (n,), n the rows of all partitions.
        """
        start = 0
        for points, query in zip(parts, queries, strict=True):
            end = start + points.shape[0]
            points.products(query, out[None, start:end])
            start = end

    def _tiles(self, values: int) -> Iterator[tuple[slice, Matrix]]:
        """Yield points by rows, about so many values; the next ones take the place of those before."""
        count, width = self.shape
        step = max(1, min(count, values // max(1, width)))
        room = np.empty((step, width), dtype=np.float32)
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            tile = room[: rows.stop - start]
            self.decode(rows, tile)
            yield rows, tile


@dataclass(frozen=True)
class NarrowCodes(QuantizedPoints):
    """Points whose values are small whole numbers, or these less a number.

    Attributes:
        codes: (n, width), unsigned.
        center: what values are less than their codes.
    """

    codes: npt.NDArray[Any]
    center: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """How many points there are, of how many values."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.codes.nbytes

    def part(self, rows: slice) -> NarrowCodes:
        """Return some of the points."""
        return NarrowCodes(self.codes[rows], self.center)

    def decode(self, rows: Rows, out: Matrix) -> None:
        """Write the points of some rows into an array."""
        # In two steps, as numpy takes twice the time to subtract a float from whole numbers.
        np.copyto(out, self.codes[rows])
        if self.center:
            np.subtract(out, np.float32(self.center), out=out)


def squares(vectors: Vectors) -> Matrix:
    """Return the squared lengths of vectors (n, dim)."""
    result: Matrix = np.einsum("ij,ij->i", vectors, vectors).astype(np.float32)
    return result
