"""PQ: each sub-vector of a vector is stored as the number of the nearest of 256 (or 16) codewords.

    __pq_code: fixed_size_list<uint8>[sub_vectors * bits / 8]
    metadata {"codebook_position": 2, "nbits": 8, "num_sub_vectors": 8, "dimension": 32,
              "codebook_tensor": [], "transposed": true}
    global buffer `codebook_position`: Tensor, in memory order [sub-vector][codeword][value]
    In old files, `codebook_tensor` is a list with the bytes of this message instead.

With 4 bits, byte b has sub-vector 2b in its low and 2b + 1 in its high half. `transposed`: the bytes of a
partition are a row-major matrix (bytes per row, rows), regardless of the column's list boundaries. With l2
and cosine, the encoded value is the vector minus its centroid; with dot, the vector itself. (Lance index
format, PQ.)

Distances are computed by table lookup. The product of a query with a point is the sum of its products with
the codewords of the point. For each code column, a table has the products of the query with its 256
codewords, so each row needs one lookup per column:

    <q, point> = sum over columns c of table[c, codes[c, row]]

A table can hold the products of up to eight queries next to each other. Looking up all eight takes little
more time than looking up one. With very many queries, decoding the rows and multiplying is as fast, and uses
all cores.
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

from spark_lance.arrow.arrays import numbers_to_arrow, numbers_to_numpy
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
    split_queries,
    vector_column,
    zero_shifts,
)
from spark_lance.index.vector.quantizers.quantized_points import Matrix, QuantizedPoints, Rows, squares
from spark_lance.proto import index_pb2

Bytes = npt.NDArray[np.uint8]
# (columns, queries, codewords): products of queries with codewords.
Tables = npt.NDArray[np.float32]

_WORDS = 256
# Tables are used for at most `_MANY` queries per value of a codeword, and for at least `_WORTH_TABLES` rows,
# because building tables takes time. Otherwise BLAS is faster.
_MAX_TABLE_QUERIES = 8
_MIN_TABLE_ROWS = 1 << 10
# Queries per lookup: numpy copies up to 32 bytes without a call for each copy.
_QUERIES_PER_LOOKUP = 8
# Rows per block of sums, so that the sums and addends stay in a core's cache.
_BLOCK_SUMS = 1 << 16
# Arrow looks up codes directly, numpy converts them to 8 bytes each, but an Arrow call has more overhead.
_MIN_ARROW_ROWS = 3 << 12
# Partitions with fewer rows are compared together, so that each call has enough work. At most this many
# partitions: then their codes fit in uint16.
_SMALL_ROWS = 1 << 12
_MAX_GROUPED = 1 << 8
_UNCHECKED = pc.TakeOptions(boundscheck=False)


@dataclass(frozen=True)
class Codebook:
    """The codewords of each byte value.

    Attributes:
        words: (columns, 256, values) float32.
    """

    words: Matrix

    @classmethod
    def of(cls, codebook: Vectors, bits: int) -> Codebook:
        """Return the codebook of codewords (sub-vectors, 2^bits, values). With 4 bits, a byte holds two."""
        words = np.ascontiguousarray(codebook, dtype=np.float32)
        if bits == 4:
            low, high = words[0::2, None], words[1::2, :, None]
            shape = (len(high), 16, 16, words.shape[2])
            pairs = np.concatenate([np.broadcast_to(low, shape), np.broadcast_to(high, shape)], axis=3)
            words = pairs.reshape(len(high), _WORDS, -1)
        return cls(words)

    @property
    def width(self) -> int:
        """Number of values of a point."""
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
    """Points encoded as product codes.

    Attributes:
        codes: (columns, n) uint8.
        book: the codebook.
    """

    codes: Bytes
    book: Codebook

    @property
    def shape(self) -> tuple[int, int]:
        """(number of points, values per point)."""
        return self.codes.shape[1], self.book.width

    @property
    def nbytes(self) -> int:
        """Memory size in bytes."""
        return self.codes.nbytes

    def part(self, rows: Rows) -> ProductCodes:
        """Return some of the points."""
        codes = self.codes[:, rows] if isinstance(rows, slice) else self.codes.take(rows, axis=1)
        return ProductCodes(codes, self.book)

    def decode(self, rows: Rows, out: Matrix) -> None:
        """Decode the points of the given rows into `out`."""
        columns, _, values = self.book.words.shape
        selected = np.ascontiguousarray(self.codes[:, rows].T)
        word_indices = np.add(selected, _WORDS * np.arange(columns), dtype=np.intp)
        # All indices are valid. The mode "clip" avoids an extra copy of the result.
        words = self.book.words.reshape(-1, values)
        np.take(words, word_indices, axis=0, out=out.reshape(len(selected), columns, values), mode="clip")

    def squares(self) -> Matrix:
        """Return the squared lengths of the points (n,)."""
        result = np.empty(self.shape[0], dtype=np.float32)
        _sum_lookups(self.book.squares(), self.codes, result)
        return result

    def products(self, queries: Matrix, out: Matrix) -> None:
        """Write the products of queries (q, width) with all points into an array (q, n)."""
        if len(queries) > _MAX_TABLE_QUERIES * self.book.words.shape[2] or self.shape[0] < _MIN_TABLE_ROWS:
            super().products(queries, out)
            return
        for start in range(0, len(queries), _QUERIES_PER_LOOKUP):
            selected = slice(start, start + _QUERIES_PER_LOOKUP)
            tables = self.book.tables(queries[selected])
            if tables.shape[1] == 1:
                _sum_lookups(tables[:, 0], self.codes, out[start])
            else:
                _sum_lookups_batch(tables, self.codes, out[selected])

    @classmethod
    def products_of_each(
        cls, parts: Sequence[QuantizedPoints], queries: Sequence[Matrix], out: Matrix
    ) -> None:
        """Write the products of one query with the points of several partitions, concatenated."""
        start = 0
        for first, last in _group_partitions([points.shape[0] for points in parts]):
            selected = cast("Sequence[ProductCodes]", parts[first:last])
            end = start + sum(points.shape[0] for points in selected)
            if len(selected) == 1:
                selected[0].products(queries[first], out[None, start:end])
            else:
                _grouped_products(selected, queries[first:last], out[start:end])
            start = end


def _group_partitions(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges [first, last) of partitions to compare together, given their row counts."""
    first = rows = 0
    for number, count in enumerate(counts):
        full = rows + count > _BLOCK_SUMS or number - first == _MAX_GROUPED
        if number > first and (count >= _SMALL_ROWS or full):
            yield first, number
            first, rows = number, 0
        rows += count
        if count >= _SMALL_ROWS:
            yield first, number + 1
            first, rows = number + 1, 0
    if first < len(counts):
        yield first, len(counts)


