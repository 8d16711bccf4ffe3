"""Search text: find the rows that match a query best.

The words of the query are looked up in every part of the index, and in the texts of fragments that the index
does not cover. The document frequency of a word counts all of them together. Deleted rows are dropped, and k
rows are returned if that many match. A phrase must be in a row that has all its words: the index positions
are used if the index has them; otherwise the texts are read. If a column has several indexes, the first one
in the manifest is used, as in pylance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import ColumnTypeError, OptionError, suggestion
from spark_lance.expressions.values import plain
from spark_lance.file.base.limits import decoding
from spark_lance.index.base.columns import column_values, leaf_field, top_column
from spark_lance.index.base.entries import find_segments, first_index
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
from spark_lance.index.text.tokenizer import Tokenizer, Tokens
from spark_lance.index.text.vocabulary import Vocabulary, similar_words
from spark_lance.io.parallel import run_together
from spark_lance.proto import table_pb2
from spark_lance.table.format.index_kinds import index_label
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.reading.take import take_addresses


def letters_by_length(word: str) -> int:
    """Return the default fuzziness of a word: the maximum number of changed letters."""
    return 0 if len(word) <= 2 else 1 if len(word) <= 5 else 2


_REQUEST_KEYS = {"query", "column", "columns", "operator", "phrase", "fast_search"}
_WINDOW_BYTES = 32 << 20
_MARGIN = 64
# Scores per block when searching for the greatest scores.
_BLOCK = 32
# Relative error of a sum of scores.
_SUM_ROUNDING = 1e-5
# Scores are combined in a dense array if postings exceed 1 / `_DENSE` of the texts.
_DENSE = 32
# A binary search takes the time of this many steps of a pass over an array.
_SEARCH = 8
# Number of queries whose words are kept.
_MAX_QUERIES = 256


@dataclass(frozen=True)
class TextQuery:
    """A text query on one column.

    Attributes:
        text: the words.
        k: maximum number of rows; all matching rows by default.
        operator: whether a row needs one of the words or all of them.
        phrase: whether the words must be adjacent, in this order. A stop word in the query matches any word.
        fast_search: whether to skip rows that are not indexed.
        slop: maximum number of other words between two adjacent words of a phrase.
        fuzziness: maximum number of changed letters of a matching word; None chooses by word length.
        max_expansions: maximum number of similar words of the whole query, for fuzzy queries. The first words
            in byte order count, beginning with those similar to the first query word.
        prefix_length: number of first letters that must be equal, for fuzzy queries.
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
    """Return the columns of a version that have a text index."""
    entries = [entry for entry in manifest.indices if index_label(entry) == INVERTED_LABEL]
    ids = {number for entry in entries for number in entry.fields}
    names = [field.id for field in manifest.schema.walk() if field.id in ids]
    return [manifest.schema.field_path(number) for number in names]


def indexed_columns_text(columns: Sequence[str]) -> str:
    """Return the part of an error message that lists the columns with a text index."""
    if columns:
        return f"indexed are {', '.join(columns)}"
    return "none has an index, which create_scalar_index(column, 'INVERTED') builds"


def parse_text_query(manifest: Manifest, request: Mapping[str, Any], k: int | None) -> tuple[str, TextQuery]:
    """Return the column and the query of a dict.

    Args:
        manifest: the version that is searched.
        request: `query` (words, or a phrase in double quotes), and optionally `column`, `operator`, `phrase`
            and `fast_search`.
        k: maximum number of rows.

    Raises:
        OptionError: a key is unknown, a value is invalid, or the column is missing and not exactly one column
            has a text index.
    """
    unknown = sorted(set(request) - _REQUEST_KEYS)
    if unknown or not isinstance(request.get("query"), str):
        similar = suggestion(unknown[0], _REQUEST_KEYS) if unknown else ""
        if unknown:
            raise OptionError(
                f"full_text_query has no key {', '.join(unknown)}; "
                f"use {', '.join(sorted(_REQUEST_KEYS))}{similar}"
            )
        raise OptionError(
            "full_text_query needs the text `query`, as in {'query': 'words', 'column': 'title'}, "
            f"not {request.get('query')!r}"
        )
    columns = [request["column"]] if request.get("column") else list(request.get("columns") or ())
    columns = columns or indexed_text_columns(manifest)
    if len(columns) != 1:
        raise OptionError(f"a text query is for one column: say which; {indexed_columns_text(columns)}")
    text = request["query"]
    # Only quotes around the whole text make a phrase.
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    query = TextQuery(
        text[1:-1] if is_quoted else text,
        k,
        str(request.get("operator", "or")).lower(),  # type: ignore[arg-type]
        is_quoted or bool(request.get("phrase", False)),
        bool(request.get("fast_search", False)),
    )
    return str(columns[0]), query


