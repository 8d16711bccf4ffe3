"""Stable row-id sequences and row-version sequences.

A fragment of a table with stable row ids has three sequences over its physical rows, including deleted rows:

    RowIdSequence               segments whose values are the ids, in order
    RowDatasetVersionSequence   runs (number of values in the span, version), for "created" and "updated"

A segment is one of
    range              start, end (exclusive)
    range_with_holes   start, end, the missing values (absolute)
    range_with_bitmap  start, end, one bit per value, least significant bit first: {1, 3} from 1 is 0x05
    sorted_array, array   values as base + u16, base + u32, or u64, little-endian

Example: `0a 06 0a 04 08 05 10 0a` is one range segment, 5 to 10. For a run of
versions, only the number of values in its span matters. Instead of the manifest, a column of one of the
fragment's data files may have a sequence (see `lineage`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError, Message

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.proto import rowids_pb2, table_pb2

UInt64Array = npt.NDArray[np.uint64]
_Sequence = TypeVar("_Sequence", bound=Message)
_Number = TypeVar("_Number", bound=np.integer[Any])

# The field ids of columns (uint64) in which a data file stores the sequences of its fragment.
ROW_ID_FIELD, CREATED_AT_FIELD, UPDATED_AT_FIELD = LINEAGE_FIELDS = (-3, -4, -5)

_MAX_U64 = 2**64 - 1
# If ascending runs are shorter than this on average, one unsorted array is smaller.
_MIN_RUN = 32


def fragment_row_ids(fragment: table_pb2.DataFragment) -> UInt64Array:
    """Return the stable row ids of a fragment's physical rows, in row order.

    Raises:
        FormatError: the fragment has no row ids, or their number differs from its physical rows.
        UnsupportedFormatError: a data file has the row ids.
    """
    arm = fragment.WhichOneof("row_id_sequence")
    if arm == "column_row_ids":
        raise UnsupportedFormatError(f"fragment {fragment.id} keeps its row ids in a data file")
    if arm is None:
        raise FormatError(f"fragment {fragment.id} has no row ids")
    return decode_row_ids(fragment.inline_row_ids, fragment.physical_rows)


def spilled_fields(fragment: table_pb2.DataFragment) -> set[int]:
    """Return the field ids of the row-lineage columns in a fragment's data files; empty if it has none."""
    arms = {
        ROW_ID_FIELD: fragment.HasField("column_row_ids"),
        CREATED_AT_FIELD: fragment.HasField("column_created_at_versions"),
        UPDATED_AT_FIELD: fragment.HasField("column_last_updated_at_versions"),
    }
    return {number for number, spilled in arms.items() if spilled}


