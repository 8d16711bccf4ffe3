"""Vector indices of tables: building, extending and merging their segments without Spark.

The parts (`sample_vectors`, `segment_rows`, `entry_of`) are what a Spark job puts together in its own way.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pyroaring import BitMap

from spark_lance.arrow.arrays import numpy_type
from spark_lance.errors import IndexNotFoundError, OptionError, OptionTypeError
from spark_lance.index.base.columns import column_values, leaf_field, top_column
from spark_lance.index.base.entries import (
    Segment,
    check_extensible,
    check_name,
    commit_segments,
    index_directory,
    new_entry,
    new_segment,
    segments_of,
)
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.vector.base.metrics import Vectors, metric_named
from spark_lance.index.vector.build import (
    IndexParams,
    TrainedModel,
    coded_rows,
    merge_segments,
    reopen,
    train,
    vector_type,
    write_rows,
)
from spark_lance.index.vector.graph import GraphParams
from spark_lance.index.vector.kinds import VECTOR_LABEL, VECTOR_NEWEST, is_multi, vector_kind
from spark_lance.index.vector.multi import flat_vectors
from spark_lance.index.vector.quantizers.product import PQ_BITS, check_sub_vectors
from spark_lance.index.vector.quantizers.rabit import read_rotation
from spark_lance.index.vector.storage import (
    AUXILIARY_FILE,
    INDEX_FILE,
    INDEX_TYPES,
    Partition,
    RowIds,
    VectorSegment,
    all_partitions,
)
from spark_lance.io.progress import report
from spark_lance.proto import index_pb2, table_pb2
from spark_lance.table.format.bitmaps import covered_fragments
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.take import take_positions

_TYPE_URL = INDEX_KINDS[VECTOR_LABEL].type_url
_WINDOW_BYTES = 32 << 20
# Sample size in rows, to estimate the number of vectors per row.
_COUNTED_ROWS = 256
_PLAIN_OPTIONS = (
    "sample_rate",
    "max_iters",
    "rotation_type",
    "ivf_centroids",
    "pq_codebook",
    "rabitq_model",
)
_GRAPH_OPTIONS = ("m", "ef_construction", "max_level")


def create_vector_index(
    snapshot: Snapshot,
    column: str,
    recipe: IndexParams,
    *,
    name: str | None = None,
    replace: bool = True,
) -> Manifest:
    """Build an index over all rows of a version and commit it.

    Args:
        snapshot: the version.
        column: a fixed-size list of numbers, or a list of such; with dots, in a struct column.
        recipe: what is built.
        name: of the index, `{column}_idx` by default.
        replace: whether an index of the name may be replaced; if not, one is an OptionError.

    Raises:
        SchemaError: the column does not exist, or cannot be indexed so.
        OptionError: the recipe does not fit the rows.
        CommitError: the commit failed; see its subclasses.
    """
    field = leaf_field(snapshot.schema, column)
    vector_type(field.arrow_type(), recipe.metric)
    name = name or f"{column}_idx"
    check_name(snapshot.manifest, name, field.id, replace)
    rows = snapshot.live_rows()
    report("training", 0, 0, "rows")
    rows = count_vectors(snapshot, column, rows)
    trained = train(recipe, sample_vectors(snapshot, column, recipe.sample_size(rows)), rows)
    covered = BitMap(fragment.id for fragment in snapshot.fragments)
    pieces = segment_rows(snapshot, column, snapshot.fragments)
    with new_segment(snapshot.table) as segment:
        directory = index_directory(snapshot.root, segment)
        files = write_rows(trained, snapshot.store, directory, pieces, snapshot.manifest.file_version)
    entry = entry_of(trained, name, segment, field.id, snapshot.version, covered, files)
    removed = [old for old in snapshot.manifest.indices if old.name == name]
    return commit_segments(snapshot, [entry], removed)


def write_vector_segment(
    snapshot: Snapshot,
    column: str,
    recipe: IndexParams,
    name: str,
    fragments: Sequence[table_pb2.DataFragment],
    number: uuid.UUID | None = None,
) -> table_pb2.IndexMetadata:
    """Train on some fragments, write a segment that covers them, and return its entry; nothing is committed.

    Args:
        snapshot, column, recipe, name: as for `create_vector_index`; segments of one recipe with centroids,
            and for PQ a codebook, can be merged.
        fragments: the fragments.
        number: the id of the segment, if that is chosen already.

    Raises:
        SchemaError, OptionError: as `create_vector_index`.
    """
    field = leaf_field(snapshot.schema, column)
    vector_type(field.arrow_type(), recipe.metric)
    scan = snapshot.scan([top_column(snapshot.schema, column)], fragments=fragments)
    rows = sum(scan.live_rows(fragment) for fragment in fragments)
    rows = count_vectors(snapshot, column, rows)
    sample = sample_vectors(snapshot, column, recipe.sample_size(rows), fragments)
    trained = train(recipe, sample, rows)
    pieces = segment_rows(snapshot, column, fragments)
    with new_segment(snapshot.table, number) as segment:
        directory = index_directory(snapshot.root, segment)
        files = write_rows(trained, snapshot.store, directory, pieces, snapshot.manifest.file_version)
    covered = BitMap(fragment.id for fragment in fragments)
    return entry_of(trained, name, segment, field.id, snapshot.version, covered, files)


def merge_vector_segments(
    snapshot: Snapshot, entries: Sequence[table_pb2.IndexMetadata]
) -> table_pb2.IndexMetadata:
    """Merge segments that are not committed, and return the entry of a new one; the old files stay.

    If segments share centroids but not the parameters of codes, their codes are computed again, from the
    table.

    Raises:
        OptionError: they have different centroids, or two of them cover one fragment.
    """
    segments = [
        Segment(entry, covered_fragments(entry) or BitMap(), *snapshot.bases.index_dir(entry))
        for entry in entries
    ]
    opened = [open_segment(segment) for segment in segments]
    first, entry = opened[0], entries[0]
    covered = BitMap()
    for segment, other in zip(segments, opened, strict=True):
        if covered & segment.covered:
            raise OptionError(f"two parts cover fragment {min(covered & segment.covered)}: build one of them")
        if (other.kind, other.metric) != (first.kind, first.metric) or not np.array_equal(
            other.ivf.centroids, first.ivf.centroids
        ):
            raise OptionError(
                "segments that were trained apart cannot be merged: give each the same ivf_centroids, or "
                "commit them side by side"
            )
        covered |= segment.covered
    field = int(entry.fields[0])
    recipe = recipe_of(entry, first)
    if not all(_is_alike(other, first) for other in opened):
        fragments = [fragment for fragment in snapshot.fragments if fragment.id in covered]
        recipe = replace(recipe, centroids=first.ivf.centroids)
        column = snapshot.schema.path_of(field)
        return write_vector_segment(snapshot, column, recipe, entry.name, fragments)
    trained = reopen(first, recipe)
    resolver = RowResolver(snapshot)
    with new_segment(snapshot.table) as number:
        parts = [_counting(segment, resolver, snapshot.manifest) for segment in segments]
        directory, written_as = index_directory(snapshot.root, number), snapshot.manifest.file_version
        files = merge_segments(trained, snapshot.store, directory, parts, written_as)
    version = min(each.dataset_version for each in entries)
    return entry_of(trained, entry.name, number, field, version, covered, files)


def sample_vectors(
    snapshot: Snapshot,
    column: str,
    size: int,
    fragments: Sequence[table_pb2.DataFragment] | None = None,
) -> Vectors:
    """Return vectors of rows chosen at random, (n, dim) with n about `size` at most, in the column's type.

    Args:
        snapshot, column: where they are.
        size: how many.
        fragments: that they are taken from; all by default.
    """
    scan = snapshot.scan([top_column(snapshot.schema, column)], fragments=fragments)
    rows = sum(scan.live_rows(fragment) for fragment in scan.fragments)
    vectors = count_vectors(snapshot, column, rows)
    size = -(-size * rows // max(1, vectors))
    if size >= rows:
        parts = [flat_vectors(column_values(table, column))[0] for table in scan.tables()]
        kind = vector_kind(leaf_field(snapshot.schema, column).arrow_type())
        empty = np.empty((0, kind.list_size), dtype=numpy_type(kind.value_type))
        return np.concatenate([empty, *parts])
    positions = np.sort(np.random.default_rng(42).choice(rows, size, replace=False))
    matrix = flat_vectors(column_values(take_positions(scan, positions), column))[0]
    return np.random.default_rng(43).permutation(matrix)


def count_vectors(snapshot: Snapshot, column: str, rows: int) -> int:
    """Return about how many vectors some rows have; a row may have several.

    Args:
        snapshot: the version.
        column: of vectors, or of lists of them.
        rows: as many as the version has, or are looked at.
    """
    if not is_multi(leaf_field(snapshot.schema, column).arrow_type()) or not rows:
        return rows
    scan = snapshot.scan([top_column(snapshot.schema, column)])
    every = sum(scan.live_rows(fragment) for fragment in scan.fragments)
    positions = np.sort(np.random.default_rng(44).choice(every, min(every, _COUNTED_ROWS), replace=False))
    vectors, _ = flat_vectors(column_values(take_positions(scan, positions), column))
    return max(1, round(rows * len(vectors) / max(1, len(positions))))


def segment_rows(
    snapshot: Snapshot, column: str, fragments: Sequence[table_pb2.DataFragment]
) -> Iterator[tuple[RowIds, Vectors]]:
    """Yield row ids and vectors of the rows of some fragments that have a vector, once for each vector."""
    top = top_column(snapshot.schema, column)
    scan = snapshot.scan([top], with_row_id=True, fragments=fragments)
    total = sum(scan.live_rows(fragment) for fragment in fragments)
    offset = 0
    for table in scan.tables(target_bytes=_WINDOW_BYTES):
        offset += table.num_rows
        report("coding vectors", offset, total, "rows")
        vectors, owners = flat_vectors(column_values(table, column))
        yield table.column(ROW_ID).to_numpy()[owners], vectors


def entry_of(
    trained: TrainedModel,
    name: str,
    segment: uuid.UUID,
    field: int,
    version: int,
    covered: BitMap,
    files: dict[str, int],
) -> table_pb2.IndexMetadata:
    """Return the manifest's entry of a segment that was written."""
    details = _details(trained).SerializeToString()
    written = trained.quantizer.index_version
    return new_entry(name, segment, [field], version, covered, _TYPE_URL, details, written, files)


