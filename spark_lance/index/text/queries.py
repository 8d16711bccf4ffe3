"""Text queries as objects: words, phrases, several columns, and boolean combinations.

    MatchQuery("puppy", "title")                                    a word
    PhraseQuery("new york", "text")                                 adjacent words
    MultiMatchQuery("puppy", ["title", "text"], boosts=[2.0, 1.0])  the best score of several columns
    BooleanQuery([(Occur.MUST, q1), (Occur.MUST_NOT, q2)])          required and excluded parts
    BoostQuery(q1, q2, negative_boost=0.5)                          rows of q1; rows that match q2 rank lower

`q1 & q2` and `q1 | q2` also combine queries.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from spark_lance.errors import OptionError

__all__ = [
    "BooleanQuery",
    "BoostQuery",
    "FullTextOperator",
    "FullTextQuery",
    "MatchQuery",
    "MultiMatchQuery",
    "Occur",
    "PhraseQuery",
]


class FullTextOperator(str, enum.Enum):
    """Whether a row needs one of the words or all of them."""

    AND = "AND"
    OR = "OR"


class Occur(str, enum.Enum):
    """The role of a part of a `BooleanQuery` for a row."""

    SHOULD = "SHOULD"
    MUST = "MUST"
    MUST_NOT = "MUST_NOT"


class FullTextQuery:
    """Base class of text queries."""

    def __and__(self, other: FullTextQuery) -> BooleanQuery:
        return BooleanQuery([*_parts(self, Occur.MUST), *_parts(other, Occur.MUST)])

    def __or__(self, other: FullTextQuery) -> BooleanQuery:
        return BooleanQuery([*_parts(self, Occur.SHOULD), *_parts(other, Occur.SHOULD)])


@dataclass(frozen=True)
class MatchQuery(FullTextQuery):
    """Rows that have words in a column.

    Attributes:
        query: the words.
        column: the column; by default the only column with a text index.
        boost: factor of the score.
        fuzziness: maximum number of inserted, deleted or replaced letters of a matching word. None chooses by
            word length: 0 up to two letters, 1 up to five, 2 beyond.
        max_expansions: maximum number of similar words of the whole query, for fuzzy queries. The first words
            in byte order count, beginning with those similar to the first query word.
        operator: whether a row needs one of the words or all.
        prefix_length: number of first letters that must be equal, for fuzzy queries.
    """

    query: str
    column: str | None = None
    boost: float = 1.0
    fuzziness: int | None = 0
    max_expansions: int = 50
    operator: FullTextOperator = FullTextOperator.OR
    prefix_length: int = 0

    def __post_init__(self) -> None:
        if self.fuzziness is not None and not 0 <= self.fuzziness <= 2:
            raise OptionError(f"fuzziness is 0, 1, 2 or None, not {self.fuzziness!r}")
        object.__setattr__(
            self, "operator", FullTextOperator(str(getattr(self.operator, "value", self.operator)).upper())
        )


@dataclass(frozen=True)
class PhraseQuery(FullTextQuery):
    """Rows that have words next to each other, in this order.

    Attributes:
        query: the words.
        column: the column; by default the only column with a text index.
        slop: maximum number of other words between two adjacent words.
    """

    query: str
    column: str | None = None
    slop: int = 0

    def __post_init__(self) -> None:
        if self.slop < 0:
            raise OptionError(f"slop cannot be negative, as {self.slop} is")


@dataclass(frozen=True)
class MultiMatchQuery(FullTextQuery):
    """Rows that have words in one of several columns. The score is the best column's score.

    Attributes:
        query: the words.
        columns: the columns.
        boosts: factor of the score for each column; 1 by default.
        operator: whether a row needs one of the words or all, within one column.
    """

    query: str
    columns: Sequence[str]
    boosts: Sequence[float] | None = None
    operator: FullTextOperator = FullTextOperator.OR

    def __post_init__(self) -> None:
        if not self.columns:
            raise OptionError("a query of several columns needs columns")
        if self.boosts is not None and len(self.boosts) != len(self.columns):
            raise OptionError(f"{len(self.boosts)} boosts for {len(self.columns)} columns")

    @property
    def parts(self) -> list[MatchQuery]:
        """One query per column."""
        boosts = self.boosts or [1.0] * len(self.columns)
        pairs = zip(self.columns, boosts, strict=True)
        return [
            MatchQuery(self.query, column, boost=boost, operator=self.operator) for column, boost in pairs
        ]


@dataclass(frozen=True)
class BoostQuery(FullTextQuery):
    """Rows of one query, where rows that also match another query rank lower.

    Attributes:
        positive: the query for the rows.
        negative: the query for rows to rank lower.
        negative_boost: the fraction of the negative query's score to subtract.
    """

    positive: FullTextQuery
    negative: FullTextQuery
    negative_boost: float = 0.5


@dataclass(frozen=True)
class BooleanQuery(FullTextQuery):
    """Rows that match all MUST parts, no MUST_NOT part, and, if there is no MUST part, a SHOULD part.

    The score is the sum of the scores of the matching parts.

    Attributes:
        queries: pairs of (`Occur`, query).
    """

    queries: Sequence[tuple[Occur | str, FullTextQuery]]

    def __post_init__(self) -> None:
        parts = tuple((Occur(str(getattr(how, "value", how)).upper()), query) for how, query in self.queries)
        object.__setattr__(self, "queries", parts)
        if not any(how is not Occur.MUST_NOT for how, _ in parts):
            raise OptionError("a query of what must not be alone finds nothing: say what must or should be")


def _parts(query: FullTextQuery, how: Occur) -> Sequence[tuple[Occur | str, FullTextQuery]]:
    """Return the parts of a query if all have the role `how`; otherwise the query as one part."""
    if isinstance(query, BooleanQuery) and all(kind is how for kind, _ in query.queries):
        return query.queries
    return [(how, query)]
