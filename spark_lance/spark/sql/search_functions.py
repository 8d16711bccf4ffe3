"""Declares the table functions for searches and changes, with their arguments and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VECTOR_KEYS = (
    "metric",
    "nprobes",
    "minimum_nprobes",
    "maximum_nprobes",
    "refine_factor",
    "ef",
    "use_index",
    "fast_search",
    "distance_range",
)
TEXT_KEYS = ("operator", "phrase", "fast_search")
HYBRID_KEYS = ("candidates", "vector_weight", "text_weight", "rank_constant")


@dataclass(frozen=True)
class SearchFunction:
    """A table function.

    Attributes:
        parameters: names of the arguments after the table, in order.
        optional: the number of optional arguments at the end.
        keys: valid options of the search. Options of reads are valid, too.
        usage: the text of DESCRIBE FUNCTION.
    """

    parameters: tuple[str, ...]
    optional: int
    keys: tuple[str, ...]
    usage: str


# Functions for the changes of a table -> their first argument. Delta has one for names and one for paths.
# Here both accept names and paths.
CHANGE_FUNCTIONS = {"table_changes": "table", "table_changes_by_path": "path"}
SEARCH_FUNCTIONS: Mapping[str, SearchFunction] = {
    "vector_search": SearchFunction(
        ("column", "vector", "k", "options"),
        1,
        VECTOR_KEYS,
        "_FUNC_(table, column, vector, k[, options]) - The k rows of a Lance table nearest to a vector, with "
        "_distance.",
    ),
    "text_search": SearchFunction(
        ("column", "query", "k", "options"),
        1,
        TEXT_KEYS,
        "_FUNC_(table, column, query, k[, options]) - The k rows of a Lance table that answer words best, "
        "with _score.",
    ),
    "hybrid_search": SearchFunction(
        ("vector_column", "vector", "text_column", "query", "k", "options"),
        1,
        (*VECTOR_KEYS, *TEXT_KEYS, *HYBRID_KEYS),
        "_FUNC_(table, vector_column, vector, text_column, query, k[, options]) - The k rows of a Lance "
        "table that a vector and words rank best together, with _relevance_score.",
    ),
    **{
        name: SearchFunction(
            ("start", "end"),
            1,
            (),
            f"_FUNC_({table}, start[, end]) - The rows of a Lance table that changed from a version or time "
            "to another, both included, with _change_type, _commit_version and _commit_timestamp.",
        )
        for name, table in CHANGE_FUNCTIONS.items()
    },
}
