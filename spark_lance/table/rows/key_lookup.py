"""Find the table rows that can have a key of a source, and make Bloom filters of inserted keys.

The indexes of the key columns find the rows, so the key columns are not read completely. If the source has
few keys, the indexes search these keys, some hundreds in each condition. Otherwise they search the range from
the smallest to the greatest key. The result may contain other rows, because keys are compared afterwards.

An Update transaction has a Bloom filter of the keys of inserted rows. Two writers that insert the same key
concurrently must not both succeed. The filter in each commit shows the later writer whether it must search
its rows again. (Lance table format, update, KeyExistenceFilter.)

The filter is a split block Bloom filter, as in Parquet: 1024 blocks of 8 words of 32 bits, little-endian.
A key sets one bit in each word of one block. With h = XXH64 (seed 0) of its bytes:

    block       (h >> 32) * 1024 >> 32
    bit of word i    ((h & 0xffffffff) * SALT[i] & 0xffffffff) >> 27

The bytes of a key column are the text or binary value, or 8 little-endian bytes for an int32, int64, uint32
or uint64. A key of several columns consists of each column's bytes followed by a zero byte. Example: the
int64 key 9 is in block 708, at the bits 27 26 10 26 25 15 6 13.

The format does not define the bytes of keys of other types. Such keys get a filter of another shape (one
block, all bits set). Filters of different shapes cannot be compared, so the later writer searches its rows
again."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.expressions.expressions import Call, Column, Expression, Literal
from spark_lance.expressions.predicate import Condition, compile_tree
from spark_lance.file.base.schema import Field
from spark_lance.proto import transaction_pb2
from spark_lance.table.reading.pruning import find_used_indexes
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.scan_task import ScanTask

KeyFilter = transaction_pb2.Transaction.KeyExistenceFilter
UInt64Array = npt.NDArray[np.uint64]

_BLOCKS = 1024
_WORDS = 8
_ITEMS = 8192
_PROBABILITY = 0.00057
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31],
    np.uint64,
)
_LOW = np.uint64(0xFFFFFFFF)
_PRIMES = tuple(
    np.uint64(prime)
    for prime in (
        11400714785074694791,
        14029467366897019727,
        1609587929392839161,
        9650029242287828579,
        2870177450012600261,
    )
)
# The most bytes of keys that are hashed at once, to limit the size of working arrays.
_HASHED_BYTES = 8 << 20


def key_filter(field_ids: Sequence[int], columns: Sequence[pa.ChunkedArray]) -> KeyFilter:
    """Return the Bloom filter of keys.

    Args:
        field_ids: the ids of the key's fields. Two filters can be compared only if the ids and their order
            are the same.
        columns: the key columns, without nulls.
    """
    filter = KeyFilter(field_ids=field_ids)
    bloom = filter.bloom
    hashes = key_hashes(columns)
    if hashes is None:
        bloom.bitmap, bloom.num_bits, bloom.number_of_items, bloom.probability = b"\xff" * 32, 256, 1, 1.0
        return filter
    bloom.bitmap = pack_filter(hashes)
    bloom.num_bits = _BLOCKS * _WORDS * 32
    bloom.number_of_items = _ITEMS
    bloom.probability = _PROBABILITY
    return filter


def pack_filter(hashes: UInt64Array) -> bytes:
    """Return the bytes of the filter (1024 blocks) with some hashes."""
    present = np.zeros((_BLOCKS, _WORDS, 32), np.bool_)
    blocks, bits = filter_places(hashes, _BLOCKS)
    for word in range(_WORDS):
        present[blocks, word, bits[word]] = True
    return np.packbits(present, axis=None, bitorder="little").tobytes()


def filter_places(hashes: UInt64Array, blocks: int) -> tuple[UInt64Array, list[UInt64Array]]:
    """Return the block of each hash in a filter of `blocks` blocks, and its bit in each word of the block."""
    block_numbers: UInt64Array = ((hashes >> np.uint64(32)) * np.uint64(blocks)) >> np.uint64(32)
    return block_numbers, [(((hashes & _LOW) * salt) & _LOW) >> np.uint64(27) for salt in _SALT]


def key_hashes(columns: Sequence[pa.ChunkedArray]) -> UInt64Array | None:
    """Return the hash of every key; None if the format does not define the bytes of a column's type."""
    parts = [_key_bytes(column) for column in columns]
    columns_bytes = [part for part in parts if part is not None]
    if len(columns_bytes) < len(parts):
        return None
    if len(columns_bytes) > 1:
        end, nothing = (pa.scalar(value, pa.large_binary()) for value in (b"\0", b""))
        columns_bytes = [pc.binary_join_element_wise(*columns_bytes, nothing, end)]
    hashes = [hash_strings(chunk) for chunk in columns_bytes[0].chunks]
    return np.concatenate([np.empty(0, np.uint64), *hashes])


