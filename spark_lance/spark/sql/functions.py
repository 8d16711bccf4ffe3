"""SQL functions in addition to the catalog: searches in FROM, distances of vectors, and ranges of blobs.

Their classes are compiled at the first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_lance.spark.sql.search_functions import SEARCH_FUNCTIONS

__all__ = ["functions"]

_SEARCH = "org.lance.spark.search.LanceSearch"
_DISTANCE = "org.lance.spark.search.LanceDistance"
_BLOB = "org.lance.spark.catalog.LanceBlob"
_DISTANCES: Mapping[str, str] = {
    "l2_distance": "_FUNC_(a, b) - The sum of squared differences of two arrays of numbers.",
    "cosine_distance": "_FUNC_(a, b) - 1 minus the cosine of the angle between two arrays of numbers.",
    "dot_distance": "_FUNC_(a, b) - 1 minus the product of two arrays of numbers.",
}
_BLOBS: Mapping[str, str] = {
    "lance_blob": "_FUNC_(blob[, offset[, length]]) - The bytes of a blob column, of which only the range is "
    "fetched.",
}


def functions() -> list[dict[str, Any]]:
    """Return the functions: `unit` that has the class, `name`, `usage`, and whether they return `rows`."""
    searches = {name: about.usage for name, about in SEARCH_FUNCTIONS.items()}
    kinds = ((_SEARCH, searches), (_DISTANCE, _DISTANCES), (_BLOB, _BLOBS))
    return [
        {"unit": unit, "name": name, "usage": usage, "rows": named is searches}
        for unit, named in kinds
        for name, usage in named.items()
    ]
