"""A segment of a vector index with other row ids, without the rows that are gone.

Codes and centroids stay. The nodes of a graph are places in a partition, so the graph of a partition that has
lost rows is built again from its codes; the others stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_lance.file.base.version import FileVersion
from spark_lance.index.base.copies import RowAddressMap, copy_file, copy_renumbered
from spark_lance.index.base.entries import Segment
from spark_lance.index.vector.create import open_segment
from spark_lance.index.vector.graph import Graph, build_graph
from spark_lance.index.vector.storage import (
    AUXILIARY_FILE,
    INDEX_FILE,
    ROW_ID,
    Partition,
    VectorSegment,
    all_partitions,
    write_segment,
)
from spark_lance.io.store import Store

__all__ = ["remap_vectors"]

# Row ids that are read at a time.
_ROWS = 1 << 20


def remap_vectors(
    segment: Segment, store: Store, directory: str, version: FileVersion, remap: RowAddressMap
) -> dict[str, int]:
    """Rewrite a segment with the current ids of its rows; return file name -> bytes.

    Raises:
        FormatError, UnsupportedFormatError: the segment is damaged, or of an unknown kind.
    """
    stored = open_segment(segment)
    if not _has_lost(stored, remap):
        auxiliary = f"{directory}/{AUXILIARY_FILE}"
        return {
            AUXILIARY_FILE: copy_renumbered(stored.auxiliary, store, auxiliary, version, ROW_ID, remap),
            INDEX_FILE: copy_file(stored.index, store, f"{directory}/{INDEX_FILE}"),
        }
    moving = _Moving(stored, remap)
    return write_segment(
        store,
        directory,
        stored.kind,
        stored.ivf,
        stored.quantizer,
        moving.partitions(),
        version,
        centroid_type=stored.value_type,
        graphs=moving.graph if stored.has_graph else None,
    )


def _has_lost(stored: VectorSegment, remap: RowAddressMap) -> bool:
    """Whether rows of a segment are gone."""
    file = stored.auxiliary
    return any(
        not remap(file.read([ROW_ID], start, start + _ROWS)[ROW_ID].to_numpy())[1].all()
        for start in range(0, file.num_rows, _ROWS)
    )


@dataclass
class _Moving:
    """A segment on its way, partition by partition.

    Attributes:
        number: of the partition that was yielded last.
        whole: whether it has all its rows.
    """

    stored: VectorSegment
    remap: RowAddressMap
    number: int = -1
    whole: bool = True

    def partitions(self) -> Iterator[Partition]:
        """Yield the rows that are still there."""
        for number, partition in enumerate(all_partitions(self.stored)):
            self.number = number
            ids, there = self.remap(partition.row_ids)
            self.whole = bool(there.all())
            yield Partition(ids[there], {name: codes[there] for name, codes in partition.codes.items()})

    def graph(self, partition: Partition) -> Graph:
        """Return the graph of the partition that was yielded last."""
        graph = self.stored.graph(self.number)
        assert graph is not None
        if self.whole:
            return graph
        points = self.stored.quantizer.comparable(partition.codes)
        return build_graph(points, graph.params, inner=self.stored.metric == "dot")
