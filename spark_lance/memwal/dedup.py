"""Which rows of a shard count: of each key the newest one, and not if it stands for a deletion.

Inside of an SSTable or the log the later row is newer; the log is newer than SSTables, these than each other
by generation. A tombstone hides older rows exactly like a live one. Without a primary key every row counts.
(MemWAL, reading.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.memwal.fresh_sources import Keys, Part
from spark_lance.table.format.row_keys import KeyIndex

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chosen:
    """The rows of a part that count.

    Attributes:
        part: where they are.
        rows: their physical numbers, ascending.
    """

    part: Part
    rows: Int64Array


def newest_rows(codes: Int64Array) -> Int64Array:
    """Return the place of the last row of each key, ascending; a key with a null, -1, is a key for itself."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    last = np.append(ordered[1:] != ordered[:-1], True) if len(ordered) else np.zeros(0, np.bool_)
    return np.sort(order[last | (ordered < 0)])


def choose(parts: Sequence[Part], names: Sequence[str]) -> tuple[list[Chosen], pa.Table]:
    """Choose the rows of a shard that count.

    Args:
        parts: of the shard, oldest first.
        names: the columns of the primary key; none if the table has none.

    Returns:
        The parts that have such rows, oldest first; and the keys, each once, of all rows, tombstones
        included: rows of the table with one of these are hidden.
    """
    keys_of_parts = [part.keys(names) for part in parts]
    if not names:
        live = [keys.numbers[~keys.dead] for keys in keys_of_parts]
        chosen = [Chosen(part, rows) for part, rows in zip(parts, live, strict=True) if len(rows)]
        return chosen, pa.table({})
    keys = _joined(keys_of_parts, names)
    codes = KeyIndex([keys[name] for name in names]).codes if keys.num_rows else np.empty(0, np.int64)
    newest = newest_rows(codes)
    chosen = []
    start = 0
    for part, its in zip(parts, keys_of_parts, strict=True):
        stop = start + len(its.numbers)
        places = newest[np.searchsorted(newest, start) : np.searchsorted(newest, stop)] - start
        places = places[~its.dead[places]]
        if len(places):
            chosen.append(Chosen(part, its.numbers[places]))
        start = stop
    return chosen, keys.take(pa.array(newest))


def _joined(keys_of_parts: Sequence[Keys], names: Sequence[str]) -> pa.Table:
    tables = [keys.columns for keys in keys_of_parts]
    return (
        pa.concat_tables(tables) if tables else pa.table({name: pa.array([], pa.int64()) for name in names})
    )
