"""Murmur3 hashes (32 bits) of whole columns.

    mix(h, k)     k * cc9e2d51, rotated left by 15, * 1b873593; xor into h; h rotated by 13, * 5 + e6546b64
    finish(h, n)   h ^ n, then Murmur3's finish
    4 bytes       finish(mix(seed, v), 4)
    8 bytes       finish(mix(mix(seed, low), high), 8)
    bytes         little-endian words of four bytes are mixed in; then the last 1 to 3 bytes as one number,
    which is
                  multiplied and rotated as in `mix`, and xored into h

Example: the 8 bytes of 34 hash to 2017239379, the text "iceberg" to 1210000089 (seed 0).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

UInt32Array = npt.NDArray[np.uint32]


def _rotate(values: UInt32Array, bits: int) -> UInt32Array:
    rotated: UInt32Array = (values << np.uint32(bits)) | (values >> np.uint32(32 - bits))
    return rotated


def _scramble(word: UInt32Array) -> UInt32Array:
    scrambled: UInt32Array = _rotate(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return scrambled


def mix(state: UInt32Array, word: UInt32Array) -> UInt32Array:
    """Return the states after mixing in one word of four bytes."""
    with np.errstate(over="ignore"):
        mixed: UInt32Array = _rotate(state ^ _scramble(word), 13) * np.uint32(5) + np.uint32(0xE6546B64)
    return mixed


def finish(state: UInt32Array, length: UInt32Array | np.uint32) -> UInt32Array:
    """Return the hashes of final states. `length` is the number of hashed bytes."""
    with np.errstate(over="ignore"):
        state = state ^ length
        state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        digest: UInt32Array = state ^ (state >> np.uint32(16))
    return digest


def hash32(values: UInt32Array, seed: int = 0) -> UInt32Array:
    """Return the hashes of 32-bit numbers."""
    return finish(mix(np.full(len(values), seed, np.uint32), values), np.uint32(4))


def hash64(values: npt.NDArray[np.uint64], seed: int = 0) -> UInt32Array:
    """Return the hashes of 64-bit numbers."""
    low = (values & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (values >> np.uint64(32)).astype(np.uint32)
    return finish(mix(mix(np.full(len(values), seed, np.uint32), low), high), np.uint32(8))


def mix_tail(state: UInt32Array, tail: npt.NDArray[np.uint8]) -> UInt32Array:
    """Return the states after mixing in the last 1 to 3 bytes of each string, shape (rows, bytes)."""
    number = np.zeros(len(tail), np.uint32)
    for place in range(tail.shape[1]):
        number |= tail[:, place].astype(np.uint32) << np.uint32(8 * place)
    with np.errstate(over="ignore"):
        return state ^ _scramble(number)


def hash_bytes(
    strings: pa.LargeBinaryArray | pa.LargeStringArray,
    seed: int = 0,
    tail: Callable[[UInt32Array, npt.NDArray[np.uint8]], UInt32Array] = mix_tail,
) -> UInt32Array:
    """Return the hashes of byte strings without nulls. Strings of equal length are hashed together.

    Args:
        strings: the values.
        seed: initial state.
        tail: mixes the last 1 to 3 bytes into states, see `mix_tail`.
    """
    offsets = np.frombuffer(strings.buffers()[1], np.int64)[strings.offset :][: len(strings) + 1]
    data = np.frombuffer(strings.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    result = np.empty(len(strings), np.uint32)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        values = np.ascontiguousarray(data[offsets[rows][:, None] + np.arange(length)])
        state = np.full(len(rows), seed, np.uint32)
        num_words = int(length) - int(length) % 4
        words = np.ascontiguousarray(values[:, :num_words]).view("<u4").reshape(len(rows), -1)
        for place in range(words.shape[1]):
            state = mix(state, words[:, place].astype(np.uint32))
        if num_words < length:
            state = tail(state, values[:, num_words:])
        result[rows] = finish(state, np.uint32(length))
    return result