def open_segment(segment: Segment) -> VectorSegment:
    """Return the stored form of a segment; its files are opened when something is asked of them."""
    return VectorSegment(segment.file(INDEX_FILE), segment.file(AUXILIARY_FILE))


def _as_numbers(value: Any) -> Vectors | None:
    """Return centroids or codewords as an array: they may come as a list, or as Arrow's fixed-size lists."""
    if value is None:
        return None
    if hasattr(value, "to_numpy_ndarray"):
        value = value.to_numpy_ndarray()
    elif hasattr(value, "flatten") and hasattr(value, "type"):
        value = value.flatten().to_numpy(zero_copy_only=False).reshape(len(value), -1)
    numbers = np.asarray(value)
    if numbers.dtype.kind != "f":
        raise OptionTypeError(f"centroids and codewords must be floating numbers, got {numbers.dtype}")
    return numbers


def _codebook(value: Any, sub_vectors: int | None, bits: int | None) -> Vectors | None:
    """Return codewords with an axis for sub-vectors, which those in Arrow's lists lack."""
    numbers = _as_numbers(value)
    if numbers is None or numbers.ndim == 3:
        return numbers
    words = 1 << (bits or 8)
    if not sub_vectors or numbers.size % (sub_vectors * words):
        raise OptionError(
            f"{numbers.size} values make no codewords of {sub_vectors} sub-vectors, {words} each"
        )
    return numbers.reshape(sub_vectors, words, -1)


