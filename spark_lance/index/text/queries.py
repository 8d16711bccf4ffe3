"""Queries of text as objects: words, phrases, several columns, and boolean combinations.

    MatchQuery("puppy", "title")                                    a word
    PhraseQuery("new york", "text")                                 adjacent words
    MultiMatchQuery("puppy", ["title", "text"], boosts=[2.0, 1.0])  the best of several columns
    BooleanQuery([(Occur.MUST, q1), (Occur.MUST_NOT, q2)])          required and excluded parts
    BoostQuery(q1, q2, negative_boost=0.5)                          rows of q1, those of q2 further down

`q1 & q2` and `q1 | q2` combine queries, too.
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
    """A query of text."""

    def __and__(self, other: FullTextQuery) -> BooleanQuery:
        return BooleanQuery([*_parts(self, Occur.MUST), *_parts(other, Occur.MUST)])

    def __or__(self, other: FullTextQuery) -> BooleanQuery:
        return BooleanQuery([*_parts(self, Occur.SHOULD), *_parts(other, Occur.SHOULD)])


@dataclass(frozen=True)
class MatchQuery(FullTextQuery):
    """Rows that have words in a column.

    Attributes:
        query: the words.
        column: the column; the one with an index if it is None.
        boost: factor of the score.
        fuzziness: letters by which a word of a row may differ: inserted, left out, or others; None chooses by
            the length of the word: 0 up to two letters, 1 up to five, 2 beyond.
        max_expansions: the most words of rows that one word of the query stands for then.
        operator: whether a row needs one of the words or all.
        prefix_length: first letters that must be the same.
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
    """Rows in which words stand side by side, in this order.

    Attributes:
        query: the words.
        column: the column; the one with an index if it is None.
        slop: other words that may stand between each two of them.
    """

    query: str
    column: str | None = None
    slop: int = 0

    def __post_init__(self) -> None:
        if self.slop < 0:
            raise OptionError(f"slop cannot be negative, as {self.slop} is")


@dataclass(frozen=True)
class MultiMatchQuery(FullTextQuery):
    """Rows that have words in one of several columns; the score is that of the best column.

    Attributes:
        query: the words.
        columns: the columns.
        boosts: a factor of the score for each of them.
        operator: whether a row needs one of the words or all, in one column.
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
        """One query for each column."""
        boosts = self.boosts or [1.0] * len(self.columns)
        pairs = zip(self.columns, boosts, strict=True)
        return [
            MatchQuery(self.query, column, boost=boost, operator=self.operator) for column, boost in pairs
        ]


@dataclass(frozen=True)
class BoostQuery(FullTextQuery):
    """Rows of one query; rows that also answer another query lose a part of that query's score.

    Attributes:
        positive: the query for the rows.
        negative: the query for rows to rank lower.
        negative_boost: the part of the other's score that they lose.
    """

    positive: FullTextQuery
    negative: FullTextQuery
    negative_boost: float = 0.5


@dataclass(frozen=True)
class BooleanQuery(FullTextQuery):
    """Rows that answer all that must be, nothing that must not be, and one that should be if nothing must.

    The score is the sum of those of the parts that a row answers.

    Attributes:
        queries: pairs of what a part means and the part.
    """

    queries: Sequence[tuple[Occur | str, FullTextQuery]]

    def __post_init__(self) -> None:
        parts = tuple((Occur(str(getattr(how, "value", how)).upper()), query) for how, query in self.queries)
        object.__setattr__(self, "queries", parts)
        if not any(how is not Occur.MUST_NOT for how, _ in parts):
            raise OptionError("a query of what must not be alone finds nothing: say what must or should be")


def _parts(query: FullTextQuery, how: Occur) -> Sequence[tuple[Occur | str, FullTextQuery]]:
    """Return the parts of a query if all of them mean the same, else the query as one part."""
    if isinstance(query, BooleanQuery) and all(kind is how for kind, _ in query.queries):
        return query.queries
    return [(how, query)]
