"""Rewrite index segments with the new row addresses after a compaction.

A segment is rewritten if it refers to rows by address and covers rewritten fragments. The new segment has the
same content and the same source version, with other row addresses. The rows themselves are not read. Deleted
rows are dropped, except documents of a text index: postings refer to a document by position, so a deleted
document keeps an address in a fragment that no longer exists. (Lance index format, coverage through table
changes.)

In a vector segment, codes and centroids do not change. Graph nodes are positions in a partition, so a
partition that lost rows gets a new graph, built from its codes. Other partitions keep their graphs.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyroaring import BitMap

from spark_lance.errors import UnsupportedFormatError
from spark_lance.file.base.version import FileVersion
from spark_lance.index.base.building import SegmentTarget
from spark_lance.index.base.entries import Segment, find_segments, index_directory
from spark_lance.index.base.files import Numbers, RowAddressMap, copy_file, copy_renumbered
from spark_lance.index.base.resolve import RowAddressRemap, RowResolver
from spark_lance.index.scalar.kinds import SCALAR_INDICES
from spark_lance.index.vector.create import open_segment
from spark_lance.index.vector.graph import Graph, build_graph
from spark_lance.index.vector.kinds import VECTOR_LABEL, VECTOR_NEWEST
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
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.indices.remap import MovedGroup, RewrittenIndex
from spark_lance.table.reading.snapshot import Snapshot

# Row ids per read.
_ROWS = 1 << 20


def remap_vectors(
    segment: Segment, store: Store, directory: str, version: FileVersion, remap: RowAddressMap
) -> dict[str, int]:
    """Rewrite a vector segment with the current addresses of its rows; return file name -> size in bytes.

    Raises:
        FormatError, UnsupportedFormatError: the segment is damaged or its kind is unknown.
    """
    content = open_segment(segment)
    if not _lost_rows(content, remap):
        auxiliary = f"{directory}/{AUXILIARY_FILE}"
        return {
            AUXILIARY_FILE: copy_renumbered(content.auxiliary, store, auxiliary, version, ROW_ID, remap),
            INDEX_FILE: copy_file(content.index, store, f"{directory}/{INDEX_FILE}"),
        }
    partition_remap = _PartitionRemap(content, remap)
    return write_segment(
        store,
        directory,
        content.kind,
        content.ivf,
        content.quantizer,
        partition_remap.partitions(),
        version,
        centroid_type=content.value_type,
        graphs=partition_remap.graph if content.has_graph else None,
    )


def _lost_rows(content: VectorSegment, remap: RowAddressMap) -> bool:
    """Return whether some rows of a segment no longer exist."""
    file = content.auxiliary
    return any(
        not remap(file.read([ROW_ID], start, start + _ROWS)[ROW_ID].to_numpy())[1].all()
        for start in range(0, file.num_rows, _ROWS)
    )


@dataclass
class _PartitionRemap:
    """Rewrite of a segment that lost rows, partition by partition.

    Attributes:
        number: number of the partition that was yielded last.
        whole: whether that partition still has all its rows.
    """

    content: VectorSegment
    remap: RowAddressMap
    number: int = -1
    whole: bool = True

    def partitions(self) -> Iterator[Partition]:
        """Yield the partitions with their remaining rows and new row ids."""
        for number, partition in enumerate(all_partitions(self.content)):
            self.number = number
            ids, is_present = self.remap(partition.row_ids)
            self.whole = bool(is_present.all())
            yield Partition(
                ids[is_present], {name: codes[is_present] for name, codes in partition.codes.items()}
            )

    def graph(self, partition: Partition) -> Graph:
        """Return the graph of the partition that was yielded last."""
        graph = self.content.graph(self.number)
        assert graph is not None
        if self.whole:
            return graph
        points = self.content.quantizer.comparable(partition.codes)
        return build_graph(points, graph.params, inner=self.content.metric == "dot")


logger = logging.getLogger(__name__)

# Rewrites a segment; returns file name -> size in bytes.
_Write = Callable[[SegmentTarget, RowAddressMap], dict[str, int]]


class SegmentRemap:
    """Rewrites the supported indexes with new row addresses: the `IndexRemap` of compaction."""

    def fragments(self, snapshot: Snapshot) -> BitMap:
        """Return the fragments whose rows an index refers to by address, see `IndexRemap.fragments`."""
        return BitMap().union(*(segment.covered for segment, _ in _remappable_segments(snapshot)))

    def rewrite(self, snapshot: Snapshot, groups: Sequence[MovedGroup]) -> list[RewrittenIndex]:
        """Rewrite the segments that cover moved rows, see `IndexRemap.rewrite`."""
        resolver = RowResolver(snapshot)
        moves = RowAddressRemap.by(groups)
        sources = [BitMap(digest.id for digest in group.old_fragments) for group in groups]
        rewrites: list[RewrittenIndex] = []
        try:
            for segment, write in _remappable_segments(snapshot):
                affected = [old for old in sources if old.intersect(segment.covered)]
                if not affected or not all(old.issubset(segment.covered) for old in affected):
                    continue
                number = uuid.uuid4()
                new_directory = _SegmentDirectory(snapshot.table, number)
                directory = index_directory(snapshot.root, number)
                target = SegmentTarget(snapshot.store, directory, snapshot.manifest.file_version)
                try:
                    files = write(target, _RowAddressMap(resolver, segment.covered, moves))
                except UnsupportedFormatError as error:
                    logger.warning("index %s loses the rows that are compacted: %s", segment.name, error)
                    new_directory.delete()
                    continue
                except BaseException:
                    new_directory.delete()
                    raise
                rewrites.append(_rewritten_entry(segment, number, files))
        except BaseException:
            for new in rewrites:
                _SegmentDirectory(snapshot.table, uuid.UUID(bytes=new.new_id.uuid)).delete()
            raise
        return rewrites


@dataclass(frozen=True)
class _SegmentDirectory(TableRefMixin):
    """The directory of a segment whose write is not committed."""

    table: TableRef
    number: uuid.UUID

    def delete(self) -> None:
        directory = index_directory(self.root, self.number)
        objects = self.store.list_to_delete(directory, self.root)
        self.store.delete_many((item.path for item in objects), self.root)


def _remappable_segments(snapshot: Snapshot) -> Iterator[tuple[Segment, _Write]]:
    """Yield the segments that refer to rows by address and can be rewritten, each with its writer."""
    stable = snapshot.manifest.uses_stable_row_ids
    for kind in SCALAR_INDICES.values():
        for segment in find_segments(snapshot, kind.label, kind.newest):
            index = kind(segment)
            if index.can_move and (index.has_addresses or not stable):
                yield segment, index.move
    if not stable:
        for segment in find_segments(snapshot, VECTOR_LABEL, VECTOR_NEWEST):
            yield segment, _vector_writer(segment)


def _vector_writer(segment: Segment) -> _Write:
    return lambda target, remap: remap_vectors(segment, target.store, target.directory, target.version, remap)


@dataclass(frozen=True)
class _RowAddressMap:
    """Maps a segment's row numbers to addresses after the recorded moves and this compaction."""

    resolver: RowResolver
    covered: BitMap
    moves: RowAddressRemap

    def __call__(self, numbers: Numbers) -> tuple[Numbers, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        before, counts = self.resolver.addresses(numbers, self.covered, are_addresses=True)
        after, is_moved = self.moves(before)
        is_present = counts & is_moved
        # A dropped row keeps its old number, because its new one could belong to a live row.
        return np.where(is_present, after, before), is_present

    @property
    def possible(self) -> Mapping[int, BitMap]:
        return self.resolver.possible

    def existing_rows(self, rows: RowSet) -> RowSet:
        return self.resolver.existing_rows(rows)


def _rewritten_entry(segment: Segment, number: uuid.UUID, files: dict[str, int]) -> RewrittenIndex:
    new = RewrittenIndex(
        old_id=segment.entry.uuid,
        new_index_details=segment.entry.index_details,
        new_index_version=segment.entry.index_version,
    )
    new.new_id.uuid = number.bytes
    for path, size in files.items():
        new.new_index_files.add(path=path, size_bytes=size)
    return new
