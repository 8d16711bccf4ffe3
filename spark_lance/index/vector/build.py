"""Building a segment: train on a sample, code all rows, write them partition by partition.

`train` sees a sample in memory. `write_rows` streams: codes go to temporary files as they come, and are
picked from them partition by partition; in memory are the partition and the row id of every row. Both know
nothing of tables, so that a task of any engine can run them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numpy_type, one_array
from spark_lance.errors import ColumnTypeError, IndexKindError, OptionError, suggestion
from spark_lance.file.base.version import FileVersion
from spark_lance.index.vector.base.ivf import Ivf, prepared
from spark_lance.index.vector.base.metrics import Metric, Vectors, metric_named
from spark_lance.index.vector.graph import Graph, GraphParams, build_graph
from spark_lance.index.vector.kinds import as_vectors_hint, is_multi, vector_kind
from spark_lance.index.vector.quantizers import QUANTIZERS
from spark_lance.index.vector.quantizers.base import Quantizer
from spark_lance.index.vector.storage import (
    INDEX_TYPES,
    Partition,
    RowIds,
    VectorSegment,
    write_segment,
)
from spark_lance.io.store import Store

_VALUE_TYPES = {pa.float16(), pa.float32(), pa.float64(), pa.uint8()}
_ROWS_PER_PARTITION = 4096
_ROWS_PER_GRAPH = 1 << 20
# More are not made unless asked for: training looks at a sample for each, in the memory of one task.
_MOST_PARTITIONS = 1 << 14


@dataclass(frozen=True)
class IndexParams:
    """The kind of the index to build.

    Attributes:
        kind: a key of `INDEX_TYPES`.
        metric: "l2", "cosine", "dot" or "hamming".
        num_partitions: by default one per 4,096 rows, with graphs one per million, at most 16,384.
        num_sub_vectors: of PQ; by default a 16th of the dimension.
        num_bits: of PQ (8 or 4) or RQ (1 to 9, 5 by default).
        sample_rate: rows per partition, and per codeword, that training looks at.
        max_iterations: of each k-means.
        rotation: of RQ.
        graph: of the types with graphs.
        centroids: (partitions, dim), in place of those that training would find.
        rotation_signs: of RQ with the rotation "fast", in place of random ones.
        codebook: of PQ, (sub-vectors, codewords, dim / sub-vectors), likewise; it goes with centroids.
    """

    kind: str
    metric: Metric = "l2"
    num_partitions: int | None = None
    num_sub_vectors: int | None = None
    num_bits: int | None = None
    sample_rate: int = 256
    max_iterations: int = 50
    rotation: Literal["fast", "matrix"] = "fast"
    graph: GraphParams = field(default_factory=GraphParams)
    centroids: Vectors | None = None
    codebook: Vectors | None = None
    rotation_signs: bytes | None = None

    def __post_init__(self) -> None:
        if self.kind not in INDEX_TYPES:
            names = ", ".join(INDEX_TYPES)
            scalar = (
                f"; for values and text write create_scalar_index(column, {self.kind!r}) (in Spark "
                "createScalarIndex)"
            )
            raise IndexKindError(
                f"there is no vector index {self.kind!r}: use one of {names}"
                f"{suggestion(self.kind, INDEX_TYPES) or scalar}"
            )
        metric_named(self.metric)
        if self.metric == "hamming" and not _keeps_bits(self.kind):
            fitting = ", ".join(kind for kind in INDEX_TYPES if _keeps_bits(kind))
            raise OptionError(f"the metric hamming goes with {fitting} only")
        if self.num_partitions is not None and self.num_partitions < 1:
            raise OptionError(f"an index cannot have {self.num_partitions} partitions")
        if self.centroids is not None:
            shape = self.centroids.shape
            if len(shape) != 2 or not shape[0]:
                raise OptionError(f"Ivf centroids must be 2D array: (clusters, dim), got {shape}")
            if self.num_partitions not in (None, shape[0]):
                raise OptionError(
                    f"Ivf centroids has {shape[0]} clusters, but num_partitions={self.num_partitions}"
                )
        elif self.codebook is not None:
            raise OptionError("ivf_centroids must be specified when pq_codebook is provided")
        if self.rotation_signs is not None and not QUANTIZERS[INDEX_TYPES[self.kind][0]].rotates:
            raise OptionError(f"rabitq_model goes with IVF_RQ, not {self.kind}")

    def partitions_for(self, rows: int) -> int:
        """Return the number of partitions for a number of rows."""
        if self.centroids is not None:
            return len(self.centroids)
        per_partition = _ROWS_PER_GRAPH if INDEX_TYPES[self.kind][1] else _ROWS_PER_PARTITION
        return self.num_partitions or min(_MOST_PARTITIONS, max(1, round(rows / per_partition)))

    def sample_size(self, rows: int) -> int:
        """Return how many of the rows training uses."""
        words = QUANTIZERS[INDEX_TYPES[self.kind][0]].codewords(self.num_bits)
        return min(rows, self.sample_rate * max(self.partitions_for(rows), words))


def _keeps_bits(kind: str) -> bool:
    name, has_graph = INDEX_TYPES[kind]
    return QUANTIZERS[name].keeps_bits and not has_graph


@dataclass(frozen=True)
class TrainedModel:
    """The result of training; can be pickled and sent to tasks."""

    recipe: IndexParams
    ivf: Ivf
    quantizer: Quantizer
    dtype: np.dtype[Any]


def vector_type(kind: pa.DataType, metric: Metric) -> tuple[int, np.dtype[Any]]:
    """Return (dimension, numpy type) of a column of vectors.

    Raises:
        SchemaError: the column has no vectors that can be indexed.
        OptionError: the format has no index of the metric for it.
    """
    if is_multi(kind) and metric != "cosine":
        raise OptionError(f"an index of lists of vectors is of metric cosine, not {metric}")
    kind = vector_kind(kind)
    fits = pa.types.is_fixed_size_list(kind) and kind.value_type in _VALUE_TYPES
    if not fits or (kind.value_type == pa.uint8()) != (metric == "hamming"):
        raise ColumnTypeError(
            f"a column of type {kind} cannot have a vector index of metric {metric}: it takes a "
            f"fixed_size_list of float16, float32 or float64, or of uint8 for hamming{as_vectors_hint(kind)}"
        )
    return kind.list_size, numpy_type(kind.value_type)


def as_matrix(column: pa.Array | pa.ChunkedArray) -> tuple[Vectors, npt.NDArray[np.bool_]]:
    """Return the vectors of a column, and which rows have one without nulls and NaN.

    Returns:
        (n, dim) of the vectors there are, and (rows,) bool.
    """
    array = one_array(column)
    width = array.type.list_size
    valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), dtype=np.bool_)
    values = array.flatten() if array.null_count == 0 else array.filter(pa.array(valid)).flatten()
    if values.null_count:
        with_null = np.asarray(values.is_null().to_numpy(zero_copy_only=False)).reshape(-1, width).any(axis=1)
        values = values.fill_null(0)
    else:
        with_null = np.zeros(int(valid.sum()), dtype=np.bool_)
    matrix = values.to_numpy(zero_copy_only=False).reshape(-1, width)
    bad = with_null if matrix.dtype == np.uint8 else with_null | np.isnan(matrix).any(axis=1)
    if bad.any():
        valid[np.flatnonzero(valid)[bad]] = False
        matrix = matrix[~bad]
    return matrix, valid


def train(recipe: IndexParams, sample: Vectors, rows: int) -> TrainedModel:
    """Find centroids and the parameters of the codes.

    Args:
        recipe: what is built.
        sample: (n, dim), of `recipe.sample_size(rows)` rows or all there are.
        rows: of the table.

    Raises:
        OptionError: no row has a vector, or the dimension does not fit.
    """
    dtype = sample.dtype
    metric = recipe.metric
    sample = prepare_sample(sample, metric)
    partitions = recipe.partitions_for(rows)
    if recipe.centroids is not None:
        if recipe.centroids.shape[1] != sample.shape[1]:
            raise OptionError(
                f"centroids of {recipe.centroids.shape[1]} values do not go with vectors of {sample.shape[1]}"
            )
        ivf = Ivf(recipe.centroids.astype(sample.dtype), metric)
    else:
        ivf = Ivf.train(
            sample[: recipe.sample_rate * partitions], partitions, metric, iterations=recipe.max_iterations
        )
    quantizer = QUANTIZERS[INDEX_TYPES[recipe.kind][0]].fit(sample, ivf, recipe, dtype)
    return TrainedModel(recipe, ivf, quantizer, dtype)


def prepare_sample(sample: Vectors, metric: Metric) -> Vectors:
    """Return the vectors of a sample (n, dim) as training sees them, without those that are not finite.

    Raises:
        OptionError: none is left.
    """
    if metric != "hamming":
        sample = prepared(sample, metric)
        sample = sample[np.isfinite(sample).all(axis=1)]
    if not len(sample):
        raise OptionError("no row has a vector, so there is nothing to train an index on")
    return sample


def write_rows(
    trained: TrainedModel,
    store: Store,
    directory: str,
    rows: Iterable[tuple[RowIds, Vectors]],
    version: FileVersion,
) -> dict[str, int]:
    """Code rows and write them as a segment.

    Args:
        trained: what training found.
        store, directory: where the segment goes.
        rows: pieces of (row ids (n,) uint64, vectors (n, dim)), without nulls and NaN.
        version: file version.

    Returns:
        File name -> bytes.
    """
    with coded_rows(trained, rows) as partitions:
        return merge_segments(trained, store, directory, [partitions], version)


@contextmanager
def coded_rows(
    trained: TrainedModel, rows: Iterable[tuple[RowIds, Vectors]]
) -> Iterator[Iterable[Partition]]:
    """Code rows, see `write_rows`, and lend their partitions in order; temporary files go when it ends."""
    quantizer, ivf = trained.quantizer, trained.ivf
    with tempfile.TemporaryDirectory() as folder:
        partitions = _PartitionBuffer(Path(folder))
        for ids, vectors in rows:
            prepared = ivf.prepared(vectors)
            owners = ivf.assign(prepared)
            partitions.add(ids, owners, quantizer.encode(prepared, owners, ivf))
        yield partitions.partitions(len(ivf))


def merge_segments(
    trained: TrainedModel,
    store: Store,
    directory: str,
    segments: Sequence[Iterable[Partition]],
    version: FileVersion,
) -> dict[str, int]:
    """Write one segment with the rows of several that share centroids and code parameters.

    Args:
        trained: what they share.
        segments: the partitions of each, in order, codes row by row.
        store, directory, version: see `write_rows`.
    """
    return _write(
        trained, store, directory, (_joined(parts) for parts in zip(*segments, strict=True)), version
    )


def reopen(segment: VectorSegment, recipe: IndexParams) -> TrainedModel:
    """Return what was trained for a stored segment; `recipe` says how graphs are built."""
    return TrainedModel(recipe, segment.ivf, segment.quantizer, segment.value_type)


def _joined(parts: Sequence[Partition]) -> Partition:
    parts = [part for part in parts if len(part.row_ids)] or parts[:1]
    ids = np.concatenate([part.row_ids for part in parts])
    order = np.argsort(ids, kind="stable")
    names = list(parts[0].codes)
    codes = {name: np.concatenate([part.codes[name] for part in parts])[order] for name in names}
    return Partition(ids[order], codes)


def _write(
    trained: TrainedModel, store: Store, directory: str, partitions: Iterable[Partition], version: FileVersion
) -> dict[str, int]:
    recipe, quantizer = trained.recipe, trained.quantizer

    def graph(partition: Partition) -> Graph:
        points = quantizer.comparable(partition.codes)
        return build_graph(points, recipe.graph, inner=recipe.metric == "dot")

    return write_segment(
        store,
        directory,
        recipe.kind,
        trained.ivf,
        quantizer,
        partitions,
        version,
        centroid_type=trained.dtype,
        graphs=graph if INDEX_TYPES[recipe.kind][1] else None,
    )


class _PartitionBuffer:
    """Codes of rows in temporary files, one per column, in the order in which they came."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids: list[RowIds] = []
        self._owners: list[npt.NDArray[np.int32]] = []
        self._kinds: dict[str, tuple[np.dtype[Any], int | None]] = {}

    def add(self, ids: RowIds, owners: npt.NDArray[np.int64], codes: Mapping[str, npt.NDArray[Any]]) -> None:
        self._ids.append(ids)
        self._owners.append(owners.astype(np.int32))
        for name, values in codes.items():
            self._kinds[name] = (values.dtype, values.shape[1] if values.ndim == 2 else None)
            with (self._folder / name).open("ab") as file:
                np.ascontiguousarray(values).tofile(file)

    def partitions(self, count: int) -> Iterator[Partition]:
        if not sum(map(len, self._ids)):
            yield from (Partition(np.empty(0, np.uint64), {}) for _ in range(count))
            return
        ids, owners = np.concatenate(self._ids), np.concatenate(self._owners)
        order = np.argsort(owners, kind="stable")
        ends = np.cumsum(np.bincount(owners, minlength=count))
        columns = {}
        for name, (dtype, width) in self._kinds.items():
            shape = (len(ids),) if width is None else (len(ids), width)
            columns[name] = np.memmap(self._folder / name, dtype, "r", shape=shape)
        for number in range(count):
            rows = order[ends[number - 1] if number else 0 : ends[number]]
            yield Partition(ids[rows], {name: np.asarray(values[rows]) for name, values in columns.items()})
