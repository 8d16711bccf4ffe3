"""Searching text: the rows that answer a query best.

The words of the query are looked up in every partition of the index, and in the texts of the fragments that
it does not cover. The rarity of a word counts over all of them together. Rows that do not count are left out,
so k rows are returned if there are as many. A phrase is looked for in the texts of the rows that have all its
words. If several indices are on the column, the first one in the manifest is used, as in pylance.

With the positions of an index a phrase is looked for among these; without them, in the texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import ColumnTypeError, OptionError
from spark_lance.expressions.values import plain
from spark_lance.file.base.limits import decoding
from spark_lance.index.base.columns import column_values, leaf_field, top_column
from spark_lance.index.base.entries import first_index, segments_of
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.base.search_rows import Addresses, contains, unindexed
from spark_lance.index.text.inverted import (
    INVERTED_LABEL,
    INVERTED_NEWEST,
    Positions,
    TextPart,
    text_parts,
)
from spark_lance.index.text.lists import is_text, is_text_list
from spark_lance.index.text.scores import weights
from spark_lance.index.text.tokenizer import Tokenizer
from spark_lance.index.text.vocabulary import Vocabulary, similar_words
from spark_lance.proto import table_pb2
from spark_lance.table.format.index_kinds import label_of
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.reading.take import take_addresses


def letters_by_length(word: str) -> int:
    """Return by how many letters a word may differ if nobody says: longer words by more."""
    return 0 if len(word) <= 2 else 1 if len(word) <= 5 else 2


_WINDOW_BYTES = 32 << 20
_MARGIN = 64
# Scores per block of a search for the greatest ones.
_BLOCK = 32
# Scores of texts are put together in a table of all texts if the words are in more than 1 of this number.
_DENSE = 128


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

    def first(self, k: int | None) -> TextTopK:
        """Return the first k rows; all by default."""
        return TextTopK(self.addresses[:k], self.scores[:k])


@dataclass(frozen=True)
class _Texts:
    """Texts, some with words of the query.

    Attributes:
        lengths: words of every text.
        total: words of all texts.
        postings: for every word of the query the texts that have it, ascending, and how often.
        part: the partition of the index that they are in; None for texts of a scan.
        addresses: of the texts of a scan.
        positions: for every word where it stands in its texts; None if that is not known.
    """

    lengths: Ints
    total: int
    postings: Sequence[tuple[Ints, Ints]]
    part: TextPart | None
    addresses: Addresses
    positions: Sequence[Positions] | None


@dataclass(frozen=True)
class _Terms:
    """The words of a query and their weights in all texts of the version.

    Attributes:
        groups: numbers of the words that stand for one word of the query; the best of them counts.
        times: how often the query has each group.
        average, count: words of a text on average, and texts.
        having: for every word the texts that have it.
        all_needed: whether a text needs a word of each group, or of any.
    """

    groups: Sequence[Sequence[int]]
    times: Sequence[int]
    average: float
    count: int
    having: Sequence[int]
    all_needed: bool

    def scores(self, texts: _Texts, rows: Ints | None = None) -> tuple[Ints, npt.NDArray[np.float32]]:
        """Return the texts that answer, ascending, and their scores.

        Args:
            texts: some texts.
            rows: those of them that answer, if that is known.
        """
        if rows is None and self.all_needed:
            rows = self.with_all(texts)
        parts = [self._of_group(texts, group, rows) for group in self.groups]
        weighted = [(hits, times * scores) for (hits, scores), times in zip(parts, self.times, strict=True)]
        return _combine_scores(weighted, len(texts.lengths), np.add)

    def with_all(self, texts: _Texts) -> Ints:
        """Return the texts that have a word of each group."""
        every = [[texts.postings[word][0] for word in group] for group in self.groups]
        lists = [
            group[0] if len(group) == 1 else np.unique(np.concatenate(group)) for group in every if group
        ]
        if len(lists) < len(self.groups):
            return np.empty(0, np.int64)
        lists.sort(key=len)
        rows = lists[0]
        for other in lists[1:]:
            rows = rows[_among(rows, other)[1]]
        return rows

    def _of_group(
        self, texts: _Texts, group: Sequence[int], rows: Ints | None
    ) -> tuple[Ints, npt.NDArray[np.float32]]:
        parts = []
        for word in group:
            documents, often = texts.postings[word]
            if rows is not None:
                places, are_present = _among(rows, documents)
                documents, often = rows[are_present], often[places[are_present]]
            lengths = texts.lengths[documents]
            scores = weights(often, lengths, self.average, self.count, self.having[word])
            parts.append((documents, scores))
        return _combine_scores(parts, len(texts.lengths), np.maximum)


def _limit(scores: npt.NDArray[np.float32], count: int) -> np.float32:
    """Return the score that `count` of some scores reach."""
    width = len(scores) // _BLOCK
    if width > 2 * count:
        # As many blocks have their greatest score there, so nothing below can be the limit.
        best = scores[: _BLOCK * width].reshape(_BLOCK, width).max(axis=0)
        least = np.partition(best, width - count)[width - count]
        if least == scores.max():
            return least  # type: ignore[no-any-return]
        scores = scores[scores >= least]
    return np.partition(scores, len(scores) - count)[len(scores) - count]  # type: ignore[no-any-return]


def _among(rows: Ints, others: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return where rows are among others, which ascend, and which of them are there."""
    if not len(others):
        return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    places = np.minimum(np.searchsorted(others, rows), len(others) - 1)
    return places, others[places] == rows


