"""Product codes as points: compared by looking up what a query has in common with each codeword.

The product of a query with a point is the sum of those with the codewords that the point is made of. For each
column of codes a table has the products of the query with its 256 codewords; a row takes a look-up a column:

    <q, point> = sum over columns c of table[c, codes[c, row]]

Tables may hold the products of up to eight queries side by side, which are then looked up together in little
more time than one. With very many queries, decoding rows and multiplying is as fast, and uses all cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.index.vector.metrics import Vectors
from spark_lance.index.vector.quantizers.coded import Coded, Matrix, Rows

__all__ = ["Codebook", "ProductCodes"]

Bytes = npt.NDArray[np.uint8]
# (columns, partitions, codewords): what queries, one a partition, have in common with codewords.
Tables = npt.NDArray[np.float32]

_WORDS = 256
# Up to this many queries for each value of a codeword, which BLAS would multiply, are compared by tables, if
# there are at least so many rows: making tables takes time, too.
_MANY = 8
_WORTH_TABLES = 1 << 10
# Queries whose products are looked up together: numpy copies up to 32 bytes without calling for each copy.
_SIDE_BY_SIDE = 8
# Sums that are added up at a time, so that they and what is added stay in the caches of a core.
_BLOCK_SUMS = 1 << 16
# Arrow looks up by codes as they are, numpy by copies of 8 bytes each; but a call of Arrow's takes longer.
_WORTH_ARROW = 3 << 12
# Partitions of fewer rows are compared together, so that a call has something to do; in uint16 there is room
# for the codes of this many.
_SMALL_ROWS = 1 << 12
_TOGETHER = 1 << 8
_UNCHECKED = pc.TakeOptions(boundscheck=False)


@dataclass(frozen=True)
class Codebook:
    """The codewords that bytes stand for.

    Attributes:
        words: (columns, 256, values) float32.
    """

    words: Matrix

    @classmethod
    def of(cls, codebook: Vectors, bits: int) -> Codebook:
        """Return that of codewords (sub-vectors, 2^bits, values); with 4 bits a byte stands for two."""
        words = np.ascontiguousarray(codebook, dtype=np.float32)
        if bits == 4:
            low, high = words[0::2, None], words[1::2, :, None]
            shape = (len(high), 16, 16, words.shape[2])
            pairs = np.concatenate([np.broadcast_to(low, shape), np.broadcast_to(high, shape)], axis=3)
            words = pairs.reshape(len(high), _WORDS, -1)
        return cls(words)

    @property
    def width(self) -> int:
        """Values of a point."""
        return int(self.words.shape[0] * self.words.shape[2])

    def tables(self, queries: Matrix) -> Tables:
        """Return the products of queries (q, width) with all codewords: (columns, q, 256)."""
        columns, _, values = self.words.shape
        parts = queries.reshape(len(queries), columns, values).transpose(1, 0, 2)
        return cast("Tables", np.matmul(parts, self.words.transpose(0, 2, 1)))

    def squares(self) -> Matrix:
        """Return the squared lengths of all codewords: (columns, 256)."""
        return cast("Matrix", np.einsum("ijk,ijk->ij", self.words, self.words))


@dataclass(frozen=True)
class ProductCodes(Coded):
    """Points of codewords.

    Attributes:
        codes: (columns, n) uint8.
        book: what they stand for.
    """

    codes: Bytes
    book: Codebook

    @property
    def shape(self) -> tuple[int, int]:
        """How many points there are, of how many values."""
        return self.codes.shape[1], self.book.width

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self.codes.nbytes

    def part(self, rows: slice) -> ProductCodes:
        """Return some of the points."""
        return ProductCodes(self.codes[:, rows], self.book)

    def decode(self, rows: Rows, out: Matrix) -> None:
        """Write the points of some rows into an array."""
        columns, _, values = self.book.words.shape
        some = np.ascontiguousarray(self.codes[:, rows].T)
        places = np.add(some, _WORDS * np.arange(columns), dtype=np.intp)
        # No place lies outside; numpy copies results of the other modes once more.
        words = self.book.words.reshape(-1, values)
        np.take(words, places, axis=0, out=out.reshape(len(some), columns, values), mode="clip")

    def squares(self) -> Matrix:
        """Return the squared lengths of the points (n,)."""
        result = np.empty(self.shape[0], dtype=np.float32)
        _add_up(self.book.squares(), self.codes, result)
        return result

    def products(self, queries: Matrix, out: Matrix) -> None:
        """Write the products of queries (q, width) with all points into an array (q, n)."""
        if len(queries) > _MANY * self.book.words.shape[2] or self.shape[0] < _WORTH_TABLES:
            super().products(queries, out)
            return
        for start in range(0, len(queries), _SIDE_BY_SIDE):
            some = slice(start, start + _SIDE_BY_SIDE)
            tables = self.book.tables(queries[some])
            if tables.shape[1] == 1:
                _add_up(tables[:, 0], self.codes, out[start])
            else:
                _add_up_several(tables, self.codes, out[some])

    @classmethod
    def products_of_each(cls, parts: Sequence[Coded], queries: Sequence[Matrix], out: Matrix) -> None:
        """Write the products of one query with the points of several partitions, one after the other."""
        start = 0
        for first, last in _groups([points.shape[0] for points in parts]):
            some = cast("Sequence[ProductCodes]", parts[first:last])
            end = start + sum(points.shape[0] for points in some)
            if len(some) == 1:
                some[0].products(queries[first], out[None, start:end])
            else:
                _products_together(some, queries[first:last], out[start:end])
            start = end


def _groups(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield which partitions, of so many rows, are compared together: first, and last + 1."""
    first = rows = 0
    for number, count in enumerate(counts):
        full = rows + count > _BLOCK_SUMS or number - first == _TOGETHER
        if number > first and (count >= _SMALL_ROWS or full):
            yield first, number
            first, rows = number, 0
        rows += count
        if count >= _SMALL_ROWS:
            yield first, number + 1
            first, rows = number + 1, 0
    if first < len(counts):
        yield first, len(counts)


