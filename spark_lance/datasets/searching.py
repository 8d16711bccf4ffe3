"""Vector and full-text search in a version without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import mask_to_numpy, numbers_to_arrow, pick_rows
from spark_lance.datasets.scan_request import ScanRequest
from spark_lance.datasets.scanner import Searcher
from spark_lance.errors import OptionTypeError
from spark_lance.expressions.predicate import Condition, Predicate, compile_predicate
from spark_lance.file.base.extensions import restore_table_types
from spark_lance.file.base.schema import Schema as LanceSchema
from spark_lance.index.base.columns import leaf_field
from spark_lance.index.base.entries import find_segments
from spark_lance.index.base.search_rows import allowed_rows
from spark_lance.index.text.queries import FullTextQuery
from spark_lance.index.vector.kinds import VECTOR_LABEL, VECTOR_NEWEST
from spark_lance.index.vector.query import VectorQuery
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS, filterable_schema
from spark_lance.table.reading.take import OpenFragments

if TYPE_CHECKING:
    from spark_lance.index.text.search import TextSearch
    from spark_lance.index.vector.search import VectorSearch

# A text search does not load the modules of vector search, and the reverse: see test_import.

DISTANCE, SCORE, QUERY_INDEX = "_distance", "_score", "query_index"
# Number of column sets whose files stay open between searches.
_MAX_COLUMN_SETS = 4


@dataclass(frozen=True, eq=False)
class DatasetSearcher(Searcher):
    """Vector and full-text search in a version. Keeps indexes and data files open."""

    snapshot: Snapshot

    def run(self, request: ScanRequest, columns: Sequence[str]) -> pa.Table:
        """Return the rows of a search, with its additional columns such as `_distance`."""
        measured = self.added_columns(request).names
        table_columns = [column for column in columns if column not in measured]
        arguments = (
            table_columns,
            request.filter,
            request.prefilter,
            request.with_row_id,
            request.with_row_address,
        )
        if request.full_text_query is not None:
            count = None if request.limit is None else request.limit + (request.offset or 0)
            if isinstance(request.full_text_query, FullTextQuery):
                return self._search_compound(request, count, table_columns)
            return self._search_text(_text_query(request), count, *arguments)
        return self._search_vector(request.vector_query, *arguments)

    def steps(self, request: ScanRequest) -> Sequence[str]:
        """Return the plan steps of a vector search; the name of an index follows its step."""
        nearest = dict(request.nearest or {})
        exact, indexed = "KNNVectorDistance", "ANNSubIndex"
        field = self.snapshot.manifest.schema.find(str(nearest.get("column")))[-1]
        segments = find_segments(self.snapshot, VECTOR_LABEL, VECTOR_NEWEST, field.id)
        if not segments or nearest.get("use_index") is False:
            return (exact,)
        covered = {number for segment in segments for number in segment.covered}
        complete = all(fragment.id in covered for fragment in self.snapshot.manifest.fragments)
        fast = request.fast_search or nearest.get("fast_search")
        indexed = f"{indexed} {segments[0].entry.name}"
        return (indexed,) if complete or fast else (indexed, exact)

    def added_columns(self, request: ScanRequest) -> pa.Schema:
        """Return the schema of the additional columns of a search."""
        return measured_schema(request, self.snapshot.manifest.schema)

    def _search_vector(
        self,
        query: VectorQuery,
        columns: Sequence[str] | None,
        filter: Predicate | None,
        prefilter: bool,
        with_row_id: bool,
        with_row_address: bool,
    ) -> pa.Table:
        results = self.vector_search(query.column).run(query, self._prefiltered_rows(filter, prefilter))
        later = None if prefilter else self.condition(filter)
        addresses = np.concatenate([result.addresses for result in results])
        scores = np.concatenate([result.distances for result in results])
        if len(results) == 1:
            return self.fetch_rows(
                addresses, {DISTANCE: scores}, columns, later, with_row_id, with_row_address
            )
        counts = [len(result.addresses) for result in results]
        numbers = np.repeat(np.arange(len(results), dtype=np.int32), counts)
        measured = {QUERY_INDEX: numbers, DISTANCE: scores}
        return self.fetch_rows(addresses, measured, columns, later, with_row_id, with_row_address)

    def _search_text(
        self,
        request: dict[str, Any],
        k: int | None,
        columns: Sequence[str] | None,
        filter: Predicate | None,
        prefilter: bool,
        with_row_id: bool,
        with_row_address: bool,
    ) -> pa.Table:
        """Return the rows of a full-text query in text or dict form."""
        from spark_lance.index.text.search import parse_text_query

        column, query = parse_text_query(self.snapshot.manifest, request, k)
        result = self.text_search(column).run(query, self._prefiltered_rows(filter, prefilter))
        later = None if prefilter else self.condition(filter)
        return self.fetch_rows(
            result.addresses, {SCORE: result.scores}, columns, later, with_row_id, with_row_address
        )

    def _search_compound(self, request: ScanRequest, k: int | None, columns: Sequence[str]) -> pa.Table:
        """Return the rows of a `FullTextQuery`."""
        from spark_lance.index.text.compound import CompoundSearch

        search = CompoundSearch(self.snapshot, request.fast_search, self._text_searches)
        allowed = self._prefiltered_rows(request.filter, request.prefilter)
        result = search.run(request.full_text_query, k, allowed)
        later = None if request.prefilter else self.condition(request.filter)
        flags = request.with_row_id, request.with_row_address
        return self.fetch_rows(result.addresses, {SCORE: result.scores}, columns, later, *flags)

    def _prefiltered_rows(self, filter: Predicate | None, prefilter: bool) -> npt.NDArray[np.uint64] | None:
        """Return the row addresses that pass a prefilter; None without a prefilter."""
        if not prefilter:
            return None
        text = filter if isinstance(filter, str) else None
        return allowed_rows(self.snapshot, self.condition(filter) if text is None else text)

    def condition(self, filter: Predicate | None) -> Condition | None:
        """Return a filter, compiled for the columns of the version."""
        return (
            None
            if filter is None
            else compile_predicate(filter, filterable_schema(self.snapshot.manifest.schema))
        )

    def fetch_rows(
        self,
        addresses: npt.NDArray[np.uint64],
        measured: Mapping[str, npt.NDArray[Any] | pa.Array],
        columns: Sequence[str] | None,
        condition: Condition | None,
        with_row_id: bool,
        with_row_address: bool,
    ) -> pa.Table:
        """Return columns of rows with their distances or scores, filtered by an optional condition."""
        table_columns = (
            [field.name for field in self.snapshot.manifest.schema.fields] if columns is None else columns
        )
        # A measure of the search hides a column of that name, as in the stored result of another search.
        columns_read = [column for column in table_columns if column not in measured]
        flags = [name for name, is_set in ((ROW_ID, with_row_id), (ROW_ADDRESS, with_row_address)) if is_set]
        extra = [] if condition is None else condition.columns
        # At least one column is needed to carry the number of rows.
        names = dict.fromkeys([*columns_read, *flags, *extra, ROW_ADDRESS])
        rows = self._open_fragments(tuple(names)).take(addresses)
        for name, values in measured.items():
            rows = rows.append_column(
                name, values if isinstance(values, pa.Array) else numbers_to_arrow(values)
            )
        if condition is not None:
            rows = pick_rows(rows, np.flatnonzero(mask_to_numpy(condition.mask(rows))))
        first = [name for name in measured if name == QUERY_INDEX]
        selection = [name for name in (columns_read if columns is None else columns) if name not in flags]
        return restore_table_types(rows.select(list(dict.fromkeys([*first, *selection, *measured, *flags]))))

    def _open_fragments(self, names: tuple[str, ...]) -> OpenFragments:
        """Return a reader of some columns by row address, from a cache of the last column sets."""
        fragments = self._opened.pop(names, None)
        if fragments is None:
            # Rows by address need no pruners.
            snapshot = replace(self.snapshot, pruner_factory=None)
            fragments = OpenFragments(snapshot.scan(list(names)))
        self._opened[names] = fragments
        if len(self._opened) > _MAX_COLUMN_SETS:
            # Another thread may have removed it.
            self._opened.pop(next(iter(self._opened), names), None)
        return fragments

    def vector_search(self, column: str) -> VectorSearch:
        """Return the cached vector search of a column."""
        search = self._searches.get(column)
        if search is None:
            from spark_lance.index.vector.search import VectorSearch

            search = self._searches.setdefault(column, VectorSearch(self.snapshot, column))
        return search

    def text_search(self, column: str) -> TextSearch:
        """Return the cached full-text search of a column."""
        search = self._text_searches.get(column)
        if search is None:
            from spark_lance.index.text.search import TextSearch

            search = self._text_searches.setdefault(column, TextSearch(self.snapshot, column))
        return search

    @cached_property
    def _text_searches(self) -> dict[str, TextSearch]:
        return {}

    @cached_property
    def _opened(self) -> dict[tuple[str, ...], OpenFragments]:
        return {}

    @cached_property
    def _searches(self) -> dict[str, VectorSearch]:
        """The cached vector searches by column."""
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
    """Return the full-text query of a read as a dict."""
    query = request.full_text_query
    if not isinstance(query, str | Mapping):
        raise OptionTypeError(f"full_text_query is text, a dict or a query object, not {query!r}")
    result = {"query": query} if isinstance(query, str) else dict(query)
    return {**result, "fast_search": True} if request.fast_search else result
