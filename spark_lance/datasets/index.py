"""Building indices and their upkeep, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_lance.datasets.base import SameDataset
from spark_lance.datasets.maintain import MaintainMixin, Optimizer
from spark_lance.datasets.searching import SearchMixin
from spark_lance.errors import IndexNotFoundError, OptionTypeError
from spark_lance.index.vector.kinds import VECTOR_LABEL
from spark_lance.late import late
from spark_lance.table.index_kinds import label_of
from spark_lance.table.manifest import Manifest

if TYPE_CHECKING:
    from spark_lance.datasets.index_stats import segment_figures
    from spark_lance.index.remap import SegmentRemap
    from spark_lance.index.scalar.create import create_scalar_index, extend_scalar_index
    from spark_lance.index.scalar.kinds import SCALAR_INDICES
    from spark_lance.index.vector.create import create_vector_index, extend_vector_index, recipe_with
    from spark_lance.table.indices.describe import describe_indices
else:
    SCALAR_INDICES = late("spark_lance.index.scalar.kinds", "SCALAR_INDICES")
    segment_figures = late("spark_lance.datasets.index_stats", "segment_figures")
    SegmentRemap = late("spark_lance.index.remap", "SegmentRemap")
    create_scalar_index = late("spark_lance.index.scalar.create", "create_scalar_index")
    extend_scalar_index = late("spark_lance.index.scalar.create", "extend_scalar_index")
    create_vector_index = late("spark_lance.index.vector.create", "create_vector_index")
    extend_vector_index = late("spark_lance.index.vector.create", "extend_vector_index")
    recipe_with = late("spark_lance.index.vector.create", "recipe_with")
    describe_indices = late("spark_lance.table.indices.describe", "describe_indices")

__all__ = ["IndexMixin", "IndexOptimizer", "known_indices"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class IndexOptimizer(Optimizer):
    """The methods of `LanceDataset.optimize`."""

    def optimize_indices(
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


class IndexMixin(SearchMixin, MaintainMixin):
    """Indices of vectors and of single values."""

    @property
    def optimize(self) -> IndexOptimizer:
        """Compaction, and upkeep of indices."""
        return IndexOptimizer(self)

    @property
    def _index_remap(self) -> SegmentRemap:
        """The function that gives indices the new addresses of compacted rows."""
        return SegmentRemap()

    def create_index(
        self: SameDataset,
        column: str,
        index_type: str,
        name: str | None = None,
        metric: str = "l2",
        replace: bool = True,
        num_partitions: int | None = None,
        num_sub_vectors: int | None = None,
        num_bits: int | None = None,
        **options: Any,
    ) -> SameDataset:
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
        manifest = create_vector_index(self.snapshot, _only(column), recipe, name=name, replace=replace)
        return self._at(manifest)

    def create_scalar_index(
        self: SameDataset,
        column: str,
        index_type: str,
        name: str | None = None,
        *,
        replace: bool = True,
        train: bool = True,
        **options: Any,
    ) -> SameDataset:
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
            self.snapshot,
            _only(column),
            index_type,
            name=name,
            replace=replace,
            options=options,
            train=train,
        )
        return self._at(manifest)

    def index_statistics(self, name: str) -> dict[str, Any]:
        """Return what is known of an index: its kind, its segments, rows and fragments with and without it.

        The key `indices` has figures of each segment, see `segment_figures`.

        Raises:
            IndexNotFoundError: there is no such index.
        """
        for index in describe_indices(self.snapshot):
            if index.name == name:
                rows = self.snapshot.live_rows()
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
                    "num_unindexed_fragments": len(self.manifest.fragments) - len(covered),
                    "details": dict(index.details),
                    "indices": segment_figures(self.snapshot, index),
                }
        raise IndexNotFoundError(f'Index "{name}" not found')


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
