"""BITMAP: the set of rows of each value.

    bitmap_page_lookup.lance    keys: column type, bitmaps: binary (row_set.py)
                                metadata `lance:index_stats` {"num_bitmaps": 301}

Keys are ascending. The first key is null if the column has nulls. Exact for every condition on this column
alone, because the condition is evaluated on the keys. (Lance index format, bitmap.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import one_array
from spark_lance.index.base.building import Rows, SegmentTarget
from spark_lance.index.base.files import IndexFile, IndexFileWriter, RowAddressMap
from spark_lance.index.base.row_sets import pack_sorted, row_numbers
from spark_lance.index.scalar.base import ScalarIndex, remap_sets
from spark_lance.index.scalar.btree import value_order
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.row_set import RowSet

FILE = "bitmap_page_lookup.lance"
_RUN_KEYS = 4096
_MAX_SETS = 1 << 16


class SetsByKey(ScalarIndex):
    """Base class of indexes whose file has one set of rows per key."""

    @cached_property
    def _file(self) -> IndexFile:
        return self.segment.file(FILE)

    @cached_property
    def _keys(self) -> pa.Array:
        return self._file.read(["keys"])["keys"].combine_chunks()


class Bitmap(SetsByKey):
    """Bitmap index: one set of rows per value."""

    name = "BITMAP"
    label = "bitmapindexdetails"
    type_url = INDEX_KINDS[label].type_url
    can_move = True
    is_exact = True

    @classmethod
    def supports_type(cls, kind: pa.DataType) -> bool:
        """Return whether values can be compared for equality."""
        return not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_null(kind))

    @property
    def num_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._file.num_bytes

    def keys(self, most: int) -> pa.Array | None:
        """Return the keys in file order; None if there are more than `most`."""
        return None if self._file.num_rows > most else self._keys

    def set_bytes(self, position: int) -> bytes:
        """Return the encoded set of rows of one key."""
        result: bytes = self._file.read(["bitmaps"], position, position + 1)["bitmaps"][0].as_py()
        return result

    def stored_sets(self) -> Iterator[bytes]:
        """Yield the encoded sets of all keys, in file order."""
        for start in range(0, self._file.num_rows, _RUN_KEYS):
            yield from self._file.read(["bitmaps"], start, start + _RUN_KEYS)["bitmaps"].to_pylist()

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return exactly the rows whose value matches the condition."""
        matches = np.flatnonzero(probe.evaluate(self._keys))
        return None if len(matches) > _MAX_SETS else read_sets(self._file, matches)

    def find_bytes(self, probe: ColumnPredicate) -> int | None:
        """Return the maximum number of bytes that `find` reads."""
        del probe  # the file does not store the sizes of sets
        return self.num_bytes

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write one set of rows per value; return file name -> size in bytes."""
        pieces = list(rows.pieces())
        values = pa.chunked_array([piece for piece, _ in pieces], rows.kind)
        ids = np.concatenate([np.empty(0, np.uint64), *(numbers for _, numbers in pieces)])
        return {FILE: write_sets(values, ids, target, {})}

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Rewrite the sets with current addresses, without values that have no rows left."""
        return {FILE: move_sets(self._file, target, remap, {})}


def read_sets(file: IndexFile, positions: npt.NDArray[Any]) -> RowSet:
    """Return the union of the sets at the given rows of a file."""
    result = RowSet()
    for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
        for start in range(0, len(run), _RUN_KEYS):
            part = run[start : start + _RUN_KEYS]
            bitmaps = file.read(["bitmaps"], int(part[0]), int(part[-1]) + 1)["bitmaps"]
            for data in bitmaps.to_pylist():
                result |= RowSet.from_bytes(data)
    return result


def write_sets(
    values: pa.ChunkedArray,
    ids: npt.NDArray[Any],
    target: SegmentTarget,
    notes: dict[str, str],
) -> int:
    """Write one set of rows per value, and return the size of the file in bytes.

    Args:
        values: the column, in any order.
        ids: row number of each value (uint64). Duplicates per value are merged.
        target: location of the file.
        notes: more metadata. A value "buffer:{hex}" is written as a buffer and replaced by its number.
    """
    order = value_order(values)
    ordered = one_array(values.take(pa.array(order)))
    rows = ids[order]
    starts = _run_starts(ordered)
    schema = pa.schema([pa.field("keys", values.type), pa.field("bitmaps", pa.binary())])
    with IndexFileWriter(target.store, f"{target.directory}/{FILE}", schema, target.version) as writer:
        ends = [*starts[1:].tolist(), len(rows)]
        for first in range(0, len(starts), _RUN_KEYS):
            part = starts[first : first + _RUN_KEYS]
            sets = [
                pack_sorted(np.unique(rows[start:stop]))
                for start, stop in zip(part.tolist(), ends[first : first + _RUN_KEYS], strict=True)
            ]
            writer.write([ordered.take(pa.array(part)), pa.array(sets, pa.binary())])
        metadata = {"lance:index_stats": json.dumps({"num_bitmaps": len(starts)})}
        for key, value in notes.items():
            is_buffer = value.startswith("buffer:")
            metadata[key] = str(writer.add_buffer(bytes.fromhex(value[7:]))) if is_buffer else value
        return writer.finish(metadata)


def move_sets(file: IndexFile, target: SegmentTarget, remap: RowAddressMap, notes: dict[str, bytes]) -> int:
    """Rewrite a file of sets with current row numbers, and return its size in bytes.

    Args:
        file: the file.
        target: location of the new file.
        remap: maps row numbers to current addresses.
        notes: more metadata. Each value is written as a buffer and replaced by its number.
    """
    kind = file.column_type("keys")
    schema = pa.schema([pa.field("keys", kind), pa.field("bitmaps", pa.binary())])
    count = 0
    with IndexFileWriter(target.store, f"{target.directory}/{FILE}", schema, target.version) as writer:
        for start in range(0, file.num_rows, _RUN_KEYS):
            table = file.read(schema.names, start, start + _RUN_KEYS)
            sets = remap_sets(
                [row_numbers(data, remap.existing_rows) for data in table["bitmaps"].to_pylist()], remap
            )
            kept_keys = [number for number, rows in enumerate(sets) if len(rows)]
            if kept_keys:
                keys = table["keys"].combine_chunks().take(pa.array(kept_keys))
                writer.write(
                    [keys, pa.array([pack_sorted(sets[number]) for number in kept_keys], pa.binary())]
                )
            count += len(kept_keys)
        metadata = {"lance:index_stats": json.dumps({"num_bitmaps": count})}
        metadata |= {key: str(writer.add_buffer(data)) for key, data in notes.items()}
        return writer.finish(metadata)


def _run_starts(ordered: pa.Array) -> npt.NDArray[Any]:
    """Return the start of each run of equal values. NaN equals NaN; 0.0 and -0.0 differ."""
    if not len(ordered):
        return np.empty(0, np.int64)
    one, other = ordered.slice(0, len(ordered) - 1), ordered.slice(1)
    if pa.types.is_floating(ordered.type):
        numbers = ordered.fill_null(0).to_numpy(zero_copy_only=False)
        bits = numbers.view(f"i{numbers.dtype.itemsize}")
        differs = bits[1:] != bits[:-1]
    else:
        differs = pc.fill_null(pc.not_equal(one, other), False).to_numpy(zero_copy_only=False)
    nulls = ordered.is_null().to_numpy(zero_copy_only=False)
    differs = np.where(nulls[:-1] & nulls[1:], False, differs) | (nulls[:-1] != nulls[1:])
    return np.concatenate([[0], np.flatnonzero(differs) + 1])
