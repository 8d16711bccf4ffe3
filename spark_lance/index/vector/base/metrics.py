"""Distances between vectors.

    l2        sum (q - v)^2, without the square root
    cosine    1 - <q, v> / (|q| |v|)
    dot       1 - <q, v>
    hamming   number of different bits of uint8 vectors

Vectors are the rows of a matrix. Products use BLAS. (Lance index format, metrics.)
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
_BIT_COUNTS = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


def metric_named(name: str) -> Metric:
    """Return the metric of a name, ignoring case.

    Raises:
        OptionError: the name is unknown. The message lists the valid names.
    """
    lowered = _ALIASES.get(name.lower(), name.lower())
    if lowered not in METRICS:
        raise OptionError(
            f"there is no metric {name!r}: use one of {', '.join(METRICS)}{suggestion(name, METRICS)}"
        )
    return cast("Metric", lowered)


def unit(vectors: Floats) -> Floats:
    """Return float vectors (n, dim) normalized to length 1. Zero vectors stay zero."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    lengths[lengths == 0] = 1
    return cast("Floats", (vectors / lengths[:, None]).astype(vectors.dtype))


def distances(queries: Vectors, vectors: Vectors, metric: Metric) -> npt.NDArray[np.float32]:
    """Return all distances, optimized for speed: l2 loses precision for almost equal vectors.

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
    """Return the distances of one query (dim,) to vectors (n, dim), to float32 precision."""
    if metric == "hamming":
        return _hamming(query, vectors)
    q, v = _as_floats(query), _as_floats(vectors)
    if metric == "l2":
        differences = v - q
        products = np.einsum("ij,ij->i", differences, differences)
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
    """Return float64 vectors unchanged, and others as float32."""
    return vectors.astype(np.float64 if vectors.dtype == np.float64 else np.float32, copy=False)


def _hamming(query: Vectors, vectors: Vectors) -> npt.NDArray[np.float32]:
    return cast("npt.NDArray[np.float32]", _BIT_COUNTS[vectors ^ query].sum(axis=1, dtype=np.float32))
