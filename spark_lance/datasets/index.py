"""Methods that build, optimize, describe and drop indexes without Spark."""

from __future__ import annotations

import logging
import uuid as uuids
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_lance.datasets.operations import Index
from spark_lance.datasets.show import INDEX_COLUMNS, index_rows
from spark_lance.errors import (
    IndexNotFoundError,
    OptionError,
    OptionTypeError,
    UnsupportedFormatError,
    suggestion,
)
from spark_lance.index.base.columns import leaf_field
from spark_lance.index.base.entries import check_name, find_segments
from spark_lance.index.scalar.create import (
    build_segment,
    create_scalar_index,
    extend_scalar_index,
    merge_parts,
    merge_segments,
    write_part,
)
from spark_lance.index.scalar.kinds import SCALAR_INDICES, scalar_kind
from spark_lance.index.vector.create import (
    configure_recipe,
    create_vector_index,
    extend_vector_index,
    merge_vector_segments,
    open_segment,
    retrain_vector_index,
    write_vector_segment,
)
from spark_lance.index.vector.kinds import VECTOR_LABEL, VECTOR_NEWEST
from spark_lance.index.vector.storage import INDEX_TYPES
from spark_lance.io.display import TableRepr
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.index_kinds import index_label
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.indices.describe import IndexDescription, describe_indices, list_indices
from spark_lance.table.operations.create_index import create_index_message
from spark_lance.table.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

_SYSTEM_PREFIX = "__lance_"


def drop_index(snapshot: Snapshot, name: str) -> Manifest:
    """Remove all segments of an index, and return the new version.

    Older versions keep the files until a cleanup deletes them.

    Raises:
        IndexNotFoundError: the version has no index with this name.
        OptionError: the name belongs to an internal entry of the format.
        CommitError: the commit failed; see its subclasses.
    """
    if name.startswith(_SYSTEM_PREFIX):
        raise OptionError(f"{name!r} is not an index of a column: the format keeps its own records there")
    removed = [entry for entry in snapshot.manifest.indices if entry.name == name]
    if not removed:
        names = sorted({e.name for e in snapshot.manifest.indices if not e.name.startswith(_SYSTEM_PREFIX)})
        raise IndexNotFoundError(
            f"index not found: {name!r}; there is {', '.join(names) or 'none'}{suggestion(name, names)}"
        )
    operation = create_index_message(removed=removed)
    return commit_operation(snapshot.table, operation, read_version=snapshot.version)


def segment_figures(snapshot: Snapshot, index: IndexDescription) -> list[dict[str, Any]]:
    """Return a dict with statistics per segment.

    All segments have `uuid`, `num_fragments` and `size_bytes`. Vector indexes also have `index_type`,
    `metric_type`, `uri`, `num_partitions`, `centroids` (a list of vectors), `loss` (None if the writer did
    not store it) and `partitions` (with their `size` in rows). `sub_index` describes the codes: `index_type`,
    `metric_type`, `dimension`, `nbits` and `num_sub_vectors`. Other indexes have statistics of their type
    (`ScalarIndex.figures`), such as zone sizes, filter sizes or tokenizer settings.

    Raises:
        FormatError: files of the index are damaged.
    """
    plain: list[dict[str, Any]] = [
        {
            "uuid": segment.uuid,
            "num_fragments": None if segment.fragment_ids is None else len(segment.fragment_ids),
            "size_bytes": segment.size_bytes,
            **({"params": dict(index.details)} if index.details else {}),
        }
        for segment in index.segments
    ]
    label = index.type_url.rpartition(".")[2].lower()
    kind = next((each for each in SCALAR_INDICES.values() if each.label == label), None)
    if kind is not None:
        for usable in find_segments(snapshot, label, kind.newest):
            for figures in plain if usable.name == index.name else ():
                if figures["uuid"].replace("-", "") == usable.entry.uuid.uuid.hex():
                    figures |= kind(usable).figures()
    if label != VECTOR_LABEL:
        return plain
    result = {
        segment.entry.uuid.uuid.hex(): segment
        for segment in find_segments(snapshot, VECTOR_LABEL, VECTOR_NEWEST)
        if segment.name == index.name
    }
    for figures in plain:
        number = figures["uuid"].replace("-", "")
        if number not in result:
            continue
        segment = result[number]
        try:
            vector_segment = open_segment(segment)
            centroids = vector_segment.ivf.centroids
        except UnsupportedFormatError:
            continue
        details = dict(index.details.get("compression") or {})
        sub = {"index_type": details.pop("type", "flat").upper(), "dimension": int(centroids.shape[1])}
        if "num_bits" in details:
            details["nbits"] = details.pop("num_bits")
        figures |= {
            "index_type": vector_segment.kind,
            "index_file_version": "V3",
            "metric_type": vector_segment.metric,
            "uri": vector_segment.index.store.uri(vector_segment.index.path),
            "loss": vector_segment.training_loss,
            "num_partitions": len(vector_segment.lengths),
            "centroids": centroids.tolist(),
            "partitions": [{"size": int(size)} for size in vector_segment.lengths],
            "sub_index": {**sub, **details, **vector_segment.quantizer.figures()},
        }
    return plain