def decode_row_ids(data: bytes, rows: int) -> UInt64Array:
    """Decode a serialized RowIdSequence that covers `rows` rows.

    Raises:
        FormatError: the bytes cannot be decoded, or do not have exactly `rows` ids.
    """
    sequence = _parse(rowids_pb2.RowIdSequence, data)
    parts = []
    missing = rows
    for segment in sequence.segments:
        values = _segment_values(segment, missing)
        missing -= len(values)
        parts.append(values)
    if missing:
        raise FormatError(f"row-id sequence gives {rows - missing} ids for {rows} rows")
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def locate_row_ids(
    data: bytes, rows: int, ids: UInt64Array
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Find ids in a serialized RowIdSequence that covers `rows` rows.

    Segments that cannot contain any of the ids are not decoded, and ranges are not materialized.

    Args:
        data: the sequence.
        rows: the number of ids in the sequence.
        ids: the ids to find (uint64), ascending and unique.

    Returns:
        Two int64 arrays: for every match its position in the sequence, and the position of the id in `ids`.
        An id may match twice; then one of the two rows is deleted.

    Raises:
        FormatError: the bytes cannot be decoded or do not give exactly `rows` ids.
    """
    sequence = _parse(rowids_pb2.RowIdSequence, data)
    offsets, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    first = 0
    for segment in sequence.segments:
        low, high = _bounds(segment)
        start, stop = np.searchsorted(ids, np.array([low, high], np.uint64)) if low < high else (0, 0)
        if start == stop:
            first += _segment_count(segment, rows - first)
            continue
        if segment.HasField("range"):
            count = _segment_count(segment, rows - first)
            offsets.append((ids[start:stop] - np.uint64(low)).astype(np.int64) + first)
            places.append(np.arange(start, stop))
        else:
            values = _segment_values(segment, rows - first)
            count = len(values)
            hits, matches = locate_among(values, ids)
            offsets.append(hits + first)
            places.append(matches)
        first += count
    if first != rows:
        raise FormatError(f"row-id sequence gives {first} ids for {rows} rows")
    return np.concatenate(offsets), np.concatenate(places)


def locate_among(
    values: npt.NDArray[_Number], targets: npt.NDArray[_Number]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the positions of values that occur in ascending `targets`, and their positions there."""
    if not len(targets):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    places = np.minimum(np.searchsorted(targets, values), len(targets) - 1)
    hits = np.flatnonzero(targets[places] == values)
    return hits, places[hits]


def append_row_ids(data: bytes, start: int, rows: int) -> bytes:
    """Return a serialized RowIdSequence extended by `rows` ids: start, start + 1, ...

    Raises:
        FormatError: `data` is not a RowIdSequence.
    """
    sequence = _parse(rowids_pb2.RowIdSequence, data)
    added = rowids_pb2.U64Segment.Range(start=start, end=start + rows)
    sequence.segments.append(rowids_pb2.U64Segment(range=added))
    return sequence.SerializeToString()


def count_row_ids(data: bytes, limit: int) -> int:
    """Return the number of ids in a serialized RowIdSequence.

    Raises:
        FormatError: the sequence cannot be decoded, or has more than `limit` ids.
    """
    sequence = _parse(rowids_pb2.RowIdSequence, data)
    count = 0
    for segment in sequence.segments:
        count += _segment_count(segment, limit - count)
    return count


def row_id_bounds(data: bytes, rows: int) -> tuple[int, int]:
    """Return the lowest and the highest id of a serialized RowIdSequence with up to `rows` ids.

    Raises:
        FormatError: the sequence cannot be decoded, or has no ids or more than `rows`.
    """
    sequence = _parse(rowids_pb2.RowIdSequence, data)
    low, high, remaining = _MAX_U64, -1, rows
    for segment in sequence.segments:
        count = _segment_count(segment, remaining)
        remaining -= count
        if not count:
            continue
        if segment.HasField("range"):
            first, last = segment.range.start, segment.range.end - 1
        else:
            values = _segment_values(segment, count)
            first, last = int(values.min()), int(values.max())
        low, high = min(low, first), max(high, last)
    if high < 0:
        raise FormatError("a row-id sequence gives no ids")
    return low, high


def decode_row_versions(data: bytes, rows: int) -> UInt64Array:
    """Decode a serialized RowDatasetVersionSequence to one version number per row.

    Raises:
        FormatError: the bytes cannot be decoded or do not cover exactly `rows` rows.
    """
    sequence = _parse(rowids_pb2.RowDatasetVersionSequence, data)
    counts = []
    missing = rows
    for run in sequence.runs:
        counts.append(_segment_count(run.span, missing))
        missing -= counts[-1]
    if missing:
        raise FormatError(f"row-version sequence covers {rows - missing} of {rows} rows")
    versions = np.array([run.version for run in sequence.runs], np.uint64)
    return np.repeat(versions, counts)


def encode_row_versions(version: int, rows: int) -> bytes:
    """Serialize a RowDatasetVersionSequence with the same version for all `rows` rows."""
    span = rowids_pb2.U64Segment(range=rowids_pb2.U64Segment.Range(start=0, end=rows))
    run = rowids_pb2.RowDatasetVersionRun(span=span, version=version)
    return rowids_pb2.RowDatasetVersionSequence(runs=[run]).SerializeToString()


def pack_row_ids(ids: UInt64Array) -> bytes:
    """Serialize a RowIdSequence of any ids in the given order. Long ascending runs take few bytes."""
    # Ascending runs are the usual case: ids that come from one fragment form one run, as in the reference.
    starts = np.flatnonzero(ids[1:] <= ids[:-1]) + 1
    runs = [ids] if len(starts) > len(ids) // _MIN_RUN else np.split(ids, starts)
    return rowids_pb2.RowIdSequence(segments=[_pack_segment(run) for run in runs]).SerializeToString()


def pack_row_versions(versions: UInt64Array) -> bytes:
    """Serialize a RowDatasetVersionSequence with one version per row."""
    bounds = [0, *(np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist(), len(versions)]
    sequence = rowids_pb2.RowDatasetVersionSequence()
    for start, stop in pairwise(bounds):
        if start < stop:
            run = sequence.runs.add(version=int(versions[start]))
            run.span.range.start, run.span.range.end = start, stop
    return sequence.SerializeToString()


def _pack_segment(ids: UInt64Array) -> rowids_pb2.U64Segment:
    """Return the smallest segment with these ids in this order."""
    if not len(ids):
        return rowids_pb2.U64Segment(range=rowids_pb2.U64Segment.Range(start=0, end=0))
    if np.any(ids[1:] <= ids[:-1]):
        return rowids_pb2.U64Segment(array=_pack_array(ids))
    start, end = int(ids[0]), int(ids[-1]) + 1
    span = end - start
    if span == len(ids):
        return rowids_pb2.U64Segment(range=rowids_pb2.U64Segment.Range(start=start, end=end))
    sizes = [24 + 4 * (span - len(ids)), 24 + (span + 7) // 8, 24 + 2 * len(ids)]
    # From here on, the span is less than 16 times the number of ids, so one byte per value is acceptable.
    if min(sizes) == sizes[2]:
        return rowids_pb2.U64Segment(sorted_array=_pack_array(ids))
    present = np.zeros(span, np.bool_)
    present[(ids - np.uint64(start)).astype(np.int64)] = True
    if min(sizes) == sizes[0]:
        holes = np.flatnonzero(~present).astype(np.uint64) + np.uint64(start)
        segment_with_holes = rowids_pb2.U64Segment.RangeWithHoles(
            start=start, end=end, holes=_pack_array(holes)
        )
        return rowids_pb2.U64Segment(range_with_holes=segment_with_holes)
    bitmap = np.packbits(present, bitorder="little").tobytes()
    segment_with_bitmap = rowids_pb2.U64Segment.RangeWithBitmap(start=start, end=end, bitmap=bitmap)
    return rowids_pb2.U64Segment(range_with_bitmap=segment_with_bitmap)


def _pack_array(values: UInt64Array) -> rowids_pb2.EncodedU64Array:
    base = int(values.min())
    span = int(values.max()) - base
    if span > 0xFFFFFFFF:
        plain = rowids_pb2.EncodedU64Array.U64Array(values=values.astype("<u8").tobytes())
        return rowids_pb2.EncodedU64Array(u64_array=plain)
    offsets = values - np.uint64(base)
    if span > 0xFFFF:
        wide = rowids_pb2.EncodedU64Array.U32Array(base=base, offsets=offsets.astype("<u4").tobytes())
        return rowids_pb2.EncodedU64Array(u32_array=wide)
    narrow = rowids_pb2.EncodedU64Array.U16Array(base=base, offsets=offsets.astype("<u2").tobytes())
    return rowids_pb2.EncodedU64Array(u16_array=narrow)


def _parse(kind: type[_Sequence], data: bytes) -> _Sequence:
    try:
        message = kind()
        message.ParseFromString(data)
    except DecodeError as error:
        raise FormatError(f"undecodable {kind.DESCRIPTOR.name}: {error}") from error
    return message


def _segment_count(segment: rowids_pb2.U64Segment, limit: int) -> int:
    """Return the number of values of a segment. Raise before allocation if it exceeds `limit`."""
    arm = segment.WhichOneof("segment")
    if arm == "range":
        count = _range_size(segment.range)
    elif arm == "range_with_holes":
        count = _range_size(segment.range_with_holes) - len(_read_holes(segment.range_with_holes))
    elif arm == "range_with_bitmap":
        count = int(np.count_nonzero(_read_bits(segment.range_with_bitmap)))
    elif arm in ("sorted_array", "array"):
        count = len(_read_array(getattr(segment, arm)))
    else:
        raise FormatError("a segment has no known encoding")
    if count > limit:
        raise FormatError(f"a segment gives {count} values where at most {limit} rows are left")
    return count


def _segment_values(segment: rowids_pb2.U64Segment, limit: int) -> UInt64Array:
    """Return the values of a segment of at most `limit` values."""
    _segment_count(segment, limit)
    if segment.HasField("range"):
        return _arange(segment.range.start, segment.range.end)
    if segment.HasField("range_with_holes"):
        segment_with_holes = segment.range_with_holes
        keep = np.ones(segment_with_holes.end - segment_with_holes.start, np.bool_)
        keep[(_read_holes(segment_with_holes) - np.uint64(segment_with_holes.start)).astype(np.int64)] = False
        return _arange(segment_with_holes.start, segment_with_holes.end)[keep]
    if segment.HasField("range_with_bitmap"):
        present = np.flatnonzero(_read_bits(segment.range_with_bitmap))
        values: UInt64Array = present.astype(np.uint64) + np.uint64(segment.range_with_bitmap.start)
        return values
    if segment.HasField("sorted_array"):
        values = _read_array(segment.sorted_array)
        if np.any(values[1:] <= values[:-1]):
            raise FormatError("a sorted array of row ids is not sorted")
        return values
    return _read_array(segment.array)


def _bounds(segment: rowids_pb2.U64Segment) -> tuple[int, int]:
    """Return bounds of a segment's values; the upper bound is exclusive and at most 2^64 - 1."""
    arm = segment.WhichOneof("segment")
    if arm in ("range", "range_with_holes", "range_with_bitmap"):
        ranged = getattr(segment, arm)
        return ranged.start, ranged.end
    return 0, _MAX_U64


def _range_size(
    bounds: rowids_pb2.U64Segment.Range
    | rowids_pb2.U64Segment.RangeWithHoles
    | rowids_pb2.U64Segment.RangeWithBitmap,
) -> int:
    if bounds.end < bounds.start:
        raise FormatError(f"a range ends at {bounds.end}, before its start {bounds.start}")
    return bounds.end - bounds.start


def _arange(start: int, end: int) -> UInt64Array:
    values: UInt64Array = np.arange(end - start, dtype=np.uint64) + np.uint64(start)
    return values


def _read_holes(segment_with_holes: rowids_pb2.U64Segment.RangeWithHoles) -> UInt64Array:
    """Return the holes, sorted and unique, all inside the range."""
    holes = np.unique(_read_array(segment_with_holes.holes))
    if len(holes) and (int(holes[0]) < segment_with_holes.start or int(holes[-1]) >= segment_with_holes.end):
        raise FormatError("a hole is outside its range")
    return holes


def _read_bits(segment_with_bitmap: rowids_pb2.U64Segment.RangeWithBitmap) -> npt.NDArray[np.uint8]:
    """Return a 0 or 1 (uint8) for each value of the range."""
    span = _range_size(segment_with_bitmap)
    if len(segment_with_bitmap.bitmap) != (span + 7) // 8:
        raise FormatError(
            f"a bitmap of {len(segment_with_bitmap.bitmap)} bytes does not fit a range of {span} values"
        )
    bits = np.unpackbits(np.frombuffer(segment_with_bitmap.bitmap, np.uint8), bitorder="little")
    return bits[:span]


def _read_array(encoded: rowids_pb2.EncodedU64Array) -> UInt64Array:
    arm = encoded.WhichOneof("array")
    if arm is None:
        return np.empty(0, np.uint64)
    if arm == "u64_array":
        return _little_endian(encoded.u64_array.values, "<u8")
    base, data = getattr(encoded, arm).base, getattr(encoded, arm).offsets
    offsets = _little_endian(data, "<u2" if arm == "u16_array" else "<u4")
    if len(offsets) and base > _MAX_U64 - int(offsets.max()):
        raise FormatError("a row id does not fit 64 bits")
    values: UInt64Array = offsets + np.uint64(base)
    return values


def _little_endian(data: bytes, dtype: str) -> UInt64Array:
    if len(data) % np.dtype(dtype).itemsize:
        raise FormatError(f"{len(data)} bytes are not an array of {dtype}")
    return np.frombuffer(data, dtype).astype(np.uint64)