def _grouped_products(parts: Sequence[ProductCodes], queries: Sequence[Matrix], out: Matrix) -> None:
    """Write the products of one query with the points of several small partitions."""
    codes: npt.NDArray[Any] = np.concatenate([points.codes for points in parts], axis=1)
    book = parts[0].book
    counts = [points.shape[0] for points in parts]
    if len(out) < _MIN_TABLE_ROWS:
        points = ProductCodes(codes, book).floats()
        np.einsum("ij,ij->i", points, np.repeat(np.concatenate(queries), counts, axis=0), out=out)
        return
    if all(query is queries[0] for query in queries):
        _sum_lookups(book.tables(queries[0])[:, 0], codes, out)
        return
    tables = book.tables(np.concatenate(queries))
    firsts = np.repeat(np.arange(len(parts), dtype=np.uint16) * np.uint16(_WORDS), counts)
    _sum_lookups(tables.reshape(len(tables), -1), np.add(codes, firsts, dtype=np.uint16), out)


def _sum_lookups(table: Matrix, codes: npt.NDArray[np.unsignedinteger[Any]], out: Matrix) -> None:
    """Write the sum of the table values of each row.

    Args:
        table: (columns, words), C-contiguous.
        codes: (columns, n): word index of each row in each column.
        out: (n,).
    """
    for rows in _blocks(len(out), _BLOCK_SUMS):
        look_up = _look_up_arrow if rows.stop - rows.start >= _MIN_ARROW_ROWS else _look_up_numpy
        _sum(look_up(table, codes[:, rows]), out[rows])


