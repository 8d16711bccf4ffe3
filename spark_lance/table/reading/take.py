"""Read rows by position, by address, or by id, in the requested order.

Positions count the live rows in scan order. An address is fragment id << 32 | physical row. In tables without
stable row ids, an id is the same as the address. In others it is looked up in the fragments' sequences. Only
sequences that can contain one of the ids are decoded, one at a time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numbers_to_numpy, one_array, pick_rows
from spark_lance.errors import OptionError, RowNotFoundError
from spark_lance.io.parallel import run_together
from spark_lance.proto import table_pb2
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.row_set import Addresses, address_offsets, row_addresses, runs_by_fragment
from spark_lance.table.format.rowids import locate_among, locate_row_ids
from spark_lance.table.reading.fragment_rows import FragmentRows
from spark_lance.table.reading.lineage import ROW_ID, LineageReader
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.system_columns import ROW_ADDRESS

RowNumbers: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]] | pa.Array | pa.ChunkedArray

_WINDOW_ROWS = 1 << 20
# The most fragments whose files stay open between takes: a mapped file occupies a descriptor, and a process
# usually has 1024 of them.
_MAX_OPEN_FRAGMENTS = 32


def take_positions(scan: Scan, positions: RowNumbers) -> pa.Table:
    """Return rows by position among the live rows of the scan's fragments, in the order of `positions`.

    Raises:
        IndexError: a position does not exist.
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    numbers = _integers(positions, np.int64)
    ends = np.cumsum([scan.live_rows(fragment) for fragment in scan.fragments], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    if numbers.size and (numbers.min() < 0 or numbers.max() >= total):
        wrong = int(numbers[(numbers < 0) | (numbers >= total)][0])
        places = f"row positions must be within 0 and {total - 1}" if total else "the table has no rows"
        raise RowNotFoundError(f"there is no row at position {wrong}: {places}")
    order, back = np.unique(numbers, return_inverse=True)
    fragment_positions = np.searchsorted(ends, order, side="right")
    reads = []
    for fragment_position in np.flatnonzero(np.bincount(fragment_positions)):
        first = int(ends[fragment_position - 1]) if fragment_position else 0
        task = scan.task(scan.fragments[fragment_position])
        reads.append(partial(task.take, order[fragment_positions == fragment_position] - first))
    parts = [_empty_table(scan), *run_together(scan.store, reads)]
    return _with_metadata(scan, pick_rows(pa.concat_tables(parts), back.reshape(-1)))


def take_addresses(scan: Scan, addresses: RowNumbers) -> pa.Table:
    """Return the rows at addresses, in the order of `addresses`.

    Deleted rows and rows of fragments that do not exist are left out.

    Raises:
        IndexError: an address is beyond the end of an existing fragment.
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    return OpenFragments(scan).take(addresses)


class OpenFragments:
    """Takes rows from the fragments of a scan, with files that stay open between takes. Thread-safe.

    Args:
        scan: the scan that determines the columns and fragments.
    """

    def __init__(self, scan: Scan) -> None:
        names = scan.names if ROW_ADDRESS in scan.names else (*scan.names, ROW_ADDRESS)
        self._scan = scan
        self._address_scan = Scan(scan.table, scan.manifest, names, scan.fragments)
        self._by_id = {fragment.id: fragment for fragment in scan.fragments}
        self._opened: OrderedDict[int, tuple[ScanTask, FragmentRows]] = OrderedDict()
        self._lock = threading.Lock()
        self._entries_lock = threading.Lock()

    def take(self, addresses: RowNumbers) -> pa.Table:
        """Return the rows at addresses, see `take_addresses`."""
        scan = self._scan
        numbers = _integers(addresses, np.uint64)
        order, back = np.unique(numbers, return_inverse=True)
        reads = [
            partial(self._take_offsets, number, address_offsets(order[run]).astype(np.int64))
            for number, run in runs_by_fragment(order)
            if number in self._by_id
        ]
        with self._lock:
            parts = run_together(scan.store, reads)
        rows_read = (
            parts[0] if len(parts) == 1 else pa.concat_tables([_empty_table(self._address_scan), *parts])
        )
        positions = back.reshape(-1)
        if rows_read.num_rows < len(order):
            present = numbers_to_numpy(one_array(rows_read[ROW_ADDRESS]))
            alive = np.isin(order, present, assume_unique=True)
            positions = np.searchsorted(present, order)[positions[alive[positions]]]
        result = pick_rows(rows_read, positions)
        return _with_metadata(
            scan, result if ROW_ADDRESS in scan.names else result.drop_columns([ROW_ADDRESS])
        )

    def _take_offsets(self, number: int, offsets: npt.NDArray[np.int64]) -> pa.Table:
        task, rows = self._open(number)
        return task.take_physical(offsets, rows)

    def _open(self, number: int) -> tuple[ScanTask, FragmentRows]:
        with self._entries_lock:
            entry = self._opened.pop(number, None)
        if entry is None:
            task = self._address_scan.task(self._by_id[number])
            entry = task, task.open_rows()
        with self._entries_lock:
            if len(self._opened) >= _MAX_OPEN_FRAGMENTS:
                self._opened.popitem(last=False)
            self._opened[number] = entry
        return entry


def take_row_ids(scan: Scan, row_ids: RowNumbers) -> pa.Table:
    """Return the rows with the given ids, in the order of `row_ids`; ids that do not exist are left out.

    Raises:
        IndexError: the table has no stable row ids, and an id is beyond the end of an existing fragment.
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    ids = _integers(row_ids, np.uint64)
    addresses, exists = resolve_row_ids(scan, ids)
    return take_addresses(scan, addresses[exists])


def resolve_row_ids(scan: Scan, row_ids: RowNumbers) -> tuple[Addresses, npt.NDArray[np.bool_]]:
    """Return the address of each id, and whether the id exists; the address of a missing id is undefined.

    Without stable row ids, every id counts as existing and is its own address.

    Raises:
        FormatError, UnsupportedFormatError: a fragment's ids or deletions are damaged or not supported.
    """
    ids = _integers(row_ids, np.uint64)
    if not scan.manifest.uses_stable_row_ids:
        return ids, np.ones(len(ids), np.bool_)
    order, back = np.unique(ids, return_inverse=True)
    addresses = np.zeros(len(order), np.uint64)
    exists = np.zeros(len(order), np.bool_)
    for fragment in scan.fragments:
        offsets, places = _locate(scan, fragment, order)
        if len(offsets) and fragment.HasField("deletion_file"):
            deleted = read_deletions(scan.table, fragment, None, scan.bases)
            deleted_positions, _ = locate_among(offsets, deleted.astype(np.int64))
            offsets, places = np.delete(offsets, deleted_positions), np.delete(places, deleted_positions)
        addresses[places] = row_addresses(fragment.id, offsets)
        exists[places] = True
    return addresses[back.reshape(-1)], exists[back.reshape(-1)]


def _locate(
    scan: Scan, fragment: table_pb2.DataFragment, row_ids: Addresses
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the physical rows of a fragment with one of the ids, and the position of each row's id."""
    rows = fragment.physical_rows
    if fragment.WhichOneof("row_id_sequence") == "inline_row_ids":
        return locate_row_ids(fragment.inline_row_ids, rows, row_ids)
    reader = LineageReader(scan.table, fragment, ROW_ID, rows, scan.bases)
    offsets, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, rows, _WINDOW_ROWS):
        values = reader.read(start, min(start + _WINDOW_ROWS, rows))
        hits, matches = locate_among(values, row_ids)
        offsets.append(hits + start)
        places.append(matches)
    return np.concatenate(offsets), np.concatenate(places)


def _empty_table(scan: Scan) -> pa.Table:
    return pa.Table.from_batches([], scan.arrow_schema.remove_metadata())


def _with_metadata(scan: Scan, rows: pa.Table) -> pa.Table:
    return rows.replace_schema_metadata(scan.arrow_schema.metadata)


def _integers(numbers: RowNumbers, dtype: type[np.int64] | type[np.uint64]) -> npt.NDArray[Any]:
    """Return row numbers as an array of `dtype`.

    Raises:
        OptionError: the numbers are not integers, or do not fit `dtype`.
    """
    array: npt.NDArray[Any] = np.asarray(numbers)
    # Booleans are refused: they are probably a mask and do not mean the numbers 0 and 1.
    plain = array.ndim > 0 and array.dtype.kind not in "iub"
    if plain and all(isinstance(number, int) for number in numbers):
        # numpy converts integers to floats if no integer type can hold them all.
        array = np.array(numbers, object)
    try:
        if array.dtype.kind in "iuO":
            limits = np.iinfo(dtype)
            if array.size and not limits.min <= array.min() <= array.max() <= limits.max:
                raise OverflowError(f"from {array.min()} to {array.max()}")
            return array.astype(dtype).reshape(-1)
    except (OverflowError, TypeError) as error:
        raise OptionError(f"row numbers must be integers of type {dtype.__name__}: {error}") from error
    text = repr(numbers)
    raise OptionError(
        f"row numbers must be a list of integers, not {text if len(text) < 60 else array.dtype}"
    )
