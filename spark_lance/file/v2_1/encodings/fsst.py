"""FSST: byte strings coded with a symbol table that the page's description holds.

    Fsst { symbol_table, values: Variable }

The inner encoding yields strings of codes, one byte each: k < n stands for symbol k, 255 says that the next
byte is itself (a literal). A code never crosses the boundary of two strings; null and empty strings have no
codes. The symbol table has 2312 bytes:

    offset  size   meaning
         0  1      n, the number of symbols, 0..255
         1  2      for encoders
         3  1      1 = the strings are coded, 0 = they are stored as they are
         4  4      "TSSF"
         8  n * 8  symbols, each padded with zeros to 8 bytes
    8+8n    n      symbol lengths, 1..8

Example: with the symbols "http" and "://", the codes 00 01 ff 61 mean "http://a".
(Lance file format, encodings: fsst.)

Codes are expanded in pairs: two codes are an index into a table of 65536 byte strings, which Arrow's `take`
copies to one place. That needs every escape at an even place, which filler makes so: 255 in the second place
of a pair means nothing, because a pair (255, x) is always an escape with its literal.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.file.buffers import as_bytes
from spark_lance.file.v2_1.blocks import Block, Variable
from spark_lance.file.v2_1.chunks import Bytes, Chunks, Ints
from spark_lance.file.v2_1.codec import Resolver
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["decode_mini_block", "decode_zipped", "expand"]

_TABLE_SIZE = 2312
_MAGIC = b"TSSF"
_ESCAPE = 255
_NOTHING = 256
# Below this many codes the table of pairs costs more than it saves.
_PAIRS_FROM = 1 << 18
# Codes per step; a step's output is below 2 GiB, as Arrow's 32 bit offsets need.
_STEP = 1 << 24

_Tokens = npt.NDArray[np.uint16]


def decode_mini_block(fsst: pb.Fsst, chunks: Chunks, resolver: Resolver) -> Variable:
    """Decode all chunks of a page."""
    return _decode(fsst, resolver.mini_block(fsst.values, chunks))


def decode_zipped(fsst: pb.Fsst, values: Variable, resolver: Resolver) -> Variable:
    """Decode full-zip values."""
    return _decode(fsst, resolver.zipped_variable(fsst.values, values))


def _decode(fsst: pb.Fsst, codes: Block) -> Variable:
    if not isinstance(codes, Variable):
        raise FormatError("FSST codes must be byte strings")
    return expand(fsst.symbol_table, codes)


def expand(table: bytes, codes: Variable) -> Variable:
    """Expand strings of codes to the strings that they stand for.

    Raises:
        FormatError: the table is malformed, a code has no symbol, or a string ends inside an escape.
    """
    symbols = _parse(table)
    if symbols is None or not len(codes.data):
        return codes
    bounds = codes.offsets.astype(np.int64)
    marks = np.flatnonzero(codes.data == _ESCAPE)
    escapes = _escapes(marks) if len(marks) else marks
    if len(escapes):
        cut = np.zeros(len(codes.data) + 1, dtype=np.bool_)
        cut[bounds] = True
        if bool(cut[escapes + 1].any()):
            raise FormatError("a string ends inside an FSST escape")
    if len(codes.data) < _PAIRS_FROM:
        return _expand_single(symbols, codes.data, escapes, bounds)
    return _expand_pairs(symbols, codes.data, escapes, bounds)


def _parse(table: bytes) -> pa.BinaryArray | None:
    """Return the symbols (null from n on), nothing (at 256) and literals; None if nothing is coded."""
    if len(table) < _TABLE_SIZE or table[4:8] != _MAGIC:
        raise FormatError("not an FSST symbol table")
    if table[3] == 0:
        return None
    count = table[0]
    lengths = table[8 + 8 * count : 8 + 9 * count]
    if any(not 1 <= length <= 8 for length in lengths):
        raise FormatError("an FSST symbol must have 1 to 8 bytes")
    symbols = [table[8 + 8 * k : 8 + 8 * k + length] for k, length in enumerate(lengths)]
    missing = [None] * (256 - count)
    return pa.array([*symbols, *missing, b"", *(bytes([k]) for k in range(256))], type=pa.binary())


def _escapes(marks: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return which of the places that hold 255 are escapes: the even ones of every unbroken run."""
    starts = np.flatnonzero(np.diff(marks, prepend=-2) != 1)
    runs = np.diff(starts, append=len(marks))
    in_run = np.arange(len(marks)) - np.repeat(starts, runs)
    escapes: npt.NDArray[np.intp] = marks[in_run % 2 == 0]
    return escapes


