"""The compiled kernels. Importing this module requires numba and compiles them or loads them from its cache.

Every kernel checks each position from a file before it accesses memory there. For damaged input it returns a
negative number, documented at each kernel, and never reads or writes out of bounds.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from spark_lance.file.kernels import CUT, FSST_MISSING, FSST_ROOM, NO_SYMBOL, OUTSIDE

_Kernel = Callable[..., Any]

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_INT32S = types.Array(types.int32, 1, "C", readonly=True)
_WORDS = types.Array(types.uint64, 1, "C", readonly=True)
_OUT_BYTES = types.Array(types.uint8, 1, "C")
_OUT_INT32S = types.Array(types.int32, 1, "C")
_OUT_WORDS = types.Array(types.uint64, 1, "C")


def _own_folder() -> str | None:
    """Return a folder for compiled code that nobody else can write to; None if there is none."""
    path = Path(tempfile.gettempdir()) / f"spark-lance-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return str(path) if private else None


def _compile(signature: Any, function: _Kernel) -> _Kernel:
    """Compile a function for one signature, or load it from the cache."""
    try:
        kernel: _Kernel = numba.njit([signature], nogil=True, cache=True)(function)
    except RuntimeError:
        # Neither the package's folder nor the user's cache is writable.
        folder = _own_folder() if hasattr(os, "getuid") else None
        if folder is not None:
            config: Any = numba.config
            config.CACHE_DIR = folder
        kernel = numba.njit([signature], nogil=True, cache=folder is not None)(function)
    return kernel


def _load(context: Any, array: Any, position: Any) -> Any:
    """Return the 8 bytes at any position, unchecked."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = target.make_array(signature.args[0])(target, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(array, types.intp), generate


def _store(context: Any, array: Any, position: Any, value: Any) -> Any:
    """Write 8 bytes at any position, unchecked."""

    def generate(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = target.make_array(signature.args[0])(target, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(64).as_pointer())
        builder.store(arguments[2], place, align=1)
        return target.get_dummy_value()

    return types.void(array, types.intp, types.uint64), generate


_get64: Any = intrinsic(_load)
_put64: Any = intrinsic(_store)


_ESCAPE = 255
_ONES = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_BYTE = np.uint64(255)
_EIGHT = np.uint64(8)


def _fsst(
    codes: Any, bounds: Any, symbols: Any, lengths: Any, first: int, at: int, out: Any, ends: Any
) -> int:
    """Expand the strings starting at number `first` to `out`, starting at position `at`.

    Args:
        codes: uint8.
        bounds: int32, string s has the codes bounds[s] to bounds[s + 1].
        symbols, lengths: 256 words and their lengths in bytes, 128 = missing symbol. The entries of the
            escape are ignored.
        out: uint8; its last FSST_ROOM bytes are not used for output.
        ends: int32; ends[s + 1] becomes the end of string s in `out`.

    Returns:
        The first string that did not fit into `out`, or the number of strings; or CUT: a string ends inside
        an escape; NO_SYMBOL: a code has no symbol; OUTSIDE: bounds that do not ascend within `codes`.
    """
    limit = len(out) - FSST_ROOM
    for s in range(first, len(bounds) - 1):
        i, end = bounds[s], bounds[s + 1]
        if i < 0 or end < i or end > len(codes):
            return OUTSIDE
        sizes_seen = np.uint8(0)
        while i < end:
            if at > limit:
                return NO_SYMBOL if sizes_seen >= FSST_MISSING else s
            stop = i + 8
            if stop <= end:
                word = _get64(codes, i)
                # Zero bytes of the complement are escapes.
                inverse = ~word
                if (inverse - _ONES) & word & _HIGHS == 0:
                    for _ in range(8):
                        code = word & _BYTE
                        size = lengths[code]
                        _put64(out, at, symbols[code])
                        sizes_seen |= size
                        at += size
                        word >>= _EIGHT
                    i = stop
                    continue
            else:
                stop = end
            while i < stop:
                code = np.uint64(codes[i])
                i += 1
                if code == _ESCAPE:
                    if i >= end:
                        return CUT
                    out[at] = codes[i]
                    at += 1
                    i += 1
                else:
                    size = lengths[code]
                    _put64(out, at, symbols[code])
                    sizes_seen |= size
                    at += size
        if sizes_seen >= FSST_MISSING:
            return NO_SYMBOL
        ends[s + 1] = at
    return len(bounds) - 1


# Number of the first value of each group of 8 rows, for words of 64 bits. Narrower words use the first ones.
_GROUP_STARTS = np.array([0, 4, 2, 6, 1, 5, 3, 7], dtype=np.int64) * 16
# One row of all lanes, for any width of the words.
_ROW_WORDS = 16
_ROW_BYTES = 128
_BLOCK = 1024


def _unpack(data: Any, starts: Any, widths: Any, bits: int, out: Any) -> int:
    """Unpack blocks of 1024 values, as `encodings/bitpacking.py` lays them out.

    The lanes of a row are adjacent, so that words of 64 bits hold several values each, which are
    shifted at once; a mask drops the bits of a neighbour.

    Args:
        data: uint8.
        starts: int64, start of each block.
        widths: int64, bits per packed value of each block.
        bits: width of a value: 8, 16, 32 or 64.
        out: uint64 words, bits * 16 for each block.

    Returns:
        0, or OUTSIDE: a block leaves `data` or `out`, or a width is out of range.
    """
    if bits not in (8, 16, 32, 64) or len(widths) < len(starts):
        return OUTSIDE
    ones = np.uint64(0xFFFFFFFFFFFFFFFF)
    # A 1 in the lowest bit of every value.
    unit = ones if bits == 64 else ones // np.uint64((1 << bits) - 1)
    if bits == 64:
        unit = np.uint64(1)
    full = ones if bits == 64 else np.uint64((1 << bits) - 1)
    block_words = bits * _ROW_WORDS
    for b in range(len(starts)):
        width, base, target = widths[b], starts[b], b * block_words
        if width < 0 or width > bits or base < 0 or base > len(data) or target + block_words > len(out):
            return OUTSIDE
        if width * _ROW_BYTES > len(data) - base:
            return OUTSIDE
        if width == 0:
            out[target : target + block_words] = np.uint64(0)
            continue
        whole = (full >> np.uint64(bits - width)) * unit
        for row in range(bits):
            word = row * width // bits
            shift = row * width - word * bits
            source = base + word * _ROW_BYTES
            # The value number of the row's first lane, as a number of words.
            place = target + (_GROUP_STARTS[row // 8] + row % 8 * 128) * bits // 64
            down = np.uint64(shift)
            spill = shift + width - bits
            if spill <= 0:
                for k in range(_ROW_WORDS):
                    out[place + k] = (_get64(data, source + 8 * k) >> down) & whole
            else:
                up = np.uint64(bits - shift)
                low = (full >> down) * unit
                high = (full >> np.uint64(bits - spill)) * unit
                for k in range(_ROW_WORDS):
                    low_bits = (_get64(data, source + 8 * k) >> down) & low
                    rest = _get64(data, source + _ROW_BYTES + 8 * k) & high
                    out[place + k] = low_bits | rest << up
    return 0


KERNELS: Mapping[str, _Kernel] = {
    "fsst": _compile(
        types.int64(_BYTES, _INT32S, _WORDS, _BYTES, types.int64, types.int64, _OUT_BYTES, _OUT_INT32S),
        _fsst,
    ),
    "unpack": _compile(types.int64(_BYTES, _INT64S, _INT64S, types.int64, _OUT_WORDS), _unpack),
}