@dataclass(frozen=True)
class TextTopK:
    """Rows ordered by score: addresses (n,) uint64 and scores (n,) float32, best first."""

    addresses: Addresses
    scores: npt.NDArray[np.float32]

    def first(self, k: int | None) -> TextTopK:
        """Return the first k rows; all by default."""
        return TextTopK(self.addresses[:k], self.scores[:k])


@dataclass(frozen=True)
class _Texts:
    """A batch of texts with the postings of the query's words.

    Attributes:
        lengths: number of words of each text.
        total: number of words of all texts.
        postings: for each query word, the texts that have it, ascending, and its frequency in each.
        part: the index part of the texts; None for scanned texts.
        addresses: row addresses of scanned texts.
        positions: for each query word, its positions in its texts; None if unknown.
    """

    lengths: Ints
    total: int
    postings: Sequence[tuple[Ints, Ints]]
    part: TextPart | None
    addresses: Addresses
    positions: Sequence[Positions] | None


@dataclass(frozen=True)
class _Terms:
    """The words of a query and their corpus statistics.

    Attributes:
        words, having: each word, and its document frequency.
        times: how often the score of each word counts.
        groups: for each query word, the numbers of its similar words.
        average, count: average number of words per text, and number of texts.
        all_needed: whether a text needs a word of every group, or of any group.
    """

    words: Sequence[str]
    having: Sequence[int]
    times: Sequence[int]
    groups: Sequence[Sequence[int]]
    average: float
    count: int
    all_needed: bool

    def scores(self, texts: _Texts, rows: Ints | None = None) -> tuple[Ints, npt.NDArray[np.float32]]:
        """Return the matching texts, ascending, and their scores.

        Args:
            texts: the texts.
            rows: the matching texts, if they are known.
        """
        if rows is None and self.all_needed:
            rows = self.with_all(texts)
        return _add_scores(self._scores_by_word(texts, rows), len(texts.lengths))

    def candidates(self, texts: _Texts, count: int) -> Ints | None:
        """Return texts, ascending, with the `count` best and all equal ones; None if all texts may be.

        A text that has only words with small scores is left out, if `count` texts have a greater score from
        one word (MaxScore).
        """
        if self.all_needed or len(self.words) < 2:
            return None
        parts = self._scores_by_word(texts, None)
        limits = [_kth_score(scores, count) for _, scores in parts if len(scores) > count]
        if not limits:
            return None
        # Sums of float32 may be a little smaller than the sum of their bounds.
        limit = float(max(limits)) * (1 - _SUM_ROUNDING)
        greatest = np.array([scores.max(initial=0) for _, scores in parts], np.float64)
        order = np.argsort(greatest)
        sums = np.cumsum(greatest[order])
        small = int(np.searchsorted(sums, limit))
        if not small:
            return None
        hits, scores = _add_scores([parts[i] for i in order[small:]], len(texts.lengths))
        result: Ints = hits[scores + sums[small - 1] >= limit]
        return result

    def with_all(self, texts: _Texts) -> Ints:
        """Return the texts that have a word of every group, ascending."""
        groups = dict.fromkeys(tuple(group) for group in self.groups)
        lists_by_group = [[texts.postings[word][0] for word in group] for group in groups]
        lists = [
            group[0] if len(group) == 1 else np.unique(np.concatenate(group))
            for group in lists_by_group
            if group
        ]
        if len(lists) < len(groups):
            return np.empty(0, np.int64)
        lists.sort(key=len)
        rows = lists[0]
        for other in lists[1:]:
            rows = other[_find_common(rows, other, len(texts.lengths))]
        return rows

    def _scores_by_word(self, texts: _Texts, rows: Ints | None) -> list[tuple[Ints, npt.NDArray[np.float32]]]:
        """Return for each word the texts (all, or those in `rows`) that have it, and their scores."""
        parts = []
        for word, (documents, frequencies) in enumerate(texts.postings):
            if rows is not None:
                places = _find_common(rows, documents, len(texts.lengths))
                documents, frequencies = documents[places], frequencies[places]
            scores = self._weights(texts, word, documents, frequencies, rows is None)
            times = self.times[word]
            parts.append((documents, scores if times == 1 else times * scores))
        return parts

    def _weights(
        self, texts: _Texts, word: int, documents: Ints, frequencies: Ints, is_whole: bool
    ) -> npt.NDArray[np.float32]:
        """Return the scores of texts for a word; those of a whole posting list are cached."""

        def make() -> npt.NDArray[np.float32]:
            lengths = texts.lengths[documents]
            return weights(frequencies, lengths, self.average, self.count, self.having[word])

        if texts.part is None or not is_whole:
            return make()
        return texts.part.scores(self.words[word], (self.average, self.count, self.having[word]), make)