def _sum_lookups_batch(tables: Tables, codes: Bytes, out: Matrix) -> None:
    """Write the sum of the table values of each row, for up to eight queries.

    Args:
        tables: (columns, q, words).
        codes: (columns, n): word index of each row in each column.
        out: (q, n).
    """
    columns, queries, words = tables.shape
    padded_queries = 1 << (queries - 1).bit_length()
    table = np.zeros((columns, words, padded_queries), dtype=np.float32)
    table[:, :, :queries] = tables.transpose(0, 2, 1)
    for rows in _blocks(out.shape[1], _BLOCK_SUMS // padded_queries):
        sums = np.empty((rows.stop - rows.start, padded_queries), dtype=np.float32)
        _sum(_look_up_numpy(table, codes[:, rows]), sums)
        out[:, rows] = sums.T[:queries]


def _blocks(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _sum(parts: Iterator[Matrix], out: Matrix) -> None:
    """Write the sum of one or more arrays into `out`."""
    np.copyto(out, next(parts))
    for part in parts:
        np.add(out, part, out=out)


def _look_up_numpy(table: Matrix, codes: npt.NDArray[np.unsignedinteger[Any]]) -> Iterator[Matrix]:
    """Yield the table values of each column, (n,) or (n, queries). The array is reused."""
    sums = np.empty((codes.shape[1], *table.shape[2:]), dtype=np.float32)
    for words, column in zip(table, codes, strict=True):
        # All codes are valid. The mode "clip" avoids an extra copy of the result.
        yield np.take(words, column, axis=0, out=sums, mode="clip")


def _look_up_arrow(table: Matrix, codes: npt.NDArray[np.unsignedinteger[Any]]) -> Iterator[Matrix]:
    """Yield the table values of each column: (n,)."""
    words = numbers_to_arrow(table.reshape(-1))
    width = table.shape[1]
    for number, column in enumerate(codes):
        column_words = words.slice(number * width, width)
        values = pc.call_function("array_take", [column_words, numbers_to_arrow(column)], _UNCHECKED)
        yield numbers_to_numpy(values)


_COLUMN = "__pq_code"

# The default bits of a code.
PQ_BITS = 8


@dataclass(frozen=True)
class ProductQuantizer(Quantizer):
    """Product quantizer: one codebook per sub-vector.

    Attributes:
        codebook: (sub_vectors, codewords, dim / sub_vectors), with the dtype of the column.
        bits: bits per code, 8 or 4.
        metric: metric of the index.
        transposed: whether partitions are stored column by column.
    """

    name = "PQ"
    codebook: Vectors
    bits: int
    metric: Metric
    transposed: bool = True

    @classmethod
    def codewords(cls, bits: int | None) -> int:
        """Return the number of codewords per sub-vector; codes have 8 bits by default."""
        return 1 << (bits or PQ_BITS)

    @classmethod
    def fit(cls, sample: Vectors, ivf: Ivf, training: Training, dtype: np.dtype[Any]) -> ProductQuantizer:
        """Train a codebook. By default, sub-vectors have 16 values, or 8."""
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
        """Return a quantizer with a given codebook.

        Raises:
            OptionError: the codebook does not fit vectors of `dim` values and codes of `bits` bits.
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
        """Train a codebook.

        Args:
            sample: (n, dim) floats; minus their centroids, except with dot.
            sub_vectors, bits, metric: parameters of the codes.
            dtype: dtype of the column, and of the stored codebook.
            iterations: maximum k-means passes over the sample.

        Raises:
            OptionError: vectors cannot be split into `sub_vectors` parts.
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
        """Return the numbers of the nearest codewords. With 4 bits, a byte has two numbers."""
        residuals = vectors - ivf.centroids[owners] if self._has_residuals else vectors
        codes: npt.NDArray[Any] = np.empty((len(residuals), self._sub_vectors), dtype=np.uint8)
        for number, part in enumerate(np.split(residuals, self._sub_vectors, axis=1)):
            codes[:, number] = assign(part, self.codebook[number])[0]
        if self.bits == 4:
            codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
        return {_COLUMN: codes}

    def notes(self, add_buffer: Callable[[bytes], int]) -> dict[str, Any]:
        """Return the shape of the codes. The codebook is added as a buffer."""
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
        """Return row-major codes column by column, if `transposed`."""
        rows = codes[_COLUMN]
        return {_COLUMN: np.ascontiguousarray(rows.T).reshape(rows.shape)} if self.transposed else codes

    def unpack(self, codes: Codes) -> Codes:
        """Return stored codes in row-major order."""
        column = codes[_COLUMN]
        if not self.transposed:
            return codes
        return {_COLUMN: np.ascontiguousarray(column.reshape(column.shape[1], len(column)).T)}

    def summary(self) -> dict[str, int]:
        """Return the number of bits and sub-vectors."""
        return {"num_bits": self.bits, "num_sub_vectors": self._sub_vectors}

    def figures(self) -> dict[str, Any]:
        """Return the distance metric and the layout of the codes in the file."""
        # With cosine, vectors are normalized and then compared by l2 distance.
        compared = "l2" if self.metric == "cosine" else self.metric
        return {"metric_type": compared, "transposed": self.transposed}

    def same_codes(self, other: Quantizer) -> bool:
        """Return whether the other quantizer has the same codebook."""
        return isinstance(other, ProductQuantizer) and np.array_equal(self.codebook, other.codebook)

    @cached_property
    def _book(self) -> Codebook:
        return Codebook.of(self.codebook, self.bits)

    def scorer(self, codes: Codes) -> Scorer:
        """Return a scorer that looks up codes column by column."""
        column = codes[_COLUMN]
        count, width = column.shape
        columns = self._sub_vectors * self.bits // 8
        if width < columns:
            raise IndexError(f"{width} bytes for {columns} columns of codes")
        # Copy, because the array may be a view of a larger one.
        by_column = column.reshape(width, count) if self.transposed else column.T
        points = ProductCodes(by_column[:columns].copy(order="C"), self._book)
        if self._has_residuals:
            return Scorer(points, points.squares(), -2.0)
        return Scorer(points, np.ones(count, dtype=np.float32), -1.0)

    def prepare(self, queries: Queries, centroid: Vectors) -> PreparedQuery:
        """Return the queries minus the centroid, or unchanged with dot."""
        if not self._has_residuals:
            return PreparedQuery(queries.vectors.astype(np.float32), zero_shifts(len(queries)))
        residuals: Matrix = (queries.vectors - centroid).astype(np.float32)
        return PreparedQuery(residuals, squares(residuals))

    def prepare_each(self, query: Queries, centroids: Vectors) -> Sequence[PreparedQuery]:
        """Return one query minus each centroid, or unchanged with dot."""
        if not self._has_residuals:
            return super().prepare_each(query, centroids)
        residuals: Matrix = (query.vectors - centroids).astype(np.float32, copy=False)
        return split_queries(residuals, squares(residuals))

    @classmethod
    def load(
        cls, notes: Mapping[str, Any], buffer: Callable[[int], bytes], metric: Metric, columns: pa.Schema
    ) -> ProductQuantizer:
        """Return the quantizer of a file."""
        try:
            bits, parts, dim = int(notes["nbits"]), int(notes["num_sub_vectors"]), int(notes["dimension"])
            inline_tensor = notes.get("codebook_tensor")
            data = bytes(inline_tensor) if inline_tensor else buffer(int(notes["codebook_position"]))
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
    """Check that vectors can be split into sub-vectors with codes of `bits` bits.

    Raises:
        OptionError: they cannot. The message lists the valid numbers.
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
