"""Tables of vectors for tests, and what pylance and a plain search say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.index.vector.base.metrics import Metric, exact_distances

__all__ = ["clustered", "exact_neighbours", "pylance_neighbours", "table_of", "write_pylance"]

Matrix = npt.NDArray[Any]


def clustered(rows: int, dim: int, *, clusters: int = 10, seed: int = 0, dtype: Any = np.float32) -> Matrix:
    """Return random vectors around some centres."""
    random = np.random.default_rng(seed)
    centers = random.standard_normal((clusters, dim))
    drawn = centers[random.integers(0, clusters, rows)] + random.standard_normal((rows, dim))
    return drawn.astype(dtype)


def table_of(vectors: Matrix, first: int = 0) -> pa.Table:
    """Return a table of ids and vectors."""
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    return pa.table({"id": np.arange(first, first + len(vectors)), "v": values})


def write_pylance(path: Path, vectors: Matrix, **options: Any) -> lance.LanceDataset:
    """Write a table of vectors with pylance."""
    return lance.write_dataset(table_of(vectors), str(path), **options)


def pylance_neighbours(path: Path, query: Matrix, k: int, **options: Any) -> tuple[list[int], list[float]]:
    """Return ids and distances of the rows that pylance finds."""
    nearest = {"column": "v", "q": query, "k": k, **options}
    result = lance.dataset(str(path)).to_table(columns=["id", "_distance"], nearest=nearest)
    return result["id"].to_pylist(), result["_distance"].to_pylist()


def exact_neighbours(vectors: Matrix, query: Matrix, k: int, metric: Metric) -> list[int]:
    """Return the places of the nearest vectors, all of them compared."""
    order = np.argsort(exact_distances(query, vectors, metric), kind="stable")
    return [int(place) for place in order[:k]]
