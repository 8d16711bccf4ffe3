"""FSST: strings as one-byte codes for symbols of one to eight bytes.

The symbol table is 2312 bytes:

    offset  size   meaning
         0  1      n, the number of symbols, 0..255
         1  1      index of the symbol that may end a string (for encoders)
         2  1      suffix limit (for encoders)
         3  1      1 = the data is coded, 0 = the data is stored as it is
         4  4      "TSSF"
         8  n * 8  symbols, each padded with zeros to 8 bytes
    8+8n    n      symbol lengths, 1..8
             -     unused

Codes: k < n stands for symbol k; 255 says that the next byte is itself (a literal). A code never crosses the
boundary of two strings. Example: with symbols ("http", "://"), the codes 00 01 ff 61 mean "http://a".

(Lance file format, FSST.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import FormatError

__all__ = ["SYMBOL_TABLE_SIZE", "decode_fsst"]

SYMBOL_TABLE_SIZE = 2312
_MAGIC = b"TSSF"
_ESCAPE = 255
# Codes per step: few enough that codes, tokens and output stay in the cache, many enough to hide call costs.
_STEP = 1 << 18

_Bytes = npt.NDArray[np.uint8]


def decode_fsst(
    symbol_table: bytes, offsets: npt.NDArray[np.int64], data: _Bytes
) -> tuple[npt.NDArray[np.int64], _Bytes]:
    """Expand FSST codes.

    Args:
        symbol_table: the table, 2312 bytes.
        offsets: n + 1 ascending positions in `data`; string i has the codes data[offsets[i]:offsets[i + 1]].
        data: codes, uint8.

    Returns:
        n + 1 int64 offsets that start at 0, and the uint8 bytes of all strings.

    Raises:
        FormatError: the table is malformed, a code has no symbol, or a string ends inside an escape.
    """
    symbols = _parse_table(symbol_table)
    base = int(offsets[0])
    codes = data[base : int(offsets[-1])]
    bounds = offsets - base
    if symbols is None:
        return bounds, codes
    out_bounds = np.empty(len(bounds), dtype=np.int64)
    pieces: list[_Bytes] = []
    done = 0
    first = 0
    start = 0
    while first < len(bounds):
        # Whole strings only, so that no escape is cut; one string longer than a step makes a step of its own.
        last = max(int(np.searchsorted(bounds, start + _STEP, side="right")), first + 1)
        stop = int(bounds[last - 1])
        ends, piece = _expand(symbols, codes[start:stop], bounds[first:last] - start)
        out_bounds[first:last] = ends + done
        pieces.append(piece)
        done += len(piece)
        first, start = last, stop
    return out_bounds, np.concatenate(pieces)


def _parse_table(table: bytes) -> pa.BinaryArray | None:
    """Return 512 byte strings: the symbols, then (from 256) the literals; None if the data is not coded."""
    if len(table) < SYMBOL_TABLE_SIZE or table[4:8] != _MAGIC:
        raise FormatError("not an FSST symbol table")
    if table[3] == 0:
        return None
    count = table[0]
    lengths = table[8 + 8 * count : 8 + 9 * count]
    if any(not 1 <= length <= 8 for length in lengths):
        raise FormatError("an FSST symbol must have 1 to 8 bytes")
    symbols = [table[8 + 8 * k : 8 + 8 * k + length] for k, length in enumerate(lengths)]
    missing = [None] * (256 - count)
    return pa.array([*symbols, *missing, *(bytes([k]) for k in range(256))], type=pa.binary())


def _expand(
    symbols: pa.BinaryArray, codes: _Bytes, bounds: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], _Bytes]:
    """Expand the codes of whole strings; `bounds` are positions in `codes`, those returned in the output."""
    if not len(codes):
        return np.zeros(len(bounds), dtype=np.int64), codes
    tokens = codes.astype(np.uint16)
    marks = np.flatnonzero(codes == _ESCAPE)
    if len(marks):
        escapes = _escapes(marks)
        ends_here = np.zeros(len(codes) + 1, dtype=np.bool_)
        ends_here[bounds] = True
        if ends_here[escapes + 1].any():
            raise FormatError("a string ends inside an FSST escape")
        tokens[escapes + 1] |= 256
        keep = np.ones(len(codes), dtype=np.bool_)
        keep[escapes] = False
        tokens = tokens[keep]
        bounds = bounds - np.searchsorted(escapes, bounds)
    expanded = symbols.take(pa.array(tokens))
    if expanded.null_count:
        raise FormatError("an FSST code has no symbol in the table")
    _, offset_buffer, value_buffer = expanded.buffers()
    ends = np.frombuffer(offset_buffer, dtype=np.int32)[: len(tokens) + 1]
    values = np.frombuffer(value_buffer, dtype=np.uint8)[: ends[-1]]
    return ends[bounds].astype(np.int64), values


def _escapes(marks: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return which of the positions that hold 255 are escapes: the even ones of every unbroken run."""
    starts = np.flatnonzero(np.diff(marks, prepend=-2) != 1)
    runs = np.diff(starts, append=len(marks))
    in_run = np.arange(len(marks)) - np.repeat(starts, runs)
    escapes: npt.NDArray[np.intp] = marks[in_run % 2 == 0]
    return escapes
