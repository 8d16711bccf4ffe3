"""Build a vector segment: train on a sample, encode all rows, and write them partition by partition.

`train` needs the sample in memory. `write_rows` streams: it appends codes to temporary files and then reads
them partition by partition. It keeps one partition and all row ids in memory. Neither depends on tables, so a
task of any engine can run them.
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

from spark_lance.arrow.arrays import flags_to_arrow, flags_to_numpy, numbers_to_numpy, numpy_type, one_array
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
# Default maximum: training samples rows for each partition, in the memory of one task.
_MAX_PARTITIONS = 1 << 14


@dataclass(frozen=True)
class IndexParams:
    """Parameters of a vector index to build.

    Attributes:
        kind: a key of `INDEX_TYPES`.
        metric: "l2", "cosine", "dot" or "hamming".
        num_partitions: by default one per 4,096 rows, or one per million with graphs, at most 16,384.
        num_sub_vectors: number of sub-vectors of PQ; by default a 16th of the dimension.
        num_bits: bits per code of PQ (8 or 4, 8 by default) or per dimension of RQ (1 to 9, 5 by default).
        sample_rate: rows per partition, and per codeword, to sample for training.
        max_iterations: maximum iterations of each k-means.
        rotation: kind of rotation of RQ.
        graph: parameters of index types with graphs.
        centroids: (partitions, dim), to use instead of trained centroids.
        rotation_signs: sign bytes for RQ with the rotation "fast", to use instead of random signs.
        codebook: PQ codebook (sub-vectors, codewords, dim / sub-vectors), to use instead of a trained one.
            Requires `centroids`.
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
        if self.metric == "hamming" and not _supports_bits(self.kind):
            fitting = ", ".join(kind for kind in INDEX_TYPES if _supports_bits(kind))
            raise OptionError(f"the metric hamming goes with {fitting} only")
        if self.num_partitions is not None and self.num_partitions < 1:
            raise OptionError(f"num_partitions must be 1 or more, not {self.num_partitions}")
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
        """Return the number of partitions for `rows` rows."""
        if self.centroids is not None:
            return len(self.centroids)
        per_partition = _ROWS_PER_GRAPH if INDEX_TYPES[self.kind][1] else _ROWS_PER_PARTITION
        return self.num_partitions or min(_MAX_PARTITIONS, max(1, round(rows / per_partition)))

    def sample_size(self, rows: int) -> int:
        """Return the number of rows to sample for training."""
        words = QUANTIZERS[INDEX_TYPES[self.kind][0]].codewords(self.num_bits)
        return min(rows, self.sample_rate * max(self.partitions_for(rows), words))


def _supports_bits(kind: str) -> bool:
    return QUANTIZERS[INDEX_TYPES[kind][0]].keeps_bits


@dataclass(frozen=True)
class TrainedModel:
    """The result of training. It can be pickled and sent to tasks."""

    recipe: IndexParams
    ivf: Ivf
    quantizer: Quantizer
    dtype: np.dtype[Any]


def vector_type(kind: pa.DataType, metric: Metric) -> tuple[int, np.dtype[Any]]:
    """Return (dimension, numpy dtype) of a vector column.

    Raises:
        SchemaError: the column's type cannot have a vector index of this metric.
        OptionError: the metric is not supported for lists of vectors.
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
    """Return the valid vectors of a column (n, dim), and the mask of rows with a valid vector (rows,).

    A vector is valid if it is not null and has no null or NaN.
    """
    array = one_array(column)
    width = array.type.list_size
    valid = flags_to_numpy(array.is_valid())
    values = array.flatten() if array.null_count == 0 else array.filter(flags_to_arrow(valid)).flatten()
    if values.null_count:
        with_null = flags_to_numpy(values.is_null()).reshape(-1, width).any(axis=1)
        values = values.fill_null(0)
    else:
        with_null = np.zeros(int(valid.sum()), dtype=np.bool_)
    matrix = numbers_to_numpy(values).reshape(-1, width)
    is_invalid = with_null if matrix.dtype == np.uint8 else with_null | np.isnan(matrix).any(axis=1)
    if is_invalid.any():
        valid[np.flatnonzero(valid)[is_invalid]] = False
        matrix = matrix[~is_invalid]
    return matrix, valid


def train(recipe: IndexParams, sample: Vectors, rows: int) -> TrainedModel:
    """Train centroids and a quantizer.

    Args:
        recipe: parameters of the index.
        sample: (n, dim), of `recipe.sample_size(rows)` rows, or of all rows if there are fewer.
        rows: number of rows to index.

    Raises:
        OptionError: no row has a vector, or the parameters do not fit the dimension.
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
    """Return the sample's vectors (n, dim) prepared for training, without vectors that are not finite.

    Raises:
        OptionError: no vector is left.
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
    """Encode rows and write them as a segment.

    Args:
        trained: the trained model.
        store, directory: location of the segment.
        rows: batches of (row ids (n,) uint64, vectors (n, dim)), without nulls and NaN.
        version: file format version.

    Returns:
        File name -> size in bytes.
    """
    with coded_rows(trained, rows) as partitions:
        return merge_segments(trained, store, directory, [partitions], version)


@contextmanager
def coded_rows(
    trained: TrainedModel, rows: Iterable[tuple[RowIds, Vectors]]
) -> Iterator[Iterable[Partition]]:
    """Encode rows and yield their partitions in order. The temporary files are deleted on exit."""
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
    """Write one segment with the rows of several segments of the same trained model.

    Args:
        trained: the common model.
        segments: the partitions of each segment, in order, with row-major codes.
        store, directory, version: see `write_rows`.
    """
    return _write(
        trained,
        store,
        directory,
        (_concat_partitions(parts) for parts in zip(*segments, strict=True)),
        version,
    )


def reopen(segment: VectorSegment, recipe: IndexParams) -> TrainedModel:
    """Return the trained model of a stored segment. `recipe` has the graph parameters."""
    return TrainedModel(recipe, segment.ivf, segment.quantizer, segment.value_type)


def _concat_partitions(parts: Sequence[Partition]) -> Partition:
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
    """Codes of rows in temporary files, one per column, in input order."""

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
