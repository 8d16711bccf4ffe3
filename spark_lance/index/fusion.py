"""Merge several rankings of rows into one by reciprocal rank fusion.

    score(row) = sum over rankings of  weight / (constant + rank of the row)

Ranks start at 1. A ranking without the row adds nothing to the row's score. Source: Cormack, Clarke and
Buettcher, SIGIR 2009, with constant 60 and all weights 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from spark_lance.index.base.search_rows import Addresses

RANK_CONSTANT = 60.0


def reciprocal_rank_fusion(
    rankings: Sequence[Addresses], weights: Sequence[float], constant: float = RANK_CONSTANT
) -> tuple[Addresses, npt.NDArray[np.float32]]:
    """Return the rows of all rankings with their scores, best first. Ties are ordered by address.

    Args:
        rankings: row addresses of each ranking, best first, without duplicates.
        weights: one weight per ranking.
        constant: a larger constant gives the top ranks less advantage.

    Returns:
        Addresses (n,) uint64, and scores (n,) float32.
    """
    addresses, slots = np.unique(np.concatenate([np.empty(0, np.uint64), *rankings]), return_inverse=True)
    scores = np.zeros(len(addresses))
    begin = 0
    for ranking, weight in zip(rankings, weights, strict=True):
        ranks = np.arange(1, len(ranking) + 1)
        scores[slots[begin : begin + len(ranking)]] += weight / (constant + ranks)
        begin += len(ranking)
    order = np.lexsort((addresses, -scores))
    return addresses[order], scores[order].astype(np.float32)
