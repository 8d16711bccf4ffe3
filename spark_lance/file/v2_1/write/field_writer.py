"""Encodes one top-level field into pages of Lance 2.1 and 2.2, and chooses layout and encodings of each page.

A page without valid values becomes a constant page. From 2.2 on, so does a page without levels whose values
are all equal. Dictionaries, and values that are not whole bytes, go into mini-block pages. Other wide values
go into full-zip pages, narrow ones into mini-block pages.

Numbers of 8 to 64 bits get the form with the least weight (see below), numbers of 128 bits a dictionary.
Strings and binaries get a dictionary if that is smaller by a margin. Wide numbers and vectors are compressed
if samples compress well.

Other text and binaries are compressed if samples become smaller: with lz4 in chunks of up to 64 KiB, or with
zstd in chunks of up to 28 KiB if zstd is much better. FSST, which the reference implementation writes here,
is only
read: zstd was smaller on every kind of text that we measured, and numpy could train FSST at 55 MB/s at best;
tests/file/encodings.md has the figures.

Field metadata overrides all of this, see settings.py.

Numbers of 8 to 64 bits get the form with the least weight, a combination of bytes and reading time. The
forms are:

    plain words
    blocks of 1024 bit-packed words
    runs
    plain words, or their bytes split by significance, compressed with lz4 or zstd in chunks
    a dictionary with indices in any of these forms

Dates, timestamps, floats and the indices of text dictionaries are numbers, too.

The sizes of plain, packed and run-length forms are exact. Compressed sizes are estimated from samples.
Constants below give the reading cost of each form, so that the choice does not depend on the load of the
writing machine. (Lance file format 2.1, mini-block pages and their encodings.)
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

# Chunks are the unit of random access. With 16 KiB the cost per chunk is small compared with copying it.
NUMBER_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=4096)
# Each bit-packed chunk is one block.
_PACKED_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=BLOCK)
# Compressed chunks are large enough to contain repetition, and small enough for version 2.1.
_COMPRESSED_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=32 * 1024)
_NUMBER_SAMPLES, _NUMBER_SAMPLE_BYTES = 6, 16 * 1024
# Fewer bytes are compressed only if the user requests it.
_MIN_BYTES = 16 * 1024

# Reading costs in nanoseconds of one core, measured in numpy. Per value, by the bits of the word:
_UNPACK_NS = {8: 0.4, 16: 0.5, 32: 1.0, 64: 2.7}
_JOIN_NS = {32: 1.3, 64: 3.4}
LOOKUP_NS = 0.8
# Per run:
_RUN_NS = 7.0
# Per decoded byte:
_COPY_NS = 0.08
_INFLATE_NS = {"lz4": 0.45, "zstd": 1.1}

# Bytes that must be saved per nanosecond of reading time: a store with 250 MB/s delivers 0.25 bytes per ns. A
# user who requests compression wants small files, so the second value is lower.
_BYTES_PER_NS = 0.25
_BYTES_PER_NS_REQUESTED = 0.05


@dataclass(frozen=True)
class CostModel:
    """The forms that a writer may use, and how it weighs time against bytes.

    Attributes:
        bytes_per_ns: bytes that one nanosecond of reading time is worth.
        schemes: allowed general compression schemes.
        split: "on", "off" or "auto": whether bytes are split by significance before general compression.
        run_share: use runs if and only if the number of runs is below this fraction of the values; None
            decides by weight.
        is_explicit: whether the user requested compression. Then small pages are compressed, too.
    """

    bytes_per_ns: float
    schemes: tuple[Compression, ...]
    split: str
    run_share: float | None
    is_explicit: bool

    @classmethod
    def of(cls, settings: Settings) -> CostModel:
        """Return the weights for the settings of a field."""
        compression = settings.compression
        schemes: tuple[Compression, ...] = (Compression("lz4"), Compression("zstd"))
        if settings.plain or compression is not None:
            schemes = () if compression is None else (compression,)
        rate = _BYTES_PER_NS if compression is None else _BYTES_PER_NS_REQUESTED
        return cls(rate, schemes, settings.split_bytes, settings.rle_threshold, compression is not None)


@dataclass(frozen=True)
class PageForm:
    """One way to store the values of a page.

    Attributes:
        nbytes: size in bytes, possibly estimated.
        weight: size plus reading time, in bytes.
        policy: chunk sizes.
        build: returns the encoded chunks.
        runs: number of runs; None if the form has no runs. Readers look up one dictionary item per run.
    """

    nbytes: float
    weight: float
    policy: ChunkPolicy
    build: Callable[[], ChunkValues]
    runs: int | None = None


def choose_form(words: _Words, weights: CostModel, filled_words: _Words | None = None) -> PageForm:
    """Return the form with the least weight for one or more unsigned words.

    Args:
        words: the values.
        weights: the allowed forms and their costs.
        filled_words: words to use instead in the run-length form, see `fill_nulls_forward`.
    """
    if weights.run_share is not None:
        starts = find_runs(words, weights.run_share * len(words))
        if starts is not None:
            return _run_form(words, starts, weights)
    return min(_candidate_forms(words, weights, filled_words), key=lambda form: form.weight)


def fill_nulls_forward(words: _Words, valid: npt.NDArray[np.bool_] | None) -> _Words | None:
    """Return words in which each null repeats the value before it; None if under half are null.

    The stored value of a null is arbitrary, and repeating the previous value halves the number of runs.
    """
    if valid is None or 2 * int(np.count_nonzero(valid)) > len(words):
        return None
    return words[np.maximum.accumulate(np.where(valid, np.arange(len(words)), 0))]


def _candidate_forms(words: _Words, weights: CostModel, filled_words: _Words | None) -> Iterator[PageForm]:
    bits = words.dtype.itemsize * 8
    plain = FixedChunks.of_words(words)
    least = plain.nbytes * (1 + weights.bytes_per_ns * _COPY_NS)
    yield PageForm(plain.nbytes, least, NUMBER_POLICY, lambda: plain)
    packed = PackedChunks.of(words)
    weight = packed.nbytes + weights.bytes_per_ns * _UNPACK_NS[bits] * len(words)
    yield PageForm(packed.nbytes, weight, _PACKED_POLICY, lambda: packed)
    least = min(least, weight)
    if weights.run_share is None:
        per_run = words.dtype.itemsize + 1 + weights.bytes_per_ns * _RUN_NS
        source = words if filled_words is None else filled_words
        starts = find_runs(source, least / per_run)
        if starts is not None:
            runs = _run_form(source, starts, weights)
            least = min(least, runs.weight)
            yield runs
    yield from _compressed_word_forms(words, plain, weights, least)


def _run_form(words: _Words, starts: npt.NDArray[np.int64], weights: CostModel) -> PageForm:
    runs = RunChunks.of(words, starts)
    weight = runs.nbytes + weights.bytes_per_ns * _RUN_NS * len(starts)
    return PageForm(runs.nbytes, weight, NUMBER_POLICY, lambda: runs, len(starts))


def _compressed_word_forms(
    words: _Words, plain: FixedChunks, weights: CostModel, most: float
) -> Iterator[PageForm]:
    if words.dtype.itemsize < 4 or weights.split != "on":
        yield from compressed_forms(plain, weights, most=most)
    if words.dtype.itemsize >= 4 and weights.split != "off":
        ns = _JOIN_NS[words.dtype.itemsize * 8]
        yield from compressed_forms(SplitChunks(words), weights, ns, most=most)


def compressed_forms(
    values: ChunkValues,
    weights: CostModel,
    ns: float = 0.0,
    policy: ChunkPolicy = _COMPRESSED_POLICY,
    most: float = math.inf,
) -> Iterator[PageForm]:
    """Yield the forms of values under general compression, with sizes estimated from samples.

    Args:
        values: slots of fixed width with one buffer per chunk.
        weights: the allowed schemes and their costs.
        ns: further reading cost per slot, in nanoseconds.
        policy: chunk sizes.
        most: weight limit. Schemes whose reading time alone exceeds it are skipped.
    """
    if values.nbytes < _MIN_BYTES and not weights.is_explicit:
        return
    times = {
        scheme: weights.bytes_per_ns * (ns * values.count + _INFLATE_NS[scheme.scheme] * values.nbytes)
        for scheme in weights.schemes
    }
    schemes = [scheme for scheme, time in times.items() if time < most]
    if not schemes:
        return
    pieces = _sample_chunks(values, policy)
    total = int(pieces.starts[-1])
    for scheme in schemes:
        share = int(compress_pieces(pieces, scheme).starts[-1]) / total
        nbytes = share * values.nbytes
        yield PageForm(nbytes, nbytes + times[scheme], policy, _compressor(values, scheme))


def _compressor(values: ChunkValues, scheme: Compression) -> Callable[[], ChunkValues]:
    return lambda: CompressedChunks(values, scheme)


def _sample_chunks(values: ChunkValues, policy: ChunkPolicy) -> ChunkBuffer:
    """Return sample chunks spread over the page, of about the size of real chunks."""
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

_POLICY = NUMBER_POLICY
# Vectors and wide numbers are compressed if samples shrink to this fraction, up to this width in bytes.
_COMPRESSED_SHARE = 0.7
_MAX_COMPRESSED_WIDTH = 4096
# Bytes of vectors that are tested first.
_VECTOR_SAMPLE = 32 * 1024
# Fraction of bytes that a dictionary must save, because readers pay one lookup per value. Text needs more
# savings, because it can also be compressed.
_LIMITS = DictionaryLimits()
_DICTIONARY_SAVING = 0.01
_TEXT_DICTIONARY_SAVING = 0.2
# From 2.2 on, dictionaries are compressed if that saves this fraction of their bytes. The scheme is lz4. A
# text dictionary uses zstd if its bytes / index bytes reach `_MANY_ITEMS` and its size is in
# `_ZSTD_ITEMS_BYTES`: longer ones would delay readers of few values.
_ITEMS_SAVING = 0.1
_MANY_ITEMS, _ZSTD_ITEMS_BYTES = 0.5, range(16 * 1024, 256 * 1024)

# Chunks of compressed text are large enough to contain repetition, and small enough for version 2.1. Readers
# decompress a whole chunk for a single value. zstd is slow at that and gains little from larger chunks. lz4
# gains 3 to 6 % with 64 KiB, the range of its matches. A user who requests compression wants small files.
_TEXT_POLICY = ChunkPolicy(target_bytes=28 * 1024, max_values=4096)
_LARGE_TEXT_POLICY = ChunkPolicy(target_bytes=64 * 1024, max_values=4096)
# If values have fewer bytes on average, including offsets, the offset tables are compressed, too.
_SHORT_TEXT_BYTES = 32
# Text pages of at least this size are compressed: with lz4 if samples shrink to `_LZ4_SHARE` and zstd is not
# much better, otherwise with zstd if samples shrink to `_ZSTD_SHARE`.
_MIN_COMPRESSED_BYTES = 32 * 1024
_LZ4_SHARE, _ZSTD_SHARE, _ZSTD_OF_LZ4 = 0.6, 0.8, 0.65
_SAMPLES, _SAMPLE_BYTES = 4, 28 * 1024
# Compressible text goes into chunks unless its mean length reaches this, or too many
# values reach `_LONGEST_COMPRESSED` bytes.
_LONG_TEXT_BYTES = 2 * 1024
# Full-zip pages compress each value separately: long text with zstd, shorter text with lz4, which costs less
# per call. Text with a shorter mean than this is not compressed.
_MIN_ZIPPED_BYTES = 512
_LONGEST_COMPRESSED = {FileVersion.V2_1: 12 * 1024, FileVersion.V2_2: 1 << 20}
# A chunked text page may have one longer value per this many bytes. In 2.1 such a value shares its chunk with
# one other value if both fit. If they do not, the page is halved until the value is in a small page.
_BYTES_PER_LONG = {FileVersion.V2_1: 128 * 1024, FileVersion.V2_2: math.inf}

# Wide values do not benefit from chunks: one value is large enough for a read.
_WIDE_FIXED_BYTES = 256
# Uncompressed strings and binaries use full-zip if the widest value reaches this and the mean a quarter of
# it,
_WIDE_VARIABLE_BYTES = 256
# or if the widest value reaches this, because reading it should not require reading its neighbours.
_VERY_WIDE_VARIABLE_BYTES = 8 * 1024


@dataclass(frozen=True)
class NullPage:
    """A page without valid values."""


@dataclass(frozen=True)
class BlobPage:
    """A page of descriptors of version 1 blobs."""

    policy: ChunkPolicy = _POLICY


@dataclass(frozen=True)
class ScalarPage:
    """A page without levels whose slots all have this value. A bool is one byte."""

    value: bytes


@dataclass(frozen=True)
class MiniBlock:
    """Chunks of `values`, which are indices into `dictionary` if there is one."""

    values: ChunkValues
    dictionary: EncodedBlock | None = None
    policy: ChunkPolicy = _POLICY


@dataclass(frozen=True)
class FullZip:
    """Values interleaved with their levels."""

    values: ZipFixed | ZipVariable


def choose(leaf: Leaf, version: FileVersion) -> NullPage | BlobPage | ScalarPage | MiniBlock | FullZip:
    """Choose layout and encodings for the page of `leaf`.

    Raises:
        SchemaError: a struct without fields is null or inside a list, or a packed struct has a null field.
            The format can represent neither.
    """
    array = leaf.values
    if leaf.field.logical_type == "struct" and not array.type.num_fields:
        if leaf.definition is not None or leaf.rep is not None:
            raise SchemaError(
                f"column {leaf.field.name!r}: Lance cannot store a struct without fields "
                "that is null or in a list"
            )
        return NullPage()
    if leaf.field.kind == "blob" and leaf.field.logical_type == "struct" and len(leaf.field.children) == 2:
        return BlobPage()
    valid = leaf.slot_validity()
    if len(array) == 0 or (valid is not None and not valid.any()):
        return NullPage()
    if pa.types.is_struct(array.type):
        is_plain = is_plain_struct(array.type)
        return MiniBlock(struct_chunks(leaf)) if is_plain else FullZip(zip_structs(leaf, version))
    settings = Settings.of(leaf.field)
    if pa.types.is_dictionary(array.type):
        items = _encode_items(array.dictionary, version, settings)
        return _choose_numbers(FixedChunks.of(array, valid), CostModel.of(settings), items)
    if version is not FileVersion.V2_1 and leaf.rep is None and leaf.definition is None:
        value = _constant_value(array)
        if value is not None:
            return ScalarPage(value)
    if is_variable(array.type):
        return _choose_variable(array, valid, version, settings)
    return _choose_fixed(array, valid, version, settings)


def _choose_fixed(
    array: pa.Array, valid: Bools | None, version: FileVersion, settings: Settings
) -> MiniBlock | FullZip:
    """Choose the page of fixed-width values."""
    bits = value_bits(array.type)
    wide = settings.structure == "fullzip" or (bits >= 8 * _WIDE_FIXED_BYTES and not settings.structure)
    if wide and bits % 8 == 0 and not _has_bit_items(array.type):
        compressed_form = None if settings.structure else _compressed_vectors(array, valid, settings)
        return compressed_form or FullZip(zip_fixed(array, valid))
    plain, weights = FixedChunks.of(array, valid), CostModel.of(settings)
    words = plain.words()
    if words is not None:
        form = choose_form(words, weights, fill_nulls_forward(words, valid))
        dictionary_page = _dictionary_of_words(words, form, valid, weights, settings, version)
        return dictionary_page or MiniBlock(form.build(), None, form.policy)
    form = _best_other_form(plain, weights)
    direct = MiniBlock(form.build(), None, form.policy)
    if plain.layers or bits != 128:
        return direct
    hashable = pa.Array.from_buffers(pa.binary(16), plain.count, [None, pa.py_buffer(plain.items)])
    ratio = 1 - _DICTIONARY_SAVING if settings.dictionary_ratio is None else settings.dictionary_ratio
    return _dictionary_page(hashable, None, ratio * form.nbytes, version, settings) or direct


def _choose_variable(
    array: pa.Array, valid: Bools | None, version: FileVersion, settings: Settings
) -> MiniBlock | FullZip:
    """Choose the page of strings and binaries."""
    chunks = VariableChunks.of(array, valid)
    compression, size = settings.compression, chunks.nbytes
    if compression is not None:
        size = _compressed_size(chunks, compression)
    elif not settings.plain:
        compression, size = _text_compression(chunks)
    ratio = 1 - _TEXT_DICTIONARY_SAVING if settings.dictionary_ratio is None else settings.dictionary_ratio
    dictionary_page = _dictionary_page(array, valid, min(ratio * chunks.nbytes, size), version, settings)
    if dictionary_page is not None:
        return dictionary_page
    lengths = np.diff(chunks.offsets)
    mean, widest = chunks.nbytes / chunks.count, int(lengths.max())
    if settings.structure is not None:
        is_full_zip = settings.structure == "fullzip"
    elif compression is not None:
        num_long = int(np.count_nonzero(lengths >= _LONGEST_COMPRESSED[version]))
        is_full_zip = mean >= _LONG_TEXT_BYTES or (
            num_long > 0 and num_long * _BYTES_PER_LONG[version] > chunks.nbytes
        )
    else:
        is_full_zip = widest >= _VERY_WIDE_VARIABLE_BYTES or (
            widest >= _WIDE_VARIABLE_BYTES and mean >= _WIDE_VARIABLE_BYTES / 4
        )
    if is_full_zip:
        values = zip_variable(array, valid)
        if settings.compression is not None:
            values = compress_zipped(values, settings.compression)
        elif compression is not None and mean >= _LONG_TEXT_BYTES:
            values = compress_zipped(values, Compression("zstd"))
        elif compression is not None and mean >= _MIN_ZIPPED_BYTES:
            values = compress_zipped(values, Compression("lz4"))
        return FullZip(values)
    if compression is None:
        return MiniBlock(chunks, None, _with_chunk_size(_POLICY, settings))
    is_explicit = settings.compression is not None
    large = version is not FileVersion.V2_1 and (is_explicit or compression.scheme == "lz4")
    policy = _with_chunk_size(_LARGE_TEXT_POLICY if large else _TEXT_POLICY, settings)
    packs_tables = is_explicit or mean < _SHORT_TEXT_BYTES
    return MiniBlock(CompressedText(chunks, compression, packs_tables), None, policy)


def _with_chunk_size(policy: ChunkPolicy, settings: Settings) -> ChunkPolicy:
    """Return the policy with the chunk size from the field's settings, if set."""
    return policy if settings.chunk_bytes is None else replace(policy, target_bytes=settings.chunk_bytes)


