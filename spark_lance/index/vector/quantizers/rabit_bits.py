"""The layout of the bits of RQ codes in memory.

Sign codes of a partition, L bytes a row, are packed in blocks of 32 rows. For each of the L bytes of a row, a
block has 32 bytes. With perm = 0 8 1 9 2 10 3 11 4 12 5 13 6 14 7 15 and j < 16

    byte j        low halves of row perm[j] (low) and of row perm[j] + 16 (high)
    byte 16 + j   the high halves likewise

The rows left over after the last block follow it, column by column.

Extra codes of a row have `width` = 1 to 8 bits a dimension, in blocks of 64 dimensions (zeros fill up the
last one). Run k of a block is its dimensions 16k to 16k + 15, b counts within a run:

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
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["extra_bytes", "pack_extra", "pack_signs", "unpack_extra", "unpack_signs"]

# Arrays of uint8; numpy does not keep that through operations with plain numbers, as far as type checkers
# know.
Bytes = npt.NDArray[Any]

_BLOCK_ROWS = 32
_PERM = np.array([0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15])
_BLOCK_DIMS = 64
# Width of the codes -> bits that do not go to the plane of top bits.
_LOWER = {1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 6, 7: 6, 8: 8}
_TOP_BITS = np.array([8 * (b % 8) + 2 * k + b // 8 for k in range(4) for b in range(16)])


def pack_signs(rows: Bytes) -> Bytes:
    """Return the plain sign codes of a partition (n, L) as they are stored, in an array of that shape."""
    count, length = rows.shape
    full = count - count % _BLOCK_ROWS
    blocks = rows[:full].reshape(-1, _BLOCK_ROWS, length)
    one, other = blocks[:, _PERM], blocks[:, _PERM + 16]
    low = (one & 15) | (other & 15) << 4
    high = (one >> 4) | (other >> 4) << 4
    packed = np.concatenate([low, high], axis=1).transpose(0, 2, 1)
    rest = rows[full:].T
    return np.concatenate([packed.reshape(-1), rest.reshape(-1)]).reshape(count, length).astype(np.uint8)


def unpack_signs(stored: Bytes) -> Bytes:
    """Return stored sign codes of a partition, (n, L), row by row."""
    count, length = stored.shape
    flat = stored.reshape(-1)
    full = count - count % _BLOCK_ROWS
    rows = np.empty((count, length), dtype=np.uint8)
    packed = flat[: full * length].reshape(-1, length, _BLOCK_ROWS).transpose(0, 2, 1)
    low, high = packed[:, :16], packed[:, 16:]
    blocks = rows[:full].reshape(-1, _BLOCK_ROWS, length)
    blocks[:, _PERM] = (low & 15) | (high & 15) << 4
    blocks[:, _PERM + 16] = (low >> 4) | (high >> 4) << 4
    rows[full:] = flat[full * length :].reshape(length, count - full).T
    return rows


def extra_bytes(dim: int, width: int) -> int:
    """Return the bytes of the extra codes of a row."""
    return -(-dim // _BLOCK_DIMS) * _BLOCK_DIMS * width // 8


def pack_extra(codes: Bytes, width: int) -> Bytes:
    """Return extra codes (n, dim), each below 2^width, as stored bytes (n, extra_bytes)."""
    count, dim = codes.shape
    blocks = -(-dim // _BLOCK_DIMS)
    filled = np.zeros((count, blocks * _BLOCK_DIMS), dtype=np.uint8)
    filled[:, :dim] = codes
    values = filled.reshape(count, blocks, _BLOCK_DIMS)
    bits = _LOWER[width]
    parts = [_pack_lower(values & ((1 << bits) - 1), width, bits)]
    if width != bits:
        parts.append(_pack_top(values >> bits))
    return np.concatenate(parts, axis=2).reshape(count, extra_bytes(dim, width))


def unpack_extra(stored: Bytes, dim: int, width: int) -> Bytes:
    """Return stored extra codes as (n, dim)."""
    count = len(stored)
    blocks = stored.reshape(count, -(-dim // _BLOCK_DIMS), _BLOCK_DIMS * width // 8)
    bits = _LOWER[width]
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


def _unpack_lower(stored: Bytes, width: int, bits: int) -> Bytes:
    shape = stored.shape[:2]
    if bits == 1:
        return np.unpackbits(stored, axis=2, bitorder="little")
    if bits == 2:
        return np.stack([(stored >> 2 * k) & 3 for k in range(4)], axis=2).reshape(*shape, 64)
    if bits == 4 and width == 4:
        runs = stored.reshape(*shape, 4, 8)
        return np.concatenate([runs & 15, runs >> 4], axis=3).reshape(*shape, 64)
    if bits == 4:
        runs = stored.reshape(*shape, 2, 16)
        return np.stack([runs & 15, runs >> 4], axis=3).reshape(*shape, 64)
    if bits == 6:
        runs = stored.reshape(*shape, 3, 16)
        last = (runs[:, :, 0] >> 6) | (runs[:, :, 1] >> 6) << 2 | (runs[:, :, 2] >> 6) << 4
        return np.concatenate([runs & 63, last[:, :, None]], axis=2).reshape(*shape, 64)
    return stored


def _pack_top(bits: Bytes) -> Bytes:
    plane = np.zeros_like(bits)
    plane[:, :, _TOP_BITS] = bits
    return np.packbits(plane, axis=2, bitorder="little")


def _unpack_top(stored: Bytes) -> Bytes:
    return np.unpackbits(stored, axis=2, bitorder="little")[:, :, _TOP_BITS]
