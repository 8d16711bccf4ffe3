"""Find the rows nearest to a vector, in the base version of a table and in the rows of its shards.

The base version is searched with its indexes, without rows that a shard replaces. The rows of the shards are
compared one by one. The nearest of both are the result. (MemWAL, vector search.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import pick_rows
from spark_lance.expressions.predicate import Condition
from spark_lance.index.base.columns import column_values, top_column
from spark_lance.index.base.search_rows import contains
from spark_lance.index.vector.base.metrics import exact_distances
from spark_lance.index.vector.kinds import is_multi
from spark_lance.index.vector.multi import flat_vectors, row_distances
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import VectorSearch
from spark_lance.memwal.fresh import FreshRows, FreshScan
from spark_lance.memwal.fresh_sources import RowChoice
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.reading.take import take_addresses

Distances = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]

# Up to this many hidden rows of the base, the search returns more rows and drops the hidden ones. If there
# are more hidden rows, the search excludes them.
_FEW_HIDDEN = 4096


@dataclass(frozen=True)
class Neighbours:
    """The rows nearest to one vector.

    Attributes:
        rows: the rows, nearest first.
        distances: float32, the distance of each row.
    """

    rows: pa.Table
    distances: Distances


@dataclass(frozen=True)
class _Candidates:
    """Candidate rows.

    Attributes:
        part: the number of the shard part of each row; -1 for the base.
        place: the row's address in the base, or its position in the part.
        distance: the distance of each row.
    """

    part: Numbers
    place: npt.NDArray[np.uint64]
    distance: Distances

    @classmethod
    def of(cls, part: int, place: npt.NDArray[np.uint64], distance: Distances) -> _Candidates:
        return cls(np.full(len(place), part, np.int64), place, distance)

    @classmethod
    def best(cls, several: Sequence[_Candidates], k: int) -> _Candidates:
        part = np.concatenate([np.empty(0, np.int64), *(each.part for each in several)])
        place = np.concatenate([np.empty(0, np.uint64), *(each.place for each in several)])
        distance = np.concatenate([np.empty(0, np.float32), *(each.distance for each in several)])
        order = np.lexsort((place, part, distance))[:k]
        return cls(part[order], place[order], distance[order])


def nearest_rows(
    fresh: FreshRows, query: VectorQuery, names: Sequence[str], condition: Condition | None
) -> list[Neighbours]:
    """Return columns of the k nearest rows of each vector of a query.

    Args:
        fresh: the base version and the rows of the shards.
        query: the query.
        names: the columns. Row ids and row addresses are null for rows of shards.
        condition: search only the rows for which this is true.

    Raises:
        OptionError: the query does not fit the column.
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    search = VectorSearch(fresh.base, query.column)
    query = query.cast_to(search.kind)
    metric = search.metric(query)
    candidates = [[each] for each in _search_base(fresh, search, query, condition)]
    top = top_column(fresh.base.schema, query.column)
    scan = fresh.scan([top])
    for number, part in enumerate(scan.parts(condition)):
        for table, places in part.numbered(condition):
            matrix, owners = flat_vectors(column_values(table, query.column))
            if len(matrix) and is_multi(search.kind):
                rows, distances = row_distances(query.vectors, matrix, owners, metric, exactly=True)
                candidates[0].append(_within_range(number, places[rows], distances, query))
            elif len(matrix):
                for own, vector in zip(candidates, query.vectors, strict=True):
                    distances = exact_distances(vector, matrix, metric)
                    own.append(_within_range(number, places[owners], distances, query))
    wide_scan = fresh.scan(names)
    return [_fetch_rows(wide_scan, _Candidates.best(own, query.k)) for own in candidates]


def _within_range(number: int, places: Numbers, distances: Distances, query: VectorQuery) -> _Candidates:
    low, high = query.distance_range
    keep = np.ones(len(distances), np.bool_)
    if low is not None:
        keep &= distances >= low
    if high is not None:
        keep &= distances < high
    result = _Candidates.of(number, places[keep].astype(np.uint64), distances[keep])
    return _Candidates.best([result], query.k)


def _search_base(
    fresh: FreshRows, search: VectorSearch, query: VectorQuery, condition: Condition | None
) -> list[_Candidates]:
    """Return the nearest rows of the base that are not hidden."""
    hidden = fresh.hidden.num_rows
    visible = fresh.scan([ROW_ADDRESS])
    allowed = None
    base_query = query
    if condition is not None or hidden > _FEW_HIDDEN:
        # Scan.tables and not FreshScan.tables: only the base, because rows of shards have no address.
        tables = [
            table[ROW_ADDRESS].to_numpy() for table in Scan.tables(visible, condition) if table.num_rows
        ]
        allowed = np.sort(np.concatenate([np.empty(0, np.uint64), *tables]))
    elif hidden:
        k_with_hidden = query.k + hidden
        ef = None if query.ef is None else max(query.ef, k_with_hidden * (query.refine_factor or 1))
        base_query = replace(query, k=k_with_hidden, ef=ef)
    hidden_addresses = fresh.hidden.addresses()
    answers = []
    for answer in search.run(base_query, allowed):
        is_visible = ~contains(hidden_addresses, answer.addresses)
        answers.append(_Candidates.of(-1, answer.addresses[is_visible], answer.distances[is_visible]))
    return [_Candidates.best([answer], query.k) for answer in answers]


def _fetch_rows(scan: FreshScan, hits: _Candidates) -> Neighbours:
    """Return the columns of candidate rows, in the order of the candidates."""
    plain = scan.fresh.base.scan(scan.names)
    tables, order = [], []
    in_base = np.flatnonzero(hits.part < 0)
    if len(in_base):
        tables.append(take_addresses(plain, hits.place[in_base]))
        order.append(in_base)
    for number, choice in enumerate(scan.fresh.choices):
        places = np.flatnonzero(hits.part == number)
        if not len(places):
            continue
        numbers, back = np.unique(hits.place[places].astype(np.int64), return_inverse=True)
        chosen_rows = scan.read_choice(RowChoice(choice.part, choice.rows[numbers]))
        tables.append(pick_rows(pa.concat_tables(chosen_rows.tables(None)), back.reshape(-1)))
        order.append(places)
    if not tables:
        return Neighbours(scan.arrow_schema.empty_table(), np.empty(0, np.float32))
    tables = [table.replace_schema_metadata(None) for table in tables]
    rows = pick_rows(pa.concat_tables(tables), np.argsort(np.concatenate(order), kind="stable"))
    return Neighbours(rows.replace_schema_metadata(scan.arrow_schema.metadata), hits.distance)
