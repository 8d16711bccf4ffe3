"""Several rankings of rows as one, by reciprocal rank fusion.

    score(row) = sum over rankings of  weight / (constant + rank of the row)

Ranks count from 1; a ranking that does not have a row adds nothing to it. (Cormack, Clarke and Buettcher,
SIGIR 2009, where the constant is 60 and all weights are 1.)
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
    """Return the rows of all rankings and their scores, best first; rows of one score by address.

    Args:
        rankings: addresses of rows, each at most once in a ranking, best first.
        weights: one for each ranking.
        constant: the larger it is, the less the first places stand out.

    Returns:
        Addresses (n,) uint64, and scores (n,) float32.
    """
    addresses, places = np.unique(np.concatenate([np.empty(0, np.uint64), *rankings]), return_inverse=True)
    scores = np.zeros(len(addresses))
    begin = 0
    for ranking, weight in zip(rankings, weights, strict=True):
        ranks = np.arange(1, len(ranking) + 1)
        scores[places[begin : begin + len(ranking)]] += weight / (constant + ranks)
        begin += len(ranking)
    order = np.lexsort((addresses, -scores))
    return addresses[order], scores[order].astype(np.float32)
