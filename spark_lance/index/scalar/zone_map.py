"""ZONEMAP: bounds of the values of every zone.

    zonemap.lance    min, max: column type, null_count, nan_count: uint32,
                     fragment_id, zone_start, zone_length: uint64
                     metadata `rows_per_zone` ("8192"), `null_bitmap` number of a buffer with the null rows

Bounds leave nulls and NaN out, but a zone with NaN has `max` NaN as a mark. Not exact. (Lance index format,
zone map.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import numpy_type
from spark_lance.errors import OptionError
from spark_lance.index.base.building import Rows, SegmentTarget
from spark_lance.index.base.files import IndexFile, IndexFileWriter
from spark_lance.index.scalar.btree import BTree
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.index.scalar.zones import ZONE_FIELDS, ZONE_ROWS, ZoneIndex, in_runs, rows_of_zones, zones_of
from spark_lance.proto import index_pb2
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.row_set import RowSet

FILE = "zonemap.lance"
_SIZE = "rows_per_zone"
_RUN_ZONES = 1024


class ZoneMap(ZoneIndex):
    """Bounds by zone."""

    name = "ZONEMAP"
    label = "zonemapindexdetails"
    type_url = INDEX_KINDS[label].type_url

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuse options but a size of zones."""
        unknown = sorted(set(options) - {_SIZE})
        if unknown:
            raise OptionError(f"an index ZONEMAP has no option {', '.join(unknown)}; there is {_SIZE}")
        size = _zone_rows(options)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 1 << 32:
            raise OptionError(f"{_SIZE} must be a number of rows, not {size!r}")

    def options(self) -> dict[str, Any]:
        """Return the size of the zones, if it is not the usual one."""
        size = self._file.parsed(_SIZE, int)
        return {} if size == ZONE_ROWS else {_SIZE: size}

    def figures(self) -> dict[str, Any]:
        """Return the size of zones, and how many there are."""
        return {_SIZE: self._file.parsed(_SIZE, int), "num_zones": self._file.num_rows}

    @property
    def _file(self) -> IndexFile:
        return self.segment.file(FILE)

    @classmethod
    def details(cls, options: Mapping[str, Any]) -> bytes:
        """Return the size of the zones."""
        message = index_pb2.ZoneMapIndexDetails(rows_per_zone=_zone_rows(options), use_seeds=False)
        return message.SerializeToString()

    @classmethod
    def fits(cls, kind: pa.DataType) -> bool:
        """Return whether values have an order."""
        return BTree.fits(kind)

    @cached_property
    def zones(self) -> pa.Table:
        """The bounds of all zones, and where these are."""
        names = ["min", "max", "null_count", "nan_count", *(field.name for field in ZONE_FIELDS)]
        return self.segment.file(FILE).read(names)

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return the zones that may have rows for which a comparison is true."""
        zones = self.zones
        if probe.operator == "is_null":
            return rows_of_zones(zones, zones["null_count"].to_numpy() > 0)
        low, high = (zones[name].combine_chunks() for name in ("min", "max"))
        mask = probe.maybe_between(low, high)
        if mask is None:
            return None
        return rows_of_zones(zones, mask | (zones["nan_count"].to_numpy() > 0))

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write the bounds of all zones."""
        schema = pa.schema(
            [
                pa.field("min", rows.kind),
                pa.field("max", rows.kind),
                pa.field("null_count", pa.uint32()),
                pa.field("nan_count", pa.uint32()),
                *ZONE_FIELDS,
            ]
        )
        path = f"{target.directory}/{FILE}"
        size = _zone_rows(target.options)
        with IndexFileWriter(target.store, path, schema, target.version) as writer:
            facts = (
                (*_facts(zone.values), zone.fragment, zone.start, zone.length)
                for zone in zones_of(rows, size)
            )
            for run in in_runs(facts, _RUN_ZONES):
                writer.write(_columns(run, schema))
            return {FILE: writer.finish({"rows_per_zone": str(size)})}


def _zone_rows(options: Mapping[str, Any]) -> Any:
    return options.get(_SIZE, ZONE_ROWS)


def _columns(rows: list[tuple[Any, ...]], schema: pa.Schema) -> list[pa.Array]:
    return [
        pa.array([row[i].as_py() if isinstance(row[i], pa.Scalar) else row[i] for row in rows], field.type)
        if i > 1
        else _scalars([row[i] for row in rows], field.type)
        for i, field in enumerate(schema)
    ]


def _scalars(scalars: list[pa.Scalar], kind: pa.DataType) -> pa.Array:
    """Return scalars of one type as an array, without a detour over Python values that lose digits."""
    return pa.concat_arrays([pa.nulls(1, kind) if not s.is_valid else pa.repeat(s, 1) for s in scalars])


def _facts(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar, int, int]:
    """Return the least and greatest value, and how many are null or NaN."""
    nans = 0
    numbers = values
    if pa.types.is_floating(values.type):
        there = values.drop_null().to_numpy(zero_copy_only=False)
        nans = int(np.isnan(there).sum())
        numbers = pa.array(there[~np.isnan(there)], values.type)
    low, high = _extremes(numbers)
    if nans:
        high = pa.scalar(np.array(float("nan"), numpy_type(values.type))[()], values.type)
        low = low if low.is_valid else high
    return low, high, values.null_count, nans


def _extremes(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar]:
    if pa.types.is_float16(values.type) and len(values):
        numbers = values.to_numpy(zero_copy_only=False)
        return pa.scalar(numbers.min(), values.type), pa.scalar(numbers.max(), values.type)
    if pa.types.is_fixed_size_binary(values.type):
        both = pc.min_max(values.cast(pa.binary()))
        return both["min"].cast(values.type), both["max"].cast(values.type)
    both = pc.min_max(values)
    return both["min"], both["max"]
