"""Read and write the two files of a vector index segment.

    index.idx        metadata `lance:index` {"type": "IVF_PQ", "distance_type": "l2"}, `lance:ivf` number of
                     the buffer with the IVF message (centroids)
                     without a graph: no rows, column __flat_marker: uint64, `lance:flat` one "" per partition
                     with a graph: see below, `lance:hnsw` one string per partition
    auxiliary.idx    _rowid: uint64 and the code columns, partition by partition
                     metadata `distance_type`, `lance:ivf` number of the buffer with the IVF message (row
                     ranges), `storage_metadata` a JSON list of one string: the quantizer's JSON metadata

Row ids are row addresses, or stable row ids if the table has them. (Lance index format, storage V3.)

Graphs of an IVF_HNSW index, in index.idx:

    __vector_id: uint32            node: position of the vector in its partition
    __neighbors: list<uint32>
    _distance: list<float32>       to each neighbour; not needed for search

Rows are ordered by partition, then by level. Level 0 has all nodes in order. Each partition has a JSON
string:

    {"entry_point": 364, "level_offsets": [0, 1142, 1197, 1198, ...],
     "params": {"max_level": 7, "m": 20, "ef_construction": 150, "prefetch_distance": 2}}

`level_offsets` has max_level + 1 entries, relative to the partition's first row. An empty partition has an
empty string. (Lance index format, HNSW.)
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numbers_to_numpy, one_array
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.version import FileVersion
from spark_lance.index.base.files import IndexFile, IndexFileWriter
from spark_lance.index.vector.base.ivf import Ivf, pack_tensor, partition_ranges, unpack_tensor
from spark_lance.index.vector.base.metrics import METRICS, Metric, Vectors
from spark_lance.index.vector.graph import Graph, GraphParams, Level
from spark_lance.index.vector.quantizers import QUANTIZERS
from spark_lance.index.vector.quantizers.base import Codes, Quantizer
from spark_lance.io.store import Store
from spark_lance.io.stored_json import parse_json, parse_object
from spark_lance.proto import index_pb2

GRAPH_SCHEMA = pa.schema(
    [
        pa.field("__vector_id", pa.uint32()),
        pa.field("__neighbors", pa.list_(pa.field("item", pa.uint32()))),
        pa.field("_distance", pa.list_(pa.field("item", pa.float32()))),
    ]
)


# pylance compares the note of a graph with its own serialization, byte by byte, when it maps rows to new
# addresses; so JSON has no spaces, and keys have pylance's order.
_COMPACT = (",", ":")


def graph_note(graph: Graph | None) -> str:
    """Return the JSON string of a partition's graph; an empty partition has None as graph."""
    if graph is None:
        return ""
    sizes = [len(level.nodes) for level in graph.levels]
    ends = np.cumsum([0, *sizes]).tolist()
    params = graph.params
    return json.dumps(
        {
            "entry_point": graph.entry_point,
            "params": {
                "max_level": params.max_level,
                "m": params.m,
                "ef_construction": params.ef_construction,
                "prefetch_distance": 2,
            },
            "level_offsets": ends + [ends[-1]] * (params.max_level + 1 - len(ends)),
        },
        separators=_COMPACT,
    )


def graph_columns(graph: Graph) -> list[pa.Array]:
    """Return the rows of a graph, as the columns of `GRAPH_SCHEMA`."""
    levels = graph.levels
    counts = np.concatenate([np.diff(level.starts) for level in levels])
    starts = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    neighbors = pa.array(np.concatenate([level.neighbors for level in levels]).astype(np.uint32))
    distances = pa.array(np.concatenate([level.distances for level in levels]).astype(np.float32))
    return [
        pa.array(np.concatenate([level.nodes for level in levels]).astype(np.uint32)),
        pa.ListArray.from_arrays(starts, neighbors),
        pa.ListArray.from_arrays(starts, distances),
    ]


