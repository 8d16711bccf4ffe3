"""Build, extend and merge vector indexes without Spark.

Spark jobs use the building blocks `sample_vectors`, `segment_rows` and `build_entry`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pyroaring import BitMap

from spark_lance.arrow.arrays import numpy_type
from spark_lance.errors import IndexNotFoundError, OptionError, OptionTypeError, suggestion
from spark_lance.index.base.columns import column_values, leaf_field, top_column
from spark_lance.index.base.entries import (
    Segment,
    check_extensible,
    check_name,
    commit_segments,
    find_segments,
    index_directory,
    new_entry,
    new_segment,
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
# Sample size in rows to estimate the number of vectors per row.
_SAMPLED_ROWS = 256
_PLAIN_OPTIONS = (
    "sample_rate",
    "max_iters",
    "rotation_type",
    "ivf_centroids",
    "pq_codebook",
    "rabitq_model",
)
_GRAPH_OPTIONS = ("m", "ef_construction", "max_level")
# Arguments of index builds by pylance's names. Spark has the same names in camelCase.
_ARGUMENTS = ("num_partitions", "num_sub_vectors", "num_bits", "num_segments", "metric", "replace")


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
        column: a column of vectors or of lists of vectors, or the dotted path of a struct field.
        recipe: parameters of the index.
        name: index name, `{column}_idx` by default.
        replace: whether to replace an index of the same name; if False, its existence is an error.

    Raises:
        SchemaError: the column does not exist, or its type cannot have a vector index.
        OptionError: the recipe does not fit the vectors.
        IndexExistsError: the name exists and `replace` is False.
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
    entry = build_entry(trained, name, segment, field.id, snapshot.version, covered, files)
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
    """Train on the given fragments, write a segment that covers them, and return its entry, uncommitted.

    Args:
        snapshot, column, recipe, name: see `create_vector_index`. Segments can be merged if they have the
            same recipe and it has centroids, and for PQ a codebook.
        fragments: the fragments.
        number: the segment's id; random by default.

    Raises:
        SchemaError, OptionError: see `create_vector_index`.
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
    return build_entry(trained, name, segment, field.id, snapshot.version, covered, files)


def merge_vector_segments(
    snapshot: Snapshot, entries: Sequence[table_pb2.IndexMetadata]
) -> table_pb2.IndexMetadata:
    """Merge uncommitted segments into a new one, and return its entry. The inputs keep their files.

    If the segments have the same centroids but different quantizers, the vectors are read from the table and
    encoded again.

    Raises:
        OptionError: the segments have different centroids, or two of them cover the same fragment.
    """
    segments = [
        Segment(entry, covered_fragments(entry) or BitMap(), *snapshot.bases.index_dir(entry))
        for entry in entries
    ]
    contents = [open_segment(segment) for segment in segments]
    first, entry = contents[0], entries[0]
    covered = BitMap()
    for segment, other in zip(segments, contents, strict=True):
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
    recipe = index_params(entry, first)
    if not all(_has_same_training(other, first) for other in contents):
        fragments = [fragment for fragment in snapshot.fragments if fragment.id in covered]
        recipe = replace(recipe, centroids=first.ivf.centroids)
        column = snapshot.schema.field_path(field)
        return write_vector_segment(snapshot, column, recipe, entry.name, fragments)
    trained = reopen(first, recipe)
    resolver = RowResolver(snapshot)
    with new_segment(snapshot.table) as number:
        parts = [_live_partitions(segment, resolver, snapshot.manifest) for segment in segments]
        directory, file_version = index_directory(snapshot.root, number), snapshot.manifest.file_version
        files = merge_segments(trained, snapshot.store, directory, parts, file_version)
    version = min(each.dataset_version for each in entries)
    return build_entry(trained, entry.name, number, field, version, covered, files)


