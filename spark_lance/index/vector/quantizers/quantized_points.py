"""Points stored as codes, which take a fraction of the memory of floats.

A comparison with many queries decodes one tile of rows at a time, small enough for a core's cache, and
multiplies it. Decoding takes little time compared with the products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from spark_lance.index.vector.base.metrics import Vectors

Matrix = npt.NDArray[np.float32]
# A row selection: a range, or arbitrary indices.
Rows = slice | npt.NDArray[np.integer[Any]]

# Values per tile for one query: a quarter of a typical 1 MB level-2 cache.
_TILE_VALUES = 1 << 16
# Values per tile for several queries. BLAS uses all cores, which wait for each other after each tile.
_SHARED_TILE_VALUES = 1 << 20


class QuantizedPoints(ABC):
    """Base class of encoded points (n, width) float32."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(number of points, values per point)."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Memory size in bytes."""

    @abstractmethod
    def part(self, rows: Rows) -> QuantizedPoints:
        """Return some of the points."""

    @abstractmethod
    def decode(self, rows: Rows, out: Matrix) -> None:
        """Decode the points of the given rows into `out`, a C-contiguous array of their shape."""

    def __getitem__(self, rows: npt.NDArray[np.integer[Any]]) -> Matrix:
        """Return the points of the given rows as floats."""
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
        is_single = len(queries) == 1
        for rows, tile in self._tiles(_TILE_VALUES if is_single else _SHARED_TILE_VALUES):
            if is_single:
                np.matmul(tile, queries[0], out=out[0, rows])
            else:
                np.matmul(queries, tile.T, out=out[:, rows])

    @classmethod
    def products_of_each(
        cls, parts: Sequence[QuantizedPoints], queries: Sequence[Matrix], out: Matrix
    ) -> None:
        """Write the products of one query with the points of several partitions, concatenated.

        Args:
            parts: the points of each partition, all of this class.
            queries: the query prepared for each partition, (1, width) each.
            out: (n,), for the rows of all partitions.
        """
        start = 0
        for points, query in zip(parts, queries, strict=True):
            end = start + points.shape[0]
            points.products(query, out[None, start:end])
            start = end

    def _tiles(self, values: int) -> Iterator[tuple[slice, Matrix]]:
        """Yield tiles of about `values` decoded values with their rows. Tiles share one buffer."""
        count, width = self.shape
        step = max(1, min(count, values // max(1, width)))
        buffer = np.empty((step, width), dtype=np.float32)
        for start in range(0, count, step):
            rows = slice(start, min(start + step, count))
            tile = buffer[: rows.stop - start]
            self.decode(rows, tile)
            yield rows, tile


@dataclass(frozen=True)
class NarrowCodes(QuantizedPoints):
    """Points whose values are small integers minus a constant.

    Attributes:
        codes: (n, width), unsigned.
        center: the constant.
    """

    codes: npt.NDArray[Any]
    center: float = 0.0

    @property
    def shape(self) -> tuple[int, int]:
        """(number of points, values per point)."""
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def nbytes(self) -> int:
        """Memory size in bytes."""
        return self.codes.nbytes

    def part(self, rows: Rows) -> NarrowCodes:
        """Return some of the points."""
        return NarrowCodes(self.codes[rows], self.center)

    def decode(self, rows: Rows, out: Matrix) -> None:
        """Decode the points of the given rows into `out`."""
        # Two steps: numpy takes twice as long to subtract a float from integers.
        np.copyto(out, self.codes[rows])
        if self.center:
            np.subtract(out, np.float32(self.center), out=out)

    @classmethod
    def products_of_each(
        cls, parts: Sequence[QuantizedPoints], queries: Sequence[Matrix], out: Matrix
    ) -> None:
        """Write the products of one query with the points of several partitions, concatenated."""
        step = max(1, _TILE_VALUES // max(1, parts[0].shape[1]))
        buffer = np.empty((step, parts[0].shape[1]), np.float32)
        start = 0
        for points, query in zip(cast("Sequence[NarrowCodes]", parts), queries, strict=True):
            first = start
            for offset in range(0, len(points.codes), step):
                codes = points.codes[offset : offset + step]
                tile = buffer[: len(codes)]
                np.copyto(tile, codes)
                np.matmul(tile, query[0], out=out[start : start + len(codes)])
                start += len(codes)
            if points.center:
                # Subtracting from the products is cheaper than subtracting from each value.
                out[first:start] -= np.float32(points.center * float(query.sum(dtype=np.float64)))


def squares(vectors: Vectors) -> Matrix:
    """Return the squared lengths of vectors (n, dim)."""
    result: Matrix = np.einsum("ij,ij->i", vectors, vectors).astype(np.float32)
    return result
