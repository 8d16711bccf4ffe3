"""Encodes one top-level field into pages of Lance 2.1 and 2.2, and chooses layout and encodings of each page.

No valid value at all -> constant page; so too, from 2.2 on, if all values are the same and there are no
levels. Dictionaries and values that are not whole bytes -> mini-block. Otherwise wide values -> full-zip,
narrow ones -> mini-block.

Numbers of 8 to 64 bits take the form of least weight (see below); numbers of 128 bits get a dictionary.
Strings and binaries get a dictionary where that is smaller by some margin. Wide numbers and vectors are
compressed if samples shrink much.

Other text and binaries are compressed if samples shrink: by lz4 in chunks of up to 64 KiB, or by zstd in
chunks of up to 28 KiB, if it does much more. FSST, which the reference implementation writes here, is only
read. No measured kind of text is smaller in it than in zstd, and numpy would train it at 55 MB/s at best;
tests/file/encodings.md has the figures.

Field metadata, see settings.py, has the last word.

The writer's choice for numbers of 8 to 64 bits: which form takes least, bytes and reading time together.

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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.numpy_types import Bools
from spark_lance.errors import SchemaError, UnsupportedFormatError
from spark_lance.file.base.metadata import EncodedPage
from spark_lance.file.base.schema import Field
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_1.encodings.bitpacking import BLOCK, PackedChunks
from spark_lance.file.v2_1.encodings.byte_stream_split import SplitChunks
from spark_lance.file.v2_1.encodings.dictionary_writer import (
    DictionaryLimits,
    encode_dictionary,
    number_words,
)
from spark_lance.file.v2_1.encodings.general import (
    CompressedChunks,
    CompressedText,
    Compression,
    compress_block,
    compress_pieces,
    compress_zipped,
)
from spark_lance.file.v2_1.encodings.packed_struct import is_plain_struct, struct_chunks, zip_structs
from spark_lance.file.v2_1.encodings.plain_writer import (
    ChunkBuffer,
    ChunkValues,
    EncodedBlock,
    FixedChunks,
    VariableChunks,
    ZipFixed,
    ZipVariable,
    flat,
    is_variable,
    plain_block,
    value_bits,
    zip_fixed,
    zip_variable,
)
from spark_lance.file.v2_1.encodings.rle import RunChunks, find_runs
from spark_lance.file.v2_1.layouts.blob import blob_page
from spark_lance.file.v2_1.layouts.constant import MAX_INLINE_BYTES, null_page, scalar_page
from spark_lance.file.v2_1.layouts.full_zip import full_zip_page
from spark_lance.file.v2_1.layouts.mini_block import ChunkPolicy, PageParts, mini_block_page
from spark_lance.file.v2_1.levels.ravel import Leaf, ravel
from spark_lance.file.v2_1.write.settings import Settings, check_storable

_Words = npt.NDArray[Any]

# Chunks are the unit of random access. 16 KiB keep the cost per chunk small next to copying it.
NUMBER_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=4096)
# Bit-packed chunks are one block each.
_PACKED_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=BLOCK)
# Compressed chunks: large enough to find repetition, and within what 2.1 allows.
_COMPRESSED_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=32 * 1024)
_NUMBER_SAMPLES, _NUMBER_SAMPLE_BYTES = 6, 16 * 1024
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
    slots = min(values.count, policy.max_values, max(8, _NUMBER_SAMPLE_BYTES // width // 8 * 8))
    starts = np.unique(np.linspace(0, values.count - slots, _NUMBER_SAMPLES).astype(np.int64) // 8 * 8)
    parts = []
    for start in starts.tolist():
        (piece,) = values.chunk(np.array([start, start + slots]))
        parts.append(piece.data[piece.starts[0] : piece.starts[1]])
    cuts = np.cumsum([0, *(len(part) for part in parts)])
    return ChunkBuffer(np.concatenate(parts), cuts)


Words = npt.NDArray[Any]

# Chunks are the unit of random access. 16 KiB keep the cost per chunk small next to copying it.
_POLICY = NUMBER_POLICY
# Vectors and wide numbers are compressed if samples come down to this share; no wider values are.
_WORTH_COMPRESSING = 0.7
_WIDEST_COMPRESSED = 4096
# Bytes of vectors that are looked at before anything else is.
_VECTOR_SAMPLE = 32 * 1024
# A dictionary costs the reader a lookup per value. Text that is not repeated can be made smaller otherwise.
_LIMITS = DictionaryLimits()
_WORTH_NUMBERED = 0.01
_WORTH_NUMBERED_TEXT = 0.2
# Dictionaries are compressed from 2.2 on if that saves this share of their bytes: by lz4, but those of text
# by zstd that have so many bytes for each byte of the indices and are neither short nor so long that readers
# who come for few values would wait for them.
_WORTH_COMPRESSED_ITEMS = 0.1
_MANY_ITEMS, _ZSTD_ITEMS_BYTES = 0.5, range(16 * 1024, 256 * 1024)

# Chunks of compressed text: large enough to find repetition, and within what 2.1 allows. A single value costs
# a reader its chunk: zstd, which takes long for that, finds little more in larger ones, lz4 3 to 6 % in 64
# KiB, the reach of its matches. Whoever asks for compression wants small files.
_TEXT_POLICY = ChunkPolicy(target_bytes=28 * 1024, max_values=4096)
_LARGE_TEXT_POLICY = ChunkPolicy(target_bytes=64 * 1024, max_values=4096)
# Values of fewer bytes in the mean, with their offsets, have zstd compress tables of offsets, too.
_SHORT_TEXT_BYTES = 32
# Pages of text from this size on are compressed: by lz4 if it brings samples down to its share and zstd does
# not bring them much further, else by zstd if it brings them down to its share.
_LEAST_COMPRESSED_BYTES = 32 * 1024
_LZ4_SHARE, _ZSTD_SHARE, _ZSTD_OF_LZ4 = 0.6, 0.8, 0.65
_SAMPLES, _SAMPLE_BYTES = 4, 28 * 1024
# Compressible text goes into chunks unless it is as long as this in the mean, or one value as this.
_LONG_TEXT_BYTES = 2 * 1024
# In full-zip pages each value is compressed on its own, those shorter than long text by lz4, which costs less
# per call; text shorter than this in the mean is left alone.
_LEAST_ZIPPED_BYTES = 512
_LONGEST_COMPRESSED = {FileVersion.V2_1: 12 * 1024, FileVersion.V2_2: 1 << 20}
# A page of text may have one longer value per this many of its bytes. In 2.1 such a value shares its chunk
# with one other if there is room for both; if not, the page is cut in two until it is in a small one.
_BYTES_PER_LONG = {FileVersion.V2_1: 128 * 1024, FileVersion.V2_2: math.inf}

# Wide values gain nothing from chunks: one value is already a sensible read.
_WIDE_FIXED_BYTES = 256
# Strings and binaries: some value is at least this wide, and the mean is no less than a quarter of it ...
_WIDE_VARIABLE_BYTES = 256
# ... or some value is so wide that neighbours should not have to be read with it.
_VERY_WIDE_VARIABLE_BYTES = 8 * 1024


@dataclass(frozen=True)
class NullPage:
    """No slot holds a valid value."""


@dataclass(frozen=True)
class BlobPage:
    """Descriptors of blobs, 2.1."""

    policy: ChunkPolicy = _POLICY


@dataclass(frozen=True)
class ScalarPage:
    """Every level has a slot that holds this value; a bool is one byte."""

    value: bytes


@dataclass(frozen=True)
class MiniBlock:
    """Chunks of `values`, which number the items of `dictionary` if there is one."""

    values: ChunkValues
    dictionary: EncodedBlock | None = None
    policy: ChunkPolicy = _POLICY


@dataclass(frozen=True)
class FullZip:
    """Values interleaved with their levels."""

    values: ZipFixed | ZipVariable


def choose(leaf: Leaf, version: FileVersion) -> NullPage | BlobPage | ScalarPage | MiniBlock | FullZip:
    """Decide how the page of `leaf` is written.

    Raises:
        SchemaError: a struct without fields is null or inside a list, or a packed struct has a field that is
            null, neither of which the format can say.
    """
    array = leaf.values
    if leaf.field.logical_type == "struct" and not array.type.num_fields:
        if leaf.definition is not None or leaf.rep is not None:
            raise SchemaError(
                f"column {leaf.field.name!r}: Lance cannot store a struct without fields "
                "that is null or in a list"
            )
        return NullPage()
    if leaf.field.kind == "blob" and version is FileVersion.V2_1:
        return BlobPage()
    valid = leaf.slot_validity()
    if len(array) == 0 or (valid is not None and not valid.any()):
        return NullPage()
    if pa.types.is_struct(array.type):
        return MiniBlock(struct_chunks(leaf)) if is_plain_struct(array.type) else FullZip(zip_structs(leaf))
    settings = Settings.of(leaf.field)
    if pa.types.is_dictionary(array.type):
        items = _items(array.dictionary, version, settings)
        return _numbers(FixedChunks.of(array, valid), Weights.of(settings), items)
    if version is not FileVersion.V2_1 and leaf.rep is None and leaf.definition is None:
        value = _only_value(array)
        if value is not None:
            return ScalarPage(value)
    if is_variable(array.type):
        return _variable(array, valid, version, settings)
    return _fixed(array, valid, version, settings)


def _fixed(
    array: pa.Array, valid: Bools | None, version: FileVersion, settings: Settings
) -> MiniBlock | FullZip:
    """Choose for values of one width."""
    bits = value_bits(array.type)
    wide = settings.structure == "fullzip" or (bits >= 8 * _WIDE_FIXED_BYTES and not settings.structure)
    if wide and bits % 8 == 0 and not _has_bit_items(array.type):
        shrunk = None if settings.structure else _compressed_vectors(array, valid, settings)
        return shrunk or FullZip(zip_fixed(array, valid))
    plain, weights = FixedChunks.of(array, valid), Weights.of(settings)
    words = plain.words()
    if words is not None:
        form = best_form(words, weights, carried_over(words, valid))
        numbered = _numbered_words(words, form, valid, weights, settings, version)
        return numbered or MiniBlock(form.build(), None, form.policy)
    form = _odd_form(plain, weights)
    direct = MiniBlock(form.build(), None, form.policy)
    if plain.layers or bits != 128:
        return direct
    hashable = pa.Array.from_buffers(pa.binary(16), plain.count, [None, pa.py_buffer(plain.items)])
    ratio = 1 - _WORTH_NUMBERED if settings.dictionary_ratio is None else settings.dictionary_ratio
    return _numbered(hashable, None, ratio * form.nbytes, version, settings) or direct


def _variable(
    array: pa.Array, valid: Bools | None, version: FileVersion, settings: Settings
) -> MiniBlock | FullZip:
    """Choose for strings and binaries."""
    chunks = VariableChunks.of(array, valid)
    compression, size = settings.compression, chunks.nbytes
    if compression is not None:
        size = _compressed_size(chunks, compression)
    elif not settings.plain:
        compression, size = _text_compression(chunks)
    ratio = 1 - _WORTH_NUMBERED_TEXT if settings.dictionary_ratio is None else settings.dictionary_ratio
    numbered = _numbered(array, valid, min(ratio * chunks.nbytes, size), version, settings)
    if numbered is not None:
        return numbered
    lengths = np.diff(chunks.offsets)
    mean, widest = chunks.nbytes / chunks.count, int(lengths.max())
    if settings.structure is not None:
        zipped = settings.structure == "fullzip"
    elif compression is not None:
        longest = int(np.count_nonzero(lengths >= _LONGEST_COMPRESSED[version]))
        zipped = mean >= _LONG_TEXT_BYTES or (
            longest > 0 and longest * _BYTES_PER_LONG[version] > chunks.nbytes
        )
    else:
        zipped = widest >= _VERY_WIDE_VARIABLE_BYTES or (
            widest >= _WIDE_VARIABLE_BYTES and mean >= _WIDE_VARIABLE_BYTES / 4
        )
    if zipped:
        values = zip_variable(array, valid)
        if settings.compression is not None:
            values = compress_zipped(values, settings.compression)
        elif compression is not None and mean >= _LONG_TEXT_BYTES:
            values = compress_zipped(values, Compression("zstd"))
        elif compression is not None and mean >= _LEAST_ZIPPED_BYTES:
            values = compress_zipped(values, Compression("lz4"))
        return FullZip(values)
    if compression is None:
        return MiniBlock(chunks, None, _sized(_POLICY, settings))
    is_explicit = settings.compression is not None
    large = version is not FileVersion.V2_1 and (is_explicit or compression.scheme == "lz4")
    policy = _sized(_LARGE_TEXT_POLICY if large else _TEXT_POLICY, settings)
    packs_tables = is_explicit or mean < _SHORT_TEXT_BYTES
    return MiniBlock(CompressedText(chunks, compression, packs_tables), None, policy)


def _sized(policy: ChunkPolicy, settings: Settings) -> ChunkPolicy:
    """Return the policy with the chunk size that the field asks for, if it does."""
    return policy if settings.chunk_bytes is None else replace(policy, target_bytes=settings.chunk_bytes)


def _compressed_vectors(array: pa.Array, valid: Bools | None, settings: Settings) -> MiniBlock | None:
    """Return vectors in compressed chunks if they shrink much, as pictures do and embeddings do not."""
    weights = Weights.of(settings)
    few = FixedChunks.of(array[: _VECTOR_SAMPLE // (value_bits(array.type) // 8) + 1], None)
    gate = replace(weights, schemes=weights.schemes[:1], is_explicit=True)
    if _odd_form(few, gate).nbytes >= few.nbytes:
        return None
    plain = FixedChunks.of(array, valid)
    form = _odd_form(plain, weights)
    return MiniBlock(form.build(), None, form.policy) if form.nbytes < plain.nbytes else None


def _numbers(plain: FixedChunks, weights: Weights, items: EncodedBlock | None = None) -> MiniBlock:
    """Choose the encoding of values of one width, which may be indices into a dictionary."""
    words = plain.words()
    form = _odd_form(plain, weights) if words is None else best_form(words, weights)
    return MiniBlock(form.build(), items, form.policy)


def _odd_form(plain: FixedChunks, weights: Weights) -> Form:
    """Choose for values that are not words of 8 to 64 bits: bits, wide numbers, vectors."""
    best = Form(plain.nbytes, plain.nbytes, _POLICY, lambda: plain)
    slot = plain.nbytes // plain.count
    if any(layer.validity is not None for layer in plain.layers) or not 1 < slot <= _WIDEST_COMPRESSED:
        return best
    shrunk = min(compressed_forms(plain, weights), key=lambda form: form.weight, default=best)
    return (
        shrunk if shrunk.nbytes < _WORTH_COMPRESSING * best.nbytes and shrunk.weight < best.weight else best
    )


def _numbered_words(
    words: Words, plain: Form, valid: Bools | None, weights: Weights, settings: Settings, version: FileVersion
) -> MiniBlock | None:
    """Return words with a dictionary if that weighs less than `plain`."""
    if valid is not None and not valid.all():
        # The bytes in the place of a null are no value: they must not widen the range.
        words = np.where(valid, words, words[valid.argmax()])
    bits = words.dtype.itemsize * 8
    numbered = number_words(words, _limits(settings))
    if numbered is None:
        return None
    items = _compressed_block(
        EncodedBlock(flat(bits), len(numbered.items), numbered.items.view(np.uint8)),
        version,
        settings,
        Compression("lz4"),
    )
    form = best_form(numbered.indices, weights)
    nbytes = form.nbytes + items.data.nbytes
    if settings.dictionary_ratio is not None:
        pays = nbytes < settings.dictionary_ratio * plain.nbytes
    else:
        weight = form.weight + items.data.nbytes + weights.bytes_per_ns * LOOKUP_NS * len(words)
        pays = weight < (1 - _WORTH_NUMBERED) * plain.weight
    return MiniBlock(form.build(), items, form.policy) if pays else None


def _limits(settings: Settings) -> DictionaryLimits:
    if settings.dictionary_divisor is None:
        return _LIMITS
    return replace(_LIMITS, divisor=max(1.0, settings.dictionary_divisor))


def _numbered(
    array: pa.Array, valid: Bools | None, limit: float, version: FileVersion, settings: Settings
) -> MiniBlock | None:
    """Return the page with a dictionary if that takes less than `limit` bytes."""
    encoded = encode_dictionary(array, valid, _limits(settings))
    if encoded is None:
        return None
    words = FixedChunks.of(encoded, valid).words()
    assert words is not None
    form = best_form(words, Weights.of(settings))
    items = _items(encoded.dictionary, version, settings, form.nbytes)
    return MiniBlock(form.build(), items, form.policy) if form.nbytes + items.data.nbytes < limit else None


def _items(
    array: pa.Array, version: FileVersion, settings: Settings, index_bytes: float = math.inf
) -> EncodedBlock:
    """Return the block of a dictionary; `index_bytes` is the size of its indices."""
    block = plain_block(array)
    size = block.data.nbytes
    by_zstd = is_variable(array.type) and size in _ZSTD_ITEMS_BYTES and size >= _MANY_ITEMS * index_bytes
    return _compressed_block(block, version, settings, Compression("zstd" if by_zstd else "lz4"))


def _compressed_block(
    block: EncodedBlock, version: FileVersion, settings: Settings, scheme: Compression
) -> EncodedBlock:
    """Return the block of a dictionary, by `scheme` unless the version or the settings say otherwise."""
    plain = settings.items_plain or (settings.plain and settings.items_compression is None)
    if version is FileVersion.V2_1 or plain or block.data.nbytes == 0:
        return block
    compression = settings.items_compression or settings.compression
    if compression is not None:
        return compress_block(block, compression)
    compressed = compress_block(block, scheme)
    pays = compressed.data.nbytes < (1 - _WORTH_COMPRESSED_ITEMS) * block.data.nbytes
    return compressed if pays else block


def _text_compression(chunks: VariableChunks) -> tuple[Compression | None, int]:
    """Return how to compress text, None if it hardly shrinks, and the bytes that it then takes."""
    if chunks.nbytes < _LEAST_COMPRESSED_BYTES:
        return None, chunks.nbytes
    pieces = chunks.samples(_SAMPLES, _SAMPLE_BYTES)
    total = int(pieces.starts[-1])
    lz4, zstd = Compression("lz4"), Compression("zstd")
    by_lz4, by_zstd = (int(compress_pieces(pieces, scheme).starts[-1]) / total for scheme in (lz4, zstd))
    if by_lz4 <= _LZ4_SHARE and by_zstd >= _ZSTD_OF_LZ4 * by_lz4:
        return lz4, int(by_lz4 * chunks.nbytes)
    if by_zstd <= _ZSTD_SHARE:
        return zstd, int(by_zstd * chunks.nbytes)
    return None, chunks.nbytes


def _compressed_size(chunks: VariableChunks, compression: Compression) -> int:
    """Return about how many bytes values take with a compression."""
    if not chunks.nbytes:
        return 0
    pieces = chunks.samples(_SAMPLES, _SAMPLE_BYTES)
    share = int(compress_pieces(pieces, compression).starts[-1]) / int(pieces.starts[-1])
    return int(share * chunks.nbytes)


def _only_value(array: pa.Array) -> bytes | None:
    """Return the bytes of the value that a whole array (one slot or more, no nulls) consists of, if any."""
    if is_variable(array.type):
        return None if array[0] != array[len(array) - 1] else _only_variable(array)
    if pa.types.is_fixed_size_list(array.type) or value_bits(array.type) > 8 * MAX_INLINE_BYTES:
        return None
    items = FixedChunks.of(array, None).items
    rows = items.reshape(len(array), -1)
    if (rows[0] != rows[-1]).any() or (rows != rows[0]).any():
        return None
    value: bytes = rows[0].tobytes()
    return value


def _only_variable(array: pa.Array) -> bytes | None:
    chunks = VariableChunks.of(array, None)
    lengths = np.diff(chunks.offsets)
    if (lengths != lengths[0]).any():
        return None
    rows = chunks.data.reshape(len(array), int(lengths[0]))
    value: bytes = rows[0].tobytes()
    return None if (rows != rows[0]).any() else value


def full_zip(leaf: Leaf) -> FullZip | None:
    """Return the full-zip form of a page that does not fit into chunks, None if the type has none."""
    array, valid = leaf.values, leaf.slot_validity()
    if is_variable(array.type):
        return FullZip(zip_variable(array, valid))
    if pa.types.is_dictionary(array.type) or pa.types.is_struct(array.type) or _has_bit_items(array.type):
        return None
    return FullZip(zip_fixed(array, valid))


def _has_bit_items(arrow: pa.DataType) -> bool:
    while pa.types.is_fixed_size_list(arrow):
        arrow = arrow.value_type
    return bool(pa.types.is_boolean(arrow))


class FieldWriter:
    """Writes the columns of one top-level field; they are numbered from `column_base` on, depth first.

    For blobs it gets and writes the descriptors (`Field.described`).

    Raises:
        SchemaError: a type that this version, or Lance as a whole, cannot store in this place; field metadata
            for the writer that has no meaning.
    """

    def __init__(self, field: Field, column_base: int, version: FileVersion) -> None:
        check_storable(field, version)
        self._field = field
        self._column_base = column_base
        self._version = version

    def encode(self, array: pa.Array, row_start: int) -> list[EncodedPage]:
        """Return the pages of a run of rows that starts at row `row_start` of the file.

        `array` is of type `field.arrow_type()`, up to the names of list items. Memory: a small multiple of
        the array.

        Raises:
            SchemaError: a null where the schema allows none.
        """
        if len(array) == 0:
            return []
        pages = []
        for i, leaf in enumerate(ravel(self._field, array)):
            row = row_start
            for part, (layout, buffers) in _encode_leaf(leaf, self._version):
                pages.append(EncodedPage(self._column_base + i, list(buffers), layout, part.length, row))
                row += part.rows
        return pages


def _encode_leaf(leaf: Leaf, version: FileVersion) -> Iterator[tuple[Leaf, PageParts]]:
    """Yield one page, or more where the format cannot hold the rows in one."""
    choice = choose(leaf, version)
    if isinstance(choice, NullPage):
        yield leaf, null_page(leaf)
        return
    if isinstance(choice, BlobPage):
        yield leaf, blob_page(leaf, choice.policy)
        return
    if isinstance(choice, ScalarPage):
        yield leaf, scalar_page(leaf, choice.value)
        return
    if isinstance(choice, FullZip):
        yield leaf, full_zip_page(leaf, choice.values)
        return
    parts = mini_block_page(leaf, choice.values, choice.dictionary, choice.policy, version)
    if parts is not None:
        yield leaf, parts
    elif leaf.rows > 1:
        for half in leaf.halves():
            yield from _encode_leaf(half, version)
    else:
        wide = full_zip(leaf)
        if wide is None:
            raise UnsupportedFormatError(
                f"column {leaf.field.name!r}: a row has too many empty lists in a run, or too wide a value, "
                f"for the type {leaf.values.type}"
            )
        yield leaf, full_zip_page(leaf, wide.values)
