"""PQ: a vector is cut into sub-vectors, each stored as the number of the nearest of 256 (or 16) codewords.

    __pq_code: fixed_size_list<uint8>[sub_vectors * bits / 8]
    metadata {"codebook_position": 2, "nbits": 8, "num_sub_vectors": 8, "dimension": 32,
              "codebook_tensor": [], "transposed": true}
    global buffer `codebook_position`: Tensor, in memory order [sub-vector][codeword][value]
    In files of old writers, `codebook_tensor` is a list of the bytes of this message.

With 4 bits, byte b holds sub-vector 2b in its low and 2b + 1 in its high half. `transposed`: the bytes of a
partition are a matrix (bytes of a row, rows), row by row, whatever lists the column shows. With l2 and cosine
what is coded is the vector minus its centroid, with dot the vector itself. (Lance index format, PQ.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from spark_lance.errors import FormatError, OptionError
from spark_lance.index.vector.ivf import Ivf, pack_tensor, unpack_tensor
from spark_lance.index.vector.kmeans import assign, train_kmeans
from spark_lance.index.vector.metrics import Metric, Vectors
from spark_lance.index.vector.quantizers.base import (
    Asked,
    Codes,
    Matrix,
    Quantizer,
    Queries,
    Scorer,
    Training,
    each_of,
    no_shift,
    squares,
    vector_column,
)
from spark_lance.index.vector.quantizers.product_codes import Codebook, ProductCodes
from spark_lance.proto import index_pb2

__all__ = ["PQ_BITS", "ProductQuantizer", "check_sub_vectors"]

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
            return cls.given(training.codebook.astype(dtype), bits, training.metric, sample.shape[1])
        sample = sample[: training.sample_rate << bits]
        if training.metric != "dot":
            sample = sample - ivf.centroids[ivf.assign(sample)]
        dim = sample.shape[1]
        parts = training.num_sub_vectors or next((dim // n for n in (16, 8) if dim % n == 0), 1)
        return cls.train(
            sample, parts, bits, training.metric, dtype=dtype, iterations=training.max_iterations
        )

    @classmethod
    def given(cls, codebook: Vectors, bits: int, metric: Metric, dim: int) -> ProductQuantizer:
        """Return the quantizer of codewords that somebody has found.

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
        stored = codes[_COLUMN]
        if not self.transposed:
            return codes
        return {_COLUMN: np.ascontiguousarray(stored.reshape(stored.shape[1], len(stored)).T)}

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
        stored = codes[_COLUMN]
        count, width = stored.shape
        columns = self._sub_vectors * self.bits // 8
        if width < columns:
            raise IndexError(f"{width} bytes for {columns} columns of codes")
        # A copy, as what was read may be part of something larger.
        turned = stored.reshape(width, count) if self.transposed else stored.T
        points = ProductCodes(turned[:columns].copy(order="C"), self._book)
        if self._has_residuals:
            return Scorer(points, points.squares(), -2.0)
        return Scorer(points, np.ones(count, dtype=np.float32), -1.0)

    def ask(self, queries: Queries, centroid: Vectors) -> Asked:
        """Return the queries as seen from the centroid, or as they are with dot."""
        if not self._has_residuals:
            return Asked(queries.vectors.astype(np.float32), no_shift(len(queries)))
        rest: Matrix = (queries.vectors - centroid).astype(np.float32)
        return Asked(rest, squares(rest))

    def ask_each(self, query: Queries, centroids: Vectors) -> Sequence[Asked]:
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
            stored = bytes(inside) if inside else buffer(int(notes["codebook_position"]))
            tensor = index_pb2.Tensor.FromString(stored)
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
