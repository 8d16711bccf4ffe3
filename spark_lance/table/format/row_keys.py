"""Match rows of a source and a table by key.

Keys are encoded as small integers ("codes"): equal keys have the same code. The code of a key with a null is
-1: such a key equals no key. Floats are compared by bits, so 0.0 and -0.0 are different keys; NaN equals NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import numpy_type
from spark_lance.errors import SchemaError

Int64Array = npt.NDArray[np.int64]


def check_key_type(name: str, kind: pa.DataType) -> None:
    """Refuse a column that cannot be a key.

    Raises:
        SchemaError: the type of the column is nested.
    """
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_nested(kind):
        raise SchemaError(f"column {name!r} of type {kind} cannot be a key")


class KeyIndex:
    """The keys of a source.

    Args:
        columns: the key columns of the source; several columns form a composite key.

    Attributes:
        codes: the code of each source row (int64).
        size: the number of distinct keys; every code is less than it.
    """

    def __init__(self, columns: Sequence[pa.ChunkedArray]) -> None:
        self._values: list[pa.Array] = []
        self._pairs: list[Int64Array] = []
        codes: Int64Array | None = None
        for column in columns:
            values = _normalize_keys(column)
            distinct = pc.unique(values).drop_null()
            own = _encode_values(values, distinct)
            self._values.append(distinct)
            if codes is None:
                codes = own
                self.size = len(distinct)
                continue
            both = _combine_codes(codes, own, len(distinct))
            pairs = np.unique(both[both >= 0])
            self._pairs.append(pairs)
            codes = _find_positions(both, pairs)
            self.size = len(pairs)
        assert codes is not None
        self.codes = codes
        # Source rows by code: the rows with code c are order[starts[c]:starts[c + 1]].
        self._order = np.argsort(codes, kind="stable")[np.count_nonzero(codes < 0) :]
        self._starts = np.searchsorted(codes[self._order], np.arange(self.size + 1))

    def lookup(self, columns: Sequence[pa.ChunkedArray]) -> Int64Array:
        """Return the code (int64) of each key of other rows; -1 if the source does not have the key."""
        codes = _encode_values(_normalize_keys(columns[0]), self._values[0])
        for column, distinct, pairs in zip(columns[1:], self._values[1:], self._pairs, strict=True):
            own = _encode_values(_normalize_keys(column), distinct)
            codes = _find_positions(_combine_codes(codes, own, len(distinct)), pairs)
        return codes

    def pairs(self, codes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return all pairs of equal keys as positions in `codes` and source rows, ordered by position."""
        counts = np.zeros(len(codes), np.int64)
        is_match = codes >= 0
        counts[is_match] = (self._starts[1:] - self._starts[:-1])[codes[is_match]]
        places = np.repeat(np.arange(len(codes)), counts)
        first = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        within = np.arange(len(places)) - first[places]
        return places, self._order[self._starts[codes[places]] + within]


def _normalize_keys(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in a type in which Arrow compares values as keys."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([c.storage for c in column.chunks], column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_floating(column.type):
        bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[column.type.bit_width]
        column = pa.chunked_array([_float_bits(chunk, bits) for chunk in column.chunks], bits)
    return column


def _float_bits(values: pa.Array, bits: pa.DataType) -> pa.Array:
    numbers = np.array(values.to_numpy(zero_copy_only=False), copy=True)
    numbers[np.isnan(numbers)] = np.nan
    mask = values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(numbers.view(numpy_type(bits)), bits, mask=mask)


def _encode_values(values: pa.ChunkedArray, distinct: pa.Array) -> Int64Array:
    if not len(distinct):
        return np.full(len(values), -1, np.int64)
    places = pc.fill_null(pc.index_in(values, value_set=distinct, skip_nulls=True), -1)
    codes: Int64Array = places.to_numpy().astype(np.int64)
    return codes


def _combine_codes(left: Int64Array, right: Int64Array, base: int) -> Int64Array:
    """Return one number for each pair of codes. Codes are at most row numbers, so it fits 64 bits."""
    both: Int64Array = np.where((left >= 0) & (right >= 0), left * base + right, -1)
    return both


def _find_positions(values: Int64Array, sorted_values: Int64Array) -> Int64Array:
    """Return the position of each value in ascending `sorted_values`; -1 if it is not there."""
    if not len(sorted_values):
        return np.full(len(values), -1, np.int64)
    places = np.minimum(np.searchsorted(sorted_values, values), len(sorted_values) - 1)
    result: Int64Array = np.where(sorted_values[places] == values, places, -1)
    return result