_VECTOR_ARGUMENTS = ("num_partitions", "num_sub_vectors", "num_bits")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class DatasetIndices(TableRepr):
    """The indexes of a version. One process or several can build an index.

    With several processes, each one builds a segment of some fragments with `create_uncommitted` and sends
    the result to one process. That process can merge the segments (`merge_segments`) and commits them
    (`commit_segments`).
    """

    dataset: LanceDataset

    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        return f"indexes of {self.dataset.uri}", INDEX_COLUMNS, index_rows(self.dataset)

    def create(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        metric: str = "l2",
        replace: bool = True,
        num_partitions: int | None = None,
        num_sub_vectors: int | None = None,
        num_bits: int | None = None,
        **options: Any,
    ) -> LanceDataset:
        """Build a vector index and return the new version.

        Args:
            column: a fixed-size list of float16, float32 or float64, or of uint8 for hamming.
            index_type: IVF_FLAT, IVF_PQ, IVF_SQ, IVF_RQ, IVF_HNSW_FLAT, IVF_HNSW_SQ or IVF_HNSW_PQ.
            name: name of the index. Default: `{column}_idx`.
            metric: l2, cosine, dot or hamming.
            replace: whether to replace an existing index with this name.
            num_partitions: number of IVF partitions. Default: one per 4,096 rows; with HNSW, one per million.
            num_sub_vectors: number of PQ sub-vectors. Default: a 16th of the dimension.
            num_bits: bits per code: 8 or 4 for PQ, 1 to 9 for RQ.
            options: further options with their defaults: `sample_rate` (256), `max_iters` (50); for RQ
                `rotation_type` ("fast" or "matrix"); for HNSW `m` (20), `ef_construction` (150) and
                `max_level` (7). To skip training: `ivf_centroids` (partitions, dim), and with them
                `pq_codebook` (sub-vectors, codewords, values).

        Raises:
            SchemaError: the column does not exist, or its type does not fit the index type.
            OptionError: an option is wrong, or the name is taken.
            CommitError: the commit failed; see its subclasses.
        """
        recipe = configure_recipe(index_type, metric, num_partitions, num_sub_vectors, num_bits, options)
        manifest = create_vector_index(
            self.dataset.snapshot, _single_column(column), recipe, name=name, replace=replace
        )
        return self.dataset.at(manifest)

    def create_scalar(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        *,
        replace: bool = True,
        train: bool = True,
        **options: Any,
    ) -> LanceDataset:
        """Build a scalar or full-text index and return the new version.

        Scans with a filter use scalar indexes. `full_text_query` uses INVERTED indexes.

        Args:
            column: a column, or the dotted path of a struct field.
            index_type: BTREE (ordered values), BITMAP (few distinct values), LABEL_LIST (lists), NGRAM
                (substrings of text), ZONEMAP (values that follow the row order), BLOOMFILTER (lookups of
                single values), JSON (values in documents), RTREE (geometries) or INVERTED (full text).
            name, replace: see `create_index`.
            train: False creates an empty index, which `optimize.optimize_indices` fills later.
            options: options of INVERTED: `base_tokenizer` ("simple", "whitespace" or "raw"), `language`
                ("English"), `max_token_length` (40), `lower_case` (True), `stem` (True), `remove_stop_words`
                (True), `ascii_folding` (True), `custom_stop_words` (instead of the language's stop words),
                `with_position` (False; other engines find phrases only in an index with positions).

        Raises:
            SchemaError, OptionError, CommitError: as for `create_index`.
        """
        manifest = create_scalar_index(
            self.dataset.snapshot,
            _single_column(column),
            index_type,
            name=name,
            replace=replace,
            options=options,
            train=train,
        )
        return self.dataset.at(manifest)

    def statistics(self, name: str) -> dict[str, Any]:
        """Return statistics of an index: type, segments, and numbers of indexed and unindexed rows.

        The key `indices` has a dict per segment; see `segment_figures`.

        Raises:
            IndexNotFoundError: the index does not exist.
        """
        for index in describe_indices(self.dataset.snapshot):
            if index.name == name:
                rows = self.dataset.snapshot.live_rows()
                indexed = index.num_rows_indexed or 0
                covered = {number for segment in index.segments for number in segment.fragment_ids or ()}
                return {
                    "index_type": index.index_type,
                    "name": name,
                    "num_indices": len(index.segments),
                    "num_segments": len(index.segments),
                    "num_indexed_rows": indexed,
                    "num_unindexed_rows": rows - indexed,
                    "num_indexed_fragments": len(covered),
                    "num_unindexed_fragments": len(self.dataset.manifest.fragments) - len(covered),
                    "details": dict(index.details),
                    "indices": segment_figures(self.dataset.snapshot, index),
                }
        raise IndexNotFoundError(f'Index "{name}" not found')

    def optimize(
        self,
        *,
        num_indices_to_merge: int | None = None,
        index_names: Sequence[str] | None = None,
        retrain: bool = False,
    ) -> None:
        """Add rows to indexes that do not cover them yet.

        The dataset stays at its version. Open the new one with `checkout_version(latest_version)`.

        Args:
            num_indices_to_merge: how many of the newest segments of an index to merge with the new rows. 0
                adds a segment. Default: merge all segments.
            index_names: names of the indexes. Default: all indexes of types that this package can extend. An
                index in a format too old to read is skipped with a warning in the log.
            retrain: whether to build each index again from all rows, as one segment. A vector index gets new
                centroids and codewords, and the default number of partitions for its rows.

        Raises:
            IndexNotFoundError: an index does not exist, or this package cannot extend its type.
            CommitError: a commit failed; see its subclasses.
        """
        dataset = self.dataset
        names = list(index_names) if index_names is not None else list_extendable_indexes(dataset.manifest)
        snapshot = dataset.snapshot
        for name in names:
            kind = _check_extendable(dataset.manifest, name)
            try:
                if kind != "vector":
                    manifest = extend_scalar_index(
                        snapshot, name, merge=num_indices_to_merge, rebuild=retrain
                    )
                elif retrain:
                    manifest = retrain_vector_index(snapshot, name)
                else:
                    manifest = extend_vector_index(snapshot, name, merge=num_indices_to_merge)
                snapshot = snapshot.at(manifest)
            except IndexNotFoundError as error:
                if index_names is not None:
                    raise
                logger.warning("not extended: %s", error)

    def describe(self) -> list[IndexDescription]:
        """Return the indexes of this version with their segments, sorted by name.

        Raises:
            FormatError: index entries are damaged.
        """
        return describe_indices(self.dataset.snapshot)

    def segments(self) -> list[dict[str, Any]]:
        """Return one dict per index segment: name, type, uuid, fields, version, fragment_ids, base_id.

        Raises:
            FormatError: index entries are damaged.
        """
        return list_indices(self.dataset.snapshot)

    def drop(self, name: str) -> LanceDataset:
        """Remove an index and return the new version. Older versions keep the index.

        Raises:
            IndexNotFoundError: the index does not exist.
            CommitError: the commit conflicts with another writer; see its subclasses.
        """
        return self.dataset.at(drop_index(self.dataset.snapshot, name))

    def create_uncommitted(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        *,
        fragment_ids: Iterable[int],
        index_uuid: str | None = None,
        **options: Any,
    ) -> Index:
        """Build an index segment of some fragments without a commit, and return its entry.

        Args:
            column, index_type, name, options: as for `create_index` or `create_scalar_index`. Vector
                segments can be merged if they are built with the same `ivf_centroids` (and `pq_codebook`).
            fragment_ids: ids of the fragments.
            index_uuid: id of the segment. Default: a new one.

        Raises:
            SchemaError: the column does not exist, or its type does not fit the index type.
            OptionError: an option is wrong, or a fragment does not exist.
        """
        fragments = self._fragments_named(fragment_ids)
        name = name or f"{column}_idx"
        number = None if index_uuid is None else _parse_uuid(index_uuid)
        if index_type.upper() in INDEX_TYPES:
            metric = options.pop("metric", "l2")
            partitions, sub_vectors, bits = (options.pop(argument, None) for argument in _VECTOR_ARGUMENTS)
            recipe = configure_recipe(index_type, metric, partitions, sub_vectors, bits, options)
            entry = write_vector_segment(self.dataset.snapshot, column, recipe, name, fragments, number)
        else:
            kind = scalar_kind(index_type)
            kind.check(options)
            entry = build_segment(self.dataset.snapshot, column, kind, name, fragments, options, number)
        return Index.of(entry)

    def create_part(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        *,
        fragment_ids: Iterable[int],
        index_uuid: str,
        **options: Any,
    ) -> None:
        """Build a part of the segment `index_uuid`; `merge_index_metadata` merges the parts.

        Args:
            column, index_type, name, options: as for `create_scalar_index`.
            fragment_ids: ids of the fragments.
            index_uuid: id of the segment, the same for all its parts.

        Raises:
            SchemaError, OptionError: as `create_index_uncommitted`.
        """
        kind = scalar_kind(index_type)
        kind.check(options)
        fragments = self._fragments_named(fragment_ids)
        number = _parse_uuid(index_uuid)
        write_part(self.dataset.snapshot, column, kind, name or f"{column}_idx", fragments, number, options)

    def merge_parts(self, index_uuid: str, index_type: str) -> Index:
        """Merge the parts of a segment without a commit, and return the segment's entry.

        Raises:
            IndexNotFoundError: the segment has no parts.
            OptionError: the parts have another index type, or two parts cover the same fragment.
        """
        kind = scalar_kind(index_type)
        entry = merge_parts(self.dataset.snapshot, _parse_uuid(index_uuid))
        if index_label(entry) != kind.label:
            raise OptionError(f"the parts of {index_uuid} are of another kind than {index_type}")
        return Index.of(entry)

    def merge_segments(self, segments: Sequence[Index]) -> Index:
        """Merge uncommitted segments without a commit, and return the entry of the new segment.

        Raises:
            OptionError: the segments belong to different indexes, have different training, or two segments
                cover the same fragment.
        """
        if not segments:
            raise OptionError("there are no segments to merge")
        entries = [segment.message() for segment in segments]
        merge = merge_vector_segments if index_label(entries[0]) == VECTOR_LABEL else merge_segments
        return Index.of(merge(self.dataset.snapshot, entries))

    def commit_segments(self, index_name: str, column: str, segments: Sequence[Index]) -> LanceDataset:
        """Commit segments as an index, which replaces an index with that name; return the new version.

        Raises:
            OptionError: an index of another column has the name, or two segments cover the same fragment.
            CommitError: the commit failed; see its subclasses. The files of the segments are kept.
        """
        field = leaf_field(self.dataset.snapshot.schema, column)
        check_name(self.dataset.manifest, index_name, field.id, replace=True)
        entries = [segment.message() for segment in segments]
        covered: set[int] = set()
        for segment, entry in zip(segments, entries, strict=True):
            if list(entry.fields) != [field.id]:
                raise OptionError(f"segment {segment.uuid} is not one of column {column!r}")
            twice = covered & set(segment.fragment_ids)
            if twice:
                raise OptionError(f"two segments cover fragment {min(twice)}: build one of them")
            covered |= set(segment.fragment_ids)
            entry.name = index_name
        removed = [old for old in self.dataset.manifest.indices if old.name == index_name]
        version = min([self.dataset.version, *(entry.dataset_version for entry in entries)])
        operation = create_index_message(entries, removed)
        return self.dataset.at(commit_operation(self.dataset.table, operation, read_version=version))

    def _fragments_named(self, ids: Iterable[int]) -> list[table_pb2.DataFragment]:
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise OptionTypeError(f"fragment_ids is a list of numbers, not {ids!r}")
        fragments = {fragment.id: fragment for fragment in self.dataset.snapshot.fragments}
        numbers = sorted(set(ids))
        lacking = [number for number in numbers if number not in fragments]
        if lacking or not numbers:
            what = f"no fragment {lacking[0]}" if lacking else "no fragment named"
            raise OptionError(f"there is {what}; the version has {len(fragments)} fragments")
        return [fragments[number] for number in numbers]


