"""Random rotations of vectors, which spread a vector's values evenly over all dimensions.

    fast     four rounds, each: negate the values whose sign bit is set, then a Walsh-Hadamard transform. The
             transform covers T values, T the largest power of two that fits: all if the dimension is T, else
             the first T in rounds 0 and 2, the last T in rounds 1 and 3, after which the halves (x, y)
             become (x + y, x - y), and all is multiplied by 1/4 at the end.
             Sign bits: 4 * ceil(dim / 8) bytes, a run of them per round, lowest bit first.
    matrix   M times the vector

Lengths and inner products stay the same. (Lance index format, RQ.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from spark_lance.errors import FormatError
from spark_lance.index.vector.metrics import Vectors

__all__ = ["FastRotation", "MatrixRotation", "Rotation"]

Matrix = npt.NDArray[np.float32]
_ROUNDS = 4
# Values that are transformed by one product with a matrix.
_RUN = 128


@dataclass(frozen=True)
class FastRotation:
    """Sign flips and Walsh-Hadamard transforms.

    Attributes:
        dim: values of a vector.
        signs: the stored sign bytes.
    """

    dim: int
    signs: bytes

    def __post_init__(self) -> None:
        if len(self.signs) != _ROUNDS * -(-self.dim // 8):
            raise FormatError(f"{len(self.signs)} bytes of signs for a rotation of {self.dim} values")

    @classmethod
    def random(cls, dim: int, seed: int = 42) -> FastRotation:
        """Return a rotation by random signs."""
        return cls(dim, np.random.default_rng(seed).bytes(_ROUNDS * -(-dim // 8)))

    def same(self, other: Rotation) -> bool:
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
        drawn = np.random.default_rng(seed).standard_normal((dim, dim))
        return cls(np.linalg.qr(drawn)[0].astype(np.float32))

    def same(self, other: Rotation) -> bool:
        """Return whether another rotation is this one."""
        return isinstance(other, MatrixRotation) and np.array_equal(self.matrix, other.matrix)

    def __call__(self, vectors: Vectors) -> Matrix:
        """Rotate vectors (n, dim)."""
        turned: Matrix = vectors.astype(np.float32) @ self.matrix.T.astype(np.float32)
        return turned


Rotation = FastRotation | MatrixRotation


def _hadamard(values: Matrix) -> Matrix:
    """Return the Walsh-Hadamard transform of rows (n, 2^k), natural order, without a factor.

    The transform of a * b values is a transform of b within runs of b values and then one of a across the
    runs. BLAS does the first for whole blocks of rows at once.
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
