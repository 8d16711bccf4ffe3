"""BM25 scores of texts for a word (k1 = 1.2, b = 0.75).

    idf    = ln((N - n + 0.5) / (n + 0.5) + 1)                        n of N texts have the word
    weight = 2.2 f / (f + 1.2 (0.25 + 0.75 length / average length))  f is the frequency in the text

A text's score is the sum of idf * weight over the words of the query. (Lance index format, inverted.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.numpy_types import Ints

_K1, _B = 1.2, 0.75


def weights(
    frequencies: Ints, lengths: Ints, average: float, texts: int, having: int | Ints
) -> npt.NDArray[np.float32]:
    """Return the scores (float32) of texts for one word.

    Args:
        frequencies: frequency of the word in each text.
        lengths: number of words of each text.
        average: average number of words per text.
        texts: number of texts.
        having: number of texts that have the word; or an array with the number for each text.
    """
    rarity = np.log((texts - having + 0.5) / (having + 0.5) + 1)
    relative = _K1 * (1 - _B + _B * lengths / max(average, 1e-9))
    result: npt.NDArray[np.float32] = (rarity * (_K1 + 1) * frequencies / (frequencies + relative)).astype(
        np.float32
    )
    return result
