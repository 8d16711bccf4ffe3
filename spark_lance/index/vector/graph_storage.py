"""The graphs of an IVF_HNSW index, in index.idx.

    __vector_id: uint32            node: position of the vector in its partition
    __neighbors: list<uint32>
    _distance: list<float32>       to each neighbour; not needed for searching

Rows lie partition by partition, in a partition level by level from 0, which has all nodes in order. Per
partition there is a text, JSON:

    {"entry_point": 364, "level_offsets": [0, 1142, 1197, 1198, ...],
     "params": {"max_level": 7, "m": 20, "ef_construction": 150, "prefetch_distance": 2}}

`level_offsets` has max_level + 1 entries and counts from the partition's first row. An empty partition has an
empty text. (Lance index format, HNSW.)
"""

from __future__ import annotations

import itertools
import json

import numpy as np
import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.index.vector.graph import Graph, GraphParams, Level

__all__ = ["GRAPH_SCHEMA", "graph_columns", "graph_note", "read_graph"]

GRAPH_SCHEMA = pa.schema(
    [
        pa.field("__vector_id", pa.uint32()),
        pa.field("__neighbors", pa.list_(pa.field("item", pa.uint32()))),
        pa.field("_distance", pa.list_(pa.field("item", pa.float32()))),
    ]
)


def graph_note(graph: Graph | None) -> str:
    """Return the text of a partition; None is the graph of an empty one."""
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
        }
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
        FormatError: it is damaged.
    """
    try:
        said = json.loads(note)
        entry, offsets, params = int(said["entry_point"]), said["level_offsets"], said["params"]
        graph_params = GraphParams(int(params["m"]), int(params["ef_construction"]), int(params["max_level"]))
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"malformed metadata of a graph: {error!r}", path) from error
    ids = table.column(0).combine_chunks().to_numpy()
    lists = table.column(1).combine_chunks()
    neighbors = lists.values.to_numpy()
    starts = lists.offsets.to_numpy().astype(np.int64)
    measured = table.column(2).combine_chunks()
    distances = np.zeros(len(neighbors), dtype=np.float32)
    if measured.null_count == 0 and len(measured.values) == len(neighbors):
        distances = measured.values.fill_null(0).to_numpy(zero_copy_only=False)
    ends_ok = all(a <= b for a, b in itertools.pairwise(offsets))
    if not offsets or not ends_ok or offsets[-1] > len(ids):
        raise FormatError("the levels of a graph do not lie in its rows", path)
    if (len(neighbors) and int(neighbors.max()) >= nodes) or (len(ids) and int(ids.max()) >= nodes):
        raise FormatError(f"a graph of {nodes} nodes names others", path)
    levels = []
    for first, last in itertools.pairwise(offsets):
        if first == last:
            break
        own = neighbors[starts[first] : starts[last]]
        level_starts = starts[first : last + 1] - starts[first]
        far = distances[starts[first] : starts[last]]
        levels.append(Level(ids[first:last], level_starts, own, far))
    if not levels or len(levels[0].nodes) != nodes or not 0 <= entry < nodes:
        raise FormatError(f"a graph does not have all {nodes} nodes of its partition", path)
    return Graph(tuple(levels), entry, graph_params)
