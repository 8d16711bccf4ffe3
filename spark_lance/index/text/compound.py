"""Answering queries of text that are put together: each part by a search of one column, then set by set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spark_lance.errors import OptionError
from spark_lance.index.text.queries import (
    BooleanQuery,
    BoostQuery,
    FullTextQuery,
    MatchQuery,
    MultiMatchQuery,
    Occur,
    PhraseQuery,
)
from spark_lance.index.text.search import (
    TextQuery,
    TextSearch,
    TextTopK,
    best_first,
    indexed_columns_text,
    indexed_text_columns,
    merge_scores,
)
from spark_lance.table.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from spark_lance.index.base.search_rows import Addresses


class CompoundSearch:
    """Searches the text columns of one version.

    Args:
        snapshot: the version.
        fast_search: leave out rows that are not indexed.
        searches: open searches of this version by column; further ones are added.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        fast_search: bool = False,
        searches: dict[str, TextSearch] | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._fast = fast_search
        self._searches = {} if searches is None else searches

    def run(self, query: FullTextQuery, k: int | None = None, allowed: Addresses | None = None) -> TextTopK:
        """Return the rows that answer a query, best first.

        Args:
            query: what is asked.
            k: rows that are wanted; all by default.
            allowed: addresses of the rows that may be found, ascending; all by default.

        Raises:
            OptionError: a query of a kind that is not known, or of no column where several have an index.
            SchemaError: a column does not exist, or holds no text.
        """
        if isinstance(query, MatchQuery | PhraseQuery):
            return self._leaf(query, k, allowed)
        result = best_first([self._answer(query, allowed)])
        return TextTopK(result.addresses[:k], result.scores[:k])

    def _answer(self, query: FullTextQuery, allowed: Addresses | None) -> TextTopK:
        if isinstance(query, MatchQuery | PhraseQuery):
            return self._leaf(query, None, allowed)
        if isinstance(query, MultiMatchQuery):
            return merge_scores([self._answer(part, allowed) for part in query.parts], np.maximum)
        if isinstance(query, BoostQuery):
            return self._boosted(query, allowed)
        if isinstance(query, BooleanQuery):
            return self._combined(query, allowed)
        raise OptionError(f"a text query cannot be a {type(query).__name__}")

    def _leaf(self, query: MatchQuery | PhraseQuery, k: int | None, allowed: Addresses | None) -> TextTopK:
        search = self._search(query.column)
        if isinstance(query, PhraseQuery):
            leaf_query = TextQuery(query.query, k, phrase=True, slop=query.slop, fast_search=self._fast)
            return search.run(leaf_query, allowed)
        leaf_query = TextQuery(
            query.query,
            k,
            "and" if query.operator.value == "AND" else "or",
            fast_search=self._fast,
            fuzziness=query.fuzziness,
            max_expansions=query.max_expansions,
            prefix_length=query.prefix_length,
        )
        result = search.run(leaf_query, allowed)
        return TextTopK(result.addresses, result.scores * np.float32(query.boost))

    def _search(self, column: str | None) -> TextSearch:
        if column is None:
            columns = indexed_text_columns(self._snapshot.manifest)
            if len(columns) != 1:
                raise OptionError(
                    f"a text query is for one column: say which; {indexed_columns_text(columns)}"
                )
            (column,) = columns
        if column not in self._searches:
            self._searches[column] = TextSearch(self._snapshot, column)
        return self._searches[column]

    def _boosted(self, query: BoostQuery, allowed: Addresses | None) -> TextTopK:
        positive, lost = self._answer(query.positive, allowed), self._answer(query.negative, allowed)
        order = np.argsort(lost.addresses)
        places, hits = _places(positive.addresses, lost.addresses[order])
        scores = positive.scores.copy()
        scores[hits] -= np.float32(query.negative_boost) * lost.scores[order][places[hits]]
        return TextTopK(positive.addresses, scores)

    def _combined(self, query: BooleanQuery, allowed: Addresses | None) -> TextTopK:
        by_kind: dict[Occur, list[TextTopK]] = {kind: [] for kind in Occur}
        for kind, part in query.queries:
            by_kind[Occur(kind)].append(self._answer(part, allowed))
        must, should = by_kind[Occur.MUST], by_kind[Occur.SHOULD]
        result = merge_scores([*must, *should], np.add)
        keep = np.ones(len(result.addresses), np.bool_)
        for clause in must:
            keep &= np.isin(result.addresses, clause.addresses)
        for refused in by_kind[Occur.MUST_NOT]:
            keep &= ~np.isin(result.addresses, refused.addresses)
        return TextTopK(result.addresses[keep], result.scores[keep])


def _places(addresses: Addresses, among: Addresses) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return where rows are among others, which ascend, and which of them are there."""
    places = np.searchsorted(among, addresses)
    hits = places < len(among)
    hits[hits] = among[places[hits]] == addresses[hits]
    return places, hits