def _take(symbols: pa.BinaryArray, tokens: npt.NDArray[np.uint16]) -> tuple[npt.NDArray[np.int32], Bytes]:
    """Return the offsets and bytes of symbols[token] for all tokens."""
    taken = symbols.take(pa.array(tokens))
    if taken.null_count:
        raise FormatError("an FSST code has no symbol in the table")
    _, offsets, data = taken.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[: len(tokens) + 1]
    return ends, as_bytes(data)[: int(ends[-1])] if data is not None else np.zeros(0, dtype=np.uint8)


def _expand_single(
    symbols: pa.BinaryArray, codes: Bytes, escapes: npt.NDArray[np.intp], bounds: Ints
) -> Variable:
    """Expand code by code."""
    tokens = codes.astype(np.uint16)
    if len(escapes):
        tokens[escapes + 1] += _NOTHING + 1
        keep = np.ones(len(codes), dtype=np.bool_)
        keep[escapes] = False
        tokens = tokens[keep]
        bounds = bounds - np.searchsorted(escapes, bounds)
    ends, data = _take(symbols, tokens)
    return Variable(ends[bounds], data)


def _expand_pairs(
    symbols: pa.BinaryArray, codes: Bytes, escapes: npt.NDArray[np.intp], bounds: Ints
) -> Variable:
    """Expand two codes at a time."""
    # An escape is even once the one before it is: it needs filler if their distance is odd.
    fill = escapes[np.diff(escapes, prepend=0) % 2 == 1]
    size = len(codes) + len(fill)
    padded = codes
    if len(fill) or size % 2:
        padded = np.full(size + size % 2, _ESCAPE, dtype=np.uint8)
        if len(fill):
            keep = np.ones(len(padded), dtype=np.bool_)
            keep[fill + np.arange(len(fill))] = False
            keep[size:] = False
            padded[keep] = codes
            bounds = bounds + np.searchsorted(fill, bounds)
        else:
            padded[:size] = codes
    pairs = padded.view("<u2")
    table = _pair_table(symbols)
    ends, data = _take_steps(table, pairs)
    # A string that starts in the second half of a pair starts after the pair's first symbol.
    offsets = ends[bounds >> 1]
    halves = np.flatnonzero(bounds & 1)
    lengths = np.frombuffer(symbols.buffers()[1], dtype=np.int32)[: _NOTHING + 1]
    offsets[halves] += np.diff(lengths)[padded[bounds[halves] - 1]]
    return Variable(offsets, data)


def _take_steps(
    table: pa.BinaryArray, pairs: _Tokens
) -> tuple[npt.NDArray[np.int32] | npt.NDArray[np.int64], Bytes]:
    """Do as `_take`, however long the result is."""
    if len(pairs) <= _STEP:
        return _take(table, pairs)
    ends = np.zeros(len(pairs) + 1, dtype=np.int64)
    pieces: list[Bytes] = []
    for start in range(0, len(pairs), _STEP):
        step, piece = _take(table, pairs[start : start + _STEP])
        np.add(step[1:], ends[start], out=ends[start + 1 : start + len(step)])
        pieces.append(piece)
    return ends, np.concatenate(pieces)


@cache
def _pair_tokens() -> _Tokens:
    """Return first and second token of all pairs, in turn."""
    pairs = np.arange(1 << 16)
    first, second = pairs & 255, pairs >> 8
    tokens = np.empty((1 << 16, 2), dtype=np.uint16)
    tokens[:, 0] = np.where(first == _ESCAPE, _NOTHING, first)
    tokens[:, 1] = np.where(
        first == _ESCAPE, second + _NOTHING + 1, np.where(second == _ESCAPE, _NOTHING, second)
    )
    return tokens.reshape(-1)


def _pair_table(symbols: pa.BinaryArray) -> pa.BinaryArray:
    """Return what every pair of codes stands for; null where a code has no symbol."""
    taken = symbols.take(pa.array(_pair_tokens()))
    _, offsets, data = taken.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[: (1 << 17) + 1 : 2].copy()
    buffers = [None, pa.py_buffer(ends), data]
    if taken.null_count:
        valid = np.unpackbits(as_bytes(taken.buffers()[0]), count=1 << 17, bitorder="little")
        buffers[0] = pa.py_buffer(np.packbits(valid[0::2] & valid[1::2], bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), 1 << 16, buffers)