def _combine_scores(
    parts: Sequence[tuple[Ints, npt.NDArray[np.float32]]], count: int, combine: np.ufunc
) -> tuple[Ints, npt.NDArray[np.float32]]:
    """Return the texts of any of the parts, ascending, with their scores put together.

    Args:
        parts: texts, ascending in each, and their scores, which are above zero.
        count: how many texts there are.
        combine: adds two scores, or chooses one.
    """
    if len(parts) == 1:
        return parts[0]
    if parts and all(np.array_equal(rows, parts[0][0]) for rows, _ in parts[1:]):
        return parts[0][0], reduce(combine, (scores for _, scores in parts))
    if _DENSE * sum(len(rows) for rows, _ in parts) > count:
        table = np.zeros(count, np.float32)
        for rows, scores in parts:
            table[rows] = combine(table[rows], scores)
        hits = np.flatnonzero(table > 0)
        return hits, table[hits]
    hits = np.concatenate([np.empty(0, np.int32), *(rows for rows, _ in parts)])
    # Each part ascends, so this sort merges them.
    hits.sort(kind="stable")
    hits = hits[np.flatnonzero(np.diff(hits, prepend=-1))]
    result = np.zeros(len(hits), np.float32)
    for rows, scores in parts:
        places = np.searchsorted(hits, rows)
        result[places] = combine(result[places], scores)
    return hits, result


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
        own = list(dict.fromkeys(words))
        is_fuzzy = query.fuzziness != 0
        is_phrase = query.phrase and len(words) > 1 and not is_fuzzy
        distinct, groups = self._alike(query, own) if is_fuzzy else (own, [[i] for i in range(len(own))])
        texts = [self._indexed(part, distinct, is_phrase) for part in self._parts]
        texts += self._scanned(self.unindexed(query), distinct)
        count = sum(len(part.lengths) for part in texts)
        average = sum(part.total for part in texts) / max(count, 1)
        having = [sum(len(part.postings[i][0]) for part in texts) for i in range(len(distinct))]
        times = [1 if is_fuzzy else words.count(word) for word in own]
        all_needed = query.operator == "and" or (query.phrase and not is_fuzzy)
        terms = _Terms(groups, times, average, count, having, all_needed)
        if is_phrase:
            return self._of_phrase(texts, terms, words, places - places[0], query, allowed)
        results = [self._best(part, *terms.scores(part), query.k, allowed) for part in texts]
        return best_first(results).first(query.k)

    def _of_phrase(
        self,
        texts: Sequence[_Texts],
        terms: _Terms,
        words: Sequence[str],
        places: Ints,
        query: TextQuery,
        allowed: Addresses | None,
    ) -> TextTopK:
        """Return the texts in which the words stand as in the query, the first at place 0."""
        own = list(dict.fromkeys(words))
        numbers = [own.index(word) for word in words]
        results, unsure = [], []
        for part in texts:
            rows = terms.with_all(part)
            if part.positions is None:
                unsure.append(self._best(part, *terms.scores(part, rows), None, allowed))
            else:
                rows = _with_places(part, rows, numbers, places, query.slop)
                results.append(self._best(part, *terms.scores(part, rows), query.k, allowed))
        if unsure:
            results.append(self._with_phrase(best_first(unsure), words, places, query))
        return best_first(results).first(query.k)

    def _indexed(self, part: TextPart, words: Sequence[str], with_positions: bool) -> _Texts:
        documents = part.documents
        postings = [part.postings(word) for word in words]
        positions = None
        if with_positions and part.has_positions:
            positions = [part.positions(word) for word in words]
        return _Texts(documents.lengths, documents.total, postings, part, np.empty(0, np.uint64), positions)

    def _scanned(self, fragments: Sequence[table_pb2.DataFragment], words: Sequence[str]) -> list[_Texts]:
        """Look for the words in the texts of fragments."""
        results = []
        for table in self._tables_of(fragments):
            cut = self._tokenizer.cut(self._texts_of(table))
            lengths = np.bincount(cut.text, minlength=table.num_rows)
            numbers = {word: number for number, word in enumerate(cut.distinct.to_pylist())}
            # As in an index, texts without words do not count.
            with_words = np.flatnonzero(lengths)
            text_numbers = np.searchsorted(with_words, np.arange(len(lengths)))
            postings, positions = [], []
            for word in words:
                mine = np.flatnonzero(cut.word == numbers.get(word, -1))
                documents, often = np.unique(cut.text[mine], return_counts=True)
                postings.append((text_numbers[documents], often))
                positions.append(Positions(np.concatenate([[0], np.cumsum(often)]), cut.position[mine]))
            addresses = table.column(ROW_ADDRESS).to_numpy()[with_words]
            total = int(lengths.sum())
            results.append(_Texts(lengths[with_words], total, postings, None, addresses, positions))
        return results

    def _tables_of(self, fragments: Sequence[table_pb2.DataFragment]) -> Iterator[pa.Table]:
        scan = self._scan
        return Scan(scan.table, scan.manifest, scan.names, tuple(fragments)).tables(
            target_bytes=_WINDOW_BYTES
        )

    def _texts_of(self, table: pa.Table) -> pa.Array:
        column = plain(column_values(table, self._column)).combine_chunks()
        return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)

    def _best(
        self,
        texts: _Texts,
        hits: Ints,
        scores: npt.NDArray[np.float32],
        k: int | None,
        allowed: Addresses | None,
    ) -> TextTopK:
        """Return texts that count: all, or at least k and among them the k best by score and address.

        Finding the rows of texts takes time, so it is done for the best ones only, and for more if too few
        of them count.
        """
        count = len(hits) if k is None else k + _MARGIN
        while count < len(hits):
            limit = _limit(scores, count)
            near = np.flatnonzero(scores >= limit)
            if len(near) > count and self._in_order(texts):
                # Among equal scores the first have the lowest addresses.
                above = scores[near] > limit
                ties = near[~above][: count - int(np.count_nonzero(above))]
                near = np.concatenate([near[above], ties])
            addresses, counts = self._counting(texts, hits[near], allowed)
            if int(np.count_nonzero(counts)) >= (k or 0):
                return TextTopK(addresses[counts], scores[near][counts])
            count *= 8
        addresses, counts = self._counting(texts, hits, allowed)
        return TextTopK(addresses[counts], scores[counts])

    def _in_order(self, texts: _Texts) -> bool:
        """Whether texts follow each other as their addresses do."""
        if texts.part is None:
            return False
        has_moves = self._scan.manifest.uses_stable_row_ids or self._rows.has_remaps
        return not has_moves and texts.part.documents.is_ascending

    def _counting(
        self, texts: _Texts, hits: Ints, allowed: Addresses | None
    ) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return the addresses of texts, and which of them may be found."""
        if texts.part is None:
            addresses, counts = texts.addresses[hits], np.ones(len(hits), np.bool_)
        else:
            addresses, counts = self._rows.addresses(texts.part.row_ids[hits], texts.part.segment.covered)
        return addresses, counts if allowed is None else counts & contains(allowed, addresses)

    def _alike(self, query: TextQuery, words: Sequence[str]) -> tuple[list[str], list[list[int]]]:
        """Return the words of texts that are like those of a query, and which of them each word has."""
        vocabularies = [part.vocabulary for part in self._parts]
        for table in self._tables_of(self.unindexed(query)):
            vocabularies.append(
                Vocabulary.of(self._tokenizer.cut(self._texts_of(table)).distinct.to_pylist())
            )
        groups = []
        for word in words:
            letters = letters_by_length(word) if query.fuzziness is None else query.fuzziness
            most, prefix = query.max_expansions, query.prefix_length
            groups.append(similar_words(word, vocabularies, letters, prefix, most))
        numbers = {word: number for number, word in enumerate(dict.fromkeys(itertools.chain(*groups)))}
        return list(numbers), [[numbers[word] for word in group] for group in groups]

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
            one = self._texts_of(take_addresses(self._scan, part))
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
    mine = [cut.word == numbers.get(word, -1) for word in words]
    pairs = [(cut.text[hits], cut.position[hits]) for hits in mine]
    result = np.zeros(len(texts), np.bool_)
    result[_phrases(pairs, places, slop)] = True
    return result


def _with_places(texts: _Texts, rows: Ints, words: Sequence[int], places: Ints, slop: int) -> Ints:
    """Return those of some texts, which have all of the words, that have the phrase.

    Args:
        texts: with positions.
        rows: texts, ascending.
        words: numbers of the words of the phrase in their order.
        places: where each word stands behind the first one.
        slop: other words that may stand between each two.
    """
    assert texts.positions is not None
    spots: dict[int, tuple[Ints, Ints]] = {}
    for word in set(words):
        lists = np.searchsorted(texts.postings[word][0], rows)
        positions = texts.positions[word]
        begins, ends = positions.starts[lists], positions.starts[lists + 1]
        counts = ends - begins
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        spots[word] = (
            np.repeat(np.arange(len(rows)), counts),
            positions.places[np.repeat(begins, counts) + within].astype(np.int64),
        )
    return rows[_phrases([spots[word] for word in words], places, slop)]


def _phrases(spots: Sequence[tuple[Ints, Ints]], places: Ints, slop: int) -> Ints:
    """Return the texts that have a phrase, ascending.

    Args:
        spots: for each word of the phrase the texts that have it, ascending, and where; once per occurrence.
        places: where each word stands behind the first one.
        slop: other words that may stand between each two.
    """
    longest = max(int(position.max(initial=0)) for _, position in spots)
    slop = min(slop, longest)
    # One number for a place in any of the texts, with room behind the longest.
    width = longest + int(places[-1]) + slop * len(spots) + 1
    keys = [text * width + position for text, position in spots]
    # Where the last word so far stands of phrases that begin well.
    ends = keys[0]
    for here, step in zip(keys[1:], np.diff(places).tolist(), strict=True):
        further = [ends + step + more for more in range(slop + 1)]
        ends = np.concatenate([places[_among(places, here)[1]] for places in further])
        ends = np.unique(ends) if slop else ends
    return np.unique(ends // width)


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