def sample_vectors(
    snapshot: Snapshot,
    column: str,
    size: int,
    fragments: Sequence[table_pb2.DataFragment] | None = None,
) -> Vectors:
    """Return the vectors of random rows, (n, dim) with the column's dtype. n is at most about `size`.

    Args:
        snapshot, column: the version and its vector column.
        size: number of vectors.
        fragments: fragments to sample; all by default.
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
    """Estimate the number of vectors of `rows` rows, since a row can have several vectors.

    Args:
        snapshot: the version.
        column: a column of vectors or of lists of vectors.
        rows: number of rows.
    """
    if not is_multi(leaf_field(snapshot.schema, column).arrow_type()) or not rows:
        return rows
    scan = snapshot.scan([top_column(snapshot.schema, column)])
    total_rows = sum(scan.live_rows(fragment) for fragment in scan.fragments)
    positions = np.sort(
        np.random.default_rng(44).choice(total_rows, min(total_rows, _SAMPLED_ROWS), replace=False)
    )
    vectors, _ = flat_vectors(column_values(take_positions(scan, positions), column))
    return max(1, round(rows * len(vectors) / max(1, len(positions))))


def segment_rows(
    snapshot: Snapshot, column: str, fragments: Sequence[table_pb2.DataFragment]
) -> Iterator[tuple[RowIds, Vectors]]:
    """Yield row ids (n,) and vectors (n, dim) of fragments. Each vector has an entry; null rows have none."""
    top = top_column(snapshot.schema, column)
    scan = snapshot.scan([top], with_row_id=True, fragments=fragments)
    total = sum(scan.live_rows(fragment) for fragment in fragments)
    offset = 0
    for table in scan.tables(target_bytes=_WINDOW_BYTES):
        offset += table.num_rows
        report("coding vectors", offset, total, "rows")
        vectors, owners = flat_vectors(column_values(table, column))
        yield table.column(ROW_ID).to_numpy()[owners], vectors


def build_entry(
    trained: TrainedModel,
    name: str,
    segment: uuid.UUID,
    field: int,
    version: int,
    covered: BitMap,
    files: dict[str, int],
) -> table_pb2.IndexMetadata:
    """Return the manifest entry of a written segment."""
    details = _details(trained).SerializeToString()
    index_version = trained.quantizer.index_version
    return new_entry(name, segment, [field], version, covered, _TYPE_URL, details, index_version, files)


def open_segment(segment: Segment) -> VectorSegment:
    """Return the content of a segment. The files are opened on first use."""
    return VectorSegment(segment.file(INDEX_FILE), segment.file(AUXILIARY_FILE))


def _as_float_array(value: Any) -> Vectors | None:
    """Return centroids or codewords as a numpy array, given lists, numpy arrays or Arrow arrays."""
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


def _shape_codebook(value: Any, sub_vectors: int | None, bits: int | None) -> Vectors | None:
    """Return a codebook of shape (sub_vectors, codewords, values), even if given as two-dimensional lists."""
    numbers = _as_float_array(value)
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
        OptionError: the vectors cannot be split into `num_sub_vectors` parts.
    """
    if recipe.num_sub_vectors is not None and "PQ" in recipe.kind:
        check_sub_vectors(recipe.num_sub_vectors, recipe.num_bits or PQ_BITS, dim)


def configure_recipe(
    kind: str,
    metric: str,
    num_partitions: int | None,
    num_sub_vectors: int | None,
    num_bits: int | None,
    options: Mapping[str, Any],
) -> IndexParams:
    """Return the index parameters of a user's arguments. `options` has pylance's names.

    Raises:
        OptionError: an option does not exist, or a value is invalid.
    """
    unknown = sorted(set(options) - {*_PLAIN_OPTIONS, *_GRAPH_OPTIONS})
    if unknown:
        similar = suggestion(unknown[0], (*_ARGUMENTS, *_PLAIN_OPTIONS, *_GRAPH_OPTIONS))
        raise OptionError(f"a vector index has no option {', '.join(unknown)}{similar}")
    signs = None
    if (model := options.get("rabitq_model")) is not None:
        num_bits, signs = read_rotation(model, num_bits)
    defaults = GraphParams()
    graph = {name: int(options.get(name, getattr(defaults, name))) for name in _GRAPH_OPTIONS}
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
        centroids=_as_float_array(options.get("ivf_centroids")),
        codebook=_shape_codebook(options.get("pq_codebook"), num_sub_vectors, num_bits),
        rotation_signs=signs,
    )