def list_extendable_indexes(manifest: Manifest) -> list[str]:
    """Return the names of the indexes that are known here, and can be extended."""
    names = dict.fromkeys(entry.name for entry in manifest.indices)
    return [name for name in names if _extendable_kind(manifest, name) is not None]


def _extendable_kind(manifest: Manifest, name: str) -> str | None:
    kinds = {kind.label: kind for kind in SCALAR_INDICES.values()}
    fields = {field.id: field for field in manifest.schema.walk()}
    for entry in manifest.indices:
        if entry.name != name:
            continue
        if index_label(entry) == VECTOR_LABEL:
            return "vector"
        kind = kinds.get(index_label(entry))
        field = fields.get(entry.fields[0]) if entry.fields else None
        if kind is not None and (field is None or kind.extends(entry, field)):
            return "scalar"
    return None


def _check_extendable(manifest: Manifest, name: str) -> str:
    kind = _extendable_kind(manifest, name)
    if kind is None:
        names = sorted({entry.name for entry in manifest.indices})
        raise IndexNotFoundError(
            f"there is no index {name!r} that can be extended here; the table has "
            f"{', '.join(names) or 'none'}{suggestion(name, names)}"
        )
    return kind


def _single_column(column: Any) -> str:
    """Return the column of an index from a name or a list of one name.

    Raises:
        OptionTypeError: the argument is something else.
    """
    if isinstance(column, list | tuple) and len(column) == 1:
        column = column[0]
    if not isinstance(column, str):
        raise OptionTypeError(f"an index is of one column, given by its name, not by {column!r}")
    return column


def _parse_uuid(text: str) -> uuids.UUID:
    try:
        return uuids.UUID(text)
    except (ValueError, AttributeError, TypeError):
        raise OptionError(f"{text!r} is not a uuid") from None
