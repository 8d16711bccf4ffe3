"""Hybrid search: combines a vector ranking and a text ranking (`spark_lance/index/fusion.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.datasets.searching import DISTANCE, SCORE
from spark_lance.errors import OptionError
from spark_lance.expressions.predicate import Predicate
from spark_lance.index.base.columns import leaf_field
from spark_lance.index.base.search_rows import Addresses, allowed_rows
from spark_lance.index.fusion import RANK_CONSTANT, reciprocal_rank_fusion
from spark_lance.index.text.search import TextQuery, TextSearch, TextTopK, parse_text_query
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.top_k import TopK
from spark_lance.table.format.manifest import Manifest

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

RELEVANCE = "_relevance_score"
# Default number of rows that each of the two searches ranks; a larger k raises it.
CANDIDATES = 100

_WEIGHTS = ("vector_weight", "text_weight", "rank_constant")
_COUNTS = ("k", "candidates")
_KEYS = {"nearest", "full_text_query", *_COUNTS, *_WEIGHTS}

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HybridQuery:
    """A search for rows that are near a vector, match words, or both.

    Attributes:
        vector: the vector search; its `k` is the number of candidates.
        text_column: the column that the text search reads.
        text: the text search, with the same number of candidates.
        k: the number of rows in the result.
        weights: the weight of the vector search, and the weight of the text search.
        rank_constant: see `reciprocal_rank_fusion`.
    """

    vector: VectorQuery
    text_column: str
    text: TextQuery
    k: int
    weights: tuple[float, float]
    rank_constant: float

    @classmethod
    def parse(cls, manifest: Manifest, request: Mapping[str, Any]) -> HybridQuery:
        """Return the query that a dict describes.

        Args:
            manifest: the version to search.
            request: `nearest` and `full_text_query` as in `LanceDataset.to_table`. Optional keys: `k` (10),
                `candidates`, `vector_weight` (1), `text_weight` (1) and `rank_constant` (60).

        Raises:
            OptionError: a key is unknown or missing, or a value is invalid.
        """
        unknown = sorted(set(request) - _KEYS)
        nearest, words = request.get("nearest"), request.get("full_text_query")
        if unknown or not isinstance(nearest, Mapping) or not isinstance(words, str | Mapping):
            raise OptionError(
                "a hybrid search needs nearest (a dict) and full_text_query (text or a dict); other keys are "
                f"{', '.join(sorted(_KEYS - {'nearest', 'full_text_query'}))}"
                + (f"; unknown: {', '.join(unknown)}" if unknown else "")
            )
        numbers = {name: _number(name, request.get(name)) for name in (*_COUNTS, *_WEIGHTS)}
        k = 10 if numbers["k"] is None else int(numbers["k"])
        candidates = max(CANDIDATES, k) if numbers["candidates"] is None else int(numbers["candidates"])
        if candidates < k:
            raise OptionError(f"candidates of a hybrid search must be at least k ({k}), not {candidates}")
        for name, part in (("nearest", nearest), ("full_text_query", words)):
            if isinstance(part, Mapping) and "k" in part:
                raise OptionError(
                    f"{name} of a hybrid search cannot have its own k: set candidates, the number of rows "
                    "that each search ranks"
                )
        vector = VectorQuery.parse({**nearest, "k": candidates})
        if vector.answers(leaf_field(manifest.schema, vector.column).arrow_type()) > 1:
            raise OptionError("a hybrid search needs exactly one query vector")
        words = {"query": words} if isinstance(words, str) else words
        column, text = parse_text_query(manifest, words, candidates)
        weights = [1.0 if numbers[name] is None else float(numbers[name]) for name in _WEIGHTS[:2]]
        constant = numbers["rank_constant"]
        return cls(
            vector, column, text, k, (weights[0], weights[1]), RANK_CONSTANT if constant is None else constant
        )


@dataclass(frozen=True)
class HybridTopK:
    """The rows of a hybrid search by relevance, best first.

    Attributes:
        addresses: (n,) uint64.
        relevance: (n,) float32.
        distances, scores: (n,) float32; NaN if the row is not a candidate of the vector or text search.
    """

    addresses: Addresses
    relevance: Floats
    distances: Floats
    scores: Floats

    def measure_columns(self) -> dict[str, pa.Array]:
        """Return the distance, score and relevance columns; a missing distance or score is null."""
        return {
            DISTANCE: pa.array(self.distances, mask=np.isnan(self.distances)),
            SCORE: pa.array(self.scores, mask=np.isnan(self.scores)),
            RELEVANCE: pa.array(self.relevance),
        }


def fuse(query: HybridQuery, vector: TopK, text: TextTopK) -> HybridTopK:
    """Return the k best rows of both searches. Each search must be sorted, best row first."""
    addresses, relevance = reciprocal_rank_fusion(
        [vector.addresses, text.addresses], query.weights, query.rank_constant
    )
    addresses = addresses[: query.k]
    return HybridTopK(
        addresses,
        relevance[: query.k],
        _looked_up(addresses, vector.addresses, vector.distances),
        _looked_up(addresses, text.addresses, text.scores),
    )


def hybrid_search(
    dataset: LanceDataset,
    request: Mapping[str, Any],
    *,
    columns: Sequence[str] | None,
    filter: Predicate | None,
    prefilter: bool,
    with_row_id: bool,
    with_row_address: bool,
) -> pa.Table:
    """Return the k rows that a vector search and a text search rank best together.

    A row's relevance is `vector_weight / (rank_constant + rank)` of the vector search plus `text_weight /
    (rank_constant + rank)` of the text search. A search adds nothing for a row that is not one
    of its candidates. The result has the additional columns `_distance`, `_score` (both null if missing) and
    `_relevance_score`. The best row is first.

    Args:
        dataset: the table.
        request: see `HybridQuery.parse`.
        columns: the columns of the result, in order; all by default.
        filter: the condition that every row of the result meets.
        prefilter: whether to apply the filter before the searches, or else to the k rows afterwards.
        with_row_id, with_row_address: see `to_table`.

    Raises:
        OptionError: an option is invalid.
        SchemaError, ExpressionError: a column does not exist, or the filter does not fit.
    """
    query = HybridQuery.parse(dataset.manifest, request)
    searcher = dataset.searcher
    condition = searcher.condition(filter)
    allowed = allowed_rows(dataset.snapshot, condition if prefilter else None)
    (by_vector,) = searcher.vector_search(query.vector.column).run(query.vector, allowed)
    by_words = TextSearch(dataset.snapshot, query.text_column).run(query.text, allowed)
    fused = fuse(query, by_vector, by_words)
    later = None if prefilter else condition
    return searcher.fetch_rows(
        fused.addresses, fused.measure_columns(), columns, later, with_row_id, with_row_address
    )


def _number(name: str, value: Any) -> Any:
    """Return a valid number unchanged, or None for None.

    Raises:
        OptionError: the value is not a number, or is out of range.
    """
    if value is None:
        return None
    whole = isinstance(value, int | np.integer)
    if isinstance(value, bool) or not (whole or isinstance(value, float | np.floating)):
        raise OptionError(f"{name} of a hybrid search must be a number, not {value!r}")
    if name in _COUNTS and (not whole or value < 1):
        raise OptionError(f"{name} of a hybrid search must be a whole number of 1 or more, not {value}")
    if not np.isfinite(value) or value < 0 or (name == "rank_constant" and value == 0):
        raise OptionError(
            f"{name} of a hybrid search must be a finite number that is not negative, not {value}"
        )
    return value


def _looked_up(wanted_addresses: Addresses, addresses: Addresses, values: Floats) -> Floats:
    """Return the value of each wanted address; NaN for an address without a value."""
    result = np.full(len(wanted_addresses), np.nan, np.float32)
    order = np.argsort(addresses)
    places = np.searchsorted(addresses, wanted_addresses, sorter=order)
    there = np.flatnonzero(places < len(addresses))
    rows = order[places[there]]
    same = addresses[rows] == wanted_addresses[there]
    result[there[same]] = values[rows[same]]
    return result