def check_dimension(recipe: IndexParams, dim: int) -> None:
    """Check that an index can be built over vectors of `dim` values.

    Raises:
        OptionError: product codes cannot have that number of parts.
    """
    if recipe.num_sub_vectors is not None and "PQ" in recipe.kind:
        check_sub_vectors(recipe.num_sub_vectors, recipe.num_bits or PQ_BITS, dim)


def recipe_with(
    kind: str,
    metric: str,
    num_partitions: int | None,
    num_sub_vectors: int | None,
    num_bits: int | None,
    options: Mapping[str, Any],
) -> IndexParams:
    """Return a recipe of values that a user gave, with pylance's names for the rarer ones.

    Raises:
        OptionError: an option does not exist, or a value cannot be used.
    """
    unknown = sorted(set(options) - {*_PLAIN_OPTIONS, *_GRAPH_OPTIONS})
    if unknown:
        raise OptionError(f"a vector index has no option {', '.join(unknown)}")
    signs = None
    if (model := options.get("rabitq_model")) is not None:
        num_bits, signs = read_rotation(model, num_bits)
    plain = GraphParams()
    graph = {name: int(options.get(name, getattr(plain, name))) for name in _GRAPH_OPTIONS}
    return IndexParams(
        kind.upper(),
        metric_named(metric),
        num_partitions=num_partitions,
        num_sub_vectors=num_sub_vectors,
        num_bits=num_bits,
        sample_rate=int(options.get("sample_rate", 256)),
        max_iterations=int(options.get("max_iters", 50)),
        rotation=options.get("rotation_type", "fast"),
        graph=GraphParams(**graph),
        centroids=_as_numbers(options.get("ivf_centroids")),
        codebook=_codebook(options.get("pq_codebook"), num_sub_vectors, num_bits),
        rotation_signs=signs,
    )


