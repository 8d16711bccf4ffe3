"""Whether an operation may still be committed after another one came first.

One literal grid holds the answer for every pair. A row is the operation being committed ("ours"), a column
one that was committed since the version ours was computed from ("theirs"):

    .  fine: ours stays as it is         b  fine: ours is renumbered onto theirs
    R  run our operation again           X  cannot work: what ours was computed from is gone
    m  merge the rows deleted by both    (only as the outcome of a rule)
    other letters are rules, functions of the two operations: see `conflict_rules`

The rows cover all operations on an existing table except two that are never executed here: write-ahead logs
and overlays. `rewrite_deferred` is a rewrite that does not touch the indices. It records the moved rows in a
fragment-reuse entry. Once committed it looks like any other rewrite, because its transaction has no field for
the entry. An unknown operation of theirs is incompatible with everything. (Lance table format, conflict
matrix.)
"""

from __future__ import annotations

from spark_lance.table.commits.conflict_rules import RULES, Rule, Verdict
from spark_lance.table.format.transaction import Transaction

__all__ = ["CONFLICTS", "Verdict", "verdict"]

_COLUMNS = {
    "Ap": "append",
    "Ov": "overwrite",
    "De": "delete",
    "Up": "update",
    "CI": "create_index",
    "Rw": "rewrite",
    "Me": "merge",
    "Pr": "project",
    "Re": "restore",
    "RF": "reserve_fragments",
    "UC": "update_config",
    "DR": "data_replacement",
    "MW": "update_mem_wal_state",
    "UB": "update_bases",
    "DO": "data_overlay",
    "Cl": "clone",
}

_GRID = """
ours \\ theirs       Ap Ov De Up CI Rw Me Pr Re RF UC DR MW UB DO Cl
append              b  X  .  .  .  .  n  n  X  b  .  .  X  .  .  .
overwrite           b  o  .  .  .  .  .  .  .  .  k  .  X  .  .  .
delete              .  X  d  d  .  f  R  .  X  .  .  f  X  .  .  .
update              p  X  d  e  .  f  R  P  X  .  .  f  w  .  f  .
create_index        .  X  .  q  i  h  l  .  X  .  .  r  X  .  .  .
rewrite             b  X  f  f  j  f  R  .  X  .  .  f  .  .  f  .
rewrite_deferred    b  X  f  f  J  f  R  .  X  .  .  f  .  .  f  .
merge               R  X  R  R  a  R  R  X  X  .  G  R  X  .  R  .
project             z  X  .  z  .  .  R  R  X  .  .  z  X  .  z  .
restore             b  .  .  .  .  .  .  .  .  .  s  .  X  .  .  .
reserve_fragments   b  X  .  .  .  .  .  .  X  b  .  .  .  .  .  .
update_config       .  v  .  .  .  .  g  .  t  .  c  .  .  .  .  .
data_replacement    .  X  x  x  u  f  R  y  X  .  .  E  X  .  .  .
update_bases        .  .  .  .  .  .  .  .  .  .  .  .  .  B  .  .
"""


def _read_grid() -> dict[str, dict[str, Verdict | Rule]]:
    header, *rows = _GRID.strip().splitlines()
    columns = [_COLUMNS[label] for label in header.split()[3:]]
    cells: dict[str, Verdict | Rule] = {**{v.value: v for v in Verdict}, **RULES}
    grid = {}
    for row in rows:
        ours, *letters = row.split()
        assert len(letters) == len(columns), f"{len(letters)} letters for {len(columns)} operations: {row}"
        grid[ours] = {theirs: cells[letter] for theirs, letter in zip(columns, letters, strict=True)}
    return grid


CONFLICTS = _read_grid()


def verdict(ours: Transaction, theirs: Transaction, *, deferred: bool = False) -> Verdict:
    """Return whether `ours` may be committed on top of `theirs`, which it did not know of.

    Args:
        ours: the transaction being committed; its operation has a row in the grid.
        theirs: a transaction committed since `ours.read_version`.
        deferred: ours is a Rewrite that brings a fragment-reuse entry.
    """
    if theirs.name is None or ours.name is None:
        return Verdict.INCOMPATIBLE
    cell = CONFLICTS["rewrite_deferred" if deferred else ours.name][theirs.name]
    return cell if isinstance(cell, Verdict) else cell(ours.operation, theirs.operation)