def _key_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column.cast(pa.large_binary())
    if not pa.types.is_integer(kind) or kind.bit_width < 32:
        return None
    signed = pa.types.is_signed_integer(kind)
    wide = column.cast(pa.int64() if signed else pa.uint64())
    chunks = []
    for chunk in wide.chunks:
        data = chunk.to_numpy().astype("<i8" if signed else "<u8")
        chunks.append(pa.Array.from_buffers(pa.binary(8), len(chunk), [None, pa.py_buffer(data)]))
    return pa.chunked_array(chunks, pa.binary(8)).cast(pa.large_binary())


def hash_strings(strings: pa.LargeBinaryArray) -> UInt64Array:
    """Return the XXH64 of every value; values of equal length are hashed together."""
    offsets = np.frombuffer(strings.buffers()[1], np.int64)[strings.offset :][: len(strings) + 1]
    data = np.frombuffer(strings.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    hashes = np.empty(len(strings), np.uint64)
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        step = max(1, _HASHED_BYTES // max(int(length), 8))
        for first in range(0, len(rows), step):
            batch = rows[first : first + step]
            values = data[offsets[batch][:, None] + np.arange(length)]
            hashes[batch] = _xxh64(np.ascontiguousarray(values))
    return hashes


def _xxh64(values: npt.NDArray[np.uint8]) -> UInt64Array:
    """Return the XXH64, with seed 0, of each row of a matrix of bytes."""
    rows, length = values.shape
    p1, p2, p3, p4, p5 = _PRIMES
    offset = 0
    with np.errstate(over="ignore"):
        if length >= 32:
            seeds = (p1 + p2, p2, np.uint64(0), np.uint64(0) - p1)
            lanes = [np.full(rows, seed, np.uint64) for seed in seeds]
            while offset <= length - 32:
                for lane in range(4):
                    lanes[lane] = _round(lanes[lane], _words(values, offset + 8 * lane, "<u8"))
                offset += 32
            state = np.zeros(rows, np.uint64)
            for lane_state, bits in zip(lanes, (1, 7, 12, 18), strict=True):
                state = state + _rotate(lane_state, bits)
            for lane_state in lanes:
                state = (state ^ _round(np.zeros(rows, np.uint64), lane_state)) * p1 + p4
        else:
            state = np.full(rows, p5, np.uint64)
        state = state + np.uint64(length)
        while offset <= length - 8:
            mixed = _round(np.zeros(rows, np.uint64), _words(values, offset, "<u8"))
            state = _rotate(state ^ mixed, 27) * p1 + p4
            offset += 8
        if offset <= length - 4:
            state = _rotate(state ^ (_words(values, offset, "<u4") * p1), 23) * p2 + p3
            offset += 4
        for place in range(offset, length):
            state = _rotate(state ^ (values[:, place].astype(np.uint64) * p5), 11) * p1
        state = (state ^ (state >> np.uint64(33))) * p2
        state = (state ^ (state >> np.uint64(29))) * p3
        result: UInt64Array = state ^ (state >> np.uint64(32))
    return result


def _round(state: UInt64Array, word: UInt64Array) -> UInt64Array:
    mixed: UInt64Array = _rotate(state + word * _PRIMES[1], 31) * _PRIMES[0]
    return mixed


def _rotate(values: UInt64Array, bits: int) -> UInt64Array:
    rotated: UInt64Array = (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))
    return rotated


def _words(values: npt.NDArray[np.uint8], start: int, dtype: str) -> UInt64Array:
    """Return the number at byte `start` of each row."""
    width = np.dtype(dtype).itemsize
    words: UInt64Array = np.ascontiguousarray(values[:, start : start + width]).view(dtype)[:, 0]
    return words.astype(np.uint64)


# The number of keys in one condition.
_BATCH_KEYS = 512
# An index reads a page of several thousand rows for one key. Up to `_FEW_KEYS` keys are always looked up.
# More keys are looked up only if the table has `_ROWS_PER_KEY` rows per key: otherwise reading the key
# columns takes less time than reading the pages of the index.
_FEW_KEYS = 64
_ROWS_PER_KEY = 2048


@dataclass(frozen=True)
class KeyLookup:
    """The part of a table that is compared with the keys of a source.

    Attributes:
        tasks: tasks whose rows include all rows of the table with one of the keys.
        method: the search in the indexes: "keys" for single keys, "range" for the range of all keys, or
            "nothing".
    """

    tasks: Sequence[ScanTask]
    method: str


def key_tasks(
    scan: Scan, keys: Sequence[Field], source: pa.Table, others: Condition | None = None
) -> Sequence[ScanTask]:
    """Return tasks whose rows include all rows of the table with a key of the source; see `key_lookup`."""
    return key_lookup(scan, keys, source, others).tasks


def key_lookup(
    scan: Scan, keys: Sequence[Field], source: pa.Table, others: Condition | None = None
) -> KeyLookup:
    """Return the part of a table that can contain keys of the source.

    Args:
        scan: a scan of at least the key columns.
        keys: the key columns.
        source: a table with the key columns, in the table's types. Rows with a null in a key column are
            ignored.
        others: the result includes the rows for which this is true, too.
    """
    schema = pa.schema([key.arrow_field() for key in keys])
    plain = [key.name for key in keys if _is_plain(key.arrow_type())]
    if not plain:
        return KeyLookup(scan.tasks(), "nothing")
    rows = _drop_nulls(source.select([key.name for key in keys])).select(plain)
    method = "keys"
    if not rows.num_rows:
        conditions: Iterable[Condition] = []
    elif not scan.pruners:
        return KeyLookup(scan.tasks(), "nothing")
    elif rows.num_rows <= max(_FEW_KEYS, _count_rows(scan) // _ROWS_PER_KEY):
        conditions = _key_conditions(rows, schema)
    else:
        method = "range"
        conditions = [compile_tree(_and_all([_is_in_range(name, rows[name]) for name in plain]), schema)]
    return KeyLookup(
        scan.tasks_for_any(conditions if others is None else chain(conditions, [others])), method
    )


def key_indices(scan: Scan, keys: Sequence[Field]) -> list[tuple[str, str, str]]:
    """Return (column, name, kind) of the indexes that look up keys."""
    index_uses = []
    for key in keys:
        sample = _sample(key.arrow_type())
        if sample is not None:
            tree = Call("in", (Column((key.name,)), Literal(sample)))
            condition = compile_tree(tree, pa.schema([key.arrow_field()]))
            uses = (use for pruner in scan.pruners for use in find_used_indexes(pruner, condition))
            index_uses += [(key.name, name, kind) for _, name, kind in uses]
    return index_uses


def _sample(kind: pa.DataType) -> Any:
    """Return a sample value of a type that indexes look up by key; None for other types."""
    if not _is_plain(kind):
        return None
    if pa.types.is_integer(kind):
        return 0
    return datetime.date(1970, 1, 1) if pa.types.is_date32(kind) else ""


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether values of a type that are equal as keys are equal in conditions, too.

    This is false for floats because of NaN. Other excluded types have no literals.
    """
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_date32)
    return any(test(kind) for test in tests)


def _drop_nulls(rows: pa.Table) -> pa.Table:
    for name in rows.column_names:
        rows = rows.filter(rows[name].is_valid()) if rows[name].null_count else rows
    return rows


def _key_conditions(rows: pa.Table, schema: pa.Schema) -> Iterator[Condition]:
    """Yield conditions such that each key matches one of them; adjacent keys are in the same condition."""
    present = rows.group_by(rows.column_names).aggregate([])
    present = present.sort_by([(name, "ascending") for name in rows.column_names])
    for start in range(0, present.num_rows, _BATCH_KEYS):
        part = present.slice(start, _BATCH_KEYS)
        yield compile_tree(_and_all([_is_in(name, part[name]) for name in part.column_names]), schema)


def _is_in(name: str, values: pa.ChunkedArray) -> Expression:
    literals = tuple(Literal(value) for value in pc.unique(values).to_pylist())
    return Call("in", (Column((name,)), *literals))


def _is_in_range(name: str, values: pa.ChunkedArray) -> Expression:
    bounds = pc.min_max(values)
    low, high = Literal(bounds["min"].as_py()), Literal(bounds["max"].as_py())
    column = Column((name,))
    return Call("and", (Call(">=", (column, low)), Call("<=", (column, high))))


def _and_all(parts: Sequence[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else Call("and", tuple(parts))


def _count_rows(scan: Scan) -> int:
    return sum(int(fragment.physical_rows) for fragment in scan.fragments)
