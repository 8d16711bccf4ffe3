"""The writer's choice for numbers of 8 to 64 bits: which form takes least, bytes and reading time together.

Forms: the plain words; blocks of 1024 bit-packed words; runs; plain words (or their bytes sorted by place)
compressed by lz4 or zstd in chunks; and a dictionary with indices in any of these forms. Dates, timestamps,
floats and the indices of dictionaries of text are numbers too.

Sizes of plain, packed and run-length forms are exact. The effect of compression is measured on samples. The
table below has the cost of each form for readers, so that the choice does not depend on the load of the
machine that writes. (Lance file format 2.1, mini-block pages and their encodings.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.file.v2_1.encodings.bitpacking import BLOCK, PackedChunks
from spark_lance.file.v2_1.encodings.byte_stream_split import SplitChunks
from spark_lance.file.v2_1.encodings.general import (
    CompressedChunks,
    Compression,
    compress_pieces,
)
from spark_lance.file.v2_1.encodings.plain_writer import ChunkBuffer, ChunkValues, FixedChunks
from spark_lance.file.v2_1.encodings.rle import RunChunks, find_runs
from spark_lance.file.v2_1.layouts.mini_block import ChunkPolicy
from spark_lance.file.v2_1.write.settings import Settings

__all__ = ["LOOKUP_NS", "NUMBER_POLICY", "Form", "Weights", "best_form", "carried_over", "compressed_forms"]

_Words = npt.NDArray[Any]

# Chunks are the unit of random access. 16 KiB keep the cost per chunk small next to copying it.
NUMBER_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=4096)
# Bit-packed chunks are one block each.
_PACKED_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=BLOCK)
# Compressed chunks: large enough to find repetition, and within what 2.1 allows.
_COMPRESSED_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=32 * 1024)
_SAMPLES, _SAMPLE_BYTES = 6, 16 * 1024
# Fewer bytes are compressed only if somebody asks for it.
_LEAST_BYTES = 16 * 1024

# The cost of reading, in nanoseconds of one core, measured in numpy: per value by the bits of the word ...
_UNPACK_NS = {8: 0.4, 16: 0.5, 32: 1.0, 64: 2.7}
_JOIN_NS = {32: 1.3, 64: 3.4}
LOOKUP_NS = 0.8
# ... per run ...
_RUN_NS = 7.0
# ... and per byte that comes out.
_COPY_NS = 0.08
_INFLATE_NS = {"lz4": 0.45, "zstd": 1.1}

# The bytes that a nanosecond of reading must save: 0.25 is what a store of 250 MB/s delivers in it. Whoever
# asks for compression wants small files.
_BYTES_PER_NS = 0.25
_BYTES_PER_NS_ASKED = 0.05


@dataclass(frozen=True)
class Weights:
    """The choices of a writer, and how it weighs time against bytes.

    Attributes:
        bytes_per_ns: bytes that one nanosecond of a reader is worth.
        schemes: general compression that may be used.
        split: "on", "off" or "auto": whether bytes are sorted by place below general compression.
        run_share: runs are taken below this share of the values, and only then; None = by weight.
        is_explicit: somebody asked for compression, so that small pages are tried too.
    """

    bytes_per_ns: float
    schemes: tuple[Compression, ...]
    split: str
    run_share: float | None
    is_explicit: bool

    @classmethod
    def of(cls, settings: Settings) -> Weights:
        """Return what the settings of a field come to."""
        compression = settings.compression
        schemes: tuple[Compression, ...] = (Compression("lz4"), Compression("zstd"))
        if settings.plain or compression is not None:
            schemes = () if compression is None else (compression,)
        rate = _BYTES_PER_NS if compression is None else _BYTES_PER_NS_ASKED
        return cls(rate, schemes, settings.split_bytes, settings.rle_threshold, compression is not None)


@dataclass(frozen=True)
class Form:
    """One way to store the values of a page: about how many bytes, its weight, and how to do it.

    The weight is the bytes and the time of readers, in bytes.
    """

    nbytes: float
    weight: float
    policy: ChunkPolicy
    build: Callable[[], ChunkValues]


def best_form(words: _Words, weights: Weights, carried: _Words | None = None) -> Form:
    """Return the form of least weight of unsigned words, one or more.

    Args:
        words: the values.
        weights: what may be done.
        carried: words that may stand for them in runs, see `carried_over`.
    """
    if weights.run_share is not None:
        starts = find_runs(words, weights.run_share * len(words))
        if starts is not None:
            return _runs(words, starts, weights)
    return min(_forms(words, weights, carried), key=lambda form: form.weight)


def carried_over(words: _Words, valid: npt.NDArray[np.bool_] | None) -> _Words | None:
    """Return words in which each null repeats the value before it; None if there are few nulls.

    The value in the place of a null means nothing, and so the runs of sparse values become half as many.
    """
    if valid is None or 2 * int(np.count_nonzero(valid)) > len(words):
        return None
    return words[np.maximum.accumulate(np.where(valid, np.arange(len(words)), 0))]


def _forms(words: _Words, weights: Weights, carried: _Words | None) -> Iterator[Form]:
    bits = words.dtype.itemsize * 8
    plain = FixedChunks.of_words(words)
    least = plain.nbytes * (1 + weights.bytes_per_ns * _COPY_NS)
    yield Form(plain.nbytes, least, NUMBER_POLICY, lambda: plain)
    packed = PackedChunks.of(words)
    weight = packed.nbytes + weights.bytes_per_ns * _UNPACK_NS[bits] * len(words)
    yield Form(packed.nbytes, weight, _PACKED_POLICY, lambda: packed)
    least = min(least, weight)
    if weights.run_share is None:
        per_run = words.dtype.itemsize + 1 + weights.bytes_per_ns * _RUN_NS
        source = words if carried is None else carried
        starts = find_runs(source, least / per_run)
        if starts is not None:
            runs = _runs(source, starts, weights)
            least = min(least, runs.weight)
            yield runs
    yield from _compressed_words(words, plain, weights, least)


def _runs(words: _Words, starts: npt.NDArray[np.int64], weights: Weights) -> Form:
    runs = RunChunks.of(words, starts)
    weight = runs.nbytes + weights.bytes_per_ns * _RUN_NS * len(starts)
    return Form(runs.nbytes, weight, NUMBER_POLICY, lambda: runs)


def _compressed_words(words: _Words, plain: FixedChunks, weights: Weights, most: float) -> Iterator[Form]:
    if words.dtype.itemsize < 4 or weights.split != "on":
        yield from compressed_forms(plain, weights, most=most)
    if words.dtype.itemsize >= 4 and weights.split != "off":
        ns = _JOIN_NS[words.dtype.itemsize * 8]
        yield from compressed_forms(SplitChunks(words), weights, ns, most=most)


def compressed_forms(
    values: ChunkValues,
    weights: Weights,
    ns: float = 0.0,
    policy: ChunkPolicy = _COMPRESSED_POLICY,
    most: float = math.inf,
) -> Iterator[Form]:
    """Yield the forms of values under general compression, as far as samples say that they shrink.

    Args:
        values: slots of one width with one buffer per chunk.
        weights: which schemes, and how time is weighed.
        ns: what a slot costs the reader besides.
        policy: of the chunks.
        most: forms that weigh as much, whatever samples say, are left out.
    """
    if values.nbytes < _LEAST_BYTES and not weights.is_explicit:
        return
    times = {
        scheme: weights.bytes_per_ns * (ns * values.count + _INFLATE_NS[scheme.scheme] * values.nbytes)
        for scheme in weights.schemes
    }
    schemes = [scheme for scheme, time in times.items() if time < most]
    if not schemes:
        return
    pieces = _samples(values, policy)
    total = int(pieces.starts[-1])
    for scheme in schemes:
        share = int(compress_pieces(pieces, scheme).starts[-1]) / total
        nbytes = share * values.nbytes
        yield Form(nbytes, nbytes + times[scheme], policy, _compressor(values, scheme))


def _compressor(values: ChunkValues, scheme: Compression) -> Callable[[], ChunkValues]:
    return lambda: CompressedChunks(values, scheme)


def _samples(values: ChunkValues, policy: ChunkPolicy) -> ChunkBuffer:
    """Return chunks from all over the page, as large as those that would be compressed."""
    width = max(1, values.nbytes // values.count)
    slots = min(values.count, policy.max_values, max(8, _SAMPLE_BYTES // width // 8 * 8))
    starts = np.unique(np.linspace(0, values.count - slots, _SAMPLES).astype(np.int64) // 8 * 8)
    parts = []
    for start in starts.tolist():
        (piece,) = values.chunk(np.array([start, start + slots]))
        parts.append(piece.data[piece.starts[0] : piece.starts[1]])
    cuts = np.cumsum([0, *(len(part) for part in parts)])
    return ChunkBuffer(np.concatenate(parts), cuts)
