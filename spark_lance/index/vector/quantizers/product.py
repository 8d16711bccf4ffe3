"""PQ: a vector is cut into sub-vectors, each stored as the number of the nearest of 256 (or 16) codewords.

    __pq_code: fixed_size_list<uint8>[sub_vectors * bits / 8]
    metadata {"codebook_position": 2, "nbits": 8, "num_sub_vectors": 8, "dimension": 32,
              "codebook_tensor": [], "transposed": true}
    global buffer `codebook_position`: Tensor, in memory order [sub-vector][codeword][value]
    In files of old writers, `codebook_tensor` is a list of the bytes of this message.

With 4 bits, byte b holds sub-vector 2b in its low and 2b + 1 in its high half. `transposed`: the bytes of a
partition are a matrix (bytes of a row, rows), row by row, whatever lists the column shows. With l2 and cosine
what is coded is the vector minus its centroid, with dot the vector itself. (Lance index format, PQ.)

Product codes as points: compared by looking up what a query has in common with each codeword.

The product of a query with a point is the sum of those with the codewords that the point is made of. For each
column of codes a table has the products of the query with its 256 codewords; a row takes a look-up a column:

    <q, point> = sum over columns c of table[c, codes[c, row]]

Tables may hold the products of up to eight queries side by side, which are then looked up together in little
more time than one. With very many queries, decoding rows and multiplying is as fast, and uses all cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from spark_lance.errors import FormatError, OptionError
from spark_lance.index.vector.base.ivf import Ivf, pack_tensor, unpack_tensor
from spark_lance.index.vector.base.kmeans import assign, train_kmeans
from spark_lance.index.vector.base.metrics import Metric, Vectors
from spark_lance.index.vector.quantizers.base import (
    Codes,
    PreparedQuery,
    Quantizer,
    Queries,
    Scorer,
    Training,
    each_of,
    no_shift,
    vector_column,
)
from spark_lance.index.vector.quantizers.quantized_points import Matrix, QuantizedPoints, Rows, squares
from spark_lance.proto import index_pb2

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
class ProductCodes(QuantizedPoints):
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
    def products_of_each(
        cls, parts: Sequence[QuantizedPoints], queries: Sequence[Matrix], out: Matrix
    ) -> None:
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


_COLUMN = "__pq_code"

# The default bits of a code.
PQ_BITS = 8


@dataclass(frozen=True)
class ProductQuantizer(Quantizer):
    """Codewords of the parts of a vector.

    Attributes:
        codebook: (sub_vectors, codewords, dim / sub_vectors), in the type of the column.
        bits: of a code, 8 or 4.
        metric: of the index.
        transposed: whether partitions are stored column by column.
    """

    name = "PQ"
    codebook: Vectors
    bits: int
    metric: Metric
    transposed: bool = True

    @classmethod
    def codewords(cls, bits: int | None) -> int:
        """Return one for every code; codes have 8 bits by default."""
        return 1 << (bits or PQ_BITS)

    @classmethod
    def fit(cls, sample: Vectors, ivf: Ivf, training: Training, dtype: np.dtype[Any]) -> ProductQuantizer:
        """Find codewords; by default for parts of 16 values, or of 8."""
        bits = training.num_bits or PQ_BITS
        if training.codebook is not None:
            return cls.from_codebook(training.codebook.astype(dtype), bits, training.metric, sample.shape[1])
        sample = sample[: training.sample_rate << bits]
        if training.metric != "dot":
            sample = sample - ivf.centroids[ivf.assign(sample)]
        dim = sample.shape[1]
        parts = training.num_sub_vectors or next((dim // n for n in (16, 8) if dim % n == 0), 1)
        return cls.train(
            sample, parts, bits, training.metric, dtype=dtype, iterations=training.max_iterations
        )

    @classmethod
    def from_codebook(cls, codebook: Vectors, bits: int, metric: Metric, dim: int) -> ProductQuantizer:
        """Return the quantizer of a codebook that has been trained elsewhere.

        Raises:
            OptionError: they do not go with vectors of `dim` values and codes of `bits` bits.
        """
        shape = codebook.shape
        if len(shape) != 3 or shape[1] != 1 << bits or shape[0] * shape[2] != dim:
            raise OptionError(
                f"PQ codebook must be 3D array: (sub_vectors, {1 << bits}, dim) for num_bits={bits} and "
                f"vectors of {dim} values, got {shape}"
            )
        return cls(codebook, bits, metric)

    @classmethod
    def train(
        cls,
        sample: Vectors,
        sub_vectors: int,
        bits: int,
        metric: Metric,
        *,
        dtype: npt.DTypeLike = np.float32,
        iterations: int = 50,
    ) -> ProductQuantizer:
        """Find codewords for a sample (n, dim), centroids already taken off where the metric wants that.

        Args:
            sample: (n, dim) floats.
            sub_vectors, bits, metric: of the codes.
            dtype: in which the column, and so the codebook, is stored.
            iterations: most passes of k-means over the sample.

        Raises:
            OptionError: the vectors cannot be cut so.
        """
        dim = sample.shape[1]
        check_sub_vectors(sub_vectors, bits, dim)
        parts = np.split(sample, sub_vectors, axis=1)
        books = [train_kmeans(part, 1 << bits, iterations=iterations, seed=i) for i, part in enumerate(parts)]
        return cls(np.stack(books).astype(dtype), bits, metric)

    @property
    def _sub_vectors(self) -> int:
        return int(self.codebook.shape[0])

    @property
    def _has_residuals(self) -> bool:
        return self.metric != "dot"

    def columns(self) -> list[pa.Field]:
        """Return the stored column."""
        return [vector_column(_COLUMN, self._sub_vectors * self.bits // 8, pa.uint8())]

    def encode(self, vectors: Vectors, owners: npt.NDArray[np.int64], ivf: Ivf) -> Codes:
        """Return the numbers of the nearest codewords, two to a byte with 4 bits."""
        rest = vectors - ivf.centroids[owners] if self._has_residuals else vectors
        codes: npt.NDArray[Any] = np.empty((len(rest), self._sub_vectors), dtype=np.uint8)
        for number, part in enumerate(np.split(rest, self._sub_vectors, axis=1)):
            codes[:, number] = assign(part, self.codebook[number])[0]
        if self.bits == 4:
            codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
        return {_COLUMN: codes}

    def notes(self, add_buffer: Callable[[bytes], int]) -> dict[str, Any]:
        """Return the shape of the codes; the codebook becomes a buffer."""
        words = self.codebook.shape[1]
        dim = self._sub_vectors * self.codebook.shape[2]
        tensor = pack_tensor(self.codebook)
        tensor.shape[:] = (words, dim)
        return {
            "codebook_position": add_buffer(tensor.SerializeToString()),
            "nbits": self.bits,
            "num_sub_vectors": self._sub_vectors,
            "dimension": dim,
            "codebook_tensor": [],
            "transposed": self.transposed,
        }

    def pack(self, codes: Codes) -> Codes:
        """Return the codes of a partition column by column."""
        rows = codes[_COLUMN]
        return {_COLUMN: np.ascontiguousarray(rows.T).reshape(rows.shape)} if self.transposed else codes

    def unpack(self, codes: Codes) -> Codes:
        """Return the codes of a partition row by row."""
        column = codes[_COLUMN]
        if not self.transposed:
            return codes
        return {_COLUMN: np.ascontiguousarray(column.reshape(column.shape[1], len(column)).T)}

    def summary(self) -> dict[str, int]:
        """Return what the manifest's details say."""
        return {"num_bits": self.bits, "num_sub_vectors": self._sub_vectors}

    def figures(self) -> dict[str, Any]:
        """Return how codes are compared, and how they lie in the file."""
        # Vectors are made as long as each other for cosine, and so compared by their distance.
        compared = "l2" if self.metric == "cosine" else self.metric
        return {"metric_type": compared, "transposed": self.transposed}

    def same_codes(self, other: Quantizer) -> bool:
        """Return whether codes of the other mean the same here."""
        return isinstance(other, ProductQuantizer) and np.array_equal(self.codebook, other.codebook)

    @cached_property
    def _book(self) -> Codebook:
        return Codebook.of(self.codebook, self.bits)

    def scorer(self, codes: Codes) -> Scorer:
        """Return the codes, column by column."""
        column = codes[_COLUMN]
        count, width = column.shape
        columns = self._sub_vectors * self.bits // 8
        if width < columns:
            raise IndexError(f"{width} bytes for {columns} columns of codes")
        # A copy, as what was read may be part of something larger.
        turned = column.reshape(width, count) if self.transposed else column.T
        points = ProductCodes(turned[:columns].copy(order="C"), self._book)
        if self._has_residuals:
            return Scorer(points, points.squares(), -2.0)
        return Scorer(points, np.ones(count, dtype=np.float32), -1.0)

    def ask(self, queries: Queries, centroid: Vectors) -> PreparedQuery:
        """Return the queries as seen from the centroid, or as they are with dot."""
        if not self._has_residuals:
            return PreparedQuery(queries.vectors.astype(np.float32), no_shift(len(queries)))
        rest: Matrix = (queries.vectors - centroid).astype(np.float32)
        return PreparedQuery(rest, squares(rest))

    def ask_each(self, query: Queries, centroids: Vectors) -> Sequence[PreparedQuery]:
        """Return one query as seen from each centroid, or as it is with dot."""
        if not self._has_residuals:
            return super().ask_each(query, centroids)
        rest: Matrix = (query.vectors - centroids).astype(np.float32, copy=False)
        return each_of(rest, squares(rest))

    @classmethod
    def load(
        cls, notes: Mapping[str, Any], buffer: Callable[[int], bytes], metric: Metric, columns: pa.Schema
    ) -> ProductQuantizer:
        """Return the quantizer of a file."""
        try:
            bits, parts, dim = int(notes["nbits"]), int(notes["num_sub_vectors"]), int(notes["dimension"])
            inside = notes.get("codebook_tensor")
            data = bytes(inside) if inside else buffer(int(notes["codebook_position"]))
            tensor = index_pb2.Tensor.FromString(data)
        except (KeyError, TypeError, ValueError, DecodeError) as error:
            raise FormatError(f"malformed metadata of product codes: {error!r}") from error
        codebook = unpack_tensor(tensor)
        if bits not in (4, 8) or parts < 1 or dim < 1 or dim % parts or codebook.size != dim << bits:
            raise FormatError(
                f"{codebook.size} values are not {parts} sub-vectors of {dim} values, codes of {bits} bits"
            )
        shaped = codebook.reshape(parts, 1 << bits, dim // parts)
        return cls(shaped, bits, metric, bool(notes.get("transposed", False)))


def check_sub_vectors(sub_vectors: int, bits: int, dim: int) -> None:
    """Check that vectors can be cut into parts with codes of `bits` bits.

    Raises:
        OptionError: they cannot; the message lists the numbers that can be used.
    """
    if bits not in (4, 8):
        raise OptionError(f"num_bits (numBits in Spark) of PQ codes is 8 or 4, not {bits}")
    usable = [n for n in range(1, dim + 1) if dim % n == 0 and (bits == 8 or n % 2 == 0)]
    if sub_vectors in usable:
        return
    if not usable:
        raise OptionError(f"vectors of {dim} values have no even number of parts: use num_bits=8")
    even = " and be even for codes of 4 bits" if bits == 4 else ""
    choice = ", ".join(map(str, usable))
    raise OptionError(
        f"dimension {dim} must be divisible by num_sub_vectors (numSubVectors in Spark){even}, which is "
        f"{sub_vectors}: use one of {choice}"
    )