def read_graph(table: pa.Table, note: str, nodes: int, path: str) -> Graph:
    """Return a stored graph of `nodes` nodes.

    Raises:
        FormatError: the graph is damaged.
    """
    try:
        notes = parse_object(note)
        entry, offsets, params = int(notes["entry_point"]), notes["level_offsets"], notes["params"]
        graph_params = GraphParams(int(params["m"]), int(params["ef_construction"]), int(params["max_level"]))
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"malformed metadata of a graph: {error!r}", path) from error
    ids = table.column(0).combine_chunks().to_numpy()
    lists = table.column(1).combine_chunks()
    neighbors = lists.values.to_numpy()
    starts = lists.offsets.to_numpy().astype(np.int64)
    distance_lists = table.column(2).combine_chunks()
    distances = np.zeros(len(neighbors), dtype=np.float32)
    if distance_lists.null_count == 0 and len(distance_lists.values) == len(neighbors):
        distances = distance_lists.values.fill_null(0).to_numpy(zero_copy_only=False)
    ends_ok = all(a <= b for a, b in itertools.pairwise(offsets))
    if not offsets or not ends_ok or offsets[-1] > len(ids):
        raise FormatError("the levels of a graph do not lie in its rows", path)
    if (len(neighbors) and int(neighbors.max()) >= nodes) or (len(ids) and int(ids.max()) >= nodes):
        raise FormatError(f"a graph of {nodes} nodes names others", path)
    levels = []
    for first, last in itertools.pairwise(offsets):
        if first == last:
            break
        level_neighbors = neighbors[starts[first] : starts[last]]
        level_starts = starts[first : last + 1] - starts[first]
        level_distances = distances[starts[first] : starts[last]]
        levels.append(Level(ids[first:last], level_starts, level_neighbors, level_distances))
    if not levels or len(levels[0].nodes) != nodes or not 0 <= entry < nodes:
        raise FormatError(f"a graph does not have all {nodes} nodes of its partition", path)
    return Graph(tuple(levels), entry, graph_params)


INDEX_FILE, AUXILIARY_FILE = "index.idx", "auxiliary.idx"
ROW_ID = "_rowid"
# Index type -> (name of the quantizer, whether partitions have a graph).
INDEX_TYPES = {
    "IVF_FLAT": ("FLAT", False),
    "IVF_PQ": ("PQ", False),
    "IVF_SQ": ("SQ", False),
    "IVF_RQ": ("RQ", False),
    "IVF_HNSW_FLAT": ("FLAT", True),
    "IVF_HNSW_SQ": ("SQ", True),
    "IVF_HNSW_PQ": ("PQ", True),
}
# Bytes per read of a segment that is read as a whole; many reads may run in parallel.
_RUN_BYTES = 1 << 20
_MARKER = pa.schema([pa.field("__flat_marker", pa.uint64(), nullable=False)])

RowIds = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Partition:
    """The rows of a partition.

    Attributes:
        row_ids: (n,) uint64.
        codes: in stored order, see `Quantizer.pack`.
    """

    row_ids: RowIds
    codes: Codes


