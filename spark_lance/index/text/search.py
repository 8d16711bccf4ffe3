"""Searching text: the rows that answer a query best.

The words of the query are looked up in every partition of the index, and in the texts of the fragments that
it does not cover. The rarity of a word counts over all of them together. Rows that do not count are left out,
so k rows are returned if there are as many. A phrase is looked for in the texts of the rows that have all its
words. If several indices are on the column, the first one in the manifest is used, as in pylance.

Words that differ from a word by few letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import ColumnTypeError, OptionError
from spark_lance.expressions.values import plain
from spark_lance.file.base.limits import decoding
from spark_lance.index.base.columns import column_values, leaf_field, top_column
from spark_lance.index.base.entries import first_index, segments_of
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.base.search_rows import Addresses, contains, unindexed
from spark_lance.index.text.inverted import INVERTED_LABEL, INVERTED_NEWEST, TextPart, text_parts
from spark_lance.index.text.lists import is_text, is_text_list
from spark_lance.index.text.scores import weights
from spark_lance.index.text.tokenizer import Tokenizer
from spark_lance.proto import table_pb2
from spark_lance.table.format.index_kinds import label_of
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.scan import ROW_ADDRESS, Scan
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.take import take_addresses


def letters_by_length(word: str) -> int:
    """Return by how many letters a word may differ if nobody says: longer words by more."""
    return 0 if len(word) <= 2 else 1 if len(word) <= 5 else 2


def similar_words(
    word: str, vocabulary: Iterable[str], letters: int, prefix: int = 0, most: int = 50
) -> list[str]:
    """Return the words that become a word by at most `letters` insertions, deletions and replacements.

    Args:
        word: the word.
        vocabulary: the words to choose from.
        letters: 0, 1 or 2.
        prefix: first letters that must be the same.
        most: how many words at most; those that differ least come first.
    """
    words = pa.array(sorted(vocabulary), pa.string())
    lengths = pc.utf8_length(words)
    near = pc.less_equal(pc.abs(pc.subtract(lengths, len(word))), letters)
    if prefix:
        near = pc.and_(near, pc.starts_with(words, word[:prefix]))
    words = words.filter(near)
    if not len(words):
        return []
    distances = _distances(word, words)
    order = np.argsort(distances, kind="stable")
    chosen = order[distances[order] <= letters][:most]
    result: list[str] = words.take(pa.array(chosen)).to_pylist()
    return result


def _distances(word: str, words: pa.Array) -> npt.NDArray[np.int64]:
    """Return the edit distance of each word; one row of the usual table for all words at once."""
    lengths = pc.utf8_length(words).to_numpy().astype(np.int64)
    width = int(lengths.max())
    padded = pc.utf8_rpad(words, width, "\0")
    letters = np.frombuffer("".join(padded.to_pylist()).encode("utf-32-le"), np.uint32)
    table = letters.reshape(len(words), width)
    own = np.frombuffer(word.encode("utf-32-le"), np.uint32)
    before = np.tile(np.arange(width + 1, dtype=np.int64), (len(words), 1))
    for number, letter in enumerate(own, 1):
        row = np.empty_like(before)
        row[:, 0] = number
        for place in range(1, width + 1):
            replaced = before[:, place - 1] + (table[:, place - 1] != letter)
            row[:, place] = np.minimum(np.minimum(before[:, place], row[:, place - 1]) + 1, replaced)
        before = row
    result: npt.NDArray[np.int64] = before[np.arange(len(words)), lengths]
    return result


_WINDOW_BYTES = 32 << 20
_MARGIN = 64


@dataclass(frozen=True)
class TextQuery:
    """A query of text.

    Attributes:
        text: words.
        k: the most rows to return; by default all rows that have a word.
        operator: whether a row needs one of the words or all of them.
        phrase: whether they must stand side by side, in this order; where the index leaves out a word of the
            query any word may stand.
        fast_search: leave out rows that are not indexed.
        slop: other words that may stand between each two of a phrase.
        fuzziness: letters by which a word of a row may differ from one of the query; None by its length.
        max_expansions: the most words of rows that one word of the query stands for then.
        prefix_length: first letters that must be the same.
    """

    text: str
    k: int | None = None
    operator: Literal["or", "and"] = "or"
    phrase: bool = False
    fast_search: bool = False
    slop: int = 0
    fuzziness: int | None = 0
    max_expansions: int = 50
    prefix_length: int = 0

    def __post_init__(self) -> None:
        if self.operator not in ("or", "and"):
            raise OptionError(f"the operator of a text search is 'or' or 'and', not {self.operator!r}")
        if self.k is not None and self.k < 1:
            raise OptionError(f"k of a text search must be 1 or more, not {self.k}")


def indexed_text_columns(manifest: Manifest) -> list[str]:
    """Return the columns of a version that have an index of text."""
    entries = [entry for entry in manifest.indices if label_of(entry) == INVERTED_LABEL]
    ids = {number for entry in entries for number in entry.fields}
    names = [field.id for field in manifest.schema.walk() if field.id in ids]
    return [manifest.schema.path_of(number) for number in names]


def indexed_columns_text(columns: Sequence[str]) -> str:
    """Return what an error says of the columns that have an index of text."""
    if columns:
        return f"indexed are {', '.join(columns)}"
    return "none has an index, which create_scalar_index(column, 'INVERTED') builds"


def parse_text_query(manifest: Manifest, request: Mapping[str, Any], k: int | None) -> tuple[str, TextQuery]:
    """Return the column and the query of a dict.

    Args:
        manifest: the version that is searched.
        request: `query`, words or a phrase in double quotes, and perhaps `column`, `operator`, `phrase` and
            `fast_search`.
        k: rows that are wanted.

    Raises:
        OptionError: there is another key, a value cannot be used, or there is not one indexed column.
    """
    unknown = sorted(set(request) - {"query", "column", "columns", "operator", "phrase", "fast_search"})
    if unknown or not isinstance(request.get("query"), str):
        raise OptionError(f"a text query needs the text `query`, and has no {', '.join(unknown) or 'other'}")
    named = [request["column"]] if request.get("column") else list(request.get("columns") or ())
    named = named or indexed_text_columns(manifest)
    if len(named) != 1:
        raise OptionError(f"a text query is for one column: say which; {indexed_columns_text(named)}")
    text = request["query"]
    # Quotes around all of it; around a part of it they mean nothing.
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    query = TextQuery(
        text[1:-1] if is_quoted else text,
        k,
        str(request.get("operator", "or")).lower(),  # type: ignore[arg-type]
        is_quoted or bool(request.get("phrase", False)),
        bool(request.get("fast_search", False)),
    )
    return str(named[0]), query


@dataclass(frozen=True)
class TextTopK:
    """Rows by score: addresses (n,) uint64 and scores (n,) float32, best first."""

    addresses: Addresses
    scores: npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Texts:
    """Texts, some with words of the query.

    Attributes:
        lengths: words of every text.
        postings: for every word of the query the texts that have it, and how often.
        part: the partition of the index that they are in; None for texts of a scan.
        addresses: of the texts of a scan.
    """

    lengths: Ints
    postings: Sequence[tuple[Ints, Ints]]
    part: TextPart | None
    addresses: Addresses


@dataclass(frozen=True)
class _Rarity:
    """How rare the words of a query are.

    Attributes:
        average, count: words of a text on average, and texts.
        having: for every word the texts that have it.
        times: how often the query has it.
    """

    average: float
    count: int
    having: Sequence[int]
    times: Sequence[int]


class TextSearch:
    """Searches one column of text of one version.

    Args:
        snapshot: the version.
        column: a column of texts, of lists of texts, or of JSON documents; with dots, in a struct column.

    Raises:
        SchemaError: the column does not exist, or holds no text.
    """

    def __init__(self, snapshot: Snapshot, column: str) -> None:
        field = leaf_field(snapshot.schema, column)
        kind = field.arrow_type()
        if not (is_text(kind) or is_text_list(kind) or field.is_json):
            raise ColumnTypeError(f"column {column!r} is {kind}: it holds no text")
        self._scan = snapshot.scan([top_column(snapshot.schema, column)], with_row_address=True)
        self._column = column
        self._is_json = field.is_json
        usable = segments_of(snapshot, INVERTED_LABEL, INVERTED_NEWEST, field.id)
        self._segments = first_index(usable)
        self._rows = RowResolver(snapshot)

    @property
    def index_name(self) -> str | None:
        """The name of the index that searches use, None if they use none."""
        return self._segments[0].entry.name if self._segments else None

    @cached_property
    def _parts(self) -> list[TextPart]:
        return [part for segment in self._segments for part in text_parts(segment)]

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._parts[0].tokenizer if self._parts else Tokenizer(documents=self._is_json)

    def unindexed(self, query: TextQuery) -> Sequence[table_pb2.DataFragment]:
        """Return the fragments whose texts a query reads, as no index has them."""
        return unindexed(self._scan.fragments, self._segments, query.fast_search)

    def run(self, query: TextQuery, allowed: Addresses | None = None) -> TextTopK:
        """Return the rows that answer a query.

        Args:
            query: what is asked.
            allowed: addresses of the rows that may be found, ascending; all by default.

        Raises:
            FormatError, UnsupportedFormatError: files of the index or the table are damaged or not supported.
        """
        with decoding(self._segments[0].directory if self._segments else self._scan.root):
            return self._run(query, allowed)

    def _run(self, query: TextQuery, allowed: Addresses | None) -> TextTopK:
        cut = self._tokenizer.cut_query(query.text)
        # A word that is twice at one place, as runs of letters are, is looked up once.
        pairs = dict.fromkeys(zip(cut.word.tolist(), cut.position.tolist(), strict=True))
        words = [str(cut.distinct[number]) for number, _ in pairs]
        places = np.array([place for _, place in pairs], dtype=np.int64)
        if not words:
            return TextTopK(np.empty(0, np.uint64), np.empty(0, np.float32))
        if query.fuzziness != 0:
            return self._fuzzy(query, words, allowed)
        distinct = list(dict.fromkeys(words))
        texts = [self._indexed(part, distinct) for part in self._parts]
        texts += self._scanned(self.unindexed(query), distinct)
        count = sum(len(part.lengths) for part in texts)
        average = sum(int(part.lengths.sum()) for part in texts) / max(count, 1)
        having = [sum(len(part.postings[i][0]) for part in texts) for i in range(len(distinct))]
        needed = len(distinct) if query.phrase or query.operator == "and" else 1
        times = [words.count(word) for word in distinct]
        rarity = _Rarity(average, count, having, times)
        results = [self._scored(part, needed, rarity, allowed) for part in texts]
        best = best_first(results)
        if query.phrase and len(words) > 1:
            best = self._with_phrase(best, words, places - places[0], query)
        return TextTopK(best.addresses[: query.k], best.scores[: query.k])

    def _indexed(self, part: TextPart, words: Sequence[str]) -> _Texts:
        postings = [part.postings(word) for word in words]
        return _Texts(part.lengths, postings, part, np.empty(0, np.uint64))

    def _scanned(self, fragments: Sequence[table_pb2.DataFragment], words: Sequence[str]) -> list[_Texts]:
        """Look for the words in the texts of fragments."""
        scan = self._scan
        results = []
        needles = pa.array(words)
        part = Scan(scan.table, scan.manifest, scan.names, tuple(fragments))
        for table in part.tables(target_bytes=_WINDOW_BYTES):
            column = plain(column_values(table, self._column)).combine_chunks()
            texts = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
            cut = self._tokenizer.cut(texts)
            lengths = np.bincount(cut.text, minlength=len(texts))
            places = {word: number for number, word in enumerate(cut.distinct.to_pylist())}
            postings = []
            for word in needles.to_pylist():
                hits = cut.text[cut.word == places.get(word, -1)]
                postings.append(np.unique(hits, return_counts=True))
            # As in an index, texts without words do not count.
            there = np.flatnonzero(lengths)
            moved = np.searchsorted(there, np.arange(len(lengths)))
            results.append(
                _Texts(
                    lengths[there],
                    [(moved[documents], often) for documents, often in postings],
                    None,
                    table.column(ROW_ADDRESS).to_numpy()[there],
                )
            )
        return results

    def _scored(
        self,
        texts: _Texts,
        needed: int,
        rarity: _Rarity,
        allowed: Addresses | None,
    ) -> TextTopK:
        """Return the scores of the texts that have enough of the words, and count."""
        scores = np.zeros(len(texts.lengths), np.float32)
        words = np.zeros(len(texts.lengths), np.int64)
        for (documents, often), having, times in zip(
            texts.postings, rarity.having, rarity.times, strict=True
        ):
            lengths = texts.lengths[documents]
            scores[documents] += times * weights(often, lengths, rarity.average, rarity.count, having)
            words[documents] += 1
        hits = np.flatnonzero(words >= needed)
        if texts.part is None:
            addresses, counts = texts.addresses[hits], np.ones(len(hits), np.bool_)
        else:
            covered = texts.part.segment.covered
            addresses, counts = self._rows.addresses(texts.part.row_ids[hits], covered)
        if allowed is not None:
            counts = counts & contains(allowed, addresses)
        return TextTopK(addresses[counts], scores[hits][counts])

    def _fuzzy(self, query: TextQuery, words: Sequence[str], allowed: Addresses | None) -> TextTopK:
        """Return the rows that have words like those of the query; the best of the like ones counts."""
        results: list[TextTopK] = []
        vocabulary = self._vocabulary(query.fast_search)
        for word in dict.fromkeys(words):
            letters = letters_by_length(word) if query.fuzziness is None else query.fuzziness
            like = similar_words(word, vocabulary, letters, query.prefix_length, query.max_expansions)
            parts = [self._one_word(other, allowed, query.fast_search) for other in like]
            results.append(merge_scores(parts, np.maximum))
        whole = merge_scores(results, np.add)
        if query.operator == "and":
            keep = np.ones(len(whole.addresses), np.bool_)
            for part in results:
                keep &= np.isin(whole.addresses, part.addresses)
            whole = TextTopK(whole.addresses[keep], whole.scores[keep])
        best = best_first([whole])
        return TextTopK(best.addresses[: query.k], best.scores[: query.k])

    def _one_word(self, word: str, allowed: Addresses | None, fast: bool) -> TextTopK:
        texts = [self._indexed(part, [word]) for part in self._parts]
        texts += self._scanned(unindexed(self._scan.fragments, self._segments, fast), [word])
        count = sum(len(part.lengths) for part in texts)
        average = sum(int(part.lengths.sum()) for part in texts) / max(count, 1)
        rarity = _Rarity(average, count, [sum(len(part.postings[0][0]) for part in texts)], [1])
        return best_first([self._scored(part, 1, rarity, allowed) for part in texts])

    def _vocabulary(self, fast: bool) -> set[str]:
        """Return all words of the index, and of the rows that it does not cover."""
        words: set[str] = set()
        for part in self._parts:
            words.update(part.words)
        fragments = unindexed(self._scan.fragments, self._segments, fast)
        scan = self._scan
        rest = Scan(scan.table, scan.manifest, scan.names, tuple(fragments))
        for table in rest.tables(target_bytes=_WINDOW_BYTES):
            column = plain(column_values(table, self._column)).combine_chunks()
            texts = column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)
            words.update(self._tokenizer.cut(texts).distinct.to_pylist())
        return words

    def _with_phrase(
        self, result: TextTopK, words: Sequence[str], places: Ints, query: TextQuery
    ) -> TextTopK:
        """Return the rows in whose texts the words stand as in the query, the first at place 0."""
        k = query.k
        matches: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        count = 0
        step = max(_MARGIN, 4 * (k or 0))
        for start in range(0, len(result.addresses), step):
            part = result.addresses[start : start + step]
            texts = plain(column_values(take_addresses(self._scan, part), self._column)).combine_chunks()
            one = texts if isinstance(texts, pa.Array) else pa.concat_arrays(texts.chunks)
            hits = np.flatnonzero(_have_phrase(self._tokenizer, one, words, places, query.slop))
            matches.append(hits + start)
            count += len(hits)
            if k is not None and count >= k:
                break
        rows = np.concatenate(matches)
        return TextTopK(result.addresses[rows], result.scores[rows])


def _have_phrase(
    tokenizer: Tokenizer, texts: pa.Array, words: Sequence[str], places: Ints, slop: int = 0
) -> npt.NDArray[np.bool_]:
    """Return which texts have the words in this order, each up to `slop` further behind the one before."""
    cut = tokenizer.cut(texts)
    numbers = {word: number for number, word in enumerate(cut.distinct.to_pylist())}
    longest = int(cut.position.max(initial=0))
    slop = min(slop, longest)
    # One number for a place in any of the texts, with room behind the longest.
    width = longest + int(places[-1]) + slop * len(words) + 1
    there = cut.text * width + cut.position
    # Where the last word so far stands of phrases that begin well.
    ends = there[cut.word == numbers.get(words[0], -1)]
    for word, step in zip(words[1:], np.diff(places).tolist(), strict=True):
        here = there[cut.word == numbers.get(word, -1)]
        further = [ends + step + more for more in range(slop + 1)]
        ends = np.unique(np.concatenate([places[np.isin(places, here)] for places in further]))
    result = np.zeros(len(texts), np.bool_)
    result[ends // width] = True
    return result


def merge_scores(parts: Sequence[TextTopK], combine: np.ufunc) -> TextTopK:
    """Return the rows of any of the parts, by address, with their scores put together."""
    addresses = np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in parts)])
    scores = np.concatenate([np.empty(0, np.float32), *(part.scores for part in parts)])
    rows, back = np.unique(addresses, return_inverse=True)
    whole = np.zeros(len(rows), np.float32)
    combine.at(whole, back.reshape(-1), scores)
    return TextTopK(rows, whole)


def best_first(parts: Sequence[TextTopK]) -> TextTopK:
    """Return the rows of all parts by score; equal ones by address."""
    addresses = np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in parts)])
    scores = np.concatenate([np.empty(0, np.float32), *(part.scores for part in parts)])
    order = np.lexsort((addresses, -scores))
    return TextTopK(addresses[order], scores[order])
