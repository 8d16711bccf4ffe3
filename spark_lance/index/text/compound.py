"""CompoundSearch: run compound text queries. Each part searches one column; then the results are combined."""

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
        fast_search: whether to skip rows that are not indexed.
        searches: open searches of this version by column. New searches are added.
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
        """Return the rows that match a query, best first.

        Args:
            query: the query.
            k: maximum number of rows; all matching rows by default.
            allowed: addresses of the rows that may be returned, ascending; all by default.

        Raises:
            OptionError: the kind of query is unknown, or a query has no column and not exactly one column has
                a text index.
            SchemaError: a column does not exist, or has no text.
        """
        if isinstance(query, MatchQuery | PhraseQuery):
            return self._run_leaf(query, k, allowed)
        result = best_first([self._answer(query, allowed)])
        return TextTopK(result.addresses[:k], result.scores[:k])

    def _answer(self, query: FullTextQuery, allowed: Addresses | None) -> TextTopK:
        if isinstance(query, MatchQuery | PhraseQuery):
            return self._run_leaf(query, None, allowed)
        if isinstance(query, MultiMatchQuery):
            return merge_scores([self._answer(part, allowed) for part in query.parts], np.maximum)
        if isinstance(query, BoostQuery):
            return self._run_boost(query, allowed)
        if isinstance(query, BooleanQuery):
            return self._run_boolean(query, allowed)
        raise OptionError(f"a text query cannot be a {type(query).__name__}")

    def _run_leaf(
        self, query: MatchQuery | PhraseQuery, k: int | None, allowed: Addresses | None
    ) -> TextTopK:
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

    def _run_boost(self, query: BoostQuery, allowed: Addresses | None) -> TextTopK:
        positive, negative = self._answer(query.positive, allowed), self._answer(query.negative, allowed)
        order = np.argsort(negative.addresses)
        places, hits = _find_sorted(positive.addresses, negative.addresses[order])
        scores = positive.scores.copy()
        scores[hits] -= np.float32(query.negative_boost) * negative.scores[order][places[hits]]
        return TextTopK(positive.addresses, scores)

    def _run_boolean(self, query: BooleanQuery, allowed: Addresses | None) -> TextTopK:
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


def _find_sorted(
    addresses: Addresses, among: Addresses
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the positions of rows in the ascending `among`, and the mask of rows that are in `among`."""
    places = np.searchsorted(among, addresses)
    hits = places < len(among)
    hits[hits] = among[places[hits]] == addresses[hits]
    return places, hits
