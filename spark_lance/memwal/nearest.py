"""Rows nearest to a vector, among those of a table and those that are not in it yet.

The base is searched as ever, by its indices; rows that a shard has a newer state of do not count. The rows of
the shards are compared one by one. Then the best of both. (MemWAL, vector search.)
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

# A search finds and drops up to so many hidden rows of the base; more are left out beforehand.
_FEW_HIDDEN = 4096


@dataclass(frozen=True)
class Neighbours:
    """The rows nearest to one vector.

    Attributes:
        rows: nearest first.
        distances: of each.
    """

    rows: pa.Table
    distances: Distances


@dataclass(frozen=True)
class _Neighbours:
    """Candidates: the part of each (-1: the base), its address or its place in the part, its distance."""

    part: Numbers
    place: npt.NDArray[np.uint64]
    distance: Distances

    @classmethod
    def of(cls, part: int, place: npt.NDArray[np.uint64], distance: Distances) -> _Neighbours:
        return cls(np.full(len(place), part, np.int64), place, distance)

    @classmethod
    def best(cls, several: Sequence[_Neighbours], k: int) -> _Neighbours:
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
        query: what is searched.
        names: the columns; what says where a row is is null for rows that are not in the base.
        condition: only rows that it keeps count.

    Raises:
        OptionError: the query does not fit the column.
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    search = VectorSearch(fresh.base, query.column)
    query = query.fitted(search.kind)
    metric = search.metric(query)
    candidates = [[each] for each in _in_base(fresh, search, query, condition)]
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
    return [_fetched(wide_scan, _Neighbours.best(own, query.k)) for own in candidates]


def _within_range(number: int, places: Numbers, distances: Distances, query: VectorQuery) -> _Neighbours:
    low, high = query.distance_range
    keep = np.ones(len(distances), np.bool_)
    if low is not None:
        keep &= distances >= low
    if high is not None:
        keep &= distances < high
    result = _Neighbours.of(number, places[keep].astype(np.uint64), distances[keep])
    return _Neighbours.best([result], query.k)


def _in_base(
    fresh: FreshRows, search: VectorSearch, query: VectorQuery, condition: Condition | None
) -> list[_Neighbours]:
    """Return the nearest rows of the base that are not hidden."""
    hidden = sum(len(rows) for rows in fresh.hidden.values())
    visible = fresh.scan([ROW_ADDRESS])
    allowed = None
    base_query = query
    if condition is not None or hidden > _FEW_HIDDEN:
        # Only for the base: rows of shards have no address.
        tables = [
            table[ROW_ADDRESS].to_numpy() for table in Scan.tables(visible, condition) if table.num_rows
        ]
        allowed = np.sort(np.concatenate([np.empty(0, np.uint64), *tables]))
    elif hidden:
        more = query.k + hidden
        ef = None if query.ef is None else max(query.ef, more * (query.refine_factor or 1))
        base_query = replace(query, k=more, ef=ef)
    gone = np.sort(
        np.concatenate(
            [
                np.empty(0, np.uint64),
                *(
                    (np.uint64(number) << np.uint64(32)) | np.array(rows, np.uint64)
                    for number, rows in fresh.hidden.items()
                ),
            ]
        )
    )
    answers = []
    for answer in search.run(base_query, allowed):
        seen = ~contains(gone, answer.addresses)
        answers.append(_Neighbours.of(-1, answer.addresses[seen], answer.distances[seen]))
    return [_Neighbours.best([answer], query.k) for answer in answers]


def _fetched(scan: FreshScan, hits: _Neighbours) -> Neighbours:
    """Return rows in the order in which they were found."""
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
        some = scan.rows_of(RowChoice(choice.part, choice.rows[numbers]))
        tables.append(pick_rows(pa.concat_tables(some.tables(None)), back.reshape(-1)))
        order.append(places)
    if not tables:
        return Neighbours(scan.arrow_schema.empty_table(), np.empty(0, np.float32))
    tables = [table.replace_schema_metadata(None) for table in tables]
    rows = pick_rows(pa.concat_tables(tables), np.argsort(np.concatenate(order), kind="stable"))
    return Neighbours(rows.replace_schema_metadata(scan.arrow_schema.metadata), hits.distance)