def _products_together(parts: Sequence[ProductCodes], queries: Sequence[Matrix], out: Matrix) -> None:
    """Write the products of one query with few rows each of several partitions."""
    codes: npt.NDArray[Any] = np.concatenate([points.codes for points in parts], axis=1)
    book = parts[0].book
    if all(query is queries[0] for query in queries):
        _add_up(book.tables(queries[0])[:, 0], codes, out)
        return
    tables = book.tables(np.concatenate(queries))
    counts = [points.shape[0] for points in parts]
    firsts = np.repeat(np.arange(len(parts), dtype=np.uint16) * np.uint16(_WORDS), counts)
    _add_up(tables.reshape(len(tables), -1), np.add(codes, firsts, dtype=np.uint16), out)


def _add_up(table: Matrix, codes: npt.NDArray[np.unsignedinteger[Any]], out: Matrix) -> None:
    """Write the sums of what rows have in each column.

    Args:
        table: (columns, words), C-contiguous.
        codes: (columns, n): a word for each row in each column.
        out: (n,).
    """
    for rows in _blocks(len(out), _BLOCK_SUMS):
        look_up = _by_arrow if rows.stop - rows.start >= _WORTH_ARROW else _by_numpy
        _sum(look_up(table, codes[:, rows]), out[rows])


def _add_up_several(tables: Tables, codes: Bytes, out: Matrix) -> None:
    """Write the sums of what rows have in each column, for up to eight queries.

    Args:
        tables: (columns, q, words).
        codes: (columns, n): a word for each row in each column.
        out: (q, n).
    """
    columns, queries, words = tables.shape
    beside = 1 << (queries - 1).bit_length()
    table = np.zeros((columns, words, beside), dtype=np.float32)
    table[:, :, :queries] = tables.transpose(0, 2, 1)
    for rows in _blocks(out.shape[1], _BLOCK_SUMS // beside):
        sums = np.empty((rows.stop - rows.start, beside), dtype=np.float32)
        _sum(_by_numpy(table, codes[:, rows]), sums)
        out[:, rows] = sums.T[:queries]


def _blocks(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _sum(parts: Iterator[Matrix], out: Matrix) -> None:
    """Write the sum of arrays, at least one, into another."""
    np.copyto(out, next(parts))
    for part in parts:
        np.add(out, part, out=out)


def _by_numpy(table: Matrix, codes: npt.NDArray[np.unsignedinteger[Any]]) -> Iterator[Matrix]:
    """Yield what rows have in each column, in the same memory: (n,), or (n, queries)."""
    sums = np.empty((codes.shape[1], *table.shape[2:]), dtype=np.float32)
    for words, column in zip(table, codes, strict=True):
        # No word is missing; numpy copies results of the other modes once more.
        yield np.take(words, column, axis=0, out=sums, mode="clip")


def _by_arrow(table: Matrix, codes: npt.NDArray[np.unsignedinteger[Any]]) -> Iterator[Matrix]:
    """Yield what rows have in each column: (n,)."""
    words = pa.array(table.reshape(-1))
    width = table.shape[1]
    for number, column in enumerate(codes):
        mine = words.slice(number * width, width)
        yield pc.call_function("array_take", [mine, pa.array(column)], _UNCHECKED).to_numpy()
