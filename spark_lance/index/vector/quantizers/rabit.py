"""RQ (RaBitQ): one sign bit per dimension of a rotated vector, and optionally more bits of its values.

    _rabit_codes: fixed_size_list<uint8>[dim / 8]      sign bits: 1 where the rotated value is not negative
    __add_factors, __scale_factors: float32            for the estimate from the signs only
    __error_factors: float32                           error bound of that estimate
    __blocked_ex_codes, __add_factors_ex, __scale_factors_ex      with more than one bit: the bits below the
                                                       sign, and factors of the estimate from all bits
    metadata {"rotate_mat_position": null, "fast_rotation_signs": [bytes], "rotation_type": "fast",
              "code_dim": 32, "num_bits": 5, "packed": true, "query_estimator": "raw_query"}

The encoded vector is r, the rotated difference between a vector and its centroid (for every metric). s are
the signs as +-0.5; with more bits, the centred integer codes u take the place of s:

    l2, cosine   add = n2 + 2 n2 <cR, s> / <r, s>          scale = -2 n2 / <r, s>    shift = |q - c|^2
    dot          add = 1 - <r, cR> + n2 <cR, s> / <r, s>   scale = -n2 / <r, s>      shift = 1 - <q, c> - gain

n2 is the squared length of r, and cR the rotated centroid. The query is rotated, too. With dot, `add` is
multiplied by the query's gain <q, c> / |c|^2. 1 - add is the error of the estimate for the centroid, and the
gain is the query's component along the centroid. Older files have `query_estimator` "residual_query": the
rotated query minus centroid is compared with the signs, and the factors have another form. (Lance index
format, RQ; the gain as in pylance.)

Bit layout of RQ codes:

The sign codes of a partition, L bytes per row, are packed in blocks of 32 rows. For each of the L bytes of a
row, a block has 32 bytes. With perm = 0 8 1 9 2 10 3 11 4 12 5 13 6 14 7 15 and j < 16

    byte j        low halves of row perm[j] (low) and of row perm[j] + 16 (high)
    byte 16 + j   the high halves likewise

The rows after the last full block follow it, column by column.

The extra codes of a row have `width` = 1 to 8 bits per dimension, in blocks of 64 dimensions. The last block
is padded with zeros. Run k of a block has dimensions 16k to 16k + 15; b is the position in a run:

    1   8 bytes, lowest bit first
    2   16 bytes: byte b has dimensions b, b + 16, b + 32, b + 48 from the lowest bits up
    4   32 bytes: byte 8k + b has dimension 16k + b (low) and 16k + 8 + b (high), b < 8
    6   48 bytes: byte 16k + b, k < 3, has the six lower bits of dimension 16k + b, and above them bits 2k and
        2k + 1 of dimension 48 + b
    8   64 bytes
    3, 7   the form of 2 or 6 for the lower bits, then 8 bytes with the top bits
    5   32 bytes: byte b has dimensions b (low) and b + 16 (high), byte 16 + b has b + 32 and b + 48; then the
        top bits of all, 8 bytes
    top bits: u64 in which dimension 16k + b has bit 8 * (b mod 8) + 2k + b div 8

(Lance index format, RQ.)

Random rotations, which spread a vector's values evenly over all dimensions:

    fast     four rounds, each: negate the values whose sign bit is set, then a Walsh-Hadamard transform. The
             transform covers T values, where T is the largest power of two that fits. If T is the dimension,
             that is all values. Otherwise it covers the first T in rounds 0 and 2 and the last T in rounds 1
             and 3; after each round the halves (x, y) become (x + y, x - y), and at the end all values are
             multiplied by 1/4.
             Sign bits: 4 * ceil(dim / 8) bytes, one run per round, lowest bit first.
    matrix   M times the vector

Rotations preserve lengths and inner products. (Lance index format, RQ.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError

from spark_lance.errors import FormatError, OptionError, UnsupportedFormatError
from spark_lance.index.vector.base.ivf import Ivf, pack_tensor, unpack_tensor
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
)
from spark_lance.index.vector.quantizers.quantized_points import Matrix, NarrowCodes, squares
from spark_lance.proto import index_pb2

_ROUNDS = 4
# Maximum values per matrix product of a Walsh-Hadamard transform.
_RUN = 128


@dataclass(frozen=True)
class FastRotation:
    """Rotation by sign flips and Walsh-Hadamard transforms.

    Attributes:
        dim: number of values of a vector.
        signs: the stored sign bytes.
    """

    dim: int
    signs: bytes

    def __post_init__(self) -> None:
        if len(self.signs) != _ROUNDS * -(-self.dim // 8):
            raise FormatError(f"{len(self.signs)} bytes of signs for a rotation of {self.dim} values")

    @classmethod
    def random(cls, dim: int, seed: int = 42) -> FastRotation:
        """Return a rotation with random signs."""
        return cls(dim, np.random.default_rng(seed).bytes(_ROUNDS * -(-dim // 8)))

    def is_same(self, other: Rotation) -> bool:
        """Return whether another rotation is this one."""
        return self == other

    def __call__(self, vectors: Vectors) -> Matrix:
        """Rotate vectors (n, dim)."""
        bits = np.unpackbits(
            np.frombuffer(self.signs, dtype=np.uint8).reshape(_ROUNDS, -1), axis=1, bitorder="little"
        )
        flips = 1 - 2 * bits[:, : self.dim].astype(np.float32)
        values: Matrix = np.array(vectors, dtype=np.float32, order="C")
        size = 1 << (self.dim.bit_length() - 1)
        scale = np.float32(1 / np.sqrt(size))
        half = self.dim // 2
        for number in range(_ROUNDS):
            values *= flips[number]
            if size == self.dim:
                values = _hadamard(values) * scale
                continue
            part = slice(0, size) if number % 2 == 0 else slice(self.dim - size, self.dim)
            values[:, part] = _hadamard(values[:, part]) * scale
            left, right = values[:, :half].copy(), values[:, half : 2 * half]
            values[:, :half] = left + right
            values[:, half : 2 * half] = left - right
        return values if size == self.dim else values * np.float32(0.25)


@dataclass(frozen=True)
class MatrixRotation:
    """A rotation matrix (dim, dim)."""

    matrix: Vectors

    @classmethod
    def random(cls, dim: int, seed: int = 42) -> MatrixRotation:
        """Return a random rotation."""
        matrix = np.random.default_rng(seed).standard_normal((dim, dim))
        return cls(np.linalg.qr(matrix)[0].astype(np.float32))

    def is_same(self, other: Rotation) -> bool:
        """Return whether another rotation is this one."""
        return isinstance(other, MatrixRotation) and np.array_equal(self.matrix, other.matrix)

    def __call__(self, vectors: Vectors) -> Matrix:
        """Rotate vectors (n, dim)."""
        rotated: Matrix = vectors.astype(np.float32) @ self.matrix.T.astype(np.float32)
        return rotated


Rotation = FastRotation | MatrixRotation


def _hadamard(values: Matrix) -> Matrix:
    """Return the Walsh-Hadamard transform of rows (n, 2^k), in natural order, not normalized.

    The transform of a * b values is a size-b transform in each run of b values, then a size-a transform
    across the runs. BLAS computes the first for whole blocks of rows.
    """
    rows, size = values.shape
    run = min(size, _RUN)
    within: Matrix = values.reshape(-1, run) @ _hadamard_matrix(run)
    if run < size:
        within = np.matmul(_hadamard_matrix(size // run), within.reshape(rows, size // run, run))
    return within.reshape(rows, size)


@cache
def _hadamard_matrix(size: int) -> Matrix:
    """Return the Walsh-Hadamard matrix (size, size), size a power of two."""
    numbers = np.arange(size)
    common = numbers[:, None] & numbers
    odd = np.zeros_like(common)
    while common.any():
        odd ^= common & 1
        common >>= 1
    return (1 - 2 * odd).astype(np.float32)


# Arrays of uint8. Type checkers lose the dtype in operations with Python integers.
Bytes = npt.NDArray[Any]

_PACKED_ROWS = 32
_PERM = np.array([0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15])
_BLOCK_DIMS = 64
# Width of the codes -> number of lower bits, which are not in the plane of top bits.
_LOWER_BITS = {1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 6, 7: 6, 8: 8}
_TOP_BITS = np.array([8 * (b % 8) + 2 * k + b // 8 for k in range(4) for b in range(16)])


def pack_signs(rows: Bytes) -> Bytes:
    """Pack the row-major sign codes of a partition (n, L); the result has the same shape."""
    count, length = rows.shape
    full = count - count % _PACKED_ROWS
    blocks = rows[:full].reshape(-1, _PACKED_ROWS, length)
    one, other = blocks[:, _PERM], blocks[:, _PERM + 16]
    low = (one & 15) | (other & 15) << 4
    high = (one >> 4) | (other >> 4) << 4
    packed = np.concatenate([low, high], axis=1).transpose(0, 2, 1)
    residuals = rows[full:].T
    return np.concatenate([packed.reshape(-1), residuals.reshape(-1)]).reshape(count, length).astype(np.uint8)


def unpack_signs(packed_signs: Bytes) -> Bytes:
    """Unpack the stored sign codes of a partition to row-major (n, L)."""
    count, length = packed_signs.shape
    flat = packed_signs.reshape(-1)
    full = count - count % _PACKED_ROWS
    rows = np.empty((count, length), dtype=np.uint8)
    packed = flat[: full * length].reshape(-1, length, _PACKED_ROWS).transpose(0, 2, 1)
    low, high = packed[:, :16], packed[:, 16:]
    blocks = rows[:full].reshape(-1, _PACKED_ROWS, length)
    blocks[:, _PERM] = (low & 15) | (high & 15) << 4
    blocks[:, _PERM + 16] = (low >> 4) | (high >> 4) << 4
    rows[full:] = flat[full * length :].reshape(length, count - full).T
    return rows


def extra_bytes(dim: int, width: int) -> int:
    """Return the number of bytes of a row's extra codes."""
    return -(-dim // _BLOCK_DIMS) * _BLOCK_DIMS * width // 8


def pack_extra(codes: Bytes, width: int) -> Bytes:
    """Pack extra codes (n, dim), each below 2^width, to bytes (n, extra_bytes)."""
    count, dim = codes.shape
    blocks = -(-dim // _BLOCK_DIMS)
    padded = np.zeros((count, blocks * _BLOCK_DIMS), dtype=np.uint8)
    padded[:, :dim] = codes
    values = padded.reshape(count, blocks, _BLOCK_DIMS)
    bits = _LOWER_BITS[width]
    parts = [_pack_lower(values & ((1 << bits) - 1), width, bits)]
    if width != bits:
        parts.append(_pack_top(values >> bits))
    return np.concatenate(parts, axis=2).reshape(count, extra_bytes(dim, width))


def unpack_extra(packed_bits: Bytes, dim: int, width: int) -> Bytes:
    """Unpack stored extra codes to (n, dim)."""
    count = len(packed_bits)
    blocks = packed_bits.reshape(count, -(-dim // _BLOCK_DIMS), _BLOCK_DIMS * width // 8)
    bits = _LOWER_BITS[width]
    values = _unpack_lower(blocks[:, :, : _BLOCK_DIMS * bits // 8], width, bits)
    if width != bits:
        values = values | (_unpack_top(blocks[:, :, -8:]) << bits)
    return np.ascontiguousarray(values.reshape(count, len(_TOP_BITS) * blocks.shape[1])[:, :dim])


def _pack_lower(values: Bytes, width: int, bits: int) -> Bytes:
    runs: Bytes = values.reshape(*values.shape[:2], 4, 16)
    if bits == 1:
        return np.packbits(values, axis=2, bitorder="little")
    if bits == 2:
        quarters: Bytes = runs[:, :, 0] | runs[:, :, 1] << 2 | runs[:, :, 2] << 4 | runs[:, :, 3] << 6
        return quarters
    if bits == 4 and width == 4:
        values = (runs[..., :8] | runs[..., 8:] << 4).reshape(*values.shape[:2], 32)
    elif bits == 4:
        values = (runs[:, :, 0::2] | runs[:, :, 1::2] << 4).reshape(*values.shape[:2], 32)
    elif bits == 6:
        last = runs[:, :, 3]
        above = np.stack([(last >> 2 * k) & 3 for k in range(3)], axis=2)
        values = (runs[:, :, :3] | above << 6).reshape(*values.shape[:2], 48)
    return values


def _unpack_lower(packed_bits: Bytes, width: int, bits: int) -> Bytes:
    shape = packed_bits.shape[:2]
    if bits == 1:
        return np.unpackbits(packed_bits, axis=2, bitorder="little")
    if bits == 2:
        return np.stack([(packed_bits >> 2 * k) & 3 for k in range(4)], axis=2).reshape(*shape, 64)
    if bits == 4 and width == 4:
        runs = packed_bits.reshape(*shape, 4, 8)
        return np.concatenate([runs & 15, runs >> 4], axis=3).reshape(*shape, 64)
    if bits == 4:
        runs = packed_bits.reshape(*shape, 2, 16)
        return np.stack([runs & 15, runs >> 4], axis=3).reshape(*shape, 64)
    if bits == 6:
        runs = packed_bits.reshape(*shape, 3, 16)
        last = (runs[:, :, 0] >> 6) | (runs[:, :, 1] >> 6) << 2 | (runs[:, :, 2] >> 6) << 4
        return np.concatenate([runs & 63, last[:, :, None]], axis=2).reshape(*shape, 64)
    return packed_bits


def _pack_top(bits: Bytes) -> Bytes:
    plane = np.zeros_like(bits)
    plane[:, :, _TOP_BITS] = bits
    return np.packbits(plane, axis=2, bitorder="little")


def _unpack_top(packed_bits: Bytes) -> Bytes:
    return np.unpackbits(packed_bits, axis=2, bitorder="little")[:, :, _TOP_BITS]


_SIGNS, _EXTRA = "_rabit_codes", "__blocked_ex_codes"
_ADD, _SCALE, _ERROR = "__add_factors", "__scale_factors", "__error_factors"
_ADD_EX, _SCALE_EX = "__add_factors_ex", "__scale_factors_ex"
_MAX_BITS = 9
_CONFIDENCE = 1.9
# Candidate scales of the integer codes, as multiples of the scale at which the largest value just fits.
_SCALES = np.linspace(1.0, 2.4, 12)
_BLOCK_ROWS = 8192


def read_rotation(model: str, num_bits: int | None) -> tuple[int, bytes]:
    """Return the number of bits and the sign bytes of a model from `build_rq_model`.

    Args:
        model: JSON with num_bits and fast_rotation_signs.
        num_bits: the expected number of bits; None for any.

    Raises:
        OptionError: the model has no fast rotation, or another number of bits.
    """
    try:
        notes = json.loads(model)
        bits, signs = int(notes["num_bits"]), bytes(notes["fast_rotation_signs"])
    except (ValueError, TypeError, KeyError) as error:
        raise OptionError(
            "rabitq_model must be a result of build_rq_model: JSON with num_bits and fast_rotation_signs"
        ) from error
    if num_bits not in (None, bits):
        raise OptionError(f"rabitq_model has codes of {bits} bits, but num_bits={num_bits}")
    return bits, signs


@dataclass(frozen=True)
class RabitQuantizer(Quantizer):
    """RaBitQ quantizer: a rotation and a number of bits per dimension.

    Attributes:
        dim: number of values of a vector, a multiple of 8.
        bits: bits per dimension, 1 to 9.
        rotation: rotation of the vectors.
        metric: metric of the index.
        packed: whether sign codes are stored in blocks of rows.
        residual_query: whether the file has the older factors.
    """

    name = "RQ"
    index_version = 2
    rotates = True
    dim: int
    bits: int
    rotation: Rotation
    metric: Metric
    packed: bool = True
    residual_query: bool = False

    @classmethod
    def fit(cls, sample: Vectors, ivf: Ivf, training: Training, dtype: np.dtype[Any]) -> RabitQuantizer:
        """Return a quantizer with the given or random signs. Codes have 5 bits by default."""
        quantizer = cls.train(sample.shape[1], training.num_bits or 5, training.metric, training.rotation)
        signs = training.rotation_signs
        if signs is None:
            return quantizer
        if len(signs) != _ROUNDS * (quantizer.dim // 8):
            size = len(signs) * 8 // _ROUNDS
            raise OptionError(f"rabitq_model is for vectors of {size} values, not {quantizer.dim}")
        return replace(quantizer, rotation=FastRotation(quantizer.dim, signs))

    @classmethod
    def train(
        cls, dim: int, bits: int, metric: Metric, rotation: Literal["fast", "matrix"] = "fast"
    ) -> RabitQuantizer:
        """Return a quantizer with a random rotation.

        Raises:
            OptionError: the dimension, the number of bits or the kind of rotation is invalid.
        """
        if dim % 8 or not 1 <= bits <= _MAX_BITS:
            raise OptionError(
                f"RQ with {bits} bits for vectors of {dim} values: the dimension must be a multiple of 8, "
                f"and bits go from 1 to {_MAX_BITS}"
            )
        kinds: dict[str, Callable[[int], Rotation]] = {
            "fast": FastRotation.random,
            "matrix": MatrixRotation.random,
        }
        if rotation not in kinds:
            raise OptionError(f"there is no rotation {rotation!r}: use one of {', '.join(kinds)}")
        return cls(dim, bits, kinds[rotation](dim), metric)

    def columns(self) -> list[pa.Field]:
        """Return the stored columns."""
        fields = [vector_column(_SIGNS, self.dim // 8, pa.uint8())]
        fields += [pa.field(name, pa.float32()) for name in (_ADD, _SCALE, _ERROR)]
        if self.bits > 1:
            fields.append(vector_column(_EXTRA, extra_bytes(self.dim, self.bits - 1), pa.uint8()))
            fields += [pa.field(name, pa.float32()) for name in (_ADD_EX, _SCALE_EX)]
        return fields

    def encode(self, vectors: Vectors, owners: npt.NDArray[np.int64], ivf: Ivf) -> Codes:
        """Return the codes and factors of vectors."""
        rotated = self.rotation(ivf.centroids)
        parts = []
        for start in range(0, len(vectors), _BLOCK_ROWS):
            part = slice(start, start + _BLOCK_ROWS)
            residuals = self.rotation(vectors[part] - ivf.centroids[owners[part]])
            parts.append(self._encode(residuals, rotated[owners[part]]))
        if not parts:
            parts = [self._encode(np.empty((0, self.dim), np.float32), np.empty((0, self.dim), np.float32))]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _encode(self, residuals: Matrix, centroids: Matrix) -> dict[str, npt.NDArray[Any]]:
        positive = ~np.signbit(residuals)
        signs = positive.astype(np.float32) - np.float32(0.5)
        add, scale, error = self._factors(residuals, centroids, signs)
        codes: dict[str, npt.NDArray[Any]] = {
            _SIGNS: np.packbits(positive, axis=1, bitorder="little"),
            _ADD: add,
            _SCALE: scale,
            _ERROR: error,
        }
        if self.bits > 1:
            width = self.bits - 1
            levels = _quantize(np.abs(residuals), width)
            values = np.where(positive, levels, (1 << width) - 1 - levels).astype(np.uint8)
            centred = (positive.astype(np.float32) * (1 << width)) + values - np.float32((1 << width) - 0.5)
            codes[_EXTRA] = pack_extra(values, width)
            codes[_ADD_EX], codes[_SCALE_EX], _ = self._factors(residuals, centroids, centred)
        return codes

    def _factors(self, residuals: Matrix, centroids: Matrix, codes: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        """Return the factors add, scale and error of rows, each (n,) float32, for their codes."""
        residuals64 = residuals.astype(np.float64)
        square = np.einsum("ij,ij->i", residuals64, residuals64)
        projections = np.einsum("ij,ij->i", residuals64, codes)
        inverse = np.divide(square, projections, out=np.zeros_like(square), where=projections != 0)
        dot_products = inverse * np.einsum("ij,ij->i", centroids, codes, dtype=np.float64)
        spread = np.divide(
            square * (self.dim / 4), projections**2, out=np.zeros_like(square), where=projections != 0
        )
        error = np.sqrt(square) * _CONFIDENCE * np.sqrt(np.maximum(spread - 1, 0) / max(self.dim - 1, 1))
        if self.metric == "dot":
            base = 1 - np.einsum("ij,ij->i", residuals64, centroids)
            factors = (base + dot_products, -inverse, error)
        else:
            factors = (square + 2 * dot_products, -2 * inverse, 2 * error)
        add, scale, off = (values.astype(np.float32) for values in factors)
        return add, scale, off

    def notes(self, add_buffer: Callable[[bytes], int]) -> dict[str, Any]:
        """Return the rotation and the format of the codes. A rotation matrix is added as a buffer."""
        fast = isinstance(self.rotation, FastRotation)
        position = None
        signs: list[int] | None = None
        if isinstance(self.rotation, FastRotation):
            signs = list(self.rotation.signs)
        else:
            position = add_buffer(pack_tensor(self.rotation.matrix).SerializeToString())
        return {
            "rotate_mat_position": position,
            "fast_rotation_signs": signs,
            "rotation_type": "fast" if fast else "matrix",
            "code_dim": self.dim,
            "num_bits": self.bits,
            "packed": self.packed,
            "query_estimator": "raw_query",
        }

    def pack(self, codes: Codes) -> Codes:
        """Return the codes with the signs in blocks, if `packed`."""
        return {**codes, _SIGNS: pack_signs(codes[_SIGNS])} if self.packed else codes

    def unpack(self, codes: Codes) -> Codes:
        """Return the codes with the signs in row-major order."""
        return {**codes, _SIGNS: unpack_signs(codes[_SIGNS])} if self.packed else codes

    def summary(self) -> dict[str, int]:
        """Return the number of bits and the rotation type."""
        return {"num_bits": self.bits, "rotation_type": int(isinstance(self.rotation, MatrixRotation))}

    def same_codes(self, other: Quantizer) -> bool:
        """Return whether the other quantizer has the same bits, factors and rotation."""
        return (
            isinstance(other, RabitQuantizer)
            and (self.bits, self.residual_query) == (other.bits, other.residual_query)
            and self.rotation.is_same(other.rotation)
        )

    def scorer(self, codes: Codes) -> Scorer:
        """Return a scorer over the centred signs, or over all bits if there are more."""
        rows = self.unpack(codes)
        positive = np.unpackbits(rows[_SIGNS], axis=1, bitorder="little")
        if self.residual_query:
            # d = add + scale * sum(+-q) / sqrt(dim), with signs of +-1 instead of +-0.5.
            factor = np.float32(2 / np.sqrt(self.dim))
            return Scorer(NarrowCodes(positive, 0.5), rows[_ADD], rows[_SCALE] * factor)
        if self.bits == 1:
            return Scorer(NarrowCodes(positive, 0.5), rows[_ADD], rows[_SCALE])
        width = self.bits - 1
        levels = positive.astype(np.uint8 if self.bits <= 8 else np.uint16) << width
        levels |= unpack_extra(rows[_EXTRA], self.dim, width)
        return Scorer(NarrowCodes(levels, (1 << width) - 0.5), rows[_ADD_EX], rows[_SCALE_EX])

    def queries(self, vectors: Vectors) -> Queries:
        """Return the queries together with their rotation."""
        return Queries(vectors, self.rotation(vectors))

    def prepare(self, queries: Queries, centroid: Vectors) -> PreparedQuery:
        """Return the rotated queries with shift and gain."""
        residuals = (queries.vectors - centroid).astype(np.float32)
        points = self.rotation(residuals) if self.residual_query else queries.rotated
        if self.metric != "dot":
            return PreparedQuery(points, squares(residuals))
        projections = queries.vectors.astype(np.float32) @ centroid.astype(np.float32)
        length = squares(centroid[None])
        if self.residual_query or not length[0]:
            return PreparedQuery(points, -projections)
        gain = projections / length
        return PreparedQuery(points, 1 - projections - gain, gain)

    def prepare_each(self, query: Queries, centroids: Vectors) -> Sequence[PreparedQuery]:
        """Return one rotated query with the shift for each centroid."""
        if self.metric == "dot":
            return [self.prepare(query, centroid) for centroid in centroids]
        residuals: Matrix = (query.vectors - centroids).astype(np.float32, copy=False)
        return split_queries(
            self.rotation(residuals) if self.residual_query else query.rotated, squares(residuals)
        )

    @classmethod
    def load(
        cls, notes: Mapping[str, Any], buffer: Callable[[int], bytes], metric: Metric, columns: pa.Schema
    ) -> RabitQuantizer:
        """Return the quantizer of a file."""
        if notes.get("layered"):
            raise UnsupportedFormatError("RQ codes in two layers are not read here")
        try:
            bits = int(notes["num_bits"])
            kind = notes.get("rotation_type", "matrix")
            rotation: Rotation
            if kind == "fast":
                rotation = FastRotation(int(notes["code_dim"]), bytes(notes["fast_rotation_signs"]))
                dim = rotation.dim
            elif kind == "matrix":
                tensor = index_pb2.Tensor.FromString(buffer(int(notes["rotate_mat_position"])))
                rotation = MatrixRotation(unpack_tensor(tensor))
                dim = len(rotation.matrix)
            else:
                raise UnsupportedFormatError(f"RQ codes with a rotation {kind!r}")
        except (KeyError, TypeError, ValueError, DecodeError) as error:
            raise FormatError(f"malformed metadata of RQ codes: {error!r}") from error
        if not 1 <= bits <= _MAX_BITS or dim % 8 or dim < 8:
            raise FormatError(f"RQ codes of {bits} bits for {dim} values")
        if bits > 1 and _EXTRA not in columns.names:
            raise UnsupportedFormatError("RQ codes whose further bits are in an older column")
        estimator = notes.get("query_estimator", "residual_query")
        if estimator not in ("raw_query", "residual_query") or (estimator != "raw_query" and bits > 1):
            raise UnsupportedFormatError(f"RQ codes of {bits} bits with the estimator {estimator!r}")
        quantizer = cls(dim, bits, rotation, metric, bool(notes.get("packed", False)))
        return replace(quantizer, residual_query=True) if estimator == "residual_query" else quantizer


def _quantize(sizes: Matrix, width: int) -> npt.NDArray[np.uint8]:
    """Quantize absolute values (n, dim) to integers below 2^width, with one scale per row.

    Several scales are tried. Each row gets the scale whose centred integers have the highest cosine
    similarity with the values.
    """
    most = (1 << width) - 1
    largest = sizes.max(axis=1, keepdims=True, initial=0)
    largest[largest == 0] = 1
    unit = sizes * (np.float32(most + 0.5) / largest)
    best = np.zeros(sizes.shape, dtype=np.uint8)
    best_score = np.full(len(sizes), -1.0, dtype=np.float32)
    for scale in _SCALES:
        levels = np.floor(unit * np.float32(scale) + np.float32(1e-5))
        np.minimum(levels, most, out=levels)
        centred = levels + np.float32(0.5)
        score = np.einsum("ij,ij->i", centred, sizes) / np.sqrt(np.einsum("ij,ij->i", centred, centred))
        better = score > best_score
        best_score[better] = score[better]
        best[better] = levels[better].astype(np.uint8)
    return best
