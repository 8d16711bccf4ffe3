"""The possible effects of each operation on rows, by the name of the operation.

Change feeds skip operations that change no rows. If rows keep their addresses, the address identifies a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RowEffect:
    """The possible effects of an operation.

    Attributes:
        changes: rows are added, deleted or updated. Otherwise rows may still move, or lose a column.
        keeps_addresses: the row at an address is unchanged or deleted.
        carries_ids: a row may have the stable id of another row of the previous version.
        renumbers: a fragment id may identify another fragment than in the previous version.
    """

    changes: bool = True
    keeps_addresses: bool = False
    carries_ids: bool = True
    renumbers: bool = False


_SAME_ROWS = RowEffect(changes=False, keeps_addresses=True)

# Every operation of the format by its name in the Transaction message.
ROW_EFFECTS: Mapping[str, RowEffect] = {
    "append": RowEffect(keeps_addresses=True, carries_ids=False),
    "delete": RowEffect(keeps_addresses=True, carries_ids=False),
    "overwrite": RowEffect(keeps_addresses=True, carries_ids=False, renumbers=True),
    "create_index": _SAME_ROWS,
    "rewrite": RowEffect(changes=False),
    "merge": RowEffect(),
    "restore": RowEffect(renumbers=True),
    "reserve_fragments": _SAME_ROWS,
    "update": RowEffect(),
    "project": _SAME_ROWS,
    "update_config": _SAME_ROWS,
    "data_replacement": RowEffect(),
    "update_mem_wal_state": _SAME_ROWS,
    "clone": RowEffect(carries_ids=False, renumbers=True),
    "update_bases": _SAME_ROWS,
    "data_overlay": RowEffect(),
}


def find_effect(name: str | None) -> RowEffect:
    """Return the effects of an operation, by its name; all possible effects for an unknown one."""
    return ROW_EFFECTS.get(name or "", RowEffect())
