"""Indices, their upkeep and figures of their segments, without Spark."""

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
from spark_lance.index.base.entries import check_name, segments_of
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
    create_vector_index,
    extend_vector_index,
    merge_vector_segments,
    open_segment,
    recipe_with,
    write_vector_segment,
)
from spark_lance.index.vector.kinds import VECTOR_LABEL, VECTOR_NEWEST
from spark_lance.index.vector.storage import INDEX_TYPES
from spark_lance.io.display import TableRepr
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.index_kinds import label_of
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.indices.describe import IndexDescription, describe_indices, list_indices
from spark_lance.table.operations.create_index import create_index_message
from spark_lance.table.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

_SYSTEM_PREFIX = "__lance_"


def drop_index(snapshot: Snapshot, name: str) -> Manifest:
    """Take all segments of an index out of the table and return the version without them.

    The files stay for older versions, until a clean-up.

    Raises:
        IndexNotFoundError: the version has no index of this name.
        OptionError: the name is that of an entry that belongs to the format.
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
    """Return a dict per segment.

    All segments have `uuid`, `num_fragments` and `size_bytes`. Vector indices also have `index_type`,
    `metric_type`, `uri`, `num_partitions`, `centroids` (a list of vectors), `loss` (None if the writer did
    not store it) and `partitions` (with their `size` in rows). Codes have `sub_index` with `index_type`,
    `metric_type`, `dimension`, `nbits` and `num_sub_vectors`. Other indices have the figures of their kind
    (`ScalarIndex.figures`): sizes of zones, filters, how text was cut.

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
        for usable in segments_of(snapshot, label, kind.newest):
            for figures in plain if usable.name == index.name else ():
                if figures["uuid"].replace("-", "") == usable.entry.uuid.uuid.hex():
                    figures |= kind(usable).figures()
    if label != VECTOR_LABEL:
        return plain
    result = {
        segment.entry.uuid.uuid.hex(): segment
        for segment in segments_of(snapshot, VECTOR_LABEL, VECTOR_NEWEST)
        if segment.name == index.name
    }
    for figures in plain:
        number = figures["uuid"].replace("-", "")
        if number not in result:
            continue
        segment = result[number]
        try:
            opened = open_segment(segment)
            centroids = opened.ivf.centroids
        except UnsupportedFormatError:
            continue
        details = dict(index.details.get("compression") or {})
        sub = {"index_type": details.pop("type", "flat").upper(), "dimension": int(centroids.shape[1])}
        if "num_bits" in details:
            details["nbits"] = details.pop("num_bits")
        figures |= {
            "index_type": opened.kind,
            "index_file_version": "V3",
            "metric_type": opened.metric,
            "uri": opened.index.store.uri(opened.index.path),
            "loss": opened.training_loss,
            "num_partitions": len(opened.lengths),
            "centroids": centroids.tolist(),
            "partitions": [{"size": int(size)} for size in opened.lengths],
            "sub_index": {**sub, **details, **opened.quantizer.figures()},
        }
    return plain


