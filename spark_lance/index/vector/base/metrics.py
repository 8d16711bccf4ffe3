"""Distances between vectors.

    l2        sum (q - v)^2, not its root
    cosine    1 - <q, v> / (|q| |v|)
    dot       1 - <q, v>
    hamming   number of bits that differ, of uint8 vectors

Arrays in, arrays out. Vectors are rows of a matrix; products go through BLAS. (Lance index format, metrics.)
"""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from spark_lance.errors import OptionError, suggestion

Metric = Literal["l2", "cosine", "dot", "hamming"]
METRICS: tuple[str, ...] = get_args(Metric)

Floats = npt.NDArray[np.floating[Any]]
Vectors = npt.NDArray[Any]

_ALIASES = {"euclidean": "l2"}
_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


def metric_named(name: str) -> Metric:
    """Return the metric of a name, whatever its case.

    Raises:
        OptionError: there is none; the message lists those there are.
    """
    folded = _ALIASES.get(name.lower(), name.lower())
    if folded not in METRICS:
        raise OptionError(
            f"there is no metric {name!r}: use one of {', '.join(METRICS)}{suggestion(name, METRICS)}"
        )
    return cast("Metric", folded)


def unit(vectors: Floats) -> Floats:
    """Return vectors scaled to length 1; those of length 0 stay. Shape (n, dim), floats."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    lengths[lengths == 0] = 1
    return cast("Floats", (vectors / lengths[:, None]).astype(vectors.dtype))


def distances(queries: Vectors, vectors: Vectors, metric: Metric) -> npt.NDArray[np.float32]:
    """Return all distances, as fast as possible: those of l2 lose digits where vectors are much alike.

    Args:
        queries: (q, dim); vectors: (n, dim); floats, or uint8 for hamming.
        metric: the metric.

    Returns:
        (q, n) float32.
    """
    if metric == "hamming":
        return np.stack([_hamming(query, vectors) for query in queries])
    q, v = _as_floats(queries), _as_floats(vectors)
    if metric == "cosine":
        q, v = unit(q), unit(v)
    products = q @ v.T
    if metric == "l2":
        products *= -2
        products += np.einsum("ij,ij->i", v, v)
        products += np.einsum("ij,ij->i", q, q)[:, None]
        np.maximum(products, 0, out=products)
    else:
        products = 1 - products
    result: npt.NDArray[np.float32] = products.astype(np.float32)
    return result


def exact_distances(query: Vectors, vectors: Vectors, metric: Metric) -> npt.NDArray[np.float32]:
    """Return the distances of one query (dim,) to vectors (n, dim), to the precision of float32."""
    if metric == "hamming":
        return _hamming(query, vectors)
    q, v = _as_floats(query), _as_floats(vectors)
    if metric == "l2":
        apart = v - q
        products = np.einsum("ij,ij->i", apart, apart)
    else:
        products = v @ q
        if metric == "cosine":
            lengths = np.sqrt(np.einsum("ij,ij->i", v, v)) * np.sqrt(q @ q)
            lengths[lengths == 0] = 1
            products = products / lengths
        products = 1 - products
    result: npt.NDArray[np.float32] = products.astype(np.float32)
    return result


def _as_floats(vectors: Vectors) -> Floats:
    """Arithmetic is done in float32, and in float64 for float64."""
    return vectors.astype(np.float64 if vectors.dtype == np.float64 else np.float32, copy=False)


def _hamming(query: Vectors, vectors: Vectors) -> npt.NDArray[np.float32]:
    return cast("npt.NDArray[np.float32]", _ONES[vectors ^ query].sum(axis=1, dtype=np.float32))
