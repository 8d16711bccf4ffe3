"""Building indices and searching with them, without Spark."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.datasets.base import SameDataset
from spark_lance.datasets.maintain import MaintainMixin, Optimizer
from spark_lance.datasets.projection import Columns
from spark_lance.datasets.read import ReadMixin
from spark_lance.datasets.scan_request import ScanRequest
from spark_lance.datasets.spelling import both_spellings_of_methods
from spark_lance.errors import IndexNotFoundError, OptionTypeError
from spark_lance.file.arrays import pick_rows
from spark_lance.file.extensions import known_table
from spark_lance.file.schema import Schema as LanceSchema
from spark_lance.index.pruners import index_pruners
from spark_lance.index.text.queries import FullTextQuery
from spark_lance.index.vector.label import VECTOR_LABEL, VECTOR_NEWEST
from spark_lance.late import late
from spark_lance.table.index_kinds import label_of
from spark_lance.table.manifest import Manifest
from spark_lance.table.predicates.predicate import Condition, Predicate, compile_predicate
from spark_lance.table.reading.scan import ROW_ADDRESS, ROW_ID
from spark_lance.table.reading.snapshot import PrunerFactory
from spark_lance.table.reading.system_columns import nameable

if TYPE_CHECKING:
    from spark_lance.datasets.index_stats import segment_figures
    from spark_lance.index.columns import leaf_field
    from spark_lance.index.entries import segments_of
    from spark_lance.index.remap import SegmentRemap
    from spark_lance.index.scalar.create import create_scalar_index, extend_scalar_index
    from spark_lance.index.scalar.kinds import SCALAR_INDICES
    from spark_lance.index.search_rows import allowed_rows
    from spark_lance.index.text.compound import CompoundSearch
    from spark_lance.index.text.search import TextSearch, parse_text_query
    from spark_lance.index.vector.create import create_vector_index, extend_vector_index, recipe_with
    from spark_lance.index.vector.query import VectorQuery
    from spark_lance.index.vector.search import VectorSearch
    from spark_lance.table.indices.describe import describe_indices
    from spark_lance.table.reading.take import OpenFragments
else:
    SCALAR_INDICES = late("spark_lance.index.scalar.kinds", "SCALAR_INDICES")
    segment_figures = late("spark_lance.datasets.index_stats", "segment_figures")
    leaf_field = late("spark_lance.index.columns", "leaf_field")
    segments_of = late("spark_lance.index.entries", "segments_of")
    SegmentRemap = late("spark_lance.index.remap", "SegmentRemap")
    create_scalar_index = late("spark_lance.index.scalar.create", "create_scalar_index")
    extend_scalar_index = late("spark_lance.index.scalar.create", "extend_scalar_index")
    allowed_rows = late("spark_lance.index.search_rows", "allowed_rows")
    CompoundSearch = late("spark_lance.index.text.compound", "CompoundSearch")
    TextSearch = late("spark_lance.index.text.search", "TextSearch")
    parse_text_query = late("spark_lance.index.text.search", "parse_text_query")
    create_vector_index = late("spark_lance.index.vector.create", "create_vector_index")
    extend_vector_index = late("spark_lance.index.vector.create", "extend_vector_index")
    recipe_with = late("spark_lance.index.vector.create", "recipe_with")
    VectorSearch = late("spark_lance.index.vector.search", "VectorSearch")
    describe_indices = late("spark_lance.table.indices.describe", "describe_indices")
    OpenFragments = late("spark_lance.table.reading.take", "OpenFragments")

__all__ = ["DISTANCE", "SCORE", "IndexMixin", "IndexOptimizer", "known_indices", "measured_schema"]

logger = logging.getLogger(__name__)

DISTANCE, SCORE, QUERY_INDEX = "_distance", "_score", "query_index"
# Sets of columns whose files stay open between searches.
_KEPT_COLUMN_SETS = 4


@both_spellings_of_methods
@dataclass(frozen=True)
class IndexOptimizer(Optimizer):
    """What `LanceDataset.optimize` offers."""

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


class IndexMixin(ReadMixin, MaintainMixin):
    """Indices of vectors and of single values."""

    @property
    def optimize(self) -> IndexOptimizer:
        """Compaction, and upkeep of indices."""
        return IndexOptimizer(self)

    @property
    def _pruner_factory(self) -> PrunerFactory:
        """Indices tell every scan of the dataset where rows of certain values are."""
        return index_pruners

    @property
    def _index_remap(self) -> SegmentRemap:
        """What gives indices the new addresses of compacted rows."""
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

    def to_table(
        self,
        columns: Columns = None,
        filter: Predicate | None = None,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        *,
        nearest: Mapping[str, Any] | None = None,
        full_text_query: Any = None,
        prefilter: bool = False,
        **options: Any,
    ) -> pa.Table:
        """Return rows as a table, see `ReadMixin.scanner`; with `nearest` the rows nearest to a vector.

        Args:
            columns: what to read, see `ReadMixin.scanner`; all columns by default.
            nearest: what is searched, with pylance's keys: `column`, `q` (a vector, or a list of them), `k`
                (`limit`, or 10), `metric`, `nprobes` or `minimum_nprobes` and `maximum_nprobes`,
                `refine_factor`, `ef`, `use_index`, `fast_search`, `distance_range`. The column `_distance` is
                added; with several vectors also `query_index`, the first column.
            full_text_query: words, a phrase in double quotes, or a dict of `query`, `column` (the one that
                has an index by default), `operator` ("or" or "and"), `phrase` (False) and `fast_search`; or a
                query of `spark_lance.query`. The rows that have them come with the column `_score`, best
                first; `limit` says how many.
            prefilter: whether the filter is applied before the search, so that k of its rows come, or to the
                k nearest rows afterwards.
            filter, limit, offset, with_row_id, with_row_address, options: see `ReadMixin.scanner`.
        """
        return self.scanner(
            columns,
            filter,
            limit,
            offset,
            nearest,
            full_text_query=full_text_query,
            prefilter=prefilter,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            **options,
        ).to_table()

    def _searched(self, request: ScanRequest, columns: Sequence[str]) -> pa.Table:
        measured = self._measured(request).names
        stored = [column for column in columns if column not in measured]
        chosen = (
            stored,
            request.filter,
            request.prefilter,
            request.with_row_id,
            request.with_row_address,
        )
        if request.full_text_query is not None:
            wanted = None if request.limit is None else request.limit + (request.offset or 0)
            if isinstance(request.full_text_query, FullTextQuery):
                return self._answering_query(request, wanted, stored)
            return self._answering(_text_query(request), wanted, *chosen)
        return self._nearest(request.vector_query, *chosen)

    def _compared(self, request: ScanRequest) -> Sequence[str]:
        nearest = dict(request.nearest or {})
        exact, indexed = "KNNVectorDistance", "ANNSubIndex"
        field = self.lance_schema.find(str(nearest.get("column")))[-1]
        segments = segments_of(self.snapshot, VECTOR_LABEL, VECTOR_NEWEST, field.id)
        if not segments or nearest.get("use_index") is False:
            return (exact,)
        covered = {number for segment in segments for number in segment.covered}
        complete = all(fragment.id in covered for fragment in self.manifest.fragments)
        fast = request.fast_search or nearest.get("fast_search")
        return (indexed,) if complete or fast else (indexed, exact)

    def _measured(self, request: ScanRequest) -> pa.Schema:
        return measured_schema(request, self.lance_schema)

    def _nearest(
        self,
        query: VectorQuery,
        columns: Sequence[str] | None,
        filter: Predicate | None,
        prefilter: bool,
        with_row_id: bool,
        with_row_address: bool,
    ) -> pa.Table:
        condition = self._condition(filter)
        search = self._searches.get(query.column)
        if search is None:
            search = self._searches.setdefault(query.column, VectorSearch(self.snapshot, query.column))
        results = search.run(query, allowed_rows(self.snapshot, condition if prefilter else None))
        later = None if prefilter else condition
        addresses = np.concatenate([result.addresses for result in results])
        scores = np.concatenate([result.distances for result in results])
        if len(results) == 1:
            return self._rows_of(addresses, {DISTANCE: scores}, columns, later, with_row_id, with_row_address)
        counts = [len(result.addresses) for result in results]
        numbers = np.repeat(np.arange(len(results), dtype=np.int32), counts)
        measured = {QUERY_INDEX: numbers, DISTANCE: scores}
        return self._rows_of(addresses, measured, columns, later, with_row_id, with_row_address)

    def _answering(
        self,
        asked: dict[str, Any],
        k: int | None,
        columns: Sequence[str] | None,
        filter: Predicate | None,
        prefilter: bool,
        with_row_id: bool,
        with_row_address: bool,
    ) -> pa.Table:
        """Return the rows that answer a text query."""
        column, query = parse_text_query(self.manifest, asked, k)
        condition = self._condition(filter)
        search = TextSearch(self.snapshot, column)
        found = search.run(query, allowed_rows(self.snapshot, condition if prefilter else None))
        later = None if prefilter else condition
        return self._rows_of(
            found.addresses, {SCORE: found.scores}, columns, later, with_row_id, with_row_address
        )

    def _answering_query(self, request: ScanRequest, k: int | None, columns: Sequence[str]) -> pa.Table:
        """Return the rows that answer a query that is an object."""
        condition = self._condition(request.filter)
        search = CompoundSearch(self.snapshot, request.fast_search)
        allowed = allowed_rows(self.snapshot, condition if request.prefilter else None)
        found = search.run(request.full_text_query, k, allowed)
        later = None if request.prefilter else condition
        flags = request.with_row_id, request.with_row_address
        return self._rows_of(found.addresses, {SCORE: found.scores}, columns, later, *flags)

    def _condition(self, filter: Predicate | None) -> Condition | None:
        return None if filter is None else compile_predicate(filter, nameable(self.lance_schema))

    def _rows_of(
        self,
        addresses: npt.NDArray[np.uint64],
        measured: Mapping[str, npt.NDArray[Any] | pa.Array],
        columns: Sequence[str] | None,
        condition: Condition | None,
        with_row_id: bool,
        with_row_address: bool,
    ) -> pa.Table:
        """Return columns of rows, with what was measured of them, if a condition keeps them."""
        stored = [field.name for field in self.lance_schema.fields] if columns is None else columns
        # What a search measures hides a column of that name, as in what another search has left.
        scan = self._scan([column for column in stored if column not in measured])
        flagged = [name for name, asked in ((ROW_ID, with_row_id), (ROW_ADDRESS, with_row_address)) if asked]
        extra = [] if condition is None else [c for c in condition.columns if c not in scan.names]
        # Some column must be taken, or nothing would say how many rows there are.
        names = dict.fromkeys([*scan.names, *flagged, *extra, ROW_ADDRESS])
        rows = self._open_fragments(tuple(names)).take(addresses)
        for name, values in measured.items():
            rows = rows.append_column(name, values if isinstance(values, pa.Array) else pa.array(values))
        if condition is not None:
            rows = pick_rows(rows, np.flatnonzero(condition.mask(rows).fill_null(False).to_numpy()))
        first = [name for name in measured if name == QUERY_INDEX]
        chosen = [name for name in (scan.names if columns is None else columns) if name not in flagged]
        return known_table(rows.select(list(dict.fromkeys([*first, *chosen, *measured, *flagged]))))

    def _open_fragments(self, names: tuple[str, ...]) -> OpenFragments:
        """Return what takes some columns of rows; of the sets of columns used last it is kept."""
        known = self._opened.pop(names, None)
        if known is None:
            known = OpenFragments(self.snapshot.scan(list(names)))
        self._opened[names] = known
        if len(self._opened) > _KEPT_COLUMN_SETS:
            # Another thread may have been faster.
            self._opened.pop(next(iter(self._opened), names), None)
        return known

    @cached_property
    def _opened(self) -> dict[tuple[str, ...], OpenFragments]:
        return {}

    @cached_property
    def _searches(self) -> dict[str, VectorSearch]:
        """What was opened for searching columns of this version."""
        return {}


def measured_schema(request: ScanRequest, schema: LanceSchema) -> pa.Schema:
    """Return the columns that a search adds to rows of a schema."""
    if request.full_text_query is not None:
        return pa.schema([(SCORE, pa.float32())])
    if request.nearest is None:
        return pa.schema([])
    kind = leaf_field(schema, request.vector_query.column).arrow_type()
    several = request.vector_query.answers(kind) > 1
    first = [pa.field(QUERY_INDEX, pa.int32())] if several else []
    return pa.schema([*first, pa.field(DISTANCE, pa.float32())])


def _text_query(request: ScanRequest) -> dict[str, Any]:
    """Return the text query of a read with the keys that it may have."""
    given = request.full_text_query
    if not isinstance(given, str | Mapping):
        raise OptionTypeError(f"full_text_query is text, a dict or a query object, not {given!r}")
    asked = {"query": given} if isinstance(given, str) else dict(given)
    return {**asked, "fast_search": True} if request.fast_search else asked


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