_VECTOR_ARGUMENTS = ("num_partitions", "num_sub_vectors", "num_bits")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class DatasetIndices(TableRepr):
    """The indices of a version: built whole, or in parts by several processes.

    For parts, each process builds a segment of some fragments with `create_uncommitted` and sends the result
    to one of them. This process can merge segments (`merge_segments`), and commits them (`commit_segments`).
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
        """Build an index over a column of vectors and return the version that has it.

        Args:
            column: a fixed-size list of float16, float32 or float64, or of uint8 for hamming.
            index_type: IVF_FLAT, IVF_PQ, IVF_SQ, IVF_RQ, IVF_HNSW_FLAT, IVF_HNSW_SQ or IVF_HNSW_PQ.
            name: of the index, `{column}_idx` by default.
            metric: l2, cosine, dot or hamming.
            replace: whether an index of the name may be replaced.
            num_partitions: by default one per 4,096 rows, with HNSW one per million.
            num_sub_vectors: of PQ; a 16th of the dimension by default.
            num_bits: of PQ, 8 or 4; of RQ, 1 to 9.
            options: `sample_rate` (256), `max_iters` (50), `rotation_type` ("fast" or "matrix") of RQ, of
                HNSW `m` (20), `ef_construction` (150) and `max_level` (7); and what training would find:
                `ivf_centroids` (partitions, dim), with them `pq_codebook` (sub-vectors, codewords, values).

        Raises:
            SchemaError: the column does not exist, or cannot be indexed so.
            OptionError: an option is wrong, or the name is taken.
            CommitError: the commit failed; see its subclasses.
        """
        recipe = recipe_with(index_type, metric, num_partitions, num_sub_vectors, num_bits, options)
        manifest = create_vector_index(
            self.dataset.snapshot, _only(column), recipe, name=name, replace=replace
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
        """Build an index over the values of a column and return the version that has it.

        Scans with a filter use it. Args and errors are those of `create_index`.

        Args:
            column: a column, or with dots a field in a struct column.
            index_type: BTREE (values with an order), BITMAP (few different values), LABEL_LIST (lists),
                NGRAM (parts of text), ZONEMAP (values in the order of rows), BLOOMFILTER (looking for single
                values), JSON (values in documents), RTREE (geometries) or INVERTED (words, for
                `full_text_query`).
            name, replace: see `create_index`.
            train: false makes an index of no rows, which `optimize.optimize_indices` fills.
            options: of INVERTED: `base_tokenizer` ("simple", "whitespace" or "raw"), `language` ("English"),
                `max_token_length` (40), `lower_case` (True), `stem` (True), `remove_stop_words` (True),
                `ascii_folding` (True), `custom_stop_words`, `with_position` (False; other engines look for
                phrases only in an index with positions).
        """
        manifest = create_scalar_index(
            self.dataset.snapshot,
            _only(column),
            index_type,
            name=name,
            replace=replace,
            options=options,
            train=train,
        )
        return self.dataset.at(manifest)

    def statistics(self, name: str) -> dict[str, Any]:
        """Return what is known of an index: its kind, its segments, rows and fragments with and without it.

        The key `indices` has figures of each segment, see `segment_figures`.

        Raises:
            IndexNotFoundError: there is no such index.
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
        self, *, num_indices_to_merge: int | None = None, index_names: Sequence[str] | None = None
    ) -> None:
        """Index the rows that indices do not cover yet.

        The new version is not the dataset's: open it with `checkout_version(latest_version)`.

        Args:
            num_indices_to_merge: how many of the newest segments of an index become one with the new rows. 0
                adds a segment; by default all are merged.
            index_names: the indices; by default all that are known here; those whose form is too
                old to be read are passed over with a warning in the log.

        Raises:
            IndexNotFoundError: there is no index of a name, or it is of a kind that is not built here.
            CommitError: a commit failed; see its subclasses.
        """
        dataset = self.dataset
        names = list(index_names) if index_names is not None else known_indices(dataset.manifest)
        snapshot = dataset.snapshot
        for name in names:
            kind = _kind_of(dataset.manifest, name)
            extend = extend_vector_index if kind == "vector" else extend_scalar_index
            try:
                snapshot = snapshot.at(extend(snapshot, name, merge=num_indices_to_merge))
            except IndexNotFoundError as error:
                if index_names is not None:
                    raise
                logger.warning("not extended: %s", error)

    def describe(self) -> list[IndexDescription]:
        """Return the indices of this version, by name, each with its segments.

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
        """Take an index out of the table and return the version without it; older versions keep it.

        Raises:
            IndexNotFoundError: there is no index of this name.
            CommitError: another writer was in the way; see its subclasses.
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
        """Build a segment of some fragments, commit nothing, and return its entry.

        Args:
            column, index_type, name, options: as for `create_index` or `create_scalar_index`. Segments of
                vectors that are given the same `ivf_centroids`, and of PQ `pq_codebook`, can be merged.
            fragment_ids: the fragments.
            index_uuid: names the segment; a new one by default.

        Raises:
            SchemaError: the column does not exist, or cannot be indexed so.
            OptionError: an option is wrong, or a fragment does not exist.
        """
        fragments = self._fragments_named(fragment_ids)
        name = name or f"{column}_idx"
        number = None if index_uuid is None else _uuid(index_uuid)
        if index_type.upper() in INDEX_TYPES:
            metric = options.pop("metric", "l2")
            partitions, sub_vectors, bits = (options.pop(argument, None) for argument in _VECTOR_ARGUMENTS)
            recipe = recipe_with(index_type, metric, partitions, sub_vectors, bits, options)
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
        """Build a part of the segment `index_uuid`, which `merge_index_metadata` puts together.

        Args:
            column, index_type, name, options: as for `create_scalar_index`.
            fragment_ids: the fragments.
            index_uuid: what the parts have in common.

        Raises:
            SchemaError, OptionError: as `create_index_uncommitted`.
        """
        kind = scalar_kind(index_type)
        kind.check(options)
        fragments = self._fragments_named(fragment_ids)
        number = _uuid(index_uuid)
        write_part(self.dataset.snapshot, column, kind, name or f"{column}_idx", fragments, number, options)

    def merge_parts(self, index_uuid: str, index_type: str) -> Index:
        """Put the parts of a segment together, commit nothing, and return its entry.

        Raises:
            IndexNotFoundError: there are no parts.
            OptionError: they are of another kind, or two of them cover one fragment.
        """
        kind = scalar_kind(index_type)
        entry = merge_parts(self.dataset.snapshot, _uuid(index_uuid))
        if label_of(entry) != kind.label:
            raise OptionError(f"the parts of {index_uuid} are of another kind than {index_type}")
        return Index.of(entry)

    def merge_segments(self, segments: Sequence[Index]) -> Index:
        """Put segments that are not committed together, commit nothing, and return the entry of a new one.

        Raises:
            OptionError: they are not of one index, or were trained apart, or two of them cover one fragment.
        """
        if not segments:
            raise OptionError("there are no segments to merge")
        entries = [segment.message() for segment in segments]
        merge = merge_vector_segments if label_of(entries[0]) == VECTOR_LABEL else merge_segments
        return Index.of(merge(self.dataset.snapshot, entries))

    def commit_segments(self, index_name: str, column: str, segments: Sequence[Index]) -> LanceDataset:
        """Make segments an index, in place of one of that name, and return the version that has it.

        Raises:
            OptionError: the name is taken by an index of another column, or two segments cover one fragment.
            CommitError: the commit failed; see its subclasses. The files of the segments stay.
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


def known_indices(manifest: Manifest) -> list[str]:
    """Return the names of the indices that are known here, and can be extended."""
    names = dict.fromkeys(entry.name for entry in manifest.indices)
    return [name for name in names if _kind_or_none(manifest, name) is not None]


def _kind_or_none(manifest: Manifest, name: str) -> str | None:
    kinds = {kind.label: kind for kind in SCALAR_INDICES.values()}
    fields = {field.id: field for field in manifest.schema.walk()}
    for entry in manifest.indices:
        if entry.name != name:
            continue
        if label_of(entry) == VECTOR_LABEL:
            return "vector"
        kind = kinds.get(label_of(entry))
        field = fields.get(entry.fields[0]) if entry.fields else None
        if kind is not None and (field is None or kind.extends(entry, field)):
            return "scalar"
    return None


def _kind_of(manifest: Manifest, name: str) -> str:
    kind = _kind_or_none(manifest, name)
    if kind is None:
        raise IndexNotFoundError(f"there is no index {name!r} that can be extended here")
    return kind


def _only(column: Any) -> str:
    """Return the column of an index, which may be given as a list of one.

    Raises:
        OptionTypeError: it is something else.
    """
    if isinstance(column, list | tuple) and len(column) == 1:
        column = column[0]
    if not isinstance(column, str):
        raise OptionTypeError(f"an index is of one column, given by its name, not by {column!r}")
    return column


def _uuid(text: str) -> uuids.UUID:
    try:
        return uuids.UUID(text)
    except (ValueError, AttributeError, TypeError):
        raise OptionError(f"{text!r} is not a uuid") from None
