"""New addresses for indices whose rows a compaction moves.

A segment is rewritten if it refers to rows by address and covers fragments that are rewritten. The new
segment is the same index, built from the same version, with other row addresses. The contents of the rows are
not read. Deleted rows are left out, except for the documents of a text index, whose places count: they keep
an address in a fragment that is gone. (Lance index format, coverage through table changes.)

In a segment of a vector index, codes and centroids stay. The nodes of a graph are places in a partition, so
the graph of a partition that has lost rows is built again from its codes; the others stay.
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
from spark_lance.index.base.entries import Segment, index_directory, segments_of
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
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.indices.remap import MovedGroup, RewrittenIndex
from spark_lance.table.reading.snapshot import Snapshot

# Row ids that are read at a time.
_ROWS = 1 << 20


def remap_vectors(
    segment: Segment, store: Store, directory: str, version: FileVersion, remap: RowAddressMap
) -> dict[str, int]:
    """Rewrite a segment with the current ids of its rows; return file name -> bytes.

    Raises:
        FormatError, UnsupportedFormatError: the segment is damaged, or of an unknown kind.
    """
    content = open_segment(segment)
    if not _has_lost(content, remap):
        auxiliary = f"{directory}/{AUXILIARY_FILE}"
        return {
            AUXILIARY_FILE: copy_renumbered(content.auxiliary, store, auxiliary, version, ROW_ID, remap),
            INDEX_FILE: copy_file(content.index, store, f"{directory}/{INDEX_FILE}"),
        }
    moving = _Moving(content, remap)
    return write_segment(
        store,
        directory,
        content.kind,
        content.ivf,
        content.quantizer,
        moving.partitions(),
        version,
        centroid_type=content.value_type,
        graphs=moving.graph if content.has_graph else None,
    )


def _has_lost(content: VectorSegment, remap: RowAddressMap) -> bool:
    """Whether rows of a segment are gone."""
    file = content.auxiliary
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

    content: VectorSegment
    remap: RowAddressMap
    number: int = -1
    whole: bool = True

    def partitions(self) -> Iterator[Partition]:
        """Yield the rows that are still there."""
        for number, partition in enumerate(all_partitions(self.content)):
            self.number = number
            ids, there = self.remap(partition.row_ids)
            self.whole = bool(there.all())
            yield Partition(ids[there], {name: codes[there] for name, codes in partition.codes.items()})

    def graph(self, partition: Partition) -> Graph:
        """Return the graph of the partition that was yielded last."""
        graph = self.content.graph(self.number)
        assert graph is not None
        if self.whole:
            return graph
        points = self.content.quantizer.comparable(partition.codes)
        return build_graph(points, graph.params, inner=self.content.metric == "dot")


logger = logging.getLogger(__name__)

# Rewrites a segment; returns file name -> bytes.
_Write = Callable[[SegmentTarget, RowAddressMap], dict[str, int]]


class SegmentRemap:
    """Gives the indices that are known here new addresses: an `IndexRemap` of compaction."""

    def fragments(self, snapshot: Snapshot) -> BitMap:
        """Return the fragments whose rows an index names by address, see `IndexRemap.fragments`."""
        return BitMap().union(*(segment.covered for segment, _ in _movable(snapshot)))

    def rewrite(self, snapshot: Snapshot, groups: Sequence[MovedGroup]) -> list[RewrittenIndex]:
        """Rewrite the segments that cover moved rows, see `IndexRemap.rewrite`."""
        resolver = RowResolver(snapshot)
        moves = RowAddressRemap.by(groups)
        sources = [BitMap(digest.id for digest in group.old_fragments) for group in groups]
        rewrites: list[RewrittenIndex] = []
        try:
            for segment, write in _movable(snapshot):
                touched = [old for old in sources if old.intersect(segment.covered)]
                if not touched or not all(old.issubset(segment.covered) for old in touched):
                    continue
                number = uuid.uuid4()
                written = _Written(snapshot.table, number)
                directory = index_directory(snapshot.root, number)
                target = SegmentTarget(snapshot.store, directory, snapshot.manifest.file_version)
                try:
                    files = write(target, _RowAddressMap(resolver, segment.covered, moves))
                except UnsupportedFormatError as error:
                    logger.warning("index %s loses the rows that are compacted: %s", segment.name, error)
                    written.delete()
                    continue
                except BaseException:
                    written.delete()
                    raise
                rewrites.append(_entry(segment, number, files))
        except BaseException:
            for new in rewrites:
                _Written(snapshot.table, uuid.UUID(bytes=new.new_id.uuid)).delete()
            raise
        return rewrites


@dataclass(frozen=True)
class _Written(OfTable):
    """The directory of a segment that is being written."""

    table: TableRef
    number: uuid.UUID

    def delete(self) -> None:
        directory = index_directory(self.root, self.number)
        objects = self.store.list_to_delete(directory, self.root)
        self.store.delete_many((item.path for item in objects), self.root)


def _movable(snapshot: Snapshot) -> Iterator[tuple[Segment, _Write]]:
    """Yield the segments that refer to rows by address and can be rewritten, with their writers."""
    stable = snapshot.manifest.uses_stable_row_ids
    for kind in SCALAR_INDICES.values():
        for segment in segments_of(snapshot, kind.label, kind.newest):
            opened = kind(segment)
            if opened.can_move and (opened.has_addresses or not stable):
                yield segment, opened.move
    if not stable:
        for segment in segments_of(snapshot, VECTOR_LABEL, VECTOR_NEWEST):
            yield segment, _vectors(segment)


def _vectors(segment: Segment) -> _Write:
    return lambda target, remap: remap_vectors(segment, target.store, target.directory, target.version, remap)


@dataclass(frozen=True)
class _RowAddressMap:
    """Where the rows of a segment are after all moves, those of the past included."""

    resolver: RowResolver
    covered: BitMap
    moves: RowAddressRemap

    def __call__(self, numbers: Numbers) -> tuple[Numbers, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        before, counts = self.resolver.addresses(numbers, self.covered, are_addresses=True)
        after, moved = self.moves(before)
        there = counts & moved
        # A row that does not count must not come to stand for one that does.
        return np.where(there, after, before), there

    @property
    def possible(self) -> Mapping[int, BitMap]:
        return self.resolver.possible

    def bounded(self, rows: RowSet) -> RowSet:
        return self.resolver.bounded(rows)


def _entry(segment: Segment, number: uuid.UUID, files: dict[str, int]) -> RewrittenIndex:
    new = RewrittenIndex(
        old_id=segment.entry.uuid,
        new_index_details=segment.entry.index_details,
        new_index_version=segment.entry.index_version,
    )
    new.new_id.uuid = number.bytes
    for path, size in files.items():
        new.new_index_files.add(path=path, size_bytes=size)
    return new
