"""The functions of `lance.util`, the clusters of `lance.util.KMeans` and the graphs of `lance.util.HNSW`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.expressions.values import parse_moment
from spark_lance.file.base.version import FileVersion
from spark_lance.index.base.files import IndexFileWriter
from spark_lance.index.vector.base.kmeans import assign, train_kmeans
from spark_lance.index.vector.base.metrics import metric_named, unit
from spark_lance.index.vector.graph import Graph, GraphParams, build_graph
from spark_lance.index.vector.storage import GRAPH_SCHEMA, graph_columns, graph_note
from spark_lance.io.store import open_store

__all__ = [
    "HNSW",
    "KMeans",
    "sanitize_ts",
    "td_to_micros",
    "validate_vector_index",
]


@raises_os_errors
class KMeans:
    """Finds clusters of vectors, and assigns vectors to clusters.

    Args:
        k: the number of clusters.
        metric_type: l2, cosine or dot.
        max_iters: the maximum number of passes over the vectors.
        centroids: the float32 centroids to use; by default `fit` finds them.
    """

    def __init__(
        self, k: int, metric_type: str = "l2", max_iters: int = 50, centroids: pa.Array | None = None
    ) -> None:
        self.k = k
        self._metric = metric_named(metric_type.lower())
        self._max_iters = max_iters
        self._centroids = None if centroids is None else _matrix(centroids)

    def __repr__(self) -> str:
        return f"lance.KMeans(k={self.k}, metric_type={self._metric})"

    @property
    def centroids(self) -> pa.Array | None:
        """The centroids as an array of tensors; None before `fit`."""
        centroids = self._centroids
        return None if centroids is None else pa.FixedShapeTensorArray.from_numpy_ndarray(centroids)

    def fit(self, data: Any) -> None:
        """Find the centroids of float32 vectors: fixed-size lists, 1-D tensors, or a matrix."""
        rows = self._prepared(data)
        self._centroids = train_kmeans(
            rows, self.k, spherical=self._metric == "dot", iterations=self._max_iters
        )

    def predict(self, data: Any) -> pa.UInt32Array:
        """Return the cluster number of each vector.

        Raises:
            OptionError: `fit` has not found centroids yet.
        """
        if self._centroids is None:
            raise OptionError("there are no centroids yet: call fit() first")
        owners = assign(self._prepared(data), self._centroids, spherical=self._metric == "dot")[0]
        return pa.array(owners.astype(np.uint32))

    def _prepared(self, data: Any) -> npt.NDArray[np.float32]:
        rows = _matrix(data)
        return unit(rows).astype(np.float32) if self._metric == "cosine" else rows


@raises_os_errors
@dataclass(frozen=True)
class HNSW:
    """A navigable graph of vectors, see `build`."""

    _graph: Graph = field(repr=False)
    _vectors: pa.Array = field(repr=False)

    @staticmethod
    def build(
        vectors_array: Iterator[pa.Array], max_level: int = 7, m: int = 20, ef_construction: int = 100
    ) -> HNSW:
        """Build the graph of arrays of float32 vectors.

        Args:
            vectors_array: the arrays: fixed-size lists.
            max_level: the maximum number of levels.
            m: the number of links of a vector; level 0 has twice as many.
            ef_construction: the number of candidates for the links of a vector.
        """
        vectors = pa.chunked_array(list(vectors_array)).combine_chunks()
        return HNSW(build_graph(_matrix(vectors), GraphParams(m, ef_construction, max_level)), vectors)

    def to_lance_file(self, file_path: str | os.PathLike[str]) -> None:
        """Write the graph to a file of version 2.0, as vector indexes store it. pylance writes 0.1."""
        store, path = open_store(file_path, None)
        with IndexFileWriter(store, path, GRAPH_SCHEMA, FileVersion.V2_0) as writer:
            writer.write(graph_columns(self._graph))
            writer.finish({"lance:hnsw": graph_note(self._graph)})

    def vectors(self) -> pa.Array:
        """Return the vectors."""
        return self._vectors


def _matrix(data: Any) -> npt.NDArray[np.float32]:
    if isinstance(data, pa.FixedShapeTensorArray):
        if len(data.type.shape) != 1:
            raise OptionError(f"a vector must be a 1-D array, got {len(data.type.shape)}-D")
        data = data.storage
    if isinstance(data, pa.FixedSizeListArray):
        if data.type.value_type != pa.float32():
            raise OptionError(f"Array must be float32 type, got: {data.type.value_type}")
        return data.flatten().to_numpy(zero_copy_only=False).reshape(len(data), -1)  # type: ignore[no-any-return]
    if isinstance(data, np.ndarray):
        if data.dtype != np.float32 or data.ndim != 2:
            raise OptionError(
                f"Numpy array must be a matrix of float32 type, got: {data.ndim}-D {data.dtype}"
            )
        return data
    raise OptionTypeError("vectors are a FixedSizeListArray, a tensor or a numpy array")


def sanitize_ts(ts: Any) -> datetime:
    """Return a time as a datetime; a string must be in ISO 8601 format."""
    if isinstance(ts, str):
        return parse_moment(ts)
    if isinstance(ts, datetime):
        return ts
    if isinstance(ts, date):
        return datetime(ts.year, ts.month, ts.day)
    if hasattr(ts, "to_pydatetime"):
        result: datetime = ts.to_pydatetime()
        return result
    raise TypeError(f"Unrecognized version timestamp {ts} of type {type(ts)}")


def td_to_micros(td: timedelta) -> int:
    """Return a duration in microseconds."""
    return round(td / timedelta(microseconds=1))


@raises_os_errors
def validate_vector_index(
    dataset: Any,
    column: str,
    refine_factor: int = 5,
    sample_size: int | None = None,
    pass_threshold: float = 1.0,
) -> None:
    """Search for vectors of the dataset, and check that each vector finds itself.

    Args:
        dataset: the dataset.
        column: the vector column.
        refine_factor: as for `nearest`.
        sample_size: the number of vectors to search for; all by default.
        pass_threshold: the fraction of these vectors that must find themselves.

    Raises:
        ValueError: too few vectors find themselves.
    """
    rows = dataset.to_table([column]) if sample_size is None else dataset.sample(sample_size, [column])
    hits = total = 0
    for vector in rows[column].to_pylist():
        if vector is None or not np.isfinite(vector).all():
            continue
        query = {"column": column, "q": vector, "k": 1, "refine_factor": refine_factor}
        distance = dataset.to_table([column], nearest=query)["_distance"].to_pylist()
        total += 1
        hits += bool(distance) and abs(distance[0]) < 1e-6
    if total and hits / total < pass_threshold:
        raise ValueError(f"Vector index failed sanity check, only {hits}/{total} vectors find themselves")
