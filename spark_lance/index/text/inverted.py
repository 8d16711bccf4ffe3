"""INVERTED: words, the rows that have them, and the length of each row's text.

    metadata.lance          one row: deleted_fragments, a Roaring bitmap
                            metadata `partitions` JSON list of p, `params` JSON, `token_set_format` fst or
                            arrow, `format_version`, `posting_tail_codec`
    part_p_docs.lance       _rowid: uint64 ascending, _num_tokens: uint32; a document is its row number
                            metadata `total_tokens`
    part_p_tokens.lance     fst: _token_fst_bytes (automaton.py); arrow: _token: string ascending,
                            _token_id: uint32
    part_p_invert.lance     row t is the posting list of token t (postings.py):
                            _posting: list<large_binary>, _max_score: float32, _length: uint32,
                            and, with positions, _position (positions.py)

Rows without words are in no part. (Lance index format, inverted.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.arrow.arrays import numbers_to_numpy, one_array, texts_to_arrow
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.index.base.building import Numbers, Rows, SegmentTarget
from spark_lance.index.base.entries import Segment
from spark_lance.index.base.files import IndexFile, IndexFileWriter
from spark_lance.index.text.automaton import WordAutomaton
from spark_lance.index.text.position_streams import OFFSETS, STREAM, STREAM_NOTES, unpack_stream
from spark_lance.index.text.positions import POSITIONS, pack_positions, unpack_positions
from spark_lance.index.text.postings import BLOCK, FIXED_TAIL, pack_lists, unpack_list
from spark_lance.index.text.scores import weights
from spark_lance.index.text.tokenizer import Tokenizer
from spark_lance.index.text.vocabulary import Vocabulary
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.stored_json import parse_json
from spark_lance.proto import index_pb2
from spark_lance.table.format.index_kinds import INDEX_KINDS

INVERTED_LABEL, INVERTED_NEWEST = "invertedindexdetails", 3
INVERTED_URL = INDEX_KINDS[INVERTED_LABEL].type_url
FORMAT_VERSION = 1
METADATA = "metadata.lance"
BLOCK_SIZE = "posting_block_size"
_RUN_POSTINGS = 1 << 18
LISTS = pa.schema(
    [
        pa.field("_posting", pa.list_(pa.field("item", pa.large_binary())), False),
        pa.field("_max_score", pa.float32(), False),
        pa.field("_length", pa.uint32(), False),
    ]
)


@dataclass(frozen=True)
class Documents:
    """The documents of a part: their row ids (uint64) and numbers of words (int32)."""

    row_ids: Numbers
    lengths: Ints

    @cached_property
    def total(self) -> int:
        """Number of words of all documents."""
        return int(self.lengths.sum(dtype=np.int64))

    @cached_property
    def is_ascending(self) -> bool:
        """Whether the row ids are ascending."""
        return bool((self.row_ids[1:] > self.row_ids[:-1]).all())

    @property
    def nbytes(self) -> int:
        """The memory that they occupy."""
        return int(self.row_ids.nbytes + self.lengths.nbytes)


@dataclass(frozen=True)
class Postings:
    """The documents that have a word, ascending, and its frequency in each (int32)."""

    documents: Ints
    frequencies: Ints

    @property
    def nbytes(self) -> int:
        """The memory that they occupy."""
        return int(self.documents.nbytes + self.frequencies.nbytes)


@dataclass(frozen=True)
class Positions:
    """The positions of a word in its documents.

    Attributes:
        starts: start of each document's positions in `places`, plus the end.
        places: int32 positions, document after document.
    """

    starts: Ints
    places: Ints

    @property
    def nbytes(self) -> int:
        """The memory that they occupy."""
        return int(self.starts.nbytes + self.places.nbytes)


_DECODED: CacheSection[Any] = CacheSection("words and posting lists", CACHE)


@dataclass(frozen=True)
class TextPart:
    """One part of a text index segment.

    Attributes:
        segment: the segment.
        number: number of the part.
        tokenizer: the tokenizer of the index.
        tail: format of the last block of a posting list.
        block: number of documents of the other blocks.
    """

    segment: Segment
    number: int
    tokenizer: Tokenizer
    tail: str
    block: int = BLOCK

    def _file(self, what: str) -> IndexFile:
        return self.segment.file(f"part_{self.number}_{what}.lance")

    def _cached(self, what: str, word: int, make: Callable[[], Any]) -> Any:
        """Return a decoded part of the files from the process cache, or decode it."""
        return _DECODED.get((self._cache_key, self.number, what, word), make, lambda value: int(value.nbytes))

    @cached_property
    def _cache_key(self) -> Hashable:
        return self.segment.store.cache_key(self.segment.directory)

    @property
    def documents(self) -> Documents:
        """The documents of the part."""
        result: Documents = self._cached("documents", 0, self._read_documents)
        return result

    def _read_documents(self) -> Documents:
        table = self._file("docs").read(["_rowid", "_num_tokens"])
        return Documents(
            numbers_to_numpy(one_array(table["_rowid"])),
            numbers_to_numpy(one_array(table["_num_tokens"])).astype(np.int32),
        )

    @cached_property
    def _num_documents(self) -> int:
        return self._file("docs").num_rows

    @property
    def row_ids(self) -> Numbers:
        """Row ids of the documents (uint64)."""
        return self.documents.row_ids

    @property
    def lengths(self) -> Ints:
        """Number of words of each document (int32)."""
        return self.documents.lengths

    @property
    def vocabulary(self) -> Vocabulary:
        """The words and their numbers."""
        result: Vocabulary = self._cached("words", 0, lambda: Vocabulary(*self._stored_words()))
        return result

    @property
    def word_numbers(self) -> Vocabulary | WordAutomaton:
        """The numbers of words, for exact lookups."""
        # Decoding the automaton into a vocabulary takes 6 microseconds per word.
        if not self._cached("has automaton", 0, lambda: np.bool_(self._has_automaton)):
            return self.vocabulary
        result: WordAutomaton = self._cached("automaton", 0, self._read_automaton)
        return result

    @property
    def _has_automaton(self) -> bool:
        return "_token_fst_bytes" in self._file("tokens").arrow_schema.names

    def _read_automaton(self) -> WordAutomaton:
        return WordAutomaton(self._file("tokens").read(["_token_fst_bytes"])["_token_fst_bytes"][0].as_py())

    def _stored_words(self) -> tuple[pa.Array, Ints]:
        file = self._file("tokens")
        if self._has_automaton:
            pairs = self._read_automaton().words()
            words = texts_to_arrow([word.decode("utf-8", "replace") for word in pairs], pa.large_string())
            return words, np.array(list(pairs.values()), np.uint64).astype(np.int64)
        table = file.read(["_token", "_token_id"]).combine_chunks()
        return one_array(table["_token"]), numbers_to_numpy(one_array(table["_token_id"])).astype(np.int64)

    @property
    def words(self) -> dict[str, int]:
        """The words and their numbers, as a dictionary."""
        words, numbers = self._stored_words()
        return dict(zip(words.to_pylist(), numbers.tolist(), strict=True))

    @cached_property
    def lists(self) -> IndexFile:
        """The file of posting lists; the row is the word number."""
        return self._file("invert")

    def postings(self, word: str) -> tuple[Ints, Ints]:
        """Return the documents that have a word, ascending, and its frequency in each.

        Raises:
            FormatError, UnsupportedFormatError: the posting list is damaged, or its format is unknown.
        """
        return self.read_postings([word])[0]

    def read_postings(self, words: Sequence[str]) -> list[tuple[Ints, Ints]]:
        """Return the postings of several words; see `postings`. An object store gets all requests at once."""
        empty = Postings(np.empty(0, np.int64), np.empty(0, np.int64))
        numbers = [self.word_numbers.number(word) for word in words]
        keys = [
            (self._cache_key, self.number, "postings", n) for n in dict.fromkeys(numbers) if n is not None
        ]

        def read(missing: Sequence[tuple[Hashable, int, str, int]]) -> list[Postings]:
            ordered = sorted(number for *_, number in missing)
            rows = dict(zip(ordered, self._lists(ordered, ["_posting", "_length"]), strict=True))
            return [self._unpack_postings(rows[number]) for *_, number in missing]

        values = _DECODED.get_all(keys, read, lambda value: int(value.nbytes))
        by_number = dict(zip((number for *_, number in keys), values, strict=True))
        results = [empty if number is None else by_number[number] for number in numbers]
        return [(postings.documents, postings.frequencies) for postings in results]

    def scores(
        self, word: str, statistics: Hashable, make: Callable[[], npt.NDArray[np.float32]]
    ) -> npt.NDArray[np.float32]:
        """Return the scores of a posting list from the cache, or compute them with `make`.

        Args:
            word: the word.
            statistics: the numbers that scores depend on, except those of this part.
            make: computes the scores.
        """
        key = self._cache_key, self.number, "scores", word, statistics
        result: npt.NDArray[np.float32] = _DECODED.get(key, make, lambda value: int(value.nbytes))
        return result

    def _unpack_postings(self, row: pa.Table) -> Postings:
        documents, frequencies = self.unpacked(row["_posting"][0].as_py(), row["_length"][0].as_py())
        if not (documents[1:] > documents[:-1]).all():
            raise FormatError("the documents of a posting list do not ascend", self.lists.path)
        return Postings(documents.astype(np.int32), frequencies.astype(np.int32))

    def _list(self, number: int, columns: Sequence[str]) -> pa.Table:
        return self._lists([number], columns)[0]

    def _lists(self, numbers: Sequence[int], columns: Sequence[str]) -> list[pa.Table]:
        """Return the rows of ascending posting lists."""
        for number in numbers:
            if not 0 <= number < self.lists.num_rows:
                raise FormatError(
                    f"a word has posting list {number} of {self.lists.num_rows}", self.lists.path
                )
        if self.segment.store.is_local:
            return [self.lists.read(columns, number, number + 1) for number in numbers]
        return self.lists.read_spans(columns, [(number, number + 1) for number in numbers])

    def unpacked(self, blocks: Sequence[bytes], count: int) -> tuple[Ints, Ints]:
        """Decode a stored posting list to documents and frequencies. See `postings` for errors."""
        if count > self._num_documents:
            raise FormatError(
                f"a posting list of {count} documents, and there are {self._num_documents}", self.lists.path
            )
        documents, frequencies = unpack_list(blocks, count, self.tail, self.block)
        if len(documents) and int(documents.max()) >= self._num_documents:
            raise FormatError("a posting list names a document that does not exist", self.lists.path)
        return documents, frequencies

    @cached_property
    def has_positions(self) -> bool:
        """Whether the index has word positions in a supported format."""
        is_stored = self.has_position_streams or _has_fields(self.lists.arrow_schema, POSITIONS)
        return is_stored and self.tokenizer.has_ordinal_positions

    @cached_property
    def has_position_streams(self) -> bool:
        """Whether the index has word positions of format 2."""
        notes = self.lists.metadata
        is_known = all(notes.get(name) == value for name, value in STREAM_NOTES.items())
        return is_known and _has_fields(self.lists.arrow_schema, STREAM, OFFSETS)

    def positions(self, word: str) -> Positions:
        """Return the positions of a word in each document of its posting list. Requires `has_positions`.

        Raises:
            FormatError: the positions are damaged.
        """
        number = self.word_numbers.number(word)
        if number is None:
            return Positions(np.zeros(1, np.int64), np.empty(0, np.int32))
        frequencies = self.postings(word)[1] if self.has_position_streams else None
        result: Positions = self._cached(
            "positions", number, lambda: self._read_positions(number, frequencies)
        )
        return result

    def _read_positions(self, number: int, frequencies: Ints | None) -> Positions:
        if frequencies is not None:
            row = self._list(number, [STREAM.name, OFFSETS.name])
            return self.unpacked_stream(
                row[STREAM.name][0].as_py(), one_array(row[OFFSETS.name]).flatten(), frequencies
            )
        row = self._list(number, [POSITIONS.name, "_length"])
        position_lists = one_array(row[POSITIONS.name]).flatten()
        if len(position_lists) != row["_length"][0].as_py():
            raise FormatError(
                f"positions in {len(position_lists)} documents of a longer list", self.lists.path
            )
        try:
            return Positions(*unpack_positions(position_lists))
        except FormatError as error:
            raise error.at(path=self.lists.path) from error

    def unpacked_stream(self, stream: bytes | None, offsets: pa.Array, frequencies: Ints) -> Positions:
        """Decode a stream of positions. See `positions` for errors."""
        if stream is None or offsets.null_count:
            raise FormatError("positions of words that are null", self.lists.path)
        try:
            return Positions(*unpack_stream(stream, numbers_to_numpy(offsets), frequencies, self.block))
        except FormatError as error:
            raise error.at(path=self.lists.path) from error


def _has_fields(schema: pa.Schema, *fields: pa.Field) -> bool:
    return all(field.name in schema.names and schema.field(field.name).type == field.type for field in fields)


def text_parts(segment: Segment) -> list[TextPart]:
    """Return the parts of a segment.

    Raises:
        FormatError: the segment is damaged.
        UnsupportedFormatError: the tokenizer is unknown, or each element of a list is a document.
    """
    details = index_pb2.InvertedIndexDetails.FromString(segment.entry.index_details.value)
    if details.document_granularity:
        raise UnsupportedFormatError(
            f"index {segment.name!r} has a document for each element of a list, which is not supported:"
            " create it again with document_granularity ROW"
        )
    file = segment.file(METADATA)
    tokenizer = Tokenizer.of(file.metadata_value("params"))
    tail = file.metadata.get("posting_tail_codec", FIXED_TAIL)
    numbers = file.parsed("partitions", lambda text: [int(number) for number in parse_json(text)])
    block = file.parsed(BLOCK_SIZE, int) if BLOCK_SIZE in file.metadata else BLOCK
    return [TextPart(segment, number, tokenizer, tail, block) for number in numbers]


def build_inverted(rows: Rows, target: SegmentTarget, tokenizer: Tokenizer) -> dict[str, int]:
    """Write a segment with one part; return file name -> size in bytes."""
    vocabulary: dict[str, int] = {}
    # Numbers of 32 bits, because the time of the build depends on the bytes that it moves.
    words: list[npt.NDArray[Any]] = [np.empty(0, np.int32)]
    owners = [np.empty(0, np.uint64)]
    positions: list[npt.NDArray[Any]] = [np.empty(0, np.int32)]
    for texts, numbers in rows.pieces():
        cut = tokenizer.tokenize(texts)
        word_numbers = [vocabulary.setdefault(word, len(vocabulary)) for word in cut.distinct.to_pylist()]
        if not word_numbers:
            continue
        words.append(np.array(word_numbers, np.int32)[cut.word])
        owners.append(numbers[cut.text])
        if tokenizer.positions:
            positions.append(cut.position.astype(np.int32))
    # Readers expect the words in byte order.
    ordered = sorted(vocabulary, key=str.encode)
    places: npt.NDArray[Any] = np.empty(len(ordered), np.int32)
    places[[vocabulary[word] for word in ordered]] = np.arange(len(ordered))
    word, owner = places[np.concatenate(words)], np.concatenate(owners)
    row_ids, document = _number_rows(owner)
    lengths = np.bincount(document, minlength=len(row_ids))
    if len(row_ids) <= np.iinfo(np.int32).max:
        document = document.astype(np.int32)
    sizes = {
        "part_0_docs.lance": write_docs(0, row_ids, lengths, target),
        "part_0_tokens.lance": write_tokens(0, ordered, np.arange(len(ordered)), target),
        "part_0_invert.lance": _write_lists(
            word, document, np.concatenate(positions) if tokenizer.positions else None, lengths, target
        ),
    }
    schema = pa.schema([pa.field("deleted_fragments", pa.binary(), False)])
    notes = {
        "partitions": "[0]",
        "params": json.dumps(tokenizer.params()),
        **_TOKENS,
        **_FORMAT,
    }
    with IndexFileWriter(target.store, f"{target.directory}/{METADATA}", schema, target.version) as writer:
        writer.write([pa.array([BitMap().serialize()], pa.binary())])
        sizes[METADATA] = writer.finish(notes)
    return sizes


def has_own_form(segment: Segment) -> bool:
    """Return whether the metadata of a segment matches the format that `build_inverted` writes."""
    entries = segment.file(METADATA).metadata
    return all(entries.get(name) == value for name, value in {**_TOKENS, **_FORMAT}.items())


_TOKENS = {"token_set_format": "arrow"}
_FORMAT = {
    "format_version": str(FORMAT_VERSION),
    "posting_tail_codec": FIXED_TAIL,
    BLOCK_SIZE: str(BLOCK),
}


def write_docs(part: int, row_ids: Numbers, lengths: Ints, target: SegmentTarget) -> int:
    """Write the documents of a part; return the size of the file in bytes."""
    schema = pa.schema([pa.field("_rowid", pa.uint64(), False), pa.field("_num_tokens", pa.uint32(), False)])
    path = f"{target.directory}/part_{part}_docs.lance"
    with IndexFileWriter(target.store, path, schema, target.version) as writer:
        writer.write([pa.array(row_ids), pa.array(lengths.astype(np.uint32))])
        return writer.finish({"total_tokens": str(int(lengths.sum()))})


def write_tokens(part: int, words: list[str], numbers: npt.NDArray[Any], target: SegmentTarget) -> int:
    """Write the words of a part, in byte order, and their numbers; return the size of the file in bytes."""
    schema = pa.schema([pa.field("_token", pa.string(), False), pa.field("_token_id", pa.uint32(), False)])
    path = f"{target.directory}/part_{part}_tokens.lance"
    with IndexFileWriter(target.store, path, schema, target.version) as writer:
        writer.write([pa.array(words, pa.string()), pa.array(numbers.astype(np.uint32))])
        return writer.finish({})


def _write_lists(
    word: Ints, document: Ints, position: Ints | None, lengths: Ints, target: SegmentTarget
) -> int:
    """Write the posting lists of all words, given (word, document, position) of each occurrence."""
    words = int(word.max()) + 1 if len(word) else 0
    order = _by_word(word, document)
    word, document = word[order], document[order]
    is_first = np.ones(len(order), np.bool_)
    np.not_equal(word[1:], word[:-1], out=is_first[1:])
    is_first[1:] |= document[1:] != document[:-1]
    firsts = np.flatnonzero(is_first)
    frequencies = np.diff(firsts, append=len(order))
    documents = document[firsts]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(word[firsts], minlength=words))])
    average = float(lengths.mean()) if len(lengths) else 0.0
    schema = LISTS if position is None else LISTS.append(POSITIONS)
    if position is not None:
        position = position[order]
        ends = np.append(firsts, len(order))
    path = f"{target.directory}/part_0_invert.lance"
    with IndexFileWriter(target.store, path, schema, target.version) as writer:
        for part in _runs(bounds):
            edges = bounds[part.start : part.stop + 1]
            entries = slice(int(edges[0]), int(edges[-1]))
            having = np.diff(edges)
            scores = weights(
                frequencies[entries],
                lengths[documents[entries]],
                average,
                len(lengths),
                np.repeat(having, having),
            )
            own = edges - edges[0]
            lists = pack_lists(documents[entries], frequencies[entries], scores, own)
            best = np.maximum.reduceat(scores, own[:-1])
            columns = [lists.cast(LISTS[0].type), pa.array(best), pa.array(having.astype(np.uint32))]
            if position is not None:
                within = position[ends[edges[0]] : ends[edges[-1]]]
                packed = pack_positions(within, frequencies[edges[0] : edges[-1]])
                starts = pa.array(own.astype(np.int32))
                columns.append(pa.ListArray.from_arrays(starts, packed, type=POSITIONS.type))
            writer.write(columns)
        return writer.finish(_FORMAT)


def _number_rows(owners: Numbers) -> tuple[Numbers, Ints]:
    """Return the distinct row ids, ascending, and the position of each id in them."""
    if not (owners[1:] >= owners[:-1]).all():
        distinct, positions = np.unique(owners, return_inverse=True)
        return distinct, positions.reshape(-1)
    is_first = np.ones(len(owners), np.bool_)
    np.not_equal(owners[1:], owners[:-1], out=is_first[1:])
    return owners[is_first], np.cumsum(is_first) - 1


def _by_word(word: Ints, document: Ints) -> Ints:
    """Return the order of occurrences by word, then by document; occurrences of a pair keep their order."""
    if not (document[1:] >= document[:-1]).all():
        return np.lexsort((document, word))
    # numpy sorts numbers of 16 bits in linear time.
    order: Ints = np.argsort((word & 0xFFFF).astype(np.uint16), kind="stable")
    if len(word) and int(word.max()) > 0xFFFF:
        upper = (word >> 16)[order]
        few = upper.astype(np.uint16) if int(upper.max()) <= 0xFFFF else upper
        order = order[np.argsort(few, kind="stable")]
    return order


def _runs(bounds: Ints) -> Iterator[range]:
    """Yield runs of words that are encoded together, of about `_RUN_POSTINGS` postings."""
    count, start = len(bounds) - 1, 0
    while start < count:
        stop = int(np.searchsorted(bounds, bounds[start] + _RUN_POSTINGS, side="right")) - 1
        stop = min(max(stop, start + 1), count)
        yield range(start, stop)
        start = stop
