"""FSST: strings as one-byte codes for symbols of one to eight bytes.

The symbol table is 2312 bytes:

    offset  size   meaning
         0  1      n, the number of symbols, 0..255
         1  1      index of the symbol that may end a string (for encoders)
         2  1      suffix limit (for encoders)
         3  1      1 = the data is encoded, 0 = the data is stored plain
         4  4      "TSSF"
         8  n * 8  symbols, each padded with zeros to 8 bytes
    8+8n    n      symbol lengths, 1..8
             -     unused

Codes: k < n is symbol k. After 255 the next byte is a literal. A code never crosses the boundary of two
strings. Example: with symbols ("http", "://"), the codes 00 01 ff 61 mean "http://a".

(Lance file format, FSST.)

Codes are expanded in pairs: two codes are an index into a table of 65536 byte strings, which Arrow's `take`
copies. A pair (255, x) is an escape with its literal. A pair (x, 255) ends with an escape whose literal
starts the next
pair: the 255 adds no bytes, and pairs that start with a literal use a second table after the first one. A
process that decodes a lot of text uses a compiled loop instead, see `kernels/accelerate.py`.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import numbers_to_arrow, numbers_to_numpy
from spark_lance.arrow.buffers import as_bytes
from spark_lance.errors import FormatError
from spark_lance.file.kernels import CUT, FSST_MISSING, FSST_ROOM, NO_SYMBOL
from spark_lance.file.kernels.accelerate import Kernel, compiled

SYMBOL_TABLE_SIZE = 2312
_MAGIC = b"TSSF"
_ESCAPE = 255
# The token without bytes. The tokens after it are literals.
_NOTHING = 256
# Below this many codes, building the table of pairs costs more than it saves.
_PAIRS_FROM = 1 << 16
_PAIRS = 1 << 16
# Tokens per step, so that a step's output is below 2 GiB, the limit of Arrow's 32-bit offsets.
_STEP = 1 << 24
# The compiled loop counts output bytes in 32 bits, and a code expands to at most 8 bytes.
_MAX_COMPILED = (1 << 28) - FSST_ROOM
_SAMPLES = 4096
_SPARE = 1.1
_REASONS = {CUT: "a string ends inside an FSST escape", NO_SYMBOL: "an FSST code has no symbol in the table"}

_Bytes = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.intp]
_Tokens = npt.NDArray[np.uint16]
_Ends = npt.NDArray[np.int32] | npt.NDArray[np.int64]


def decode_fsst(symbol_table: bytes, offsets: npt.NDArray[Any], data: _Bytes) -> tuple[_Ends, _Bytes]:
    """Expand FSST codes.

    Args:
        symbol_table: the table, 2312 bytes.
        offsets: n + 1 ascending positions in `data`, int32 or int64; string i has the codes
            data[offsets[i]:offsets[i + 1]].
        data: codes, uint8.

    Returns:
        n + 1 offsets that start at 0, int64 if they have to be, and the uint8 bytes of all strings.

    Raises:
        FormatError: the table is malformed, a code has no symbol, or a string ends inside an escape.
    """
    lengths = _symbol_lengths(symbol_table)
    first = int(offsets[0])
    codes = data[first : int(offsets[-1])]
    bounds = offsets - first if first else offsets
    if lengths is None or not len(codes):
        return bounds, codes
    kernel = compiled("fsst", len(codes)) if len(codes) < _MAX_COMPILED else None
    if kernel is not None:
        return _expand_compiled(kernel, symbol_table, lengths, codes, bounds)
    if int(bounds.min()) < 0 or int(bounds.max()) > len(codes):
        raise FormatError("FSST strings do not lie within their codes")
    key = symbol_table[: 8 + 9 * len(lengths)]
    escapes = _find_escapes(codes, symbol_table[0], bounds)
    if len(codes) < _PAIRS_FROM:
        return _expand_single(_symbols(key, lengths), codes, escapes, bounds)
    return _expand_pairs(key, lengths, codes, escapes, bounds)


def _symbol_lengths(table: bytes) -> bytes | None:
    """Return the length of every symbol of a table; None if the data is stored plain."""
    if len(table) < SYMBOL_TABLE_SIZE or table[4:8] != _MAGIC:
        raise FormatError("not an FSST symbol table")
    if table[3] == 0:
        return None
    count = table[0]
    lengths = table[8 + 8 * count : 8 + 9 * count]
    if any(not 1 <= length <= 8 for length in lengths):
        raise FormatError("an FSST symbol must have 1 to 8 bytes")
    return lengths


@lru_cache(maxsize=16)
def _symbols(table: bytes, lengths: bytes) -> pa.BinaryArray:
    """Return 256 symbols (empty if unused), one empty string, and 256 literals."""
    symbols = [table[8 + 8 * k : 8 + 8 * k + length] for k, length in enumerate(lengths)]
    missing = [b""] * (256 - len(lengths))
    return pa.array([*symbols, *missing, b"", *(bytes([k]) for k in range(256))], type=pa.binary())


def _expand_compiled(
    kernel: Kernel, table: bytes, lengths: bytes, codes: _Bytes, bounds: npt.NDArray[Any]
) -> tuple[_Ends, _Bytes]:
    """Expand codes in a compiled loop."""
    count = len(lengths)
    words = np.zeros(256, dtype=np.uint64)
    words[:count] = np.frombuffer(table, dtype="<u8", count=count, offset=8)
    sizes = np.full(256, FSST_MISSING, dtype=np.uint8)
    sizes[:count] = np.frombuffer(lengths, dtype=np.uint8)
    strings = np.ascontiguousarray(bounds, dtype=np.int32)
    codes = np.ascontiguousarray(codes)
    ends = np.zeros(len(strings), dtype=np.int32)
    # Estimated from a sample of the codes, with a margin. Untouched memory costs nothing.
    sample = sizes[codes[:: len(codes) // _SAMPLES + 1]]
    most = 8 * len(codes) + FSST_ROOM
    room = min(most, int(len(codes) * float(sample[sample <= 8].sum() / len(sample)) * _SPARE) + FSST_ROOM)
    out = np.empty(room, dtype=np.uint8)
    position = kernel(codes, strings, words, sizes, 0, 0, out, ends)
    while 0 <= position < len(strings) - 1:
        at = int(ends[position])
        if room == most:
            raise FormatError("FSST strings overlap")
        room = min(most, 2 * room)
        larger = np.empty(room, dtype=np.uint8)
        larger[:at] = out[:at]
        out = larger
        position = kernel(codes, strings, words, sizes, position, at, out, ends)
    if position < 0:
        raise FormatError(_REASONS.get(position, "FSST strings do not lie within their codes"))
    return ends, out[: int(ends[-1])]


def _find_escapes(codes: _Bytes, count: int, bounds: npt.NDArray[Any]) -> _Places:
    """Return the positions of escapes, after checking that all other codes are among `count` symbols."""
    marks = np.flatnonzero(codes >= count)
    if not len(marks):
        return marks
    mark_codes = codes[marks]
    escapes = _even_places(marks[mark_codes == _ESCAPE])
    literals = np.zeros(len(codes) + 1, dtype=np.bool_)
    literals[escapes + 1] = True
    # A 255 that is not an escape is a literal. Any other code that is not a symbol must be a literal, too.
    if not bool(literals[marks[mark_codes != _ESCAPE]].all()):
        raise FormatError("an FSST code has no symbol in the table")
    if len(escapes) and bool(_look_up(literals.view(np.uint8), bounds).any()):
        raise FormatError("a string ends inside an FSST escape")
    return escapes


def _even_places(marks: _Places) -> _Places:
    """Return every second position of each run of positions. In a run of 255s these are escapes."""
    starts = np.flatnonzero(np.diff(marks, prepend=-2) != 1)
    runs = np.diff(starts, append=len(marks))
    in_run = np.arange(len(marks)) - np.repeat(starts, runs)
    even: _Places = marks[in_run % 2 == 0]
    return even


def _take_symbols(symbols: pa.BinaryArray, tokens: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], _Bytes]:
    """Return the offsets and bytes of symbols[token] for all tokens. All tokens must exist."""
    _, offsets, data = pc.take(symbols, numbers_to_arrow(tokens), boundscheck=False).buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[: len(tokens) + 1]
    return ends, as_bytes(data)[: int(ends[-1])] if data is not None else np.zeros(0, dtype=np.uint8)


def _take_symbols_in_steps(symbols: pa.BinaryArray, tokens: npt.NDArray[Any]) -> tuple[_Ends, _Bytes]:
    """Return the same as `_take_symbols`, for results of any length."""
    if len(tokens) <= _STEP:
        return _take_symbols(symbols, tokens)
    ends = np.zeros(len(tokens) + 1, dtype=np.int64)
    pieces: list[_Bytes] = []
    for start in range(0, len(tokens), _STEP):
        step, piece = _take_symbols(symbols, tokens[start : start + _STEP])
        np.add(step[1:], ends[start], out=ends[start + 1 : start + len(step)])
        pieces.append(piece)
    return ends, np.concatenate(pieces)


def _expand_single(
    symbols: pa.BinaryArray, codes: _Bytes, escapes: _Places, bounds: npt.NDArray[Any]
) -> tuple[_Ends, _Bytes]:
    """Expand code by code."""
    tokens = codes.astype(np.uint16)
    if len(escapes):
        tokens[escapes + 1] += _NOTHING + 1
        keep = np.ones(len(codes), dtype=np.bool_)
        keep[escapes] = False
        tokens = tokens[keep]
        bounds = bounds - np.searchsorted(escapes, bounds)
    ends, data = _take_symbols(symbols, tokens)
    return ends[bounds], data


def _expand_pairs(
    key: bytes,
    lengths: bytes,
    codes: _Bytes,
    escapes: _Places,
    bounds: npt.NDArray[Any],
) -> tuple[_Ends, _Bytes]:
    """Expand two codes at a time."""
    padded = np.append(codes, np.uint8(_ESCAPE)) if len(codes) % 2 else codes
    tokens: npt.NDArray[Any] = padded.view("<u2")
    split = escapes[escapes % 2 == 1]
    if len(split):
        tokens = tokens.astype(np.uint32)
        tokens[split // 2 + 1] += _PAIRS
    pairs, firsts = _pair_table(key, lengths, len(split) > 0)
    ends, data = _take_symbols_in_steps(pairs, tokens)
    # A string that starts at the second code of a pair starts after the pair's first symbol.
    places = bounds >> 1
    within = _look_up(firsts, _look_up(tokens, np.minimum(places, len(tokens) - 1)))
    within *= (bounds & 1).astype(np.uint8)
    return _look_up(ends, places) + within, data


def _look_up(values: npt.NDArray[Any], places: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return values[places] for valid places. Arrow is five times as fast as numpy."""
    return numbers_to_numpy(pc.take(numbers_to_arrow(values), numbers_to_arrow(places), boundscheck=False))