def _kth_score(scores: npt.NDArray[np.float32], count: int) -> np.float32:
    """Return the `count`-th greatest score."""
    width = len(scores) // _BLOCK
    if width > 2 * count:
        # At least `count` blocks reach this score, so the result is not below it.
        best = scores[: _BLOCK * width].reshape(_BLOCK, width).max(axis=0)
        least = np.partition(best, width - count)[width - count]
        if least == scores.max():
            return least  # type: ignore[no-any-return]
        scores = scores[scores >= least]
    return np.partition(scores, len(scores) - count)[len(scores) - count]  # type: ignore[no-any-return]


def _find_common(rows: Ints, others: Ints, count: int) -> Ints:
    """Return the positions in `others` of the texts that are in both. Texts ascend and are below `count`."""
    if _SEARCH * len(rows) < len(others) + count // _SEARCH:
        places, are_present = _find_sorted(rows, others)
        return places[are_present]
    is_row = np.zeros(count, np.bool_)
    is_row[rows] = True
    return np.flatnonzero(is_row[others])


def _find_sorted(rows: Ints, others: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return the positions of rows in the ascending `others`, and the mask of rows that are in `others`."""
    if not len(others):
        return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    places = np.minimum(np.searchsorted(others, rows), len(others) - 1)
    return places, others[places] == rows


def _add_scores(
    parts: Sequence[tuple[Ints, npt.NDArray[np.float32]]], count: int
) -> tuple[Ints, npt.NDArray[np.float32]]:
    """Return the union of the parts' texts, ascending, with the sums of their scores.

    Args:
        parts: texts (ascending) and their scores, which are above zero.
        count: total number of texts.
    """
    if len(parts) == 1:
        return parts[0]
    if parts and all(np.array_equal(rows, parts[0][0]) for rows, _ in parts[1:]):
        return parts[0][0], reduce(np.add, (scores for _, scores in parts))
    if _DENSE * sum(len(rows) for rows, _ in parts) > count:
        table = np.zeros(count, np.float32)
        for rows, scores in parts:
            table[rows] += scores
        hits = np.flatnonzero(table > 0)
        return hits, table[hits]
    hits = np.concatenate([np.empty(0, np.int32), *(rows for rows, _ in parts)])
    scores = np.concatenate([np.empty(0, np.float32), *(scores for _, scores in parts)])
    if not len(hits):
        return hits, scores
    # Each part is sorted, so the stable sort merges them.
    order = hits.argsort(kind="stable")
    hits = hits[order]
    firsts = np.flatnonzero(np.diff(hits, prepend=-1))
    return hits[firsts], np.add.reduceat(scores[order], firsts)


class TextSearch:
    """Searches one text column of one version.

    Args:
        snapshot: the version.
        column: strings, lists of strings, or JSON documents; can be the dotted path of a struct field.

    Raises:
        SchemaError: the column does not exist, or has no text.
    """

    def __init__(self, snapshot: Snapshot, column: str) -> None:
        field = leaf_field(snapshot.schema, column)
        kind = field.arrow_type()
        if not (is_text(kind) or is_text_list(kind) or field.is_json):
            raise ColumnTypeError(
                f"column {column!r} is {kind} and holds no text: search texts, lists of texts or JSON"
            )
        self._scan = snapshot.scan([top_column(snapshot.schema, column)], with_row_address=True)
        self._column = column
        self._is_json = field.is_json
        usable = find_segments(snapshot, INVERTED_LABEL, INVERTED_NEWEST, field.id)
        self._segments = first_index(usable)
        self._rows = RowResolver(snapshot)
        self._cuts: dict[str, Tokens] = {}

    @property
    def index_name(self) -> str | None:
        """The name of the index that searches use; None if there is no index."""
        return self._segments[0].entry.name if self._segments else None

    @cached_property
    def _parts(self) -> list[TextPart]:
        return [part for segment in self._segments for part in text_parts(segment)]

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._parts[0].tokenizer if self._parts else Tokenizer(documents=self._is_json)

    def _cut_query(self, text: str) -> Tokens:
        cut = self._cuts.get(text)
        if cut is None:
            cut = self._tokenizer.cut_query(text)
            if len(self._cuts) >= _MAX_QUERIES:
                self._cuts.clear()
            self._cuts[text] = cut
        return cut

    def unindexed(self, query: TextQuery) -> Sequence[table_pb2.DataFragment]:
        """Return the fragments that a query scans because no index covers them."""
        return unindexed(self._scan.fragments, self._segments, query.fast_search)

    def run(self, query: TextQuery, allowed: Addresses | None = None) -> TextTopK:
        """Return the rows that match a query, best first.

        Args:
            query: the query.
            allowed: addresses of the rows that may be returned, ascending; all by default.

        Raises:
            FormatError, UnsupportedFormatError: files of the index or the table are damaged or not supported.
        """
        with decoding(self._segments[0].directory if self._segments else self._scan.root):
            return self._run(query, allowed)

    def _run(self, query: TextQuery, allowed: Addresses | None) -> TextTopK:
        cut = self._cut_query(query.text)
        # The same word at the same position (as with n-grams) is looked up once.
        pairs = dict.fromkeys(zip(cut.word.tolist(), cut.position.tolist(), strict=True))
        words = [str(cut.distinct[number]) for number, _ in pairs]
        places = np.array([place for _, place in pairs], dtype=np.int64)
        if not words:
            return TextTopK(np.empty(0, np.uint64), np.empty(0, np.float32))
        distinct_words = list(dict.fromkeys(words))
        is_fuzzy = query.fuzziness != 0
        is_phrase = query.phrase and len(words) > 1 and not is_fuzzy
        distinct, groups = (
            self._expand_fuzzy(query, words)
            if is_fuzzy
            else (distinct_words, [[distinct_words.index(word)] for word in words])
        )
        reads = [partial(self._index_texts, part, distinct, is_phrase) for part in self._parts]
        texts = run_together(self._scan.store, reads)
        texts += self._scan_texts(self.unindexed(query), distinct)
        count = sum(len(part.lengths) for part in texts)
        average = sum(part.total for part in texts) / max(count, 1)
        having = [sum(len(part.postings[i][0]) for part in texts) for i in range(len(distinct))]
        times = np.bincount(list(itertools.chain(*groups)), minlength=len(distinct)).tolist()
        all_needed = query.operator == "and" or (query.phrase and not is_fuzzy)
        terms = _Terms(distinct, having, times, groups, average, count, all_needed)
        if is_phrase:
            return self._search_phrase(texts, terms, words, places - places[0], query, allowed)
        results = [self._best_of(part, terms, query.k, allowed) for part in texts]
        return best_first(results).first(query.k)

    def _search_phrase(
        self,
        texts: Sequence[_Texts],
        terms: _Terms,
        words: Sequence[str],
        places: Ints,
        query: TextQuery,
        allowed: Addresses | None,
    ) -> TextTopK:
        """Return the best texts that have the phrase. `places` has the offset of each word from the first."""
        distinct_words = list(dict.fromkeys(words))
        numbers = [distinct_words.index(word) for word in words]
        results, unverified = [], []
        for part in texts:
            rows = terms.with_all(part)
            if part.positions is None:
                unverified.append(self._best_texts(part, *terms.scores(part, rows), None, allowed))
            else:
                rows = _match_positions(part, rows, numbers, places, query.slop)
                results.append(self._best_texts(part, *terms.scores(part, rows), query.k, allowed))
        if unverified:
            results.append(self._verify_phrase(best_first(unverified), words, places, query))
        return best_first(results).first(query.k)

    def _index_texts(self, part: TextPart, words: Sequence[str], with_positions: bool) -> _Texts:
        # On an object store the files are opened at the same time.
        files: list[Callable[[], object]] = [
            lambda: part.documents,
            lambda: part.word_numbers,
            lambda: part.lists.num_rows,
        ]
        run_together(part.segment.store, files)
        documents = part.documents
        postings = part.read_postings(words)
        positions = None
        if with_positions and part.has_positions:
            positions = [part.positions(word) for word in words]
        return _Texts(documents.lengths, documents.total, postings, part, np.empty(0, np.uint64), positions)

    def _scan_texts(self, fragments: Sequence[table_pb2.DataFragment], words: Sequence[str]) -> list[_Texts]:
        """Return the scanned texts of fragments with the postings of the words."""
        results = []
        for table in self._scan_tables(fragments):
            cut = self._tokenizer.tokenize(self._column_texts(table))
            lengths = np.bincount(cut.text, minlength=table.num_rows)
            numbers = {word: number for number, word in enumerate(cut.distinct.to_pylist())}
            # Texts without words do not count, as in an index.
            with_words = np.flatnonzero(lengths)
            text_numbers = np.searchsorted(with_words, np.arange(len(lengths)))
            postings, positions = [], []
            for word in words:
                occurrences = np.flatnonzero(cut.word == numbers.get(word, -1))
                documents, frequencies = np.unique(cut.text[occurrences], return_counts=True)
                postings.append((text_numbers[documents], frequencies))
                positions.append(
                    Positions(np.concatenate([[0], np.cumsum(frequencies)]), cut.position[occurrences])
                )
            addresses = table.column(ROW_ADDRESS).to_numpy()[with_words]
            total = int(lengths.sum())
            results.append(_Texts(lengths[with_words], total, postings, None, addresses, positions))
        return results

    def _scan_tables(self, fragments: Sequence[table_pb2.DataFragment]) -> Iterator[pa.Table]:
        scan = self._scan
        return Scan(scan.table, scan.manifest, scan.names, tuple(fragments)).tables(
            target_bytes=_WINDOW_BYTES
        )

    def _column_texts(self, table: pa.Table) -> pa.Array:
        column = plain(column_values(table, self._column)).combine_chunks()
        return column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks)

    def _best_of(self, texts: _Texts, terms: _Terms, k: int | None, allowed: Addresses | None) -> TextTopK:
        """Return the allowed texts that match: all of them, or at least the k best."""
        rows = None if k is None else terms.candidates(texts, k + _MARGIN)
        if rows is not None and k is not None:
            result = self._first_texts(texts, *terms.scores(texts, rows), k + _MARGIN, allowed)
            if len(result.addresses) >= k:
                return result
        return self._best_texts(texts, *terms.scores(texts), k, allowed)

    def _best_texts(
        self,
        texts: _Texts,
        hits: Ints,
        scores: npt.NDArray[np.float32],
        k: int | None,
        allowed: Addresses | None,
    ) -> TextTopK:
        """Return the allowed texts: all of them, or at least the k best by score and address.

        Resolving rows is slow, so only the best texts are resolved, and more if too few of them are allowed.
        """
        count = len(hits) if k is None else k + _MARGIN
        while count < len(hits):
            result = self._first_texts(texts, hits, scores, count, allowed)
            if len(result.addresses) >= (k or 0):
                return result
            count *= 8
        return self._first_texts(texts, hits, scores, len(hits), allowed)

    def _first_texts(
        self,
        texts: _Texts,
        hits: Ints,
        scores: npt.NDArray[np.float32],
        count: int,
        allowed: Addresses | None,
    ) -> TextTopK:
        """Return the allowed texts among the `count` best."""
        if count < len(hits):
            limit = _kth_score(scores, count)
            near = np.flatnonzero(scores >= limit)
            if len(near) > count and self._is_address_order(texts):
                # Texts are in address order, so the first of equal scores have the lowest addresses.
                above = scores[near] > limit
                ties = near[~above][: count - int(np.count_nonzero(above))]
                near = np.concatenate([near[above], ties])
            hits, scores = hits[near], scores[near]
        addresses, counts = self._resolve_texts(texts, hits, allowed)
        return TextTopK(addresses[counts], scores[counts])

    def _is_address_order(self, texts: _Texts) -> bool:
        """Return whether texts are in the order of their row addresses."""
        if texts.part is None:
            return False
        has_moves = self._scan.manifest.uses_stable_row_ids or self._rows.has_remaps
        return not has_moves and texts.part.documents.is_ascending

    def _resolve_texts(
        self, texts: _Texts, hits: Ints, allowed: Addresses | None
    ) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return the addresses of texts, and the mask of live texts that pass the filter."""
        if texts.part is None:
            addresses, counts = texts.addresses[hits], np.ones(len(hits), np.bool_)
        else:
            addresses, counts = self._rows.addresses(texts.part.row_ids[hits], texts.part.segment.covered)
        return addresses, counts if allowed is None else counts & contains(allowed, addresses)

    def _expand_fuzzy(self, query: TextQuery, words: Sequence[str]) -> tuple[list[str], list[list[int]]]:
        """Return the indexed words that are similar to query words, and for each query word their numbers."""
        vocabularies = [part.vocabulary for part in self._parts]
        for table in self._scan_tables(self.unindexed(query)):
            vocabularies.append(
                Vocabulary.of(self._tokenizer.tokenize(self._column_texts(table)).distinct.to_pylist())
            )
        groups: list[list[str]] = []
        for word in words:
            fixed = _path_length(word) if self._is_json else 0
            letters = letters_by_length(word[fixed:]) if query.fuzziness is None else query.fuzziness
            # pylance limits the words of the whole query, also if the query repeats a word.
            remaining = query.max_expansions - sum(map(len, groups))
            groups.append(similar_words(word, vocabularies, letters, fixed + query.prefix_length, remaining))
        numbers = {word: number for number, word in enumerate(dict.fromkeys(itertools.chain(*groups)))}
        return list(numbers), [[numbers[word] for word in group] for group in groups]

    def _verify_phrase(
        self, result: TextTopK, words: Sequence[str], places: Ints, query: TextQuery
    ) -> TextTopK:
        """Return the rows whose texts have the phrase, by reading the texts."""
        k = query.k
        matches: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        count = 0
        step = max(_MARGIN, 4 * (k or 0))
        for start in range(0, len(result.addresses), step):
            part = result.addresses[start : start + step]
            one = self._column_texts(take_addresses(self._scan, part))
            hits = np.flatnonzero(_texts_with_phrase(self._tokenizer, one, words, places, query.slop))
            matches.append(hits + start)
            count += len(hits)
            if k is not None and count >= k:
                break
        rows = np.concatenate(matches)
        return TextTopK(result.addresses[rows], result.scores[rows])


def _path_length(word: str) -> int:
    """Return the length of `path,type,` at the beginning of a word of a JSON document."""
    return sum(len(part) + 1 for part in word.split(",", 2)[:2])


def _texts_with_phrase(
    tokenizer: Tokenizer, texts: pa.Array, words: Sequence[str], places: Ints, slop: int = 0
) -> npt.NDArray[np.bool_]:
    """Return the mask of texts that have the phrase."""
    cut = tokenizer.tokenize(texts)
    numbers = {word: number for number, word in enumerate(cut.distinct.to_pylist())}
    occurrences = [cut.word == numbers.get(word, -1) for word in words]
    pairs = [(cut.text[hits], cut.position[hits]) for hits in occurrences]
    result = np.zeros(len(texts), np.bool_)
    result[_match_phrase(pairs, places, slop)] = True
    return result


def _match_positions(texts: _Texts, rows: Ints, words: Sequence[int], places: Ints, slop: int) -> Ints:
    """Return the texts in `rows` that have the phrase.

    Args:
        texts: texts with positions.
        rows: texts that have all the words, ascending.
        words: numbers of the words of the phrase, in order.
        places: offset of each word from the first word.
        slop: maximum number of other words between two adjacent words.
    """
    assert texts.positions is not None
    spots: dict[int, tuple[Ints, Ints]] = {}
    for word in set(words):
        lists = _find_common(rows, texts.postings[word][0], len(texts.lengths))
        positions = texts.positions[word]
        begins, ends = positions.starts[lists], positions.starts[lists + 1]
        counts = ends - begins
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        spots[word] = (
            np.repeat(np.arange(len(rows)), counts),
            positions.places[np.repeat(begins, counts) + within].astype(np.int64),
        )
    return rows[_match_phrase([spots[word] for word in words], places, slop)]


def _match_phrase(spots: Sequence[tuple[Ints, Ints]], places: Ints, slop: int) -> Ints:
    """Return the texts that have a phrase, ascending.

    Args:
        spots: for each word of the phrase, (text, position) of each occurrence, ascending by text.
        places: offset of each word from the first word.
        slop: maximum number of other words between two adjacent words.
    """
    longest = max(int(position.max(initial=0)) for _, position in spots)
    slop = min(slop, longest)
    # Encode (text, position) as one number, with room after the longest text.
    width = longest + int(places[-1]) + slop * len(spots) + 1
    keys = [text * width + position for text, position in spots]
    # Positions of the last word of all partial matches.
    ends = keys[0]
    for here, step in zip(keys[1:], np.diff(places).tolist(), strict=True):
        further = [ends + step + more for more in range(slop + 1)]
        ends = np.concatenate([places[_find_sorted(places, here)[1]] for places in further])
        ends = np.unique(ends) if slop else ends
    return np.unique(ends // width)


def merge_scores(parts: Sequence[TextTopK], combine: np.ufunc) -> TextTopK:
    """Return the union of the parts' rows, by address, with combined scores."""
    addresses = np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in parts)])
    scores = np.concatenate([np.empty(0, np.float32), *(part.scores for part in parts)])
    rows, row_numbers = np.unique(addresses, return_inverse=True)
    combined = np.zeros(len(rows), np.float32)
    combine.at(combined, row_numbers.reshape(-1), scores)
    return TextTopK(rows, combined)


def best_first(parts: Sequence[TextTopK]) -> TextTopK:
    """Return the rows of all parts, best score first. Ties are ordered by address."""
    addresses = np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in parts)])
    scores = np.concatenate([np.empty(0, np.float32), *(part.scores for part in parts)])
    order = np.lexsort((addresses, -scores))
    return TextTopK(addresses[order], scores[order])