def extend_vector_index(snapshot: Snapshot, name: str, *, merge: int | None = None) -> Manifest:
    """Index the fragments that an index does not cover yet, with its centroids and codes.

    Args:
        snapshot: the version.
        name: of the index.
        merge: how many of the newest segments become one with the new rows; 0 adds a segment, None merges
            all that share centroids and code parameters with the newest.

    Raises:
        IndexNotFoundError: there is no vector index of the name.
        CommitError: the commit failed; see its subclasses.
    """
    segments = [s for s in segments_of(snapshot, VECTOR_LABEL, VECTOR_NEWEST) if s.name == name]
    if not segments:
        raise IndexNotFoundError(f"there is no vector index {name!r} here")
    check_extensible(snapshot.manifest, name, segments)
    newest = open_segment(segments[-1])
    trained = reopen(newest, recipe_of(segments[-1].entry, newest))
    covered = BitMap().union(*(segment.covered for segment in segments))
    fresh = [fragment for fragment in snapshot.fragments if fragment.id not in covered]
    alike = [s for s in segments if _is_alike(open_segment(s), newest)]
    merged = alike if merge is None else alike[len(alike) - min(merge, len(alike)) :]
    if not fresh and len(merged) < 2:
        return snapshot.manifest
    field = int(segments[-1].entry.fields[0])
    column = snapshot.schema.path_of(field)
    resolver = RowResolver(snapshot)
    rows = segment_rows(snapshot, column, fresh)
    with new_segment(snapshot.table) as number, coded_rows(trained, rows) as added:
        parts = [_counting(segment, resolver, snapshot.manifest) for segment in merged] + [added]
        directory, written_as = index_directory(snapshot.root, number), snapshot.manifest.file_version
        files = merge_segments(trained, snapshot.store, directory, parts, written_as)
    covers = BitMap(fragment.id for fragment in fresh).union(*(segment.covered for segment in merged))
    version = min([snapshot.version, *(segment.entry.dataset_version for segment in merged)])
    entry = entry_of(trained, name, number, field, version, covers, files)
    return commit_segments(snapshot, [entry], [segment.entry for segment in merged])


def _counting(segment: Segment, resolver: RowResolver, manifest: Manifest) -> Iterator[Partition]:
    """Yield the partitions of a segment with just the rows that count, by the ids that they have now."""
    for partition in all_partitions(open_segment(segment)):
        addresses, counts = resolver.addresses(partition.row_ids, segment.covered)
        ids = partition.row_ids if manifest.uses_stable_row_ids else addresses
        yield Partition(ids[counts], {name: codes[counts] for name, codes in partition.codes.items()})


def _is_alike(one: VectorSegment, other: VectorSegment) -> bool:
    """Whether two segments were made by the same training, so that their codes mean the same."""
    return (
        (one.kind, one.metric) == (other.kind, other.metric)
        and np.array_equal(one.ivf.centroids, other.ivf.centroids)
        and one.quantizer.same_codes(other.quantizer)
    )


def recipe_of(entry: table_pb2.IndexMetadata, segment: VectorSegment) -> IndexParams:
    """Return the recipe with which a stored segment could be built again."""
    message = index_pb2.VectorIndexDetails.FromString(entry.index_details.value)
    graph_config = message.hnsw_index_config
    graph = GraphParams()
    if segment.has_graph and graph_config.max_connections:
        graph = GraphParams(
            graph_config.max_connections,
            graph_config.construction_ef,
            graph_config.max_level or graph.max_level,
        )
    return IndexParams(segment.kind, segment.metric, num_partitions=len(segment.ivf), graph=graph)


def _details(trained: TrainedModel) -> index_pb2.VectorIndexDetails:
    """Return the message that tells kind and metric without opening a file."""
    recipe = trained.recipe
    message = index_pb2.VectorIndexDetails(
        metric_type=f"METRIC_{recipe.metric.upper()}",
        target_num_partitions=len(trained.ivf),
    )
    name, has_graph = INDEX_TYPES[recipe.kind]
    if has_graph:
        message.hnsw_index_config.max_connections = recipe.graph.m
        message.hnsw_index_config.construction_ef = recipe.graph.ef_construction
        message.hnsw_index_config.max_level = recipe.graph.max_level
    part = getattr(message, name.lower())
    part.SetInParent()
    for key, value in trained.quantizer.summary().items():
        setattr(part, key, value)
    return message