@cache
def _pair_tokens(after_escape: bool) -> _Tokens:
    """Return the first and second tokens of all pairs, interleaved. After an escape comes a literal."""
    pairs = np.arange(_PAIRS)
    first, second = pairs & 255, pairs >> 8
    second = np.where(second == _ESCAPE, _NOTHING, second)
    tokens = np.empty((_PAIRS, 2), dtype=np.uint16)
    if after_escape:
        tokens[:, 0] = first + _NOTHING + 1
        tokens[:, 1] = second
    else:
        tokens[:, 0] = np.where(first == _ESCAPE, _NOTHING, first)
        tokens[:, 1] = np.where(first == _ESCAPE, (pairs >> 8) + _NOTHING + 1, second)
    return tokens.reshape(-1)


@lru_cache(maxsize=4)
def _pair_table(table: bytes, lengths: bytes, split: bool) -> tuple[pa.BinaryArray, _Bytes]:
    """Return the bytes of every pair of codes, and the number of bytes of its first code.

    Args:
        table, lengths: the symbols.
        split: whether to append the pairs that start with the literal of a preceding escape.
    """
    symbols = _symbols(table, lengths)
    tokens = np.concatenate([_pair_tokens(False), _pair_tokens(True)]) if split else _pair_tokens(False)
    _, offsets, data = pc.take(symbols, numbers_to_arrow(tokens), boundscheck=False).buffers()
    edges = np.frombuffer(offsets, dtype=np.int32)[: len(tokens) + 1]
    ends = edges[::2].copy()
    firsts = (edges[1::2] - ends[:-1]).astype(np.uint8)
    return pa.Array.from_buffers(pa.binary(), len(tokens) // 2, [None, pa.py_buffer(ends), data]), firsts