def _compressed_vectors(array: pa.Array, valid: Bools | None, settings: Settings) -> MiniBlock | None:
    """Return vectors in compressed chunks if they compress well, as images do; else None."""
    weights = CostModel.of(settings)
    sample = FixedChunks.of(array[: _VECTOR_SAMPLE // (value_bits(array.type) // 8) + 1], None)
    first_scheme = replace(weights, schemes=weights.schemes[:1], is_explicit=True)
    if _best_other_form(sample, first_scheme).nbytes >= sample.nbytes:
        return None
    plain = FixedChunks.of(array, valid)
    form = _best_other_form(plain, weights)
    return MiniBlock(form.build(), None, form.policy) if form.nbytes < plain.nbytes else None


def _choose_numbers(plain: FixedChunks, weights: CostModel, items: EncodedBlock | None = None) -> MiniBlock:
    """Choose the encoding of fixed-width values, which may be indices into a dictionary."""
    words = plain.words()
    form = _best_other_form(plain, weights) if words is None else choose_form(words, weights)
    return MiniBlock(form.build(), items, form.policy)


def _best_other_form(plain: FixedChunks, weights: CostModel) -> PageForm:
    """Choose the form of values that are not words of 8 to 64 bits: bits, wide numbers, vectors."""
    best = PageForm(plain.nbytes, plain.nbytes, _POLICY, lambda: plain)
    slot = plain.nbytes // plain.count
    if any(layer.validity is not None for layer in plain.layers) or not 1 < slot <= _MAX_COMPRESSED_WIDTH:
        return best
    compressed_form = min(compressed_forms(plain, weights), key=lambda form: form.weight, default=best)
    return (
        compressed_form
        if compressed_form.nbytes < _COMPRESSED_SHARE * best.nbytes and compressed_form.weight < best.weight
        else best
    )


def _dictionary_of_words(
    words: Words,
    plain: PageForm,
    valid: Bools | None,
    weights: CostModel,
    settings: Settings,
    version: FileVersion,
) -> MiniBlock | None:
    """Return a page of words with a dictionary if that weighs less than `plain`; else None."""
    if valid is not None and not valid.all():
        # The stored bytes of a null are arbitrary and must not widen the range.
        words = np.where(valid, words, words[valid.argmax()])
    bits = words.dtype.itemsize * 8
    dictionary_page = number_words(words, _dictionary_limits(settings))
    if dictionary_page is None:
        return None
    items = _compressed_block(
        EncodedBlock(flat(bits), len(dictionary_page.items), dictionary_page.items.view(np.uint8)),
        version,
        settings,
        Compression("lz4"),
    )
    form = choose_form(dictionary_page.indices, weights)
    nbytes = form.nbytes + items.data.nbytes
    if settings.dictionary_ratio is not None:
        is_smaller = nbytes < settings.dictionary_ratio * plain.nbytes
    else:
        lookups = len(words) if form.runs is None else form.runs
        weight = form.weight + items.data.nbytes + weights.bytes_per_ns * LOOKUP_NS * lookups
        is_smaller = weight < (1 - _DICTIONARY_SAVING) * plain.weight
    return MiniBlock(form.build(), items, form.policy) if is_smaller else None


def _dictionary_limits(settings: Settings) -> DictionaryLimits:
    if settings.dictionary_divisor is None:
        return _LIMITS
    return replace(_LIMITS, divisor=max(1.0, settings.dictionary_divisor))


def _dictionary_page(
    array: pa.Array, valid: Bools | None, limit: float, version: FileVersion, settings: Settings
) -> MiniBlock | None:
    """Return a page with a dictionary if it has less than `limit` bytes; else None."""
    encoded = encode_dictionary(array, valid, _dictionary_limits(settings))
    if encoded is None:
        return None
    words = FixedChunks.of(encoded, valid).words()
    assert words is not None
    form = choose_form(words, CostModel.of(settings))
    items = _encode_items(encoded.dictionary, version, settings, form.nbytes)
    return MiniBlock(form.build(), items, form.policy) if form.nbytes + items.data.nbytes < limit else None


def _encode_items(
    array: pa.Array, version: FileVersion, settings: Settings, index_bytes: float = math.inf
) -> EncodedBlock:
    """Encode the items of a dictionary. `index_bytes` is the size of its indices."""
    block = plain_block(array)
    size = block.data.nbytes
    by_zstd = is_variable(array.type) and size in _ZSTD_ITEMS_BYTES and size >= _MANY_ITEMS * index_bytes
    return _compressed_block(block, version, settings, Compression("zstd" if by_zstd else "lz4"))


def _compressed_block(
    block: EncodedBlock, version: FileVersion, settings: Settings, scheme: Compression
) -> EncodedBlock:
    """Compress the block of a dictionary with `scheme`, unless version or settings differ."""
    plain = settings.items_plain or (settings.plain and settings.items_compression is None)
    if version is FileVersion.V2_1 or plain or block.data.nbytes == 0:
        return block
    compression = settings.items_compression or settings.compression
    if compression is not None:
        return compress_block(block, compression)
    compressed = compress_block(block, scheme)
    is_smaller = compressed.data.nbytes < (1 - _ITEMS_SAVING) * block.data.nbytes
    return compressed if is_smaller else block


def _text_compression(chunks: VariableChunks) -> tuple[Compression | None, int]:
    """Return the compression of text and the estimated bytes; (None, bytes) if it does not compress well."""
    if chunks.nbytes < _MIN_COMPRESSED_BYTES:
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
    """Return the estimated bytes of compressed values."""
    if not chunks.nbytes:
        return 0
    pieces = chunks.samples(_SAMPLES, _SAMPLE_BYTES)
    share = int(compress_pieces(pieces, compression).starts[-1]) / int(pieces.starts[-1])
    return int(share * chunks.nbytes)


def _constant_value(array: pa.Array) -> bytes | None:
    """Return the bytes of the value if all values of a non-empty array without nulls are equal; else None."""
    if is_variable(array.type):
        return None if array[0] != array[len(array) - 1] else _constant_variable(array)
    if pa.types.is_fixed_size_list(array.type) or value_bits(array.type) > 8 * MAX_INLINE_BYTES:
        return None
    items = FixedChunks.of(array, None).items
    rows = items.reshape(len(array), -1)
    if (rows[0] != rows[-1]).any() or (rows != rows[0]).any():
        return None
    value: bytes = rows[0].tobytes()
    return value


def _constant_variable(array: pa.Array) -> bytes | None:
    chunks = VariableChunks.of(array, None)
    lengths = np.diff(chunks.offsets)
    if (lengths != lengths[0]).any():
        return None
    rows = chunks.data.reshape(len(array), int(lengths[0]))
    value: bytes = rows[0].tobytes()
    return None if (rows != rows[0]).any() else value


def full_zip(leaf: Leaf) -> FullZip | None:
    """Return the full-zip page of values that do not fit into chunks; None if the type has none."""
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
    """Encodes the columns of one top-level field. They are numbered from `column_base` on, depth first.

    Blobs are passed and written as descriptors (`Field.as_descriptor`).

    Raises:
        SchemaError: this version, or Lance in general, cannot store a type at this position, or field
            metadata for the writer is invalid.
    """

    def __init__(self, field: Field, column_base: int, version: FileVersion) -> None:
        check_storable(field, version)
        self._field = field
        self._column_base = column_base
        self._version = version

    def encode(self, array: pa.Array, row_start: int) -> list[EncodedPage]:
        """Return the pages of an array whose first row is row `row_start` of the file.

        `array` has the type `field.arrow_type()`, except for the names of list items. Memory is a small
        multiple of the array.

        Raises:
            SchemaError: a non-nullable field has a null.
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
    """Yield one page, or several if the rows do not fit into one."""
    choice = choose(leaf, version)
    if isinstance(choice, NullPage):
        yield leaf, null_page(leaf)
        return
    if isinstance(choice, BlobPage):
        yield leaf, blob_page(leaf, choice.policy, version)
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