@dataclass(frozen=True)
class VectorSegment:
    """The stored content of one vector index segment.

    Attributes:
        index, auxiliary: its files.
    """

    index: IndexFile
    auxiliary: IndexFile

    @cached_property
    def _header(self) -> tuple[str, Metric]:
        """The type and the metric."""
        note = self.index.parsed("lance:index", parse_object)
        kind, metric = note.get("type"), note.get("distance_type")
        if kind not in INDEX_TYPES:
            raise UnsupportedFormatError(f"a vector index of type {kind!r}", self.index.path)
        if metric not in METRICS:
            raise UnsupportedFormatError(f"a vector index with the metric {metric!r}", self.index.path)
        return kind, metric

    @property
    def kind(self) -> str:
        """The index type, a key of `INDEX_TYPES`."""
        return self._header[0]

    @property
    def metric(self) -> Metric:
        """The metric of all distances."""
        return self._header[1]

    @property
    def has_graph(self) -> bool:
        """Whether partitions have a graph."""
        return INDEX_TYPES[self.kind][1]

    @cached_property
    def _centroid_message(self) -> index_pb2.IVF:
        return self.index.message(self.index.parsed("lance:ivf", int), index_pb2.IVF)

    @cached_property
    def _centroids(self) -> Vectors:
        message = self._centroid_message
        if not message.HasField("centroids_tensor"):
            raise UnsupportedFormatError("a vector index without a tensor of centroids", self.index.path)
        centroids = unpack_tensor(message.centroids_tensor)
        if centroids.ndim != 2:
            raise FormatError(f"centroids of shape {centroids.shape}", self.index.path)
        return centroids

    @property
    def training_loss(self) -> float | None:
        """The k-means loss of the training, if the writer stored it."""
        message = self._centroid_message
        return float(message.loss) if message.HasField("loss") else None

    @property
    def value_type(self) -> np.dtype[Any]:
        """The dtype of the column's values and of the stored centroids."""
        return self._centroids.dtype

    @cached_property
    def ivf(self) -> Ivf:
        """The centroids."""
        centroids = self._centroids
        if self.metric != "hamming":
            centroids = centroids.astype(np.float64 if centroids.dtype == np.float64 else np.float32)
        return Ivf(centroids, self.metric)

    @cached_property
    def quantizer(self) -> Quantizer:
        """The quantizer of the segment."""
        # A JSON list with one string, which is JSON again.
        notes = self.auxiliary.parsed("storage_metadata", lambda text: parse_object(parse_json(text)[0]))
        loader = QUANTIZERS[INDEX_TYPES[self.kind][0]]
        return loader.load(notes, self.auxiliary.buffer, self.metric, self.auxiliary.arrow_schema)

    @cached_property
    def _ranges(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        message = self.auxiliary.message(self.auxiliary.parsed("lance:ivf", int), index_pb2.IVF)
        ranges = partition_ranges(message, self.auxiliary.num_rows)
        if len(ranges[0]) != len(self.ivf):
            raise FormatError(
                f"{len(self.ivf)} centroids but {len(ranges[0])} partitions", self.auxiliary.path
            )
        return ranges

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of rows of each partition."""
        return self._ranges[1]

    @property
    def num_rows(self) -> int:
        """Number of rows of all partitions."""
        return int(self.lengths.sum())

    def partition(self, number: int) -> Partition:
        """Read a partition.

        Raises:
            FormatError: stored bytes are damaged.
        """
        start = int(self._ranges[0][number])
        return self._rows(start, start + int(self._ranges[1][number]))

    def some_partitions(self, numbers: Sequence[int]) -> list[Partition]:
        """Read partitions by ascending number. On an object store, their requests run in parallel.

        Raises:
            FormatError: stored bytes are damaged.
        """
        if len(numbers) < 2 or self.auxiliary.store.is_local:
            return [self.partition(number) for number in numbers]
        spans = [(int(self._ranges[0][n]), int(self._ranges[0][n] + self._ranges[1][n])) for n in numbers]
        return [_as_partition(table) for table in self.auxiliary.read_spans(self._row_columns, spans)]

    @property
    def row_bytes(self) -> float:
        """Average stored bytes of a row."""
        return self.auxiliary.num_bytes / max(1, self.auxiliary.num_rows)

    def partitions(self) -> Iterator[Partition]:
        """Yield all partitions in order. Adjacent partitions are read together.

        Raises:
            FormatError: stored bytes are damaged.
        """
        starts, lengths = self._ranges
        ends = starts + lengths
        step = max(1, _RUN_BYTES * self.auxiliary.num_rows // max(1, self.auxiliary.num_bytes))
        number = 0
        while number < len(starts):
            last = number + 1
            while last < len(starts) and starts[last] == ends[last - 1] <= starts[number] + step:
                last += 1
            first = int(starts[number])
            run = self._rows(first, int(ends[last - 1]))
            for partition_number in range(number, last):
                rows = slice(int(starts[partition_number]) - first, int(ends[partition_number]) - first)
                yield Partition(run.row_ids[rows], {name: c[rows] for name, c in run.codes.items()})
            number = last

    def _rows(self, start: int, stop: int) -> Partition:
        return _as_partition(self.auxiliary.read(self._row_columns, start, stop))

    @cached_property
    def _row_columns(self) -> list[str]:
        names = [ROW_ID, *(field.name for field in self.quantizer.columns())]
        column_names = set(self.auxiliary.arrow_schema.names)
        # The columns of error factors are optional.
        return [name for name in names if name in column_names or name == ROW_ID]

    @cached_property
    def _graph_notes(self) -> list[str]:
        notes = self.index.parsed("lance:hnsw", parse_json)
        if not isinstance(notes, list) or len(notes) != len(self.ivf):
            raise FormatError("a graph for every partition was expected", self.index.path)
        return notes

    @cached_property
    def _graph_ranges(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        return partition_ranges(self._centroid_message, self.index.num_rows)

    def graph(self, number: int) -> Graph | None:
        """Read the graph of a partition; None if the partition is empty or the index has no graphs.

        Raises:
            FormatError: stored bytes are damaged.
        """
        if not self.has_graph or not self.lengths[number]:
            return None
        offsets, lengths = self._graph_ranges
        start = int(offsets[number])
        table = self.index.read(GRAPH_SCHEMA.names, start, start + int(lengths[number]))
        return read_graph(table, self._graph_notes[number], int(self.lengths[number]), self.index.path)


def _as_partition(table: pa.Table) -> Partition:
    """Return rows of the auxiliary file as a partition."""
    columns = {name: _as_numpy(one_array(table.column(name))) for name in table.column_names}
    return Partition(columns.pop(ROW_ID), columns)


def write_segment(
    store: Store,
    directory: str,
    kind: str,
    ivf: Ivf,
    quantizer: Quantizer,
    partitions: Iterable[Partition],
    version: FileVersion,
    *,
    centroid_type: np.dtype[Any] | None = None,
    graphs: Callable[[Partition], Graph] | None = None,
) -> dict[str, int]:
    """Write the files of a segment.

    Args:
        store, directory: location of the segment.
        kind: a key of `INDEX_TYPES`.
        ivf, quantizer: the trained centroids and quantizer.
        partitions: all partitions in order, including empty ones, with row-major codes.
        version: file format version.
        centroid_type: dtype of the stored centroids; their own by default.
        graphs: builds the graph of a partition, for index types with graphs.

    Returns:
        File name -> size in bytes.
    """
    schema = pa.schema([pa.field(ROW_ID, pa.uint64()), *quantizer.columns()])
    lengths: list[int] = []
    graph_notes: list[tuple[str, int]] = []
    index_schema = _MARKER if graphs is None else GRAPH_SCHEMA
    with (
        IndexFileWriter(store, f"{directory}/{AUXILIARY_FILE}", schema, version) as auxiliary,
        IndexFileWriter(store, f"{directory}/{INDEX_FILE}", index_schema, version) as index,
    ):
        for partition in partitions:
            count = len(partition.row_ids)
            lengths.append(count)
            if count:
                packed = {ROW_ID: partition.row_ids, **quantizer.pack(partition.codes)}
                auxiliary.write([_as_arrow(packed[field.name], field.type) for field in schema])
            if graphs is not None:
                graph_notes.append(_write_graph(index, graphs(partition) if count else None))
        notes = quantizer.notes(_add_ranges_buffer(auxiliary, lengths))
        sizes = {
            AUXILIARY_FILE: auxiliary.finish(
                {
                    "distance_type": ivf.metric,
                    "lance:ivf": "1",
                    "storage_metadata": json.dumps(
                        [json.dumps(notes, separators=_COMPACT)], separators=_COMPACT
                    ),
                }
            )
        }
        centroids = ivf.centroids if centroid_type is None else ivf.centroids.astype(centroid_type)
        message = _ranges_message([0] * len(lengths) if graphs is None else [rows for _, rows in graph_notes])
        message.centroids_tensor.CopyFrom(pack_tensor(centroids))
        number = index.add_buffer(message.SerializeToString())
        metadata = {
            "lance:index": json.dumps({"type": kind, "distance_type": ivf.metric}, separators=_COMPACT),
            "lance:ivf": str(number),
        }
        if graphs is None:
            metadata["lance:flat"] = json.dumps([""] * len(lengths), separators=_COMPACT)
        else:
            metadata["lance:hnsw"] = json.dumps([note for note, _ in graph_notes], separators=_COMPACT)
        sizes[INDEX_FILE] = index.finish(metadata)
    return sizes


def _write_graph(file: IndexFileWriter, graph: Graph | None) -> tuple[str, int]:
    """Write the graph of a partition, if any; return its JSON string and number of rows."""
    if graph is None:
        return graph_note(None), 0
    columns = graph_columns(graph)
    file.write(columns)
    return graph_note(graph), len(columns[0])


def _add_ranges_buffer(writer: IndexFileWriter, lengths: list[int]) -> Callable[[bytes], int]:
    """Write the row ranges as buffer 1, and return the function that adds more buffers."""
    number = writer.add_buffer(_ranges_message(lengths).SerializeToString())
    assert number == 1
    return writer.add_buffer


def _ranges_message(lengths: list[int]) -> index_pb2.IVF:
    ends = np.cumsum(np.array(lengths, dtype=np.int64))
    return index_pb2.IVF(offsets=(ends - lengths).tolist(), lengths=lengths)


def _as_numpy(array: pa.Array) -> npt.NDArray[Any]:
    """Return a column as (n,) or, for lists, (n, width)."""
    if array.null_count:
        raise FormatError("a column of a vector index holds nulls")
    if pa.types.is_fixed_size_list(array.type):
        shape: tuple[int, ...] = (len(array), array.type.list_size)
        array = array.flatten()
    else:
        shape = (len(array),)
    return numbers_to_numpy(array).reshape(shape)


def _as_arrow(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values, kind)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), kind.value_type)
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)


def all_partitions(segment: VectorSegment) -> Iterator[Partition]:
    """Yield the partitions of a segment in order, with row-major codes."""
    for partition in segment.partitions():
        yield Partition(partition.row_ids, segment.quantizer.unpack(partition.codes))
