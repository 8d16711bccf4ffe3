"""ZONEMAP: minimum and maximum value of each zone.

    zonemap.lance    min, max: column type, null_count, nan_count: uint32,
                     fragment_id, zone_start, zone_length: uint64
                     metadata `rows_per_zone` ("8192"), `null_bitmap` number of a buffer with the null rows

Bounds ignore nulls and NaN, but a zone with a NaN has `max` NaN as a marker. Not exact. (Lance index format,
zone map.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import flags_to_numpy, numpy_type
from spark_lance.errors import OptionError
from spark_lance.index.base.building import Rows, SegmentTarget
from spark_lance.index.base.files import IndexFile, IndexFileWriter
from spark_lance.index.scalar.btree import BTree
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.index.scalar.zones import (
    ZONE_FIELDS,
    ZONE_ROWS,
    ZoneIndex,
    batch_zones,
    rows_of_zones,
    split_zones,
)
from spark_lance.proto import index_pb2
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.row_set import RowSet

FILE = "zonemap.lance"
_ZONE_ROWS = "rows_per_zone"
_RUN_ZONES = 1024


class ZoneMap(ZoneIndex):
    """Zone map index: minimum and maximum value per zone."""

    name = "ZONEMAP"
    label = "zonemapindexdetails"
    type_url = INDEX_KINDS[label].type_url

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Check the options. The only option is `rows_per_zone`."""
        unknown = sorted(set(options) - {_ZONE_ROWS})
        if unknown:
            raise OptionError(f"an index ZONEMAP has no option {', '.join(unknown)}; there is {_ZONE_ROWS}")
        size = _zone_rows(options)
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 1 << 32:
            raise OptionError(f"{_ZONE_ROWS} must be a number of rows, not {size!r}")

    def options(self) -> dict[str, Any]:
        """Return `rows_per_zone` if it is not the default."""
        size = self._file.parsed(_ZONE_ROWS, int)
        return {} if size == ZONE_ROWS else {_ZONE_ROWS: size}

    def figures(self) -> dict[str, Any]:
        """Return the rows per zone and the number of zones."""
        return {_ZONE_ROWS: self._file.parsed(_ZONE_ROWS, int), "num_zones": self._file.num_rows}

    @property
    def _file(self) -> IndexFile:
        return self.segment.file(FILE)

    @classmethod
    def details(cls, options: Mapping[str, Any]) -> bytes:
        """Return the encoded details, which have the rows per zone."""
        message = index_pb2.ZoneMapIndexDetails(rows_per_zone=_zone_rows(options), use_seeds=False)
        return message.SerializeToString()

    @classmethod
    def supports_type(cls, kind: pa.DataType) -> bool:
        """Return whether values have an order."""
        return BTree.supports_type(kind)

    @cached_property
    def zones(self) -> pa.Table:
        """The bounds and locations of all zones."""
        names = ["min", "max", "null_count", "nan_count", *(field.name for field in ZONE_FIELDS)]
        return self.segment.file(FILE).read(names)

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return the rows of the zones that can have a match."""
        zones = self.zones
        if probe.operator == "is_null":
            return rows_of_zones(zones, zones["null_count"].to_numpy() > 0)
        low, high = (zones[name].combine_chunks() for name in ("min", "max"))
        mask = probe.maybe_between(low, high)
        if mask is None:
            return None
        # pylance writes null bounds for dictionaries, although the zone has values.
        has_values = zones["null_count"].to_numpy() < zones["zone_length"].to_numpy()
        is_unbounded = flags_to_numpy(pc.or_(pc.is_null(low), pc.is_null(high))) & has_values
        return rows_of_zones(zones, mask | is_unbounded | (zones["nan_count"].to_numpy() > 0))

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write the bounds of all zones; return file name -> size in bytes."""
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
            zone_stats = (
                (*_value_stats(zone.values), zone.fragment, zone.start, zone.length)
                for zone in split_zones(rows, size)
            )
            for run in batch_zones(zone_stats, _RUN_ZONES):
                writer.write(_columns(run, schema))
            return {FILE: writer.finish({"rows_per_zone": str(size)})}


def _zone_rows(options: Mapping[str, Any]) -> Any:
    return options.get(_ZONE_ROWS, ZONE_ROWS)


def _columns(rows: list[tuple[Any, ...]], schema: pa.Schema) -> list[pa.Array]:
    return [
        pa.array([row[i].as_py() if isinstance(row[i], pa.Scalar) else row[i] for row in rows], field.type)
        if i > 1
        else _scalar_array([row[i] for row in rows], field.type)
        for i, field in enumerate(schema)
    ]


def _scalar_array(scalars: list[pa.Scalar], kind: pa.DataType) -> pa.Array:
    """Return scalars as an array, without a conversion to Python values that loses precision."""
    return pa.concat_arrays([pa.nulls(1, kind) if not s.is_valid else pa.repeat(s, 1) for s in scalars])


def _value_stats(values: pa.Array) -> tuple[pa.Scalar, pa.Scalar, int, int]:
    """Return (minimum, maximum, number of nulls, number of NaN)."""
    nans = 0
    numbers = values
    if pa.types.is_floating(values.type):
        present_values = values.drop_null().to_numpy(zero_copy_only=False)
        nans = int(np.isnan(present_values).sum())
        numbers = pa.array(present_values[~np.isnan(present_values)], values.type)
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
