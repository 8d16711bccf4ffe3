"""Builds of indexes in Spark jobs.

One task trains a vector index on a sample and stores the result as a segment without rows, because centroids
are too large to send with every task. Then each task encodes the rows of some fragments and writes a segment.
Further tasks merge small segments, because every segment adds cost to each search. The commit adds the
finished segments. Files of a failed job are not referenced by any version; vacuum deletes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap
from pyspark.errors import PySparkException

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.index import list_extendable_indexes
from spark_lance.datasets.spelling import snake_options
from spark_lance.errors import IndexNotFoundError, suggestion
from spark_lance.index.base.columns import leaf_field
from spark_lance.index.base.entries import (
    Segment,
    check_name,
    commit_segments,
    delete_segments,
    index_directory,
    new_segment,
)
from spark_lance.index.scalar.create import build_segment, indexed_field
from spark_lance.index.scalar.kinds import scalar_kind
from spark_lance.index.vector.build import (
    IndexParams,
    TrainedModel,
    merge_segments,
    reopen,
    train,
    vector_type,
    write_rows,
)
from spark_lance.index.vector.create import (
    build_entry,
    check_dimension,
    configure_recipe,
    count_vectors,
    open_segment,
    sample_vectors,
    segment_rows,
)
from spark_lance.index.vector.storage import INDEX_TYPES, all_partitions
from spark_lance.io.display import TableRepr
from spark_lance.proto import table_pb2
from spark_lance.spark.driver.jobs import map_tasks
from spark_lance.spark.driver.progress import operation, step
from spark_lance.spark.table.base import TableBase
from spark_lance.table.commits.commit_rows import delete_on_failure
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.reading.snapshot import Snapshot, SnapshotRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Approximate number of rows that one task encodes, and of rows per segment.
_TASK_ROWS = 1 << 18
_SEGMENT_ROWS = 1 << 24
_RESULT = "fragments_indexed bigint, index_name string"
_INDICES = (
    "name string, type string, columns array<string>, segments bigint, fragments array<bigint>, "
    "rows_indexed bigint, rows_not_indexed bigint, size_bytes bigint"
)


@dataclass(frozen=True, repr=False)
class TableIndexes(TableRepr):
    """Vector, scalar and full-text indexes. Get it as `LanceTable.indexes`."""

    table: TableBase

    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        return self.table.dataset().indices._repr_rows()

    def create(
        self,
        column: str,
        indexType: str = "IVF_PQ",
        name: str | None = None,
        metric: str = "l2",
        *,
        numPartitions: int | None = None,
        numSubVectors: int | None = None,
        numBits: int | None = None,
        replace: bool = True,
        numSegments: int | None = None,
        **options: Any,
    ) -> DataFrame:
        """Build a vector index.

        Args:
            column: a fixed-size list of float16, float32 or float64, or of uint8 for hamming.
            indexType: IVF_FLAT, IVF_PQ, IVF_SQ, IVF_RQ, IVF_HNSW_FLAT, IVF_HNSW_SQ or IVF_HNSW_PQ.
            name: name of the index. Default: `{column}_idx`.
            metric: l2, cosine, dot or hamming.
            numPartitions: number of IVF partitions. Default: one per 4,096 rows; with HNSW, one per million.
            numSubVectors: number of PQ sub-vectors. Default: a 16th of the dimension.
            numBits: bits per code: 8 or 4 for PQ, 1 to 9 for RQ.
            replace: whether to replace an existing index with this name.
            numSegments: number of index segments, each for some of the fragments. Every search reads all
                segments. Default: one per 16 million rows.
            options: `sampleRate`, `maxIters`, `rotationType`, `m`, `efConstruction`, `maxLevel`, as for
                `LanceDataset.create_index`.

        Returns:
            One row: `fragments_indexed`, `index_name`.

        Raises:
            SchemaError: the column does not exist, or its type does not fit the index type.
            OptionError: an option is wrong, or the name is taken.
            CommitError: the commit failed; see its subclasses.
        """
        table = self.table.dataset()
        recipe = configure_recipe(
            indexType, metric, numPartitions, numSubVectors, numBits, snake_options(options)
        )
        field = leaf_field(table.manifest.schema, column)
        dim, _ = vector_type(field.arrow_type(), recipe.metric)
        check_dimension(recipe, dim)
        name = name or f"{column}_idx"
        check_name(table.manifest, name, field.id, replace)
        rows = table.count_rows()
        work = _Work(table.snapshot.ref(), column, name)
        parts = _group_fragments(table, max(_TASK_ROWS, -(-rows // _max_tasks(self.table.spark))))
        segments = numSegments or -(-rows // _SEGMENT_ROWS)
        has_graph = INDEX_TYPES[recipe.kind][1]
        if has_graph and numSegments is None:
            segments = len(parts)
        with operation(self.table.spark, f"index {name}", self.table.path):
            with step(self.table.spark, "train"):
                (trained,) = map_tasks(self.table.spark, [(work, recipe, rows)], _train_index)
            plan = (work, recipe, trained)
            indices = [trained]
            with delete_on_failure(lambda: _delete_unused(table.snapshot, indices), PySparkException):
                with step(self.table.spark, f"code {rows} rows"):
                    entries = map_tasks(self.table.spark, [(*plan, part) for part in parts], _encode_rows)
                indices += entries
                if len(entries) > segments:
                    bundles = [entries[i::segments] for i in range(segments)]
                    with step(self.table.spark, f"put {len(entries)} segments together"):
                        entries = map_tasks(
                            self.table.spark, [(*plan, bundle) for bundle in bundles], _merge_group
                        )
                    indices += entries
                result = self._commit(table, name, entries)
            _delete_unused(table.snapshot, set(indices) - set(entries))
        return result

    def createScalar(
        self,
        column: str,
        indexType: str = "BTREE",
        name: str | None = None,
        *,
        replace: bool = True,
        numSegments: int | None = None,
        **options: Any,
    ) -> DataFrame:
        """Build a scalar index, which scans with filters use, or a full-text index.

        Args:
            column: a column, or the dotted path of a struct field.
            indexType: BTREE (ordered values), BITMAP (few distinct values), LABEL_LIST (lists), NGRAM
                (substrings of text), ZONEMAP (values that follow the row order), BLOOMFILTER (lookups of
                single values), JSON (values in documents), RTREE (geometries) or INVERTED (full text of text
                columns and lists of text, for `textSearch`).
            name: name of the index. Default: `{column}_idx`.
            replace: whether to replace an existing index with this name.
            numSegments: number of index segments. Default: one per 16 million rows.
            options: options of INVERTED: `baseTokenizer` ("simple", "whitespace", "raw", "ngram" or a model
                such as "jieba/default"), `language` ("English"), `maxTokenLength` (40), `lowerCase` (True),
                `stem` and `removeStopWords` (True, but False for "ngram"), `asciiFolding` (True),
                `customStopWords`, `withPosition` (False; other engines find phrases only in an index with
                positions).

        Returns:
            One row: `fragments_indexed`, `index_name`.

        Raises:
            SchemaError: the column does not exist, or its type does not fit the index type.
            OptionError: the index type or an option does not exist, or the name is taken.
            CommitError: the commit failed; see its subclasses.
        """
        table = self.table.dataset()
        kind = scalar_kind(indexType)
        options = snake_options(options)
        kind.check(options)
        field = indexed_field(table.manifest.schema, column, kind)
        name = name or f"{column}_idx"
        check_name(table.manifest, name, field.id, replace)
        rows = table.count_rows()
        groups = _group_fragments(table, -(-rows // numSegments) if numSegments else _SEGMENT_ROWS)
        work = _Work(table.snapshot.ref(), column, name)
        with operation(self.table.spark, f"index {name}", self.table.path):
            with step(self.table.spark, f"index {rows} rows"):
                entries = map_tasks(
                    self.table.spark, [(work, kind.name, group, options) for group in groups], _build_scalar
                )
            return self._commit(table, name, entries)

    def optimize(self, name: str | None = None, merge: int | None = None) -> DataFrame:
        """Add rows that indexes do not cover yet, with one task per index.

        Args:
            name: name of one index. Default: all indexes of types that this package can extend.
            merge: how many of the newest segments of an index to merge with the new rows. 0 adds a segment.
                Default: merge all segments.

        Returns:
            The indexes after the operation, as `list`.

        Raises:
            IndexNotFoundError: the index does not exist, or this package cannot extend its type.
        """
        table = self.table.dataset()
        names = list_extendable_indexes(table.manifest)
        if name is not None and name not in names:
            raise IndexNotFoundError(
                f"there is no index {name!r} that can be extended here; the table has "
                f"{', '.join(names) or 'none'}{suggestion(name, names)}"
            )
        with operation(self.table.spark, "extension of the indexes", self.table.path):
            for one in names if name is None else [name]:
                with step(self.table.spark, f"index new rows in {one}"):
                    table.optimize.optimize_indices(num_indices_to_merge=merge, index_names=[one])
                table = self.table.dataset()
        return self.list()

    def drop(self, name: str) -> None:
        """Remove an index from the table. Older versions keep it.

        Raises:
            IndexNotFoundError: the index does not exist.
        """
        self.table.dataset().drop_index(name)

    def list(self) -> DataFrame:
        """Return one row per index.

        The columns are `name`, `type`, `columns`, `segments`, `fragments` (ids), `rows_indexed`,
        `rows_not_indexed` and `size_bytes`.
        """
        table = self.table.dataset()
        rows = table.count_rows()
        records = []
        for index in table.describe_indices():
            covered = sorted({f for s in index.segments for f in s.fragment_ids or ()})
            indexed = index.num_rows_indexed
            records.append(
                (
                    index.name,
                    index.index_type,
                    list(index.field_names),
                    len(index.segments),
                    covered,
                    indexed,
                    None if indexed is None else rows - indexed,
                    index.total_size_bytes,
                )
            )
        return self.table.spark.createDataFrame(records, _INDICES)

    def _commit(self, table: LanceDataset, name: str, new_entries: Sequence[bytes]) -> DataFrame:
        entries = [table_pb2.IndexMetadata.FromString(data) for data in new_entries]
        removed = [entry for entry in table.manifest.indices if entry.name == name]
        commit_segments(table.snapshot, entries, removed)
        covered = BitMap().union(*(covered_fragments(entry) or BitMap() for entry in entries))
        return self.table.spark.createDataFrame([(len(covered), name)], _RESULT)


def _max_tasks(spark: Any) -> int:
    """Return the maximum number of tasks. Spark Connect does not report the number of cores."""
    context = getattr(spark, "_sc", None)
    return 4 * context.defaultParallelism if context is not None else 64


def _group_fragments(table: LanceDataset, rows: int) -> list[tuple[int, ...]]:
    """Return the fragment ids in groups of about `rows` rows."""
    groups: list[list[int]] = []
    room = 0
    for fragment in table.manifest.fragments:
        if room <= 0:
            groups.append([])
            room = rows
        groups[-1].append(fragment.id)
        room -= fragment.physical_rows
    return [tuple(group) for group in groups]


@dataclass(frozen=True)
class _Work:
    """The version and column that tasks work on."""

    table: SnapshotRef
    column: str
    name: str


def _train_index(task: tuple[_Work, IndexParams, int]) -> bytes:
    """Train the index, store the result as a segment without rows, and return its entry."""
    work, recipe, rows = task
    table = work.table.load()
    rows = count_vectors(table, work.column, rows)
    size = recipe.sample_size(rows)
    sample = sample_vectors(table, work.column, size)
    trained = train(recipe, sample, rows)
    with new_segment(table.table) as segment:
        directory = index_directory(table.root, segment)
        files = write_rows(trained, table.store, directory, (), table.manifest.file_version)
    field = leaf_field(table.manifest.schema, work.column).id
    return build_entry(
        trained, work.name, segment, field, work.table.version, BitMap(), files
    ).SerializeToString()


def _open_model(table: Snapshot, recipe: IndexParams, entry: bytes) -> TrainedModel:
    """Return the trained model of a segment."""
    return reopen(open_segment(_segment(table, entry)), recipe)


def _segment(table: Snapshot, entry_bytes: bytes) -> Segment:
    entry = table_pb2.IndexMetadata.FromString(entry_bytes)
    covered = covered_fragments(entry) or BitMap()
    return Segment(entry, covered, table.store, index_directory(table.root, uuid.UUID(bytes=entry.uuid.uuid)))


def _encode_rows(task: tuple[_Work, IndexParams, bytes, tuple[int, ...]]) -> bytes:
    """Write a segment of some fragments, and return its entry."""
    work, recipe, training, numbers = task
    table = work.table.load()
    trained = _open_model(table, recipe, training)
    manifest = table.manifest
    fragments = [fragment for fragment in manifest.fragments if fragment.id in set(numbers)]
    rows = segment_rows(table, work.column, fragments)
    with new_segment(table.table) as segment:
        directory = index_directory(table.root, segment)
        files = write_rows(trained, table.store, directory, rows, manifest.file_version)
    field = leaf_field(manifest.schema, work.column).id
    entry = build_entry(trained, work.name, segment, field, work.table.version, BitMap(numbers), files)
    return entry.SerializeToString()


def _merge_group(task: tuple[_Work, IndexParams, bytes, Sequence[bytes]]) -> bytes:
    """Write one segment with the rows of several, and return its entry."""
    work, recipe, training, entries = task
    if len(entries) == 1:
        return entries[0]
    table = work.table.load()
    trained = _open_model(table, recipe, training)
    segments = [_segment(table, data) for data in entries]
    covered = BitMap().union(*(segment.covered for segment in segments))
    open_segments = [open_segment(segment) for segment in segments]
    parts = [all_partitions(part) for part in open_segments]
    with new_segment(table.table) as segment:
        directory = index_directory(table.root, segment)
        files = merge_segments(trained, table.store, directory, parts, table.manifest.file_version)
    field = int(segments[0].entry.fields[0])
    merged = build_entry(trained, work.name, segment, field, work.table.version, covered, files)
    return merged.SerializeToString()


def _delete_unused(table: Snapshot, entries: Iterable[bytes]) -> None:
    """Delete the files of segments that are not part of the index."""
    delete_segments(table.table, map(table_pb2.IndexMetadata.FromString, entries))


def _build_scalar(task: tuple[_Work, str, tuple[int, ...], Mapping[str, Any]]) -> bytes:
    """Write a segment of a scalar index over some fragments, and return its entry."""
    work, kind, numbers, options = task
    table = work.table.load()
    fragments = [fragment for fragment in table.manifest.fragments if fragment.id in set(numbers)]
    index = scalar_kind(kind)
    entry = build_segment(table, work.column, index, work.name, fragments, options)
    return entry.SerializeToString()
