"""BLOOMFILTER: a Bloom filter per zone, which excludes values that the zone does not have.

    bloomfilter.lance    fragment_id, zone_start, zone_length: uint64, has_null: bool,
                         bloom_filter_data: binary
                         metadata `bloomfilter_item` ("8192"), `bloomfilter_probability` ("0.00057")

Filters are split block Bloom filters, see table/rows/key_lookup.py. The number of blocks follows from the
length of the data. A number is hashed as its little-endian bytes in its own width, a string as its bytes.
Not exact. (Lance index format, bloom filter.)
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numpy_type
from spark_lance.errors import ExpressionError, FormatError
from spark_lance.expressions.values import common
from spark_lance.index.base.building import Rows, SegmentTarget
from spark_lance.index.base.files import IndexFileWriter
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.index.scalar.zones import (
    ZONE_FIELDS,
    Zone,
    ZoneIndex,
    batch_zones,
    rows_of_zones,
    split_zones,
)
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.rows.key_lookup import filter_places, hash_strings, pack_filter

FILE = "bloomfilter.lance"
_BLOCK_BYTES = 32
_WORDS = 8
_RUN_ZONES = 64


class BloomFilter(ZoneIndex):
    """Bloom filter index: one filter per zone."""

    name = "BLOOMFILTER"
    label = "bloomfilterindexdetails"
    type_url = INDEX_KINDS[label].type_url

    @classmethod
    def supports_type(cls, kind: pa.DataType) -> bool:
        """Return whether values have a defined byte form."""
        return _is_number(kind) or _is_text(kind)

    def figures(self) -> dict[str, Any]:
        """Return the number of filters, and the capacity and error probability of each."""
        file = self.segment.file(FILE)
        return {
            "num_blocks": file.num_rows,
            "number_of_items": file.parsed("bloomfilter_item", int),
            "probability": file.parsed("bloomfilter_probability", float),
        }

    @cached_property
    def _zones(self) -> pa.Table:
        names = [*(field.name for field in ZONE_FIELDS), "has_null", "bloom_filter_data"]
        return self.segment.file(FILE).read(names)

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return the rows of the zones that can have one of the values, or null."""
        zones = self._zones
        if probe.operator == "is_null":
            return rows_of_zones(zones, zones["has_null"].to_numpy(zero_copy_only=False).astype(np.bool_))
        if probe.operator not in ("=", "in") or not probe.literals:
            return None
        mask = np.zeros(zones.num_rows, dtype=np.bool_)
        for literal in probe.literals:
            if literal is None:
                continue
            hashes = self._hashes(literal)
            if hashes is None:
                return None
            for value in hashes:
                mask |= self._may_contain(value)
        return rows_of_zones(zones, mask)

    def _hashes(self, literal: Any) -> npt.NDArray[np.uint64] | None:
        """Return the hashes of the stored values that equal a literal; None if they are unknown."""
        kind = self.values
        if kind is None:
            return None
        try:
            column, scalar = common(pa.nulls(1, kind), literal)
        except (ExpressionError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if column.type != kind or scalar.type != kind or not scalar.is_valid:
            return None
        values = pa.repeat(scalar, 1)
        if pa.types.is_floating(kind):
            number = float(values[0].as_py())
            if np.isnan(number):
                return None
            if number == 0:
                zeros = np.array([0.0, -0.0]).astype(numpy_type(kind))
                values = pa.array(zeros, kind)
        return hash_strings(_value_bytes(values))

    def _may_contain(self, value: np.uint64) -> npt.NDArray[np.bool_]:
        """Return the mask of zones that can have a value, given its hash."""
        result = np.ones(len(self._filters), dtype=np.bool_)
        for number, words in enumerate(self._filters):
            (block,), bits = filter_places(np.array([value]), len(words))
            block_words = words[int(block)]
            result[number] = all(int(block_words[w]) >> int(bits[w][0]) & 1 for w in range(_WORDS))
        return result

    @cached_property
    def _filters(self) -> list[npt.NDArray[np.uint32]]:
        """The words of each zone's filter, (blocks, 8) uint32."""
        filters = []
        for data in self._zones["bloom_filter_data"].to_pylist():
            if not data or len(data) % _BLOCK_BYTES:
                raise FormatError(f"a Bloom filter of {len(data or b'')} bytes", FILE)
            filters.append(np.frombuffer(data, dtype="<u4").reshape(-1, _WORDS))
        return filters

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write the filters of all zones; return file name -> size in bytes."""
        schema = pa.schema(
            [*ZONE_FIELDS, pa.field("has_null", pa.bool_()), pa.field("bloom_filter_data", pa.binary())]
        )
        path = f"{target.directory}/{FILE}"
        with IndexFileWriter(target.store, path, schema, target.version) as writer:
            for part in batch_zones(map(_build_filter, split_zones(rows)), _RUN_ZONES):
                writer.write(
                    [
                        pa.array(column, f.type)
                        for column, f in zip(zip(*part, strict=True), schema, strict=True)
                    ]
                )
            return {FILE: writer.finish({"bloomfilter_item": "8192", "bloomfilter_probability": "0.00057"})}


def _build_filter(zone: Zone) -> tuple[int, int, int, bool, bytes]:
    data = pack_filter(hash_strings(_value_bytes(zone.values.drop_null())))
    return zone.fragment, zone.start, zone.length, zone.values.null_count > 0, data


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_time(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _value_bytes(values: pa.Array) -> pa.LargeBinaryArray:
    """Return the bytes to hash. `values` must not have nulls."""
    if _is_text(values.type):
        return values.cast(pa.large_binary())
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    data = values.to_numpy(zero_copy_only=False)
    width = data.dtype.itemsize
    plain = np.ascontiguousarray(data, dtype=data.dtype.newbyteorder("<"))
    fixed = pa.Array.from_buffers(pa.binary(width), len(values), [None, pa.py_buffer(plain)])
    return fixed.cast(pa.large_binary())