def extend_vector_index(snapshot: Snapshot, name: str, *, merge: int | None = None) -> Manifest:
    """Index the fragments that an index does not cover yet, with its centroids and quantizer.

    Args:
        snapshot: the version.
        name: index name.
        merge: how many of the newest segments to merge with the new rows. 0 adds a segment. None merges all
            segments with the same centroids and quantizer as the newest.

    Raises:
        IndexNotFoundError: no vector index has this name.
        CommitError: the commit failed; see its subclasses.
    """
    segments = [s for s in find_segments(snapshot, VECTOR_LABEL, VECTOR_NEWEST) if s.name == name]
    if not segments:
        raise IndexNotFoundError(f"there is no vector index {name!r} here")
    check_extensible(snapshot.manifest, name, segments)
    newest = open_segment(segments[-1])
    trained = reopen(newest, index_params(segments[-1].entry, newest))
    covered = BitMap().union(*(segment.covered for segment in segments))
    new_fragments = [fragment for fragment in snapshot.fragments if fragment.id not in covered]
    mergeable = [s for s in segments if _has_same_training(open_segment(s), newest)]
    merged = mergeable if merge is None else mergeable[len(mergeable) - min(merge, len(mergeable)) :]
    if not new_fragments and len(merged) < 2:
        return snapshot.manifest
    field = int(segments[-1].entry.fields[0])
    column = snapshot.schema.field_path(field)
    resolver = RowResolver(snapshot)
    rows = segment_rows(snapshot, column, new_fragments)
    with new_segment(snapshot.table) as number, coded_rows(trained, rows) as added:
        parts = [_live_partitions(segment, resolver, snapshot.manifest) for segment in merged] + [added]
        directory, file_version = index_directory(snapshot.root, number), snapshot.manifest.file_version
        files = merge_segments(trained, snapshot.store, directory, parts, file_version)
    covers = BitMap(fragment.id for fragment in new_fragments).union(*(segment.covered for segment in merged))
    version = min([snapshot.version, *(segment.entry.dataset_version for segment in merged)])
    entry = build_entry(trained, name, number, field, version, covers, files)
    return commit_segments(snapshot, [entry], [segment.entry for segment in merged])


def retrain_vector_index(snapshot: Snapshot, name: str) -> Manifest:
    """Replace all segments of an index by one, with new centroids and codewords of the current vectors.

    The kind, metric and size of the codes do not change. The number of partitions is the default for the
    current number of rows, as in pylance.

    Args:
        snapshot: the version.
        name: index name.

    Raises:
        IndexNotFoundError: no vector index has this name.
        OptionError: no row has a vector.
        CommitError: the commit failed; see its subclasses.
    """
    segments = [s for s in find_segments(snapshot, VECTOR_LABEL, VECTOR_NEWEST) if s.name == name]
    if not segments:
        raise IndexNotFoundError(f"there is no vector index {name!r} here")
    check_extensible(snapshot.manifest, name, segments)
    entry = segments[-1].entry
    column = snapshot.schema.field_path(int(entry.fields[0]))
    recipe = replace(index_params(entry, open_segment(segments[-1])), num_partitions=None)
    return create_vector_index(snapshot, column, recipe, name=name)


def _live_partitions(segment: Segment, resolver: RowResolver, manifest: Manifest) -> Iterator[Partition]:
    """Yield the partitions of a segment with only the live rows and their current ids."""
    for partition in all_partitions(open_segment(segment)):
        addresses, counts = resolver.addresses(partition.row_ids, segment.covered)
        ids = partition.row_ids if manifest.uses_stable_row_ids else addresses
        yield Partition(ids[counts], {name: codes[counts] for name, codes in partition.codes.items()})


def _has_same_training(one: VectorSegment, other: VectorSegment) -> bool:
    """Return whether two segments have the same centroids and quantizer, so that they can be merged."""
    return (
        (one.kind, one.metric) == (other.kind, other.metric)
        and np.array_equal(one.ivf.centroids, other.ivf.centroids)
        and one.quantizer.same_codes(other.quantizer)
    )


def index_params(entry: table_pb2.IndexMetadata, segment: VectorSegment) -> IndexParams:
    """Return the parameters to rebuild a stored segment."""
    message = index_pb2.VectorIndexDetails.FromString(entry.index_details.value)
    graph_config = message.hnsw_index_config
    graph = GraphParams()
    if segment.has_graph and graph_config.max_connections:
        graph = GraphParams(
            graph_config.max_connections,
            graph_config.construction_ef,
            graph_config.max_level or graph.max_level,
        )
    codes = segment.quantizer.summary()
    return IndexParams(
        segment.kind,
        segment.metric,
        num_partitions=len(segment.ivf),
        num_sub_vectors=codes.get("num_sub_vectors"),
        num_bits=codes.get("num_bits"),
        rotation="matrix" if codes.get("rotation_type") else "fast",
        graph=graph,
    )


def _details(trained: TrainedModel) -> index_pb2.VectorIndexDetails:
    """Return the details message of the manifest, which has the index kind and metric."""
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
